"""Rules for imports and files: which package may import which, no import cycles, file size, fast command start.

Parses the sources; imports nothing.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED_IMPORTS = {
    "acoustic": {"acoustic"},
    "lm": {"lm"},
    "service": {"service", "acoustic", "lm"},
    "training": {"training", "acoustic", "lm"},
}
# A module that every package may import: it imports nothing from the project.
FILES_MODULE = "acoustic.files"
# Parts of the service that read no clock, open no socket and start no thread.
PURE = ("service/session", "service/protocols", "service/scheduling/planner.py")
IO_MODULES = {
    "asyncio",
    "socket",
    "threading",
    "multiprocessing",
    "subprocess",
    "time",
    "aiohttp",
    "websockets",
}
MAX_LINES = 600
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def sources(*packages: str) -> Iterator[Path]:
    for package in packages or ALLOWED_IMPORTS:
        yield from sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, *, at_import_time: bool = False) -> set[str]:
    """Dotted names that the file imports. `at_import_time`: not those inside functions or under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import, use the full name"
                found.add(child.module or "")
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            if at_import_time and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if at_import_time and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            visit(child)

    visit(tree)
    return found


@pytest.mark.parametrize("package", ALLOWED_IMPORTS)
def test_packages_import_only_lower_packages(package: str) -> None:
    for path in sources(package):
        names = {name for name in imported(path) if not f"{name}.".startswith(f"{FILES_MODULE}.")}
        used = {name.split(".")[0] for name in names} & set(ALLOWED_IMPORTS)
        assert used <= ALLOWED_IMPORTS[package], (
            f"{path.relative_to(ROOT)} imports {used - ALLOWED_IMPORTS[package]}"
        )


def test_the_files_module_imports_nothing_from_the_project() -> None:
    used = {name.split(".")[0] for name in imported(ROOT / "acoustic" / "files.py")}
    assert not used & set(ALLOWED_IMPORTS)


def test_no_import_cycles() -> None:
    """Imports under TYPE_CHECKING and inside functions count."""
    modules = {module_name(path): path for path in sources()}
    imports = {
        name: {used for used in imported(path) if used in modules and used != name}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, path_so_far: tuple[str, ...]) -> None:
        assert name not in path_so_far, " -> ".join([*path_so_far[path_so_far.index(name) :], name])
        if name not in done:
            for used in sorted(imports[name]):
                visit(used, (*path_so_far, name))
            done.add(name)

    for name in imports:
        visit(name, ())


@pytest.mark.parametrize("place", PURE)
def test_pure_modules_have_no_clock_no_socket_no_thread(place: str) -> None:
    path = ROOT / place
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    assert files, f"{place}: no such module"
    for file in files:
        used = {name.split(".")[0] for name in imported(file)} & IO_MODULES
        assert not used, f"{file.relative_to(ROOT)} imports {used}"


def test_modules_are_short_documented_and_named() -> None:
    for path in sources():
        text = path.read_text()
        where = path.relative_to(ROOT)
        assert text.count("\n") <= MAX_LINES, f"{where}: more than {MAX_LINES} lines: split it"
        assert ast.get_docstring(ast.parse(text)), f"{where}: no module docstring"
        assert path.stem not in VAGUE_NAMES, f"{where}: vague name"


def test_commands_import_nothing_heavy() -> None:
    """`silica --help` imports every command, so a command may import only the standard library at module level."""
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
            assert not used & (heavy | set(ALLOWED_IMPORTS)), (
                f"{path.relative_to(ROOT)}: {used & (heavy | set(ALLOWED_IMPORTS))}"
            )


def test_every_command_has_the_interface() -> None:
    from service.commands import build_parser, command_modules

    commands = command_modules()
    for name, module in commands.items():
        assert module.HELP and callable(module.add_arguments) and callable(module.run), name
    assert build_parser(commands).format_help()


def test_commands_set_one_openblas_thread() -> None:
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
