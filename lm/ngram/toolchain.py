"""KenLM's builder programs, compiled once from the source of the `kenlm` package and kept in a cache.

Compiling takes cmake, make, a C++ compiler and four Boost -dev packages; nothing else here needs them.
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
    """Where the compiled programs lie."""

    lmplz: Path
    build_binary: Path


def tools(progress: Progress) -> Tools:
    """The compiled programs; the first call on a machine compiles them (about a minute)."""
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
    with tempfile.TemporaryDirectory(prefix="silica-kenlm-") as scratch:
        work = Path(scratch)
        progress(f"fetching the source of kenlm {KENLM_VERSION}")
        source = _source(work)
        build = work / "build"
        build.mkdir()
        progress("compiling KenLM's builder (once on this machine, about a minute)")
        configure = ["cmake", "-DCMAKE_BUILD_TYPE=Release", f"-DKENLM_MAX_ORDER={MAX_ORDER}", str(source)]
        _step(configure, build, f"is a Boost package missing? apt-get install {DEBIAN_PACKAGES}")
        jobs = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        _step(["make", f"-j{jobs}", *PROGRAMS], build, "the compiler's last words are above")
        for program in PROGRAMS:
            # A second process never runs half a program.
            with replacing_file(folder / program) as partial:
                shutil.copy2(build / "bin" / program, partial)
    progress(f"compiled into {folder}")


def _source(work: Path) -> Path:
    """The unpacked source: a file named in $SILICA_KENLM_SOURCE, or what pip downloads."""
    given = os.environ.get("SILICA_KENLM_SOURCE")
    if given:
        archive = Path(given)
        if not archive.is_file():
            raise LanguageError(f"$SILICA_KENLM_SOURCE names no file: {given}; expected kenlm's .tar.gz")
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "kenlm"]
        command += ["--dest", str(work), f"kenlm=={KENLM_VERSION}"]
        _step(
            command,
            work,
            "without a network: fetch kenlm's .tar.gz elsewhere, name it in $SILICA_KENLM_SOURCE",
        )
        archive = next(work.glob("kenlm-*.tar.gz"))
    with tarfile.open(archive) as packed:
        packed.extractall(work / "source", filter="data")
    return next((work / "source").glob("*/CMakeLists.txt")).parent


def _step(command: list[str], folder: Path, advice: str) -> None:
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        words = "\n".join(result.stdout.strip().splitlines()[-12:])
        raise LanguageError(f"{command[0]} failed ({result.returncode}):\n{words}\n{advice}")
