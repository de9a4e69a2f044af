"""KenLM's build programs, compiled on first use from the source of the `kenlm` package and cached.

Compiling needs cmake, make, a C++ compiler and four Boost -dev packages.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from acoustic.files import cache_folder, replacing_file
from lm.errors import LanguageError

KENLM_VERSION = "0.3.0"
MAX_ORDER = 6
DEBIAN_PACKAGES = (
    "cmake make g++ libboost-program-options-dev libboost-system-dev libboost-thread-dev libboost-test-dev"
)
PROGRAMS = ("lmplz", "build_binary")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Tools:
    """The paths of the compiled programs."""

    lmplz: Path
    build_binary: Path


def tools(progress: Progress) -> Tools:
    """The compiled programs. The first call on a machine compiles them, which takes about a minute."""
    folder = cache_folder() / f"kenlm-{KENLM_VERSION}"
    found = Tools(*(folder / program for program in PROGRAMS))
    if not all((folder / program).is_file() for program in PROGRAMS):
        _compile(folder, progress)
    return found


def _compile(folder: Path, progress: Progress) -> None:
    for program in ("cmake", "make", "c++"):
        if shutil.which(program) is None:
            raise LanguageError(
                f"building a language model needs {program!r}, which is not installed; on Debian or Ubuntu: "
                f"apt-get install {DEBIAN_PACKAGES}"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="silica-kenlm-") as temp_folder:
        work = Path(temp_folder)
        progress(f"downloading the source of kenlm {KENLM_VERSION}")
        source = _source(work)
        build = work / "build"
        build.mkdir()
        progress("compiling KenLM (once per machine, about a minute)")
        configure = ["cmake", "-DCMAKE_BUILD_TYPE=Release", f"-DKENLM_MAX_ORDER={MAX_ORDER}", str(source)]
        _run(configure, build, f"is a Boost package missing? apt-get install {DEBIAN_PACKAGES}")
        jobs = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        _run(["make", f"-j{jobs}", *PROGRAMS], build, "the end of the compiler's output is above")
        for program in PROGRAMS:
            # Replaced atomically: another process never runs an incomplete program.
            with replacing_file(folder / program) as partial:
                shutil.copy2(build / "bin" / program, partial)
    progress(f"compiled into {folder}")


def _source(work: Path) -> Path:
    """The unpacked source, from the archive in $SILICA_KENLM_SOURCE or downloaded by pip."""
    archive_path = os.environ.get("SILICA_KENLM_SOURCE")
    if archive_path:
        archive = Path(archive_path)
        if not archive.is_file():
            raise LanguageError(
                f"$SILICA_KENLM_SOURCE names no file: {archive_path}; expected kenlm's .tar.gz"
            )
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "kenlm"]
        command += ["--dest", str(work), f"kenlm=={KENLM_VERSION}"]
        _run(
            command,
            work,
            "without a network, download kenlm's .tar.gz elsewhere and name it in $SILICA_KENLM_SOURCE",
        )
        archive = next(work.glob("kenlm-*.tar.gz"))
    with tarfile.open(archive) as packed:
        packed.extractall(work / "source", filter="data")
    return next((work / "source").glob("*/CMakeLists.txt")).parent


def _run(command: list[str], folder: Path, advice: str) -> None:
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        output = "\n".join(result.stdout.strip().splitlines()[-12:])
        raise LanguageError(f"{command[0]} failed ({result.returncode}):\n{output}\n{advice}")
