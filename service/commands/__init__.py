"""The `silica` command: finds the verbs, parses the line, turns known errors into one clear sentence.

A verb is one module here (or in a package registered under `silica.verbs`) with HELP, add_arguments and run.
Only verbs named on the line do heavy imports, so `silica --help` is instant.
"""

import argparse
import errno
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from types import ModuleType

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def command_modules() -> dict[str, ModuleType]:
    """Every verb by its name on the command line."""
    packages = [__name__, *(entry.value for entry in entry_points(group="silica.verbs"))]
    found: dict[str, ModuleType] = {}
    for package in packages:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if not module.name.startswith("_"):
                found[module.name.replace("_", "-")] = importlib.import_module(f"{package}.{module.name}")
    return dict(sorted(found.items()))


def build_parser(verbs: dict[str, ModuleType]) -> argparse.ArgumentParser:
    """The whole command line, one sub-parser a verb."""
    parser = argparse.ArgumentParser(
        prog="silica",
        description="Streaming speech recognition: serve it, speak to it, measure it, train it.",
        epilog="`silica VERB --help` explains a verb. Start with `silica serve`.",
    )
    commands = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in verbs.items():
        verb = commands.add_parser(name, help=module.HELP, description=module.__doc__ or module.HELP)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def known_errors() -> tuple[type[Exception], ...]:
    """The exception families whose message is meant for the person at the keyboard."""
    from acoustic.errors import AcousticError
    from lm.errors import LanguageError
    from service.errors import ServiceError

    families: list[type[Exception]] = [AcousticError, LanguageError, ServiceError]
    loaded = sys.modules.get("training.errors")
    if loaded is not None:
        families.append(loaded.TrainingError)
    return tuple(families)


def main(line: Sequence[str] | None = None) -> int:
    """Run one command line; answers the exit status: 0 well, 1 not well, 2 a mistake on the line."""
    arguments = build_parser(command_modules()).parse_args(line)
    # numpy's products are small here: a second thread for them only spins. Before numpy is loaded, by the verb.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("silica: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except known_errors() as error:
        print(f"silica: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno in DISK_FULL:
            where = f" for {error.filename}" if error.filename else ""
            print(
                f"silica: {error.strerror}{where}. Make room, then run the same line again.", file=sys.stderr
            )
            return 1
        if error.filename is None:  # no file or folder of the user's: a fault of ours, to be seen whole
            raise
        print(
            f"silica: {error.filename}: {error.strerror}. Check that name, and that you may read or write there.",
            file=sys.stderr,
        )
        return 2
