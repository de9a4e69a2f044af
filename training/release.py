"""From a training checkpoint to a served one: folded, FP16, with INT8 ranges and an ONNX file, reloaded and
compared.

What is written is read again through the runtime that serves it and must hear what the trained network hears.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acoustic import checkpoint
from acoustic.calibration import ENOUGH_S, calibrate, with_ranges
from acoustic.checkpoint import Checkpoint
from acoustic.export import export_onnx
from acoustic.features import FrontEnd
from acoustic.folding import fold
from acoustic.runtime.backend import open_backend
from acoustic.shape import ModelConfig
from lm.decoders import open_decoder
from lm.score import ErrorCounts, word_errors
from training.data.manifests import Clip
from training.data.sound import Samples, read_clip
from training.errors import TrainingError
from training.features import batch_features
from training.runs import RunFolder


@dataclass(frozen=True)
class Comparison:
    """One served form against the trained network, on the same clips."""

    form: str
    file: str
    bytes: int
    largest_difference: float
    same_best_symbol: float
    same_transcripts: int
    clips: int
    wer: float | None
    trained_wer: float | None


def trained_model(source: Path) -> Checkpoint:
    """The best model of a run's folder, else its newest averaged weights; or a checkpoint file as it is."""
    if source.is_file():
        return checkpoint.load(source)
    folder = RunFolder(source)
    if folder.best.exists():
        return checkpoint.load(folder.best)
    if not folder.last.exists():
        raise TrainingError(f"{source} holds no training run: expected best.safetensors or last.pt in it.")
    import json

    state: dict[str, Any] = torch.load(folder.last, map_location="cpu", weights_only=True)
    weights = state["average"]["values"] if state["average"] else state["model"]
    return Checkpoint(ModelConfig.from_dict(json.loads(state["config"])), weights, {"step": state["step"]})


def release(source: Path, out: Path, clips: Sequence[Clip], *, int8: bool = True) -> list[Comparison]:
    """Write `model.safetensors` (folded, FP16) and `model.int8.onnx` into a folder, and compare both.

    The clips serve twice: their sound gives the INT8 ranges (a minute at least), and all forms hear them.
    """
    if not clips:
        raise TrainingError("A release is compared on real speech: name a manifest with some clips.")
    trained = trained_model(source)
    sounds = [read_clip(clip.audio) for clip in clips]
    served = fold(trained)
    if int8:
        seconds = sum(len(sound) for sound in sounds) / trained.config.features.sample_rate
        if seconds < ENOUGH_S:
            raise TrainingError(
                f"{seconds:.0f} s of speech are too little to find the ranges of INT8: give {ENOUGH_S:.0f} s or more, "
                "or leave INT8 out."
            )
        served = with_ranges(served, calibrate(served, sounds, keep=False))
    out.mkdir(parents=True, exist_ok=True)
    file = checkpoint.save(out, served.config, served.state, served.card, "fp16")
    reference = [_hear(trained, sound) for sound in sounds]
    results = [_compare("fp16", file, file, "fp32", trained, clips, sounds, reference)]
    if int8:
        graph = export_onnx(served, out / "model.int8.onnx", calibrate(served, sounds, keep=False))
        results.append(_compare("int8", graph, file, "int8", trained, clips, sounds, reference))
    return results


def _hear(trained: Checkpoint, sound: Samples) -> torch.Tensor:
    """Log-probabilities of the trained network, as training evaluates it."""
    network = trained.network()
    samples = torch.from_numpy(sound)[None]
    with torch.no_grad():
        features, frames = batch_features(
            FrontEnd(trained.config.features), samples, torch.tensor([len(sound)])
        )
        log_probs, outputs = network(features, frames)
    heard: torch.Tensor = log_probs[0, : int(outputs[0])]
    return heard


def _compare(
    form: str,
    file: Path,
    model: Path,
    precision: Any,
    trained: Checkpoint,
    clips: Sequence[Clip],
    sounds: Sequence[Samples],
    reference: Sequence[torch.Tensor],
) -> Comparison:
    backend = open_backend(model, "cpu", precision)
    decoder = open_decoder("greedy", trained.config.alphabet)

    def words(log_probs: torch.Tensor) -> str:
        utterance = decoder.start()
        utterance.push(log_probs.numpy())
        return utterance.finish()[0].text

    largest, same, frames, equal = 0.0, 0, 0, 0
    counts = trained_counts = ErrorCounts()
    for clip, sound, expected in zip(clips, sounds, reference, strict=True):
        heard = torch.from_numpy(backend.whole(sound)).float()
        if heard.shape != expected.shape:
            raise TrainingError(
                f"The {form} form gives {tuple(heard.shape)} for {clip.audio}, the trained network "
                f"{tuple(expected.shape)}: the release is broken, please report it."
            )
        largest = max(largest, float((heard.exp() - expected.exp()).abs().max()))
        same += int((heard.argmax(-1) == expected.argmax(-1)).sum())
        frames += len(heard)
        said, before = words(heard), words(expected)
        equal += said == before
        if clip.text:
            counts += word_errors(clip.text, said)
            trained_counts += word_errors(clip.text, before)
    known = counts.words > 0
    return Comparison(
        form=form,
        file=str(file),
        bytes=file.stat().st_size,
        largest_difference=largest,
        same_best_symbol=same / max(frames, 1),
        same_transcripts=equal,
        clips=len(clips),
        wer=counts.rate if known else None,
        trained_wer=trained_counts.rate if known else None,
    )
