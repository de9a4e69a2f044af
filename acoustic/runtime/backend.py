"""The small interface of the two backends and what they share: normalised features, checks, long sound.

A backend holds no state of any stream: the same window gives the same result whoever shares the call with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic import config as shapes
from acoustic.carried import Memory, State
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.features import FrontEnd
from acoustic.framing import Samples
from acoustic.normalisation import normalise_fixed, normalise_running, normalise_whole
from acoustic.shape import FeatureConfig, ModelConfig
from acoustic.windows import Heard, LogProbs, StreamWindows, Window, WindowPlan

Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "int8", "fp16"]

NOT_FINITE = "the sound of this window is not finite (NaN or infinite samples)"
# Below this peak (three steps of 16 bits) a recording holds nothing that a mean of speech could be taken from.
SILENT_PEAK = 1e-4
NOT_HEARD = "the network gave no finite numbers for this window"

# Whole recordings go through the network in pieces of 30 s with context on each side: the memory of a forward
# pass then has a limit. A network that reaches up to 10 s (every Jasper, every `silica-`) gets all of its context
# and hears in pieces what it hears at once; the QuartzNets reach 12 to 40 s and use the nearest second or two of it
# (the table in acoustic/README.md), so 6 s are plenty.
PIECE_S = 30.0
WHOLE_REACH_S = 10.0
FAR_REACH_MARGIN_S = 6.0


class Backend(Protocol):
    """A model on a device, ready to run."""

    config: ModelConfig
    """The model as it is streamed: a front end that normalised over whole utterances is `running` here."""
    plan: WindowPlan
    """The windows this model is streamed with unless somebody asks for others."""
    precision: Precision

    def forward(self, windows: Sequence[Window]) -> list[Heard]:
        """Each window's log-probabilities, in the order given. A poisoned window spoils only itself."""

    def whole(self, samples: Samples) -> LogProbs:
        """A whole recording at once [outputs, classes], normalised as the model was trained."""

    def pieces(self, samples: Samples) -> Iterator[LogProbs]:
        """The same, handed out as it is heard, half a minute at a time."""


def open_backend(
    model: str | Path | Checkpoint, device: Device = "cpu", precision: Precision | None = None
) -> Backend:
    """A model by name, file or value, on a device. Default precision: the fastest that it is ready for."""
    from acoustic import catalogue

    checkpoint = model if isinstance(model, Checkpoint) else catalogue.find(model)
    if device == "cpu":
        from acoustic.runtime.cpu import CpuBackend

        return CpuBackend(checkpoint, precision)
    if device == "cuda":
        from acoustic.runtime.gpu import GpuBackend

        return GpuBackend(checkpoint, "cuda", precision)
    raise AcousticError(f"There is no device {device!r}: expected cpu or cuda.")


def streaming_config(config: ModelConfig) -> ModelConfig:
    """The configuration a model is streamed with: no stream can normalise over an utterance not yet over."""
    if config.features.normalise != "utterance":
        return config
    return replace(config, features=replace(_with_constants(config.features), normalise="running"))


def _with_constants(features: FeatureConfig) -> FeatureConfig:
    """With a mean and deviation of speech, also where the model was trained without."""
    if features.mean is not None and features.deviation is not None:
        return features
    if features.mels == len(shapes.SPEECH_MEAN):
        return replace(features, mean=shapes.SPEECH_MEAN, deviation=shapes.SPEECH_DEVIATION)
    # Constants for other mel bands than ours would be a guess: a stream starts from its own sound alone.
    bands = features.mels
    return replace(features, mean=(0.0,) * bands, deviation=(1.0,) * bands, prior_frames=0)


def window_features(
    front_end: FrontEnd, config: FeatureConfig, window: Window
) -> tuple[Tensor, Memory | None]:
    """A window's normalised features [mels, frames], and the memory for the next window of its stream."""
    span = window.span
    features = front_end.frames(window.samples, span.first_frame, span.end_frame)
    if config.normalise == "fixed":
        return normalise_fixed(config, features), None
    new_frames = slice(span.new_first - span.first_frame, None)
    return normalise_running(config, features, running_memory(window), new_frames)


def running_memory(window: Window) -> Memory | None:
    """What running normalisation knows before this window; None only for a stream's first."""
    if isinstance(window.memory, Memory) or (window.memory is None and not window.span.index):
        return window.memory
    raise _out_of_order(window, "running normalisation")


def carried_state(window: Window, empty: State) -> State:
    """The network's state before this window: the empty one for a stream's first, whatever came before it, and
    for a window that is heard with left context."""
    if not window.span.index or not window.span.carried:
        return empty
    if not isinstance(window.memory, State):
        raise _out_of_order(window, "carried state")
    known, expected = window.memory.values, empty.values
    if known.shape != expected.shape or known.dtype != expected.dtype:
        raise AcousticError(f"Window {window.span.index} carries the state of another model.")
    return window.memory


def _out_of_order(window: Window, what: str) -> AcousticError:
    return AcousticError(
        f"Window {window.span.index} came without its stream's memory: {what} needs the windows "
        "in order (StreamWindows.heard, then StreamWindows.renewed)."
    )


def kept_outputs(config: ModelConfig, window: Window) -> slice:
    """Which of a window's outputs are its own."""
    span = window.span
    before = span.first_frame // config.frames_per_output
    return slice(span.keep_first - before, span.keep_end - before)


def failed(config: ModelConfig, window: Window, why: str) -> Heard:
    """The result of a window that could not be heard: its stream's memory stays as it was."""
    return Heard(window.span, np.zeros((0, config.classes), np.float32), window.memory, why)


def whole_features(front_end: FrontEnd, config: FeatureConfig, samples: Samples) -> Tensor:
    """Normalised features [mels, frames] of a whole recording."""
    if samples.ndim != 1:
        raise AcousticError(f"Expected one channel of samples, got the shape {samples.shape}.")
    if not np.isfinite(samples).all():
        raise AcousticError("The sound holds samples that are not finite numbers (NaN or infinite).")
    features = front_end.whole(samples)
    if config.normalise == "utterance" and np.abs(samples).max(initial=0.0) < SILENT_PEAK:
        # Its own mean would turn silence into average speech, and QuartzNet then writes letters.
        return normalise_fixed(_with_constants(config), features)
    return normalise_whole(
        config, features[None], torch.tensor([features.shape[-1]], device=features.device)
    )[0]


def in_pieces(
    config: ModelConfig, features: Tensor, run: Callable[[Tensor], NDArray[np.float32]]
) -> Iterator[LogProbs]:
    """Features of any length through `run` ([mels, frames] to [outputs, classes]) in overlapping pieces."""
    every = config.frames_per_output
    for first, keep, end, keep_end in _pieces(config, features.shape[-1]):
        piece: LogProbs = run(features[:, first:end])
        yield piece[(keep - first) // every : config.outputs_for(keep_end - first)]


def joined(config: ModelConfig, heard: Iterable[LogProbs]) -> LogProbs:
    """All pieces as one [outputs, classes]."""
    return np.concatenate([np.zeros((0, config.classes), np.float32), *heard])


def _pieces(config: ModelConfig, frames: int) -> Iterator[tuple[int, int, int, int]]:
    """(first, keep, end, keep_end): hear the frames first..end, keep those from keep to keep_end."""
    step, rate = config.stride_frames, config.frames_per_second
    hop = -int(-PIECE_S * rate // step) * step
    left = -(-_margin(config.left_frames, rate) // step) * step
    right = _margin(config.look_ahead_frames, rate)
    keep = 0
    while keep < frames:
        # A last piece shorter than its own margin would be mostly context: the one before takes it along.
        keep_end = keep + hop if frames - keep > hop + right else frames
        yield max(0, keep - left), keep, min(frames, keep_end + right), keep_end
        keep = keep_end


def _margin(reach_frames: int, rate: float) -> int:
    """Frames of context that a piece gets on one side."""
    far = reach_frames > WHOLE_REACH_S * rate
    return int(FAR_REACH_MARGIN_S * rate) if far else reach_frames


def hear_stream(backend: Backend, samples: Samples, plan: WindowPlan | None = None) -> LogProbs:
    """A whole recording [outputs, classes] as its stream would be heard, window by window."""
    return joined(backend.config, stream_pieces(backend, samples, plan))


def stream_pieces(backend: Backend, samples: Samples, plan: WindowPlan | None = None) -> Iterator[LogProbs]:
    """The same, window by window as it is heard."""
    stream = StreamWindows(backend.config, plan or backend.plan)
    for windows in (stream.push(samples), stream.finish()):
        for window in windows:
            result = backend.forward([stream.renewed(window)])[0]
            if result.error:
                raise AcousticError(
                    f"Output {result.span.keep_first} and what follows is unknown: {result.error}."
                )
            stream.heard(result)
            yield result.log_probs
