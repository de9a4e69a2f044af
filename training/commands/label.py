"""Let a teacher listen to clips and keep what it heard: the first half of a distillation.

Writes one folder of labels for each manifest. Stop it at any time; the same command goes on where it was.
A clip that cannot be read is named and passed over.
"""

import argparse
from pathlib import Path

HELP = "let a teacher label clips: its words, its answer frame by frame, and a hidden layer where asked for"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to label, by whom, and where the labels go."""
    parser.add_argument("manifest", type=Path, nargs="+", help="manifest files, or folders that hold one")
    parser.add_argument("--teacher", required=True, help="a model by name or file (`silica models list`)")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the labels, one below it a manifest"
    )
    parser.add_argument("--precision", choices=("fp32", "int8"), help="default: the fastest that is ready")
    parser.add_argument(
        "--without-text",
        action="store_true",
        help="only clips that have no transcript: enough to learn words from",
    )
    parser.add_argument(
        "--hidden",
        type=int,
        metavar="BLOCK",
        help="also keep what the teacher's block of this number makes, in 64 bytes an output, for distil.hidden "
        "(QuartzNet 15x5: 15, its last residual block)",
    )
    parser.add_argument("--limit", type=int, help="only the first so many clips of each manifest")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: argparse.Namespace) -> int:
    """Label every manifest named."""
    import json
    import sys
    import time

    import torch
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from acoustic.catalogue import find
    from acoustic.runtime import open_backend
    from lm.decoders import open_decoder
    from training.data.manifests import read_manifest
    from training.data.sound import ClipError, read_clip
    from training.ear import Ear
    from training.errors import TrainingError
    from training.hidden import kept_basis, known_basis
    from training.labels import LabelFolder, clip_key, labelled_as, refuse_namesakes

    refuse_namesakes(arguments.manifest)
    if arguments.hidden is not None and arguments.without_text:
        raise TrainingError("A hidden layer is learnt from every clip: leave out --without-text or --hidden.")
    torch.set_num_threads(1)
    if arguments.hidden is None:
        backend = open_backend(arguments.teacher, "cpu", arguments.precision)
        config, basis = backend.config, None
    else:
        ear = Ear(find(arguments.teacher), arguments.hidden, arguments.precision)
        config = ear.config
        if known_basis(arguments.out) is None:
            print("finding the directions in which that block's outputs differ most", file=sys.stderr)
        basis = kept_basis(
            arguments.out,
            ear,
            lambda: [clip for path in arguments.manifest for clip in read_manifest(path)],
        )
    greedy = open_decoder("greedy", config.alphabet)
    summary: list[dict[str, object]] = []
    show = Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with show:
        for path in arguments.manifest:
            base, name = labelled_as(path)
            clips = [clip for clip in read_manifest(path) if not (arguments.without_text and clip.text)]
            clips = clips[: arguments.limit]
            with LabelFolder(arguments.out / name, config.classes, basis.name if basis else "") as labels:
                task = show.add_task(name, total=len(clips), completed=0)
                began, sound_s, broken = time.monotonic(), 0.0, 0
                for clip in clips:
                    show.advance(task)
                    key = clip_key(clip.audio, base)
                    if key in labels.labels:
                        continue
                    try:
                        sound = read_clip(clip.audio)
                    except ClipError as error:
                        broken += 1
                        print(f"left out: {error}", file=sys.stderr)
                        continue
                    if basis:
                        log_probs, channels = ear.hear(sound)
                        hidden = basis.bytes_of(channels)
                    else:
                        log_probs, hidden = backend.whole(sound), None
                    utterance = greedy.start()
                    utterance.push(log_probs)
                    labels.append(key, utterance.finish()[0].text, log_probs, hidden)
                    sound_s += clip.duration_s
                speed = sound_s / max(time.monotonic() - began, 1e-9)
                wordless = sum(not label.words for label in labels.labels.values())
            summary.append(
                {
                    "manifest": str(path),
                    "clips": len(labels.labels),
                    "new_hours": round(sound_s / 3600, 3),
                    "times_real_time": round(speed, 1),
                    "without_words": wordless,
                    "unreadable": broken,
                }
            )
    if arguments.json:
        print(json.dumps({"labelled": summary}))
    else:
        for row in summary:
            print(
                f"{row['manifest']}: {row['clips']} clips labelled, {row['new_hours']} h new at "
                f"{row['times_real_time']} x real time, {row['without_words']} without words, "
                f"{row['unreadable']} unreadable"
            )
    return 0
