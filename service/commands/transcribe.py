"""Turn sound files into text: any format PyAV reads, folders, wildcards, standard input; text, JSON or subtitles.

Here in this process, or with --server through a server; --jobs leaves them in its background, --realtime streams.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acoustic.runtime import Backend
    from service.audio.resample import Samples
    from service.embedded.cli_options import EmbeddedRecognizer
    from service.output.transcripts import TranscriptWord
    from service.session.events import Final

HELP = "turn sound files into text, JSON or subtitles"

FORMATS = ("text", "json", "srt", "vtt")
AUDIO_SUFFIXES = (
    ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".aac", ".webm",
    ".mkv", ".mov", ".g722", ".amr", ".aiff", ".aif", ".wma", ".au", ".caf", ".3gp",
)  # fmt: skip
LOCAL_ONLY = (
    "device",
    "precision",
    "decoder",
    "language_model",
    "width",
    "lm_weight",
    "word_bonus",
    "unknown_penalty",
    "blank_penalty",
    "streamed",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, and how to hear and write them."""
    from service.embedded.cli_options import add_recognition_arguments

    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="sound file, folder, wildcard, or - for stdin"
    )
    add_recognition_arguments(parser)
    parser.add_argument("--streamed", action="store_true", help="hear it as a live stream would be heard")
    parser.add_argument(
        "--realtime", action="store_true", help="stream it at the pace of speech, and watch the words come"
    )
    parser.add_argument(
        "--jobs",
        action="store_true",
        help="leave the files with a server as jobs; stopping does not stop them",
    )
    parser.add_argument("--server", metavar="URL", help="hear it there (with --jobs also SILICA_SERVER)")
    parser.add_argument("--key", default=os.environ.get("SILICA_KEY"), help="the server's key (SILICA_KEY)")
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to write (default: text)")
    parser.add_argument("--json", action="store_true", help="one JSON object for all files on stdout")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write each transcript as a file in this folder"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(local_only={name: parser.get_default(name) for name in LOCAL_ONLY})


def run(arguments: argparse.Namespace) -> int:
    """0: all files heard; 1: some could not be; 2: nothing to do."""
    from service.errors import ErrorCode, ServiceError
    from service.output.transcripts import FileTranscript, Writer, refuse_equal_names

    form = "json" if arguments.json else arguments.format
    files = expand(arguments.files)
    if form in ("srt", "vtt") and len(files) > 1 and arguments.out is None:
        raise ServiceError(
            ErrorCode.COMMAND_LINE,
            f"The subtitles of {len(files)} recordings cannot be one file: each counts its time from zero.",
            "Add --out FOLDER, and each gets a file of its own there.",
        )
    if arguments.out is not None:
        refuse_equal_names(files, arguments.out)
    writer = Writer(form, arguments.out, len(files) > 1)
    transcripts: list[FileTranscript] = []
    with _progress(quiet=arguments.quiet or arguments.realtime) as bar:

        def take(transcript: FileTranscript) -> None:
            transcripts.append(transcript)
            if transcript.error is not None:
                bar.console.print(
                    f"silica: {transcript.error}", style="red", markup=False, highlight=False, soft_wrap=True
                )
            elif not (arguments.realtime and form == "text" and arguments.out is None):
                writer.write(transcript)

        if arguments.jobs and arguments.server is None:
            arguments.server = os.environ.get("SILICA_SERVER", "http://127.0.0.1:8765")
        model = (_transcribe_locally if arguments.server is None else _transcribe_on_server)(
            files, arguments, bar, take
        )
    if form == "json" and not arguments.out:
        transcripts.sort(key=lambda transcript: files.index(transcript.file))
        print(json.dumps({"model": model, "files": [transcript.as_json() for transcript in transcripts]}))
    return 1 if any(transcript.error for transcript in transcripts) else 0


def _transcribe_on_server(files: list[str], arguments: argparse.Namespace, bar: Any, take: Any) -> str:
    import asyncio

    from service.clients import transcribe
    from service.clients.models import resolve_model
    from service.errors import ErrorCode, ServiceError

    for name, default in arguments.local_only.items():
        if getattr(arguments, name) != default:
            raise ServiceError(
                ErrorCode.COMMAND_LINE,
                f"--{name.replace('_', '-')} is the server's own business.",
                "Leave it out with --server.",
            )
    if arguments.jobs and arguments.realtime:
        raise ServiceError(
            ErrorCode.COMMAND_LINE,
            "A job is heard in the background and cannot be watched.",
            "One of the two.",
        )
    model = asyncio.run(resolve_model(arguments.server, arguments.key, arguments.model))
    if arguments.realtime:
        asyncio.run(transcribe.stream_files(files, arguments, take))
    else:
        way = transcribe.transcribe_as_jobs if arguments.jobs else transcribe.transcribe_files
        asyncio.run(way(files, arguments, bar, take))
    return model


def _transcribe_locally(files: list[str], arguments: argparse.Namespace, bar: Any, take: Any) -> str:
    from acoustic.errors import AcousticError
    from lm.errors import LanguageError
    from service.audio.files import declared_length_s, seekable_file
    from service.embedded.cli_options import EmbeddedRecognizer
    from service.errors import ServiceError
    from service.output.transcripts import FileTranscript

    recognizer = EmbeddedRecognizer.from_arguments(arguments)
    for file in files:
        began = time.perf_counter()
        try:
            with seekable_file(file) as recording:
                if arguments.realtime:
                    words = _transcribe_in_real_time(
                        recognizer, recording, file, arguments, several=len(files) > 1
                    )
                else:
                    length_s = None if bar.disable else declared_length_s(recording.path)
                    task = bar.add_task(Path(recording.name).name, total=length_s)
                    words = list(
                        _transcribed_words(
                            recognizer, recording, arguments.streamed, lambda s, t=task: bar.advance(t, s)
                        )
                    )
                    bar.remove_task(task)
        except (ServiceError, AcousticError, LanguageError) as error:
            take(FileTranscript(file, error=str(error)))
        else:
            took_s = time.perf_counter() - began
            take(FileTranscript(file, words, recording.duration_s, took_s))
    return recognizer.backend.config.name


def expand(names: list[str]) -> list[str]:
    """The files that names, folders and wildcards mean, each once, in the order given."""
    from service.errors import ErrorCode, ServiceError

    found: list[str] = []
    for name in names:
        path = Path(name).expanduser()
        if name == "-":
            found.append(name)
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES)
            if not inside:
                raise ServiceError(
                    ErrorCode.AUDIO_FILE,
                    f"There is no sound file in {path} or below it (*{' *'.join(AUDIO_SUFFIXES[:5])} …).",
                    "A recording of another name can be named by itself.",
                )
            found += map(str, inside)
        elif not path.exists() and any(mark in name for mark in "*?["):
            matching = sorted(map(str, Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))))
            if not matching:
                raise ServiceError(
                    ErrorCode.AUDIO_FILE, f"No file matches {name}.", "Check the wildcard and the folder."
                )
            found += matching
        else:
            found.append(str(path))
    return list(dict.fromkeys(found))


def _transcribed_words(
    recognizer: "EmbeddedRecognizer", sound: "Iterable[Samples]", streamed: bool, advance: Any
) -> Iterator["TranscriptWord"]:
    from acoustic.constants import OUTPUT_S
    from service.session.stream_settings import OFFLINE

    def counted(blocks: "Iterable[Samples]") -> Iterator[Any]:
        for piece in _pieces(recognizer.backend, blocks, streamed):
            yield piece
            advance(len(piece) * OUTPUT_S)

    for final in recognizer.utterances(sound, counted, OFFLINE):
        yield from _words(final)


def _words(final: "Final") -> Iterator["TranscriptWord"]:
    from service.output.transcripts import TranscriptWord

    for word in final.alternatives[0].words:
        yield TranscriptWord(
            word.text, round(word.start_s, 3), round(word.end_s, 3), round(word.confidence, 4)
        )


def _transcribe_in_real_time(
    recognizer: "EmbeddedRecognizer",
    sound: "Iterable[Samples]",
    file: str,
    arguments: argparse.Namespace,
    *,
    several: bool,
) -> list["TranscriptWord"]:
    """Windows heard when their sound would have been spoken; finished lines stay, the open one lives."""
    import numpy as np

    from acoustic.constants import OUTPUT_SAMPLES, SAMPLE_RATE
    from service.clients.mic import level_db
    from service.clients.terminal_display import TerminalDisplay
    from service.clients.transcript_builder import Line, TranscriptBuilder
    from service.session.stream_settings import LIVE

    prints = arguments.format == "text" and not arguments.json and arguments.out is None
    if prints and several:
        print(f"== {file}", flush=True)
    transcript = TranscriptBuilder()
    display = TerminalDisplay(transcript, quiet=arguments.quiet, prints=prints)
    began, played_samples = time.monotonic(), 0
    unspoken = np.zeros(0, np.float32)

    def read(blocks: "Iterable[Samples]") -> Iterator[Any]:
        nonlocal unspoken
        for block in blocks:
            unspoken = np.concatenate([unspoken, block])
            yield block

    def paced(blocks: "Iterable[Samples]") -> Iterator[Any]:
        nonlocal played_samples, unspoken
        for piece in _pieces(recognizer.backend, read(blocks), True):
            spoken, unspoken = np.split(unspoken, [len(piece) * OUTPUT_SAMPLES])
            played_samples += len(piece) * OUTPUT_SAMPLES
            time.sleep(max(0.0, began + played_samples / SAMPLE_RATE - time.monotonic()))
            if len(spoken):
                pcm = (np.clip(spoken, -1.0, 1.0) * 32767).astype("<i2")
                display.level(*level_db(pcm), played_samples / SAMPLE_RATE, 0.0)
            yield piece

    def on_partial(hypothesis: Any) -> None:
        transcript.partial = hypothesis.text

    found: list[TranscriptWord] = []
    with display:
        display.state("listening")
        for final in recognizer.utterances(sound, paced, LIVE, on_partial):
            transcript.partial = ""
            words = final.alternatives[0].words
            if words:
                display.finished([Line(list(words))])
            found += _words(final)
    return found


def _pieces(backend: "Backend", sound: "Iterable[Samples]", streamed: bool) -> Iterator[Any]:
    from acoustic.runtime import iter_stream_log_probs

    return iter_stream_log_probs(backend, sound) if streamed else backend.pieces(sound)


def _progress(*, quiet: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
