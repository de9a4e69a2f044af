"""Word errors on recordings whose text is known: substitutions, insertions, deletions, and the real-time factor."""

import argparse
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm.score import ErrorCounts
    from service.embedded.cli_options import EmbeddedRecognizer

HELP = "measure word errors and speed on recordings with known text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recordings, and how to hear them."""
    from service.embedded.cli_options import add_recognition_arguments

    parser.add_argument(
        "manifest", type=Path, help="manifest.jsonl (audio, duration, text a line), or the folder it is in"
    )
    add_recognition_arguments(parser)
    parser.add_argument("--streamed", action="store_true", help="hear every recording as a live stream")
    parser.add_argument(
        "--left", type=float, metavar="S", help="left context of the windows (with --streamed)"
    )
    parser.add_argument("--hop", type=float, metavar="S", help="hop of the windows")
    parser.add_argument("--look-ahead", type=float, metavar="S", help="look-ahead of the windows")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="only N recordings, evenly spread over the manifest"
    )
    parser.add_argument(
        "--worst", type=int, default=0, metavar="N", help="show the N recordings with most errors"
    )
    parser.add_argument(
        "--save-log-probs",
        type=Path,
        metavar="FOLDER",
        help="store what the network said of each recording, for `silica lm tune` and `silica lm rescore`",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else there")


def run(arguments: argparse.Namespace) -> int:
    """Hear everything, count, print. 0: all heard; 1: some could not be read and are not counted."""
    from rich.console import Console
    from rich.progress import track

    from service.embedded.cli_options import EmbeddedRecognizer
    from service.errors import ErrorCode, ServiceError

    refuse_unused_windows(arguments)
    lines = recordings(arguments.manifest, arguments.limit)
    recognizer = EmbeddedRecognizer.from_arguments(arguments)
    if arguments.save_log_probs:
        _refuse_equal_names(lines)
        arguments.save_log_probs.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    quiet = arguments.json or not sys.stderr.isatty()
    scored, unreadable = [], []
    for line in track(lines, "hearing", console=console, disable=quiet, transient=True):
        try:
            scored.append(_score(recognizer, line, arguments))
        except ServiceError as error:
            console.print(f"silica: not counted: {error}", markup=False, highlight=False, soft_wrap=True)
            unreadable.append(line["audio"])
    if not scored:
        raise ServiceError(
            ErrorCode.MANIFEST,
            f"No recording of {arguments.manifest} can be read.",
            "Do the files lie beside it?",
        )
    answer = {**_summary(recognizer, scored, arguments), "unreadable": unreadable}
    worst = sorted(scored, key=lambda one: one["errors"].errors, reverse=True)[: arguments.worst]
    answer["worst"] = [{key: one[key] for key in ("audio", "reference", "heard")} for one in worst]
    print(json.dumps(answer) if arguments.json else "\n".join(_report_lines(answer)))
    return 1 if unreadable else 0


def _refuse_equal_names(lines: Sequence[dict[str, Any]]) -> None:
    """Log-probabilities are kept by the file's name alone: the second of two that are called alike would take the place
    of the first."""
    from service.errors import ErrorCode, ServiceError

    names = Counter(Path(line["audio"]).stem for line in lines)
    name, count = names.most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise ServiceError(
            ErrorCode.MANIFEST,
            f"{count} recordings are called {name}, and --save-log-probs keeps one file a name.",
            "Rename them, or keep those of each folder by themselves.",
        )


def refuse_unused_windows(arguments: argparse.Namespace) -> None:
    """Windows are what a live stream is cut into; a whole recording has none, and figures would mislead."""
    from service.errors import ErrorCode, ServiceError

    given = [name for name in ("left", "hop", "look_ahead") if getattr(arguments, name) is not None]
    if given and not arguments.streamed:
        raise ServiceError(
            ErrorCode.COMMAND_LINE,
            f"--{given[0].replace('_', '-')} says how a stream is cut, and the recordings are heard whole.",
            "Add --streamed, or leave it out.",
        )


def recordings(manifest: Path, limit: int | None) -> list[dict[str, Any]]:
    """The manifest's lines that have a text, with the path of their sound."""
    from service.errors import ErrorCode, ServiceError

    file = manifest / "manifest.jsonl" if manifest.is_dir() else manifest
    if not file.is_file():
        raise ServiceError(
            ErrorCode.MANIFEST, f"There is no manifest {file}.", "Name a manifest.jsonl or its folder."
        )
    try:
        written = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ServiceError(
            ErrorCode.MANIFEST, f"{file} is not UTF-8 text (byte {error.start}).", "Is it a manifest?"
        ) from error
    lines = []
    for number, text in enumerate(written, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            if line["text"] is not None:
                lines.append({"audio": str(line["audio"]), "text": str(line["text"]), "folder": file.parent})
        except (ValueError, KeyError, TypeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ServiceError(
                ErrorCode.MANIFEST,
                f"Line {number} of {file} is no entry of a manifest ({why}).",
                'Expected {"audio": FILE, "text": WORDS} as JSON on every line.',
            ) from error
    if not lines:
        raise ServiceError(
            ErrorCode.MANIFEST, f"No recording of {file} has a text.", "Only those can be scored."
        )
    if limit is not None and limit < 1:
        raise ServiceError(ErrorCode.MANIFEST, f"--limit {limit} leaves nothing.", "Expected one or more.")
    return lines if limit is None else lines[:: max(1, len(lines) // limit)][:limit]


def _score(
    recognizer: "EmbeddedRecognizer", line: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    from acoustic.constants import SAMPLE_RATE
    from lm.score import character_errors, word_errors
    from lm.text.normalize import normalize
    from service.audio.files import read_mono

    samples = read_mono(line["folder"] / line["audio"])
    began, began_cpu = time.perf_counter(), time.process_time()
    log_probs = _log_probs(recognizer, samples, arguments)
    if arguments.save_log_probs:
        _keep(arguments.save_log_probs / f"{Path(line['audio']).stem}.npy", log_probs)
    middle = time.perf_counter()
    hypothesis = recognizer.text(log_probs)
    ended, ended_cpu = time.perf_counter(), time.process_time()
    reference = normalize(line["text"])
    return {
        "audio": line["audio"],
        "reference": reference,
        "heard": hypothesis,
        "errors": word_errors(reference, hypothesis),
        "characters": character_errors(reference, hypothesis),
        "audio_s": len(samples) / SAMPLE_RATE,
        "acoustic_s": middle - began,
        "decoding_s": ended - middle,
        "cpu_s": ended_cpu - began_cpu,
    }


def _keep(path: Path, log_probs: Any) -> None:
    import numpy as np

    stored = io.BytesIO()
    np.save(stored, np.asarray(log_probs, np.float32))
    path.write_bytes(stored.getbuffer())  # numpy's own writing does not say that a disk is full


def _log_probs(recognizer: "EmbeddedRecognizer", samples: Any, arguments: argparse.Namespace) -> Any:
    from acoustic.runtime import stream_log_probs
    from acoustic.windows import plan_for

    backend = recognizer.backend
    if not arguments.streamed:
        return backend.whole(samples)
    plan, second = backend.plan, backend.config.frames_per_second
    given = (arguments.left, arguments.hop, arguments.look_ahead)
    usual = (plan.left_frames / second, plan.hop_frames / second, plan.look_ahead_frames / second)
    seconds = [default if value is None else value for value, default in zip(given, usual, strict=True)]
    chosen = plan_for(backend.config, *seconds)
    if plan.stateful and arguments.left is None:
        chosen = replace(chosen, stateful=True)
    return stream_log_probs(backend, samples, chosen)


def _summary(
    recognizer: "EmbeddedRecognizer", scored: list[dict[str, Any]], arguments: argparse.Namespace
) -> dict[str, Any]:
    from lm.score import ErrorCounts

    words = sum((one["errors"] for one in scored), ErrorCounts())
    characters = sum((one["characters"] for one in scored), ErrorCounts())
    totals = {
        key: sum(one[key] for one in scored) for key in ("audio_s", "acoustic_s", "decoding_s", "cpu_s")
    }
    took_s = totals["acoustic_s"] + totals["decoding_s"]
    low, high = _interval([one["errors"] for one in scored])
    return {
        "model": recognizer.backend.config.name,
        "precision": recognizer.backend.precision,
        "device": arguments.device,
        "decoder": arguments.decoder,
        "language_model": recognizer.language_model,
        "streamed": arguments.streamed,
        "recordings": len(scored),
        "wer": words.rate,
        "wer_low": low,
        "wer_high": high,
        "words": words.words,
        "substitutions": words.substitutions,
        "insertions": words.insertions,
        "deletions": words.deletions,
        "cer": characters.rate,
        "audio_s": totals["audio_s"],
        "acoustic_s": totals["acoustic_s"],
        "decoding_s": totals["decoding_s"],
        "real_time_factor": took_s / max(totals["audio_s"], 1e-9),
        "times_real_time": totals["audio_s"] / max(took_s, 1e-9),
        "times_real_time_cpu": totals["audio_s"] / max(totals["cpu_s"], 1e-9),
    }


def _interval(errors: "list[ErrorCounts]", draws: int = 1000) -> tuple[float, float]:
    """Where the rate would lie in 95 of 100 samples of such recordings (bootstrap over recordings)."""
    import numpy as np

    wrong = np.array([one.errors for one in errors])
    words = np.array([one.words for one in errors])
    chosen = np.random.default_rng(0).integers(0, len(errors), (draws, len(errors)))
    rates = wrong[chosen].sum(axis=1) / np.maximum(words[chosen].sum(axis=1), 1)
    low, high = np.quantile(rates, (0.025, 0.975))
    return float(low), float(high)


def _report_lines(answer: dict[str, Any]) -> list[str]:
    how = "as streams" if answer["streamed"] else "whole"
    lines = [
        f"{answer['model']} ({answer['precision']} on {answer['device']}), {answer['decoder']}, language model "
        f"{answer['language_model']}, {answer['recordings']} recordings {how}"
        + (f", {len(answer['unreadable'])} more could not be read" if answer["unreadable"] else ""),
        f"WER {answer['wer']:.2%} (95 of 100 samples: {answer['wer_low']:.2%} to {answer['wer_high']:.2%}) of "
        f"{answer['words']} words: {answer['substitutions']} substitutions, {answer['insertions']} insertions, "
        f"{answer['deletions']} deletions; CER {answer['cer']:.2%}",
        f"{answer['audio_s']:.0f} s of sound in {answer['acoustic_s']:.1f} s acoustics and "
        f"{answer['decoding_s']:.1f} s decoding: real-time factor {answer['real_time_factor']:.4f} "
        f"({answer['times_real_time']:.1f} x real time; {answer['times_real_time_cpu']:.1f} x by processor time)",
    ]
    for one in answer["worst"]:
        lines += [one["audio"], f"  said   {one['reference']}", f"  heard  {one['hypothesis']}"]
    return lines
