"""From a training checkpoint to a served one: folded, FP16, with INT8 ranges and an ONNX file, reloaded and
compared.

What is written is read again through the runtime that serves it and must hear what the trained network hears.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from acoustic import checkpoint
from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.export.onnx import export_onnx
from acoustic.features.front_end import FrontEnd
from acoustic.network.folding import fold
from acoustic.quantization.calibration import MIN_CALIBRATION_S, calibrate
from acoustic.quantization.gptq import apply_gptq
from acoustic.quantization.ranges import with_ranges
from acoustic.quantization.smoothquant import apply_smoothquant
from acoustic.runtime import open_backend
from acoustic.runtime.backend import concatenate, run_in_blocks, whole_features
from acoustic.runtime.cpu import open_session
from acoustic.windows import LogProbs
from lm.decoders import open_decoder
from lm.score import ErrorCounts, word_errors
from training.data.audio import Samples, read_clip
from training.data.features import batch_features
from training.data.manifests import Clip
from training.errors import TrainingError
from training.run.checkpoints import RunFolder


@dataclass(frozen=True)
class Comparison:
    """One served form against the trained network, on the same clips."""

    form: str
    file: str
    bytes: int
    max_difference: float
    same_best_symbol: float
    same_transcripts: int
    clips: int
    wer: float | None
    trained_wer: float | None


def trained_model(source: Path) -> Checkpoint:
    """The best model of a run's folder, else its newest averaged weights; or a checkpoint file as it is."""
    if source.is_file():
        return checkpoint.load(source)
    if not source.is_dir():
        raise TrainingError(f"There is no {source}: expected a run's folder or a checkpoint file.")
    folder = RunFolder(source)
    if folder.best.exists():
        return checkpoint.load(folder.best)
    if not folder.last.exists():
        raise TrainingError(f"{source} holds no training run: expected best.safetensors or last.pt in it.")
    import json

    state: dict[str, Any] = torch.load(folder.last, map_location="cpu", weights_only=True)
    weights = state["average"]["values"] if state["average"] else state["model"]
    config = ModelConfig.from_dict(json.loads(state["config"]))
    return Checkpoint(config, weights, {"step": state["step"]})


def export_model(
    source: Path,
    out: Path,
    clips: Sequence[Clip],
    *,
    int8: bool = True,
    weights: checkpoint.Dtype = "fp16",
    keep_batchnorm: bool = False,
    search: Mapping[str, float] | None = None,
    blank_bias: float = 0.0,
    report: Callable[[str], None] = lambda text: None,
) -> list[Comparison]:
    """Write `model.safetensors` (folded, FP16 or INT8 weights) and `model.int8.onnx` into a folder, and compare both.

    The clips serve three times: their sound says which rounding of weights costs least and gives the INT8 ranges (a
    minute at least), and all forms hear them. With `keep_batchnorm` the batch norms stay apart in the file (whoever serves
    it folds them): training can go on from it. `search` is what the card shall say of the search that suits the model.
    `blank` is added to the score of writing nothing at an output: below nought, a model in doubt leaves less out.
    `tell` is told how far it has come: some minutes pass.
    """
    if not clips:
        raise TrainingError("A release is compared on real speech: name a manifest with some clips.")
    trained = trained_model(source)
    if search:
        trained = replace(trained, card={**trained.card, "search": dict(search)})
    if blank_bias:
        trained = _with_blank_bias(trained, blank_bias)
    sounds = [read_clip(clip.audio) for clip in clips]
    if int8:
        report(f"channels brought to like ranges, by what {len(sounds)} clips show of them")
        trained = apply_smoothquant(trained, sounds)
    kept = apply_gptq(trained, sounds, report) if weights == "int8" else trained
    kept = kept if keep_batchnorm else fold(kept)
    kept = checkpoint.quantize_checkpoint(kept) if weights == "int8" else kept
    served = fold(kept)
    if int8:
        seconds = sum(len(audio) for audio in sounds) / trained.config.features.sample_rate
        if seconds < MIN_CALIBRATION_S:
            raise TrainingError(
                f"{seconds:.0f} s of speech are too little to find the ranges of INT8: "
                f"give {MIN_CALIBRATION_S:.0f} s or more, or leave INT8 out (--no-int8)."
            )
        ranges = calibrate(served, sounds, keep=False, tell=report)
        served = with_ranges(served, ranges)
    out.mkdir(parents=True, exist_ok=True)
    file = checkpoint.save(out, kept.config, kept.state, served.card, weights)
    report(f"comparing on {len(sounds)} clips")
    reference = [_hear(trained, audio) for audio in sounds]
    whole = open_backend(file, "cpu", "fp32").whole
    form = "fp16" if weights == "fp16" else f"{weights} weights"
    results = [_compare(form, file, whole, trained, clips, sounds, reference)]
    if int8:
        graph = export_onnx(served, out / "model.int8.onnx", ranges)
        results.append(_compare("int8", graph, _onnx(graph, served), trained, clips, sounds, reference))
    return results


def _with_blank_bias(trained: Checkpoint, bias: float) -> Checkpoint:
    scores = trained.state["output.bias"].float().reshape(trained.config.outputs_per_step, -1).clone()
    scores[:, trained.config.blank] += bias
    return replace(trained, state={**trained.state, "output.bias": scores.flatten()})


def _hear(trained: Checkpoint, audio: Samples) -> torch.Tensor:
    """Log-probabilities of the trained network, as training evaluates it."""
    network = trained.network()
    samples = torch.from_numpy(audio)[None]
    with torch.no_grad():
        features, frames = batch_features(
            FrontEnd(trained.config.features), samples, torch.tensor([len(audio)])
        )
        log_probs, outputs = network(features, frames)
    heard: torch.Tensor = log_probs[0, : int(outputs[0])]
    return heard


def _onnx(file: Path, served: Checkpoint) -> Callable[[Samples], LogProbs]:
    """The very file that was written, in ONNX Runtime."""
    session = open_session(file.read_bytes())
    front_end = FrontEnd(served.config.features)

    def run(features: torch.Tensor) -> LogProbs:
        log_probs: LogProbs = session.run(None, {"features": features[None].numpy()})[0][0]
        return log_probs

    def whole(audio: Samples) -> LogProbs:
        features = whole_features(front_end, served.config.features, audio)
        return concatenate(served.config, run_in_blocks(served.config, [features], run))

    return whole


def _compare(
    form: str,
    file: Path,
    whole: Callable[[Samples], LogProbs],
    trained: Checkpoint,
    clips: Sequence[Clip],
    sounds: Sequence[Samples],
    reference: Sequence[torch.Tensor],
) -> Comparison:
    decoder = open_decoder("greedy", trained.config.alphabet)

    def words(log_probs: torch.Tensor) -> str:
        utterance = decoder.start()
        utterance.push(log_probs.numpy())
        return utterance.finish()[0].text

    largest, same, frames, equal = 0.0, 0, 0, 0
    counts = trained_counts = ErrorCounts()
    for clip, audio, expected in zip(clips, sounds, reference, strict=True):
        heard = torch.from_numpy(whole(audio)).float()
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
        max_difference=largest,
        same_best_symbol=same / max(frames, 1),
        same_transcripts=equal,
        clips=len(clips),
        wer=counts.rate if known else None,
        trained_wer=trained_counts.rate if known else None,
    )
