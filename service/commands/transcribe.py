"""Turn sound files into text: any format PyAV reads, folders, wildcards, standard input; text, JSON or subtitles."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acoustic.runtime import Backend
    from service.audio.resample import Samples
    from service.listening import Listener
    from service.offline import TimedWord

HELP = "turn sound files into text, JSON or subtitles"

FORMATS = ("text", "json", "srt", "vtt")
SOUND_SUFFIXES = (
    ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".aac", ".webm",
    ".mkv", ".mov", ".g722", ".amr", ".aiff", ".aif", ".wma", ".au", ".caf", ".3gp",
)  # fmt: skip
LONGEST_S = 6 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, and how to hear and write them."""
    from service.listening import add_listening_arguments

    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="sound file, folder, wildcard, or - for stdin"
    )
    add_listening_arguments(parser)
    parser.add_argument("--streamed", action="store_true", help="hear it as a live stream would be heard")
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to write (default: text)")
    parser.add_argument("--json", action="store_true", help="one JSON object for all files on stdout")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write a file beside each name here, not to stdout"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> int:
    """0: all files heard; 1: some could not be; 2: nothing to do."""
    from acoustic.errors import AcousticError
    from lm.errors import LanguageError
    from service.errors import ServiceError
    from service.listening import Listener

    form = "json" if arguments.json else arguments.format
    files = expand(arguments.files)
    listener = Listener.from_arguments(arguments)
    results: list[dict[str, Any]] = []
    with _progress(quiet=arguments.quiet) as bar:
        for file in files:
            began = time.perf_counter()
            result: dict[str, Any] = {"file": file, "error": None}
            try:
                samples = _sound(file)
                task = bar.add_task(Path(file).name, total=len(samples) / 16_000)
                words = list(
                    _heard(listener, samples, arguments.streamed, lambda s, t=task: bar.advance(t, s))
                )
                result |= _described(words, samples, time.perf_counter() - began)
                if form != "json" or arguments.out:
                    _write(form, file, words, result, arguments.out, several=len(files) > 1)
            except (ServiceError, AcousticError, LanguageError) as error:
                result["error"] = str(error)
                bar.console.print(
                    f"silica: {error}", style="red", markup=False, highlight=False, soft_wrap=True
                )
            results.append(result)
    if form == "json" and not arguments.out:
        print(json.dumps({"model": listener.backend.config.name, "files": results}))
    return 1 if any(result["error"] for result in results) else 0


def expand(names: list[str]) -> list[str]:
    """The files that names, folders and wildcards mean, each once, in the order given."""
    from service.errors import ServiceError

    found: list[str] = []
    for name in names:
        path = Path(name).expanduser()
        if name == "-":
            found.append(name)
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SOUND_SUFFIXES)
            if not inside:
                raise ServiceError("audio_file", f"There is no sound file in {path}.", "Name one by itself.")
            found += map(str, inside)
        elif not path.exists() and any(mark in name for mark in "*?["):
            matching = sorted(map(str, Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))))
            if not matching:
                raise ServiceError("audio_file", f"Nothing here matches {name}.", "Check the wildcard.")
            found += matching
        else:
            found.append(str(path))
    return list(dict.fromkeys(found))


def _sound(file: str) -> "Samples":
    import numpy as np

    from service.audio.files import read_mono, read_stream

    if file == "-":
        blocks = list(read_stream(sys.stdin.buffer, "standard input"))
        return np.concatenate([block.mean(axis=0) for block in blocks])
    return read_mono(file, LONGEST_S)


def _heard(listener: "Listener", samples: "Samples", streamed: bool, advance: Any) -> Iterator["TimedWord"]:
    def counted() -> Iterator[Any]:
        for piece in _pieces(listener.backend, samples, streamed):
            yield piece
            advance(len(piece) * 0.02)

    yield from listener.words(counted())


def _pieces(backend: "Backend", samples: "Samples", streamed: bool) -> Iterator[Any]:
    from acoustic.runtime import stream_pieces

    return stream_pieces(backend, samples) if streamed else backend.pieces(samples)


def _described(words: list["TimedWord"], samples: "Samples", took_s: float) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "duration_s": round(len(samples) / 16_000, 3),
        "took_s": round(took_s, 3),
        "text": " ".join(word.text for word in words),
        "words": [asdict(word) | {"confidence": round(word.confidence, 4)} for word in words],
    }


def _write(
    form: str,
    file: str,
    words: list["TimedWord"],
    result: dict[str, Any],
    out: Path | None,
    *,
    several: bool,
) -> None:
    from service.subtitles import to_srt, to_vtt

    if form == "json":
        content = json.dumps(result, indent=1) + "\n"
    elif form == "text":
        content = result["text"] + "\n"
    else:
        content = to_srt(words) if form == "srt" else to_vtt(words)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        name = "stdin" if file == "-" else Path(file).name
        (out / f"{name}.{'txt' if form == 'text' else form}").write_text(content, encoding="utf-8")
        return
    if several:
        print(f"== {file}" if form == "text" else f"NOTE {file}\n")
    print(content, end="", flush=True)


def _progress(*, quiet: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
