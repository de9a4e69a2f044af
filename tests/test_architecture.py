"""Rules for imports and files: which package may import which, no circles, no overlong files, fast command start.

Reads every import as text; runs nothing.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_USE = {
    "acoustic": {"acoustic"},
    "lm": {"lm"},
    "service": {"service", "acoustic", "lm"},
    "training": {"training", "acoustic", "lm"},
}
# The one module that every package may import: it imports nothing of the project itself.
FILES = "acoustic.files"
# The parts of the service that read no clock, open no socket and start no thread.
PURE = ("service/core", "service/dialects", "service/scheduling/planner.py")
IMPURE = {"asyncio", "socket", "threading", "multiprocessing", "subprocess", "time", "aiohttp", "websockets"}
MAX_FILE = 600
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def sources(*packages: str) -> Iterator[Path]:
    for package in packages or MAY_USE:
        yield from sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, *, at_import_time: bool = False) -> set[str]:
    """Dotted names the file imports; at import time only: without what functions import when called."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import; whole names read better"
                found.add(child.module or "")
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            if at_import_time and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if at_import_time and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            visit(child)

    visit(tree)
    return found


@pytest.mark.parametrize("package", MAY_USE)
def test_packages_use_only_what_lies_below_them(package: str) -> None:
    for path in sources(package):
        names = {name for name in imported(path) if not f"{name}.".startswith(f"{FILES}.")}
        used = {name.split(".")[0] for name in names} & set(MAY_USE)
        assert used <= MAY_USE[package], f"{path.relative_to(ROOT)} imports {used - MAY_USE[package]}"


def test_the_files_module_imports_nothing_of_the_project() -> None:
    used = {name.split(".")[0] for name in imported(ROOT / "acoustic" / "files.py")}
    assert not used & set(MAY_USE)


def test_no_circles_between_modules() -> None:
    """Imports under TYPE_CHECKING and inside functions count."""
    modules = {module_name(path): path for path in sources()}
    arrows = {
        name: {used for used in imported(path) if used in modules and used != name}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def follow(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for used in sorted(arrows[name]):
                follow(used, (*trail, name))
            done.add(name)

    for name in arrows:
        follow(name, ())


@pytest.mark.parametrize("place", PURE)
def test_the_core_has_no_clock_no_socket_no_thread(place: str) -> None:
    path = ROOT / place
    for file in [path] if path.suffix else sorted(path.rglob("*.py")):
        used = {name.split(".")[0] for name in imported(file)} & IMPURE
        assert not used, f"{file.relative_to(ROOT)} imports {used}"


def test_a_file_is_one_idea() -> None:
    for path in sources():
        text = path.read_text()
        where = path.relative_to(ROOT)
        assert text.count("\n") <= MAX_FILE, (
            f"{where}: longer than {MAX_FILE} lines; what is its second idea?"
        )
        assert ast.get_docstring(ast.parse(text)), f"{where}: say at the top what lives here"
        assert path.stem not in NAMES_THAT_SAY_NOTHING, f"{where}: the name says nothing"


def test_verbs_import_nothing_heavy() -> None:
    """`silica --help` reads every verb, so a verb may import only the small standard library at its top."""
    heavy = {
        "numpy",
        "torch",
        "aiohttp",
        "onnxruntime",
        "numba",
        "rich",
        "av",
        "soxr",
        "sounddevice",
        "kenlm",
    }
    for folder in ("service/commands", "training/commands"):
        for path in sorted((ROOT / folder).glob("*.py")):
            used = {name.split(".")[0] for name in imported(path, at_import_time=True)}
            assert not used & (heavy | set(MAY_USE)), (
                f"{path.relative_to(ROOT)}: {used & (heavy | set(MAY_USE))}"
            )


def test_every_verb_keeps_the_form() -> None:
    from service.commands import build_parser, command_modules

    verbs = command_modules()
    for name, module in verbs.items():
        assert module.HELP and callable(module.add_arguments) and callable(module.run), name
    assert build_parser(verbs).format_help()


def test_a_command_multiplies_small_matrices_on_one_thread() -> None:
    code = (
        "import os, sys\n"
        "from service.commands import main\n"
        "assert 'numpy' not in sys.modules\n"
        "assert main(['models', 'list']) == 0\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for given, expected in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
        line, env = [sys.executable, "-c", code], {**environment, **given}
        done = subprocess.run(line, capture_output=True, text=True, env=env)
        assert done.stdout.split()[-1:] == [expected], done.stderr
