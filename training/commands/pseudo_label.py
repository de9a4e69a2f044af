"""Label the clips that have no transcript with the words that a trained model recognizes in them (pseudo-labels).

Writes one folder of labels for each manifest. Stop it at any time; the same command goes on where it was.
A clip that cannot be read is named and passed over.
"""

import argparse
from pathlib import Path

HELP = "label clips that have no transcript with a trained model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to label, by whom, and where the labels go."""
    parser.add_argument("manifest", type=Path, nargs="+", help="manifest files, or folders that hold one")
    parser.add_argument("--teacher", required=True, help="a model by name or file (`silica models list`)")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the labels, one below it a manifest"
    )
    parser.add_argument("--precision", choices=("fp32", "int8"), help="default: the fastest that is ready")
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

    from acoustic.runtime import open_backend
    from lm.decoders import open_decoder
    from training.data.audio import ClipError, read_clip
    from training.data.manifests import read_manifest
    from training.distillation.pseudo_labels import LabelFolder, clip_key, labelled_as, refuse_namesakes

    refuse_namesakes(arguments.manifest)
    torch.set_num_threads(1)
    backend = open_backend(arguments.teacher, "cpu", arguments.precision)
    greedy = open_decoder("greedy", backend.config.alphabet)
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
            clips = [clip for clip in read_manifest(path) if not clip.text][: arguments.limit]
            with LabelFolder(arguments.out / name) as labels:
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
                    utterance = greedy.start()
                    utterance.push(backend.recording_log_probs(sound))
                    labels.append(key, utterance.finish()[0].text)
                    sound_s += clip.duration_s
                speed = sound_s / max(time.monotonic() - began, 1e-9)
                wordless = sum(not words for words in labels.labels.values())
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
