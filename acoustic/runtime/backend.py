"""The small interface of the two backends and what they share: normalized features, checks, long sound.

A backend holds no state of any stream: the same window gives the same result whoever shares the call with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acoustic import architectures as shapes
from acoustic.config import FeatureConfig, ModelConfig
from acoustic.constants import SAMPLE_RATE
from acoustic.errors import AcousticError
from acoustic.features.framing import Samples, sample_span
from acoustic.features.front_end import FeatureStream, FrontEnd
from acoustic.features.limiter import LevelLimiter
from acoustic.features.normalization import (
    initial_normalization_state,
    normalize_causal,
    normalize_fixed,
    normalize_running,
)
from acoustic.stream_state import NormalizationState, StreamState
from acoustic.windows import LogProbs, StreamWindows, Window, WindowOutput, WindowPlan

DeviceKind = Literal["cpu", "cuda"]
Precision = Literal["fp32", "int8", "fp16"]

AUDIO_NOT_FINITE = "the sound of this window is not finite (NaN or infinite samples)"
# Below this peak (three steps of 16 bits) a recording holds nothing that a mean of speech could be taken from.
SILENT_PEAK = 1e-4
NEVER_FADES = 2**62
AT_ONCE_SAMPLES = 10 * SAMPLE_RATE
"""Spectra take far more room than the features that are made of them."""
NETWORK_NOT_FINITE = "the network gave no finite numbers for this window"

# Whole recordings go through the network in pieces of 30 s with context on each side: the memory of a forward
# pass then has a limit. A network that reaches up to 10 s ahead and a minute back (every Jasper, every `silica-`) gets
# all of its context and hears in pieces what it hears at once; the QuartzNets reach 12 to 40 s to both sides and use
# the nearest second or two of it (the table in acoustic/README.md), so 6 s are plenty.
PIECE_S = 30.0
# With carried state no context is computed twice, and pieces of 8 s are the fastest.
STATEFUL_BLOCK_S = 8.0
WHOLE_REACH_S = 10.0
WHOLE_PAST_S = 60.0
FAR_REACH_MARGIN_S = 6.0


class Backend(Protocol):
    """A model on a device, ready to run."""

    config: ModelConfig
    """The model as it is streamed: a front end that normalized over whole utterances is `running` here."""
    plan: WindowPlan
    """The windows this model is streamed with unless somebody asks for others."""
    precision: Precision

    def forward(self, windows: Sequence[Window]) -> list[WindowOutput]:
        """Each window's log-probabilities, in the order given. A poisoned window spoils only itself."""

    def whole(self, samples: Samples) -> LogProbs:
        """A whole recording at once [outputs, classes], normalized as the model was trained."""

    def pieces(self, sound: Iterable[Samples]) -> Iterator[LogProbs]:
        """The same of sound block by block, handed out as it is heard, half a minute at a time. The blocks are asked
        for twice by models that are normalized over the whole."""


def streaming_config(config: ModelConfig) -> ModelConfig:
    """The configuration a model is streamed with: no stream can normalize over an utterance not yet over."""
    if config.features.normalize != "utterance":
        return config
    return replace(config, features=replace(_with_constants(config.features), normalize="running"))


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
) -> tuple[Tensor, NormalizationState | None]:
    """A window's normalized features [mels, frames], and the memory for the next window of its stream."""
    span = window.span
    features = front_end.frames(window.samples, span.first_frame, span.end_frame)
    if config.normalize == "fixed":
        return normalize_fixed(config, features), None
    new_frames = slice(span.first_new_frame - span.first_frame, None)
    return normalize_running(config, features, running_state(window), new_frames)


def new_features(
    front_end: FrontEnd, config: ModelConfig, window: Window
) -> tuple[Tensor, NormalizationState | None]:
    """Of a window with carried state the normalized features that no window before it has needed, and what causal
    normalization knows after them."""
    span, shape = window.span, config.features
    ahead = config.look_ahead_frames
    begin = span.first_frame + ahead if span.first_frame else 0
    end = span.end_frame if span.last else span.keep_end * config.frames_per_output + ahead
    if begin < end:
        heard_from = sample_span(shape, span.first_frame, span.end_frame)[0]
        first, last = (place - heard_from for place in sample_span(shape, begin, end))
        features = front_end.frames(window.samples[first : None if span.last else last], begin, end)
    else:  # the last window may bring nothing that was not heard ahead
        features = torch.zeros(shape.mels, 0)
    if shape.normalize == "fixed":
        return normalize_fixed(shape, features), None
    normalized, history = normalize_causal(shape, features, causal_state(window))
    return normalized, history.at(-1)


def running_state(window: Window) -> NormalizationState | None:
    """What running normalization knows before this window; None only for a stream's first."""
    if isinstance(window.memory, NormalizationState) or (window.memory is None and not window.span.index):
        return window.memory
    raise _out_of_order(window, "running normalization")


def causal_state(window: Window) -> NormalizationState | None:
    """What causal normalization knows before this window: nothing for a stream's first, whatever came before it."""
    return window.memory.memory if window.span.index and isinstance(window.memory, StreamState) else None


def stream_state_of(window: Window, empty: StreamState) -> StreamState:
    """The network's state before this window: the empty one for a stream's first, whatever came before it, and
    for a window that is heard with left context."""
    if not window.span.index or not window.span.stateful:
        return empty
    if not isinstance(window.memory, StreamState):
        raise _out_of_order(window, "carried state")
    known, expected = window.memory.values, empty.values
    if known.shape != expected.shape or known.nbytes != expected.nbytes:
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


def hop_frames(config: ModelConfig, window: Window) -> int:
    """How many frames after its own first one the next window of a stream with carried state begins; nought after the
    last one."""
    return 0 if window.span.last else window.span.kept * config.frames_per_output


def failed(config: ModelConfig, window: Window, why: str) -> WindowOutput:
    """The result of a window that could not be heard: its stream's memory stays as it was."""
    return WindowOutput(window.span, np.zeros((0, config.classes), np.float32), window.memory, why)


def recording_features(front_end: FrontEnd, config: FeatureConfig, samples: Samples) -> Tensor:
    """Normalized features [mels, frames] of a whole recording."""
    return torch.cat(list(iter_recording_features(front_end, config, [samples])), dim=-1)


def iter_recording_features(
    front_end: FrontEnd, config: FeatureConfig, sound: Iterable[Samples]
) -> Iterator[Tensor]:
    """The same block by block, for sound of any length. It is read once, and twice where all of it must be heard
    before anything can be normalized."""
    if config.normalize == "causal":
        known: NormalizationState | None = None
        for features in _plain_features(front_end, sound):
            normalized, history = normalize_causal(config, features, known)
            known = history.at(-1)
            yield normalized
        return
    if config.normalize == "fixed":
        centre, scale = constants(config)
    else:
        centre, scale = _measured(front_end, config, sound)
    for features in _plain_features(front_end, sound):
        device = features.device
        yield (features - centre.to(device)) / (scale.to(device) + config.deviation_floor)


def _measured(front_end: FrontEnd, config: FeatureConfig, sound: Iterable[Samples]) -> tuple[Tensor, Tensor]:
    """What to subtract and to divide by, from the whole recording: [mels, 1] each."""
    peak = 0.0

    def listened() -> Iterator[Samples]:
        nonlocal peak
        for block in sound:
            peak = max(peak, float(np.abs(block).max(initial=0.0)))
            yield block

    known = initial_normalization_state(config) or NormalizationState(
        0.0, np.zeros(config.mels), np.zeros(config.mels)
    )
    for features in _plain_features(front_end, listened()):
        known = known.add(features, NEVER_FADES)
    if config.normalize == "utterance" and peak < SILENT_PEAK:
        # Its own mean would turn silence into average speech, and QuartzNet then writes letters.
        return constants(_with_constants(config))
    if not known.frames:
        return torch.zeros(config.mels, 1), torch.ones(config.mels, 1)
    mean, deviation = known.mean_and_deviation()
    if config.normalize == "utterance":
        deviation *= np.float32((known.frames / max(1.0, known.frames - 1.0)) ** 0.5)
    return torch.from_numpy(mean)[:, None], torch.from_numpy(deviation)[:, None]


def constants(config: FeatureConfig) -> tuple[Tensor, Tensor]:
    """The mean and deviation of each mel band, [mels, 1] each."""
    if config.mean is None or config.deviation is None:
        raise AcousticError("`fixed` normalization needs a mean and a deviation for each mel band.")
    return torch.tensor(config.mean)[:, None], torch.tensor(config.deviation)[:, None]


def _plain_features(front_end: FrontEnd, sound: Iterable[Samples]) -> Iterator[Tensor]:
    """Features as the front end makes them; the blocks in which the sound comes change no bit of them."""
    stream, config = FeatureStream(front_end), front_end.config
    loudness = LevelLimiter(config) if config.max_level_db is not None else None
    held = np.zeros(0, np.float32)
    for block in sound:
        if block.ndim != 1:
            raise AcousticError(f"Expected one channel of samples, got the shape {block.shape}.")
        if not np.isfinite(block).all():
            raise AcousticError("The sound holds samples that are not finite numbers (NaN or infinite).")
        held = np.concatenate([held, loudness.push(block) if loudness else block], dtype=np.float32)
        while len(held) >= AT_ONCE_SAMPLES:
            yield stream.push(held[:AT_ONCE_SAMPLES])
            held = held[AT_ONCE_SAMPLES:]
    yield stream.push(held)
    yield stream.finish()


def run_in_blocks(
    config: ModelConfig, features: Iterable[Tensor], run: Callable[[Tensor], NDArray[np.float32]]
) -> Iterator[LogProbs]:
    """Features of any length, block by block, through `run` ([mels, frames] to [outputs, classes]) in overlapping
    pieces. How they came in blocks changes no piece."""
    step, rate, every = config.stride_frames, config.frames_per_second, config.frames_per_output
    hop = -int(-PIECE_S * rate // step) * step
    far = config.look_ahead_frames > WHOLE_REACH_S * rate or config.left_frames > WHOLE_PAST_S * rate
    margins = (int(FAR_REACH_MARGIN_S * rate),) * 2 if far else (config.left_frames, config.look_ahead_frames)
    left, right = -(-margins[0] // step) * step, margins[1]
    held: Tensor | None = None
    first = keep = 0  # `held` begins with the frame `first`; outputs before the frame `keep` are told
    for more in features:
        held = more if held is None else torch.cat([held, more], dim=-1)
        # A last piece shorter than its own margin would be mostly context: the one before takes it along.
        while first + held.shape[-1] > keep + hop + right:
            piece: LogProbs = run(held[:, : keep + hop + right - first])
            yield piece[(keep - first) // every : config.outputs_for(keep + hop - first)]
            keep += hop
            held = held[:, max(0, keep - left) - first :]
            first = max(0, keep - left)
    if held is not None and first + held.shape[-1] > keep:
        yield run(held)[(keep - first) // every : config.outputs_for(held.shape[-1])]


def concatenate(config: ModelConfig, heard: Iterable[LogProbs]) -> LogProbs:
    """All pieces as one [outputs, classes]."""
    return np.concatenate([np.zeros((0, config.classes), np.float32), *heard])


def stream_log_probs(backend: Backend, samples: Samples, plan: WindowPlan | None = None) -> LogProbs:
    """A whole recording [outputs, classes] as its stream would be heard, window by window."""
    return concatenate(backend.config, iter_stream_log_probs(backend, [samples], plan))


def iter_stream_log_probs(
    backend: Backend, sound: Iterable[Samples], plan: WindowPlan | None = None
) -> Iterator[LogProbs]:
    """The same, window by window as it is heard, of sound block by block."""
    stream = StreamWindows(backend.config, plan or backend.plan)

    def windows() -> Iterator[Window]:
        for block in sound:
            yield from stream.push(block)
        yield from stream.finish()

    for window in windows():
        result = backend.forward([stream.with_current_state(window)])[0]
        if result.error:
            raise AcousticError(
                f"Output {result.span.keep_first} and what follows is unknown: {result.error}."
            )
        stream.update_state(result)
        yield result.log_probs
