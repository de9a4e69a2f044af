"""Windows over a stream: left context, hop and look-ahead as plain arithmetic, and the sound each needs.

A window starts at a step of the network and ends where its look-ahead ends; of its outputs only those of its
hop are kept, so the hops tile the stream: every output exactly once, whatever the length and the slicing.
With carried state a window has no left context: the network's state after the window before it stands for it.
No network and no features here. Positions are absolute: samples, feature frames (10 ms) or outputs (20 ms).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.features.framing import Samples, frame_count, sample_span
from acoustic.features.limiter import LevelLimiter
from acoustic.stream_state import NormalizationState, StreamState

LogProbs = npt.NDArray[np.float32]

# The longest left context that is taken whole. A model that reaches further gets the context it was measured
# with (the table in acoustic/README.md): QuartzNet 15x5 reaches 40 s back and needs less than three.
WHOLE_CONTEXT_S = 4.0
MAX_LOOK_AHEAD_S = 0.8
CARRIABLE = ("fixed", "causal")
"""Normalizations that go with carried state; causal normalization goes with nothing else."""


@dataclass(frozen=True)
class WindowPlan:
    """How a stream is cut, in feature frames. Left and hop are whole steps of the network."""

    left_frames: int
    hop_frames: int
    look_ahead_frames: int
    stateful: bool = False
    """Left context is not heard again: the state of every convolution travels from window to window."""

    @property
    def frames(self) -> int:
        """Feature frames in a window that is full on both sides."""
        return self.left_frames + self.hop_frames + self.look_ahead_frames


@dataclass(frozen=True)
class Span:
    """Which part of the stream one window covers: feature frames heard, output frames kept."""

    index: int
    first_frame: int
    end_frame: int
    keep_first: int
    keep_end: int
    first_new_frame: int
    """The first frame that no earlier window has heard: running normalization counts from here."""
    last: bool
    """The sound ends here: the front end closes its edge, the network pads as at the end of any recording."""
    stateful: bool = False
    """What was heard before `first_frame` is in the window's memory; window 0 begins without."""

    @property
    def frames(self) -> int:
        """Feature frames the network hears."""
        return self.end_frame - self.first_frame

    @property
    def kept(self) -> int:
        """Output frames this window contributes."""
        return self.keep_end - self.keep_first


@dataclass(frozen=True)
class Window:
    """The sound of one span, ready to be heard: float32, mono, at the model's rate."""

    samples: Samples
    span: Span
    memory: NormalizationState | StreamState | None = None
    """What the stream has shown before this window, for running normalization or as the network's carried
    state. None: nothing, or not needed."""


@dataclass(frozen=True)
class WindowOutput:
    """What a backend made of one window."""

    span: Span
    log_probs: LogProbs
    """[kept outputs, classes], natural logarithm; empty when `error` is set."""
    memory: NormalizationState | StreamState | None = None
    error: str | None = None
    """Why this one window could not be heard (sound or numbers that are not finite)."""


def default_plan(config: ModelConfig, *, stateful: bool = False) -> WindowPlan:
    """The windows a model is streamed with unless somebody asks for others.

    Bounded contexts are taken whole: streaming then hears exactly what a whole recording hears. For the
    symmetric models, trained on whole utterances, the figures are those of the table in acoustic/README.md.
    carried: the backend can carry state; models for which that is worth it are streamed so. Those with causal
    normalization always are.
    """
    bounded_left = config.left_frames <= WHOLE_CONTEXT_S * config.frames_per_second
    bounded_right = config.look_ahead_frames <= MAX_LOOK_AHEAD_S * config.frames_per_second
    plan = plan_for(
        config,
        left_s=config.left_frames / config.frames_per_second if bounded_left else 2.56,
        hop_s=0.64,
        look_ahead_s=config.look_ahead_frames / config.frames_per_second if bounded_right else 0.8,
    )
    wanted = stateful or config.features.normalize == "causal"
    return replace(plan, left_frames=0, stateful=True) if wanted and supports_stream_state(config) else plan


def supports_stream_state(config: ModelConfig) -> bool:
    """Whether a model is streamed with carried state where a backend can: its look-ahead is bounded, no frame
    depends on how later ones are normalized, and it reaches further back than a hop."""
    rate, normalize = config.frames_per_second, config.features.normalize
    bounded = config.look_ahead_frames <= MAX_LOOK_AHEAD_S * rate
    return bounded and normalize in CARRIABLE and (normalize == "causal" or config.left_frames > 0.64 * rate)


def plan_for(config: ModelConfig, left_s: float, hop_s: float, look_ahead_s: float) -> WindowPlan:
    """Seconds to frames: left and hop rounded up to whole steps, the look-ahead up to a frame."""
    rate, step = config.frames_per_second, config.stride_frames
    for name, value in (("left", left_s), ("hop", hop_s), ("look-ahead", look_ahead_s)):
        if not 0.0 <= value <= 600.0:
            raise AcousticError(f"A {name} of {value} s makes no window: expected 0 to 600 s.")
    return WindowPlan(
        left_frames=_round_up(left_s * rate, step),
        hop_frames=max(step, _round_up(hop_s * rate, step)),
        look_ahead_frames=_round_up(look_ahead_s * rate, 1),
    )


def with_hop(config: ModelConfig, plan: WindowPlan, hop_s: float) -> WindowPlan:
    """The same contexts with another hop."""
    step = config.stride_frames
    return replace(plan, hop_frames=max(step, _round_up(hop_s * config.frames_per_second, step)))


class StreamWindows:
    """Cuts one channel of one stream into windows. Holds only the samples that a window still needs.

    Windows depend on absolute position alone, never on how the sound was cut into pushes.
    """

    def __init__(self, config: ModelConfig, plan: WindowPlan) -> None:
        _check(config, plan)
        self.config = config
        self.plan = plan
        self.needs_order = config.features.normalize == "running" or plan.stateful
        """Window k+1 may run only after Heard k came back: fetch it again with `with_current_state` then."""
        self.memory: NormalizationState | StreamState | None = None
        self._loudness = LevelLimiter(config.features) if config.features.max_level_db is not None else None
        self._usual: WindowPlan | None = None  # while the next window alone is cut with another hop
        self._index = 0
        self._kept_frames = 0  # feature frames whose outputs earlier windows keep
        self._received = 0
        self._finished = False
        # Samples of the stream from position `_buffer_at` on; twice a window, so that moving them is rare.
        self._buffer: Samples = np.zeros(self._room(), dtype=np.float32)
        self._buffer_at = 0
        self._filled = 0

    @property
    def received_samples(self) -> int:
        """Samples pushed so far."""
        return self._received

    @property
    def buffered_samples(self) -> int:
        """Samples kept for windows to come; bounded by the plan, not by the stream."""
        return self._filled

    def push(self, samples: Samples) -> list[Window]:
        """Take the next sound; returns the windows that are now complete."""
        if self._finished:
            raise AcousticError("Sound after the end of the stream: begin a new StreamWindows.")
        if samples.ndim != 1 or samples.dtype.kind != "f":
            raise AcousticError(
                "Expected a row of float samples between -1 and 1, "
                f"got {samples.dtype} with shape {samples.shape}."
            )
        if self._loudness:
            samples = self._loudness.push(samples)
        ready: list[Window] = []
        at = 0
        while True:
            span = self._next_span()
            first, end = self._sound(span)
            wanted = max(0, min(end - self._received, samples.size - at))
            self._keep(samples[at : at + wanted], first)
            at += wanted
            if self._received < end:
                return ready
            ready.append(self._window(span, end))

    def cut_early(self) -> list[Window]:
        """A window for the outputs that the sound so far allows, though its hop is not full (none: none yet)."""
        if self._finished:
            return []
        self.plan, self._usual = self._usual or self.plan, None
        usual = self.plan
        for hop in range(usual.hop_frames - self.config.stride_frames, 0, -self.config.stride_frames):
            self.plan = replace(usual, hop_frames=hop)
            span = self._next_span()
            end = self._sound(span)[1]
            window = [self._window(span, end)] if end <= self._received else []
            self.plan = usual
            if window:
                return window
        return []

    def finish(self) -> list[Window]:
        """The sound is over: one last window keeps all outputs that are still owed (none: no window)."""
        if self._finished:
            raise AcousticError("This stream is already finished.")
        self._finished = True
        frames = frame_count(self.config.features, self._received)
        regular = self._next_span()
        if self.config.outputs_for(frames) <= regular.keep_first:
            return []
        span = replace(regular, end_frame=frames, keep_end=self.config.outputs_for(frames), last=True)
        return [self._window(span, self._received)]

    def shorten_next(self, hop_frames: int) -> None:
        """Cut the next window alone with a narrower hop."""
        usual = self._usual or self.plan
        plan = replace(usual, hop_frames=min(hop_frames, usual.hop_frames))
        _check(self.config, plan)
        self.plan, self._usual = plan, usual

    def change_hop(self, hop_frames: int) -> None:
        """Cut the windows to come with another hop: no output is lost or kept twice by it."""
        plan = replace(self.plan, hop_frames=hop_frames)
        _check(self.config, plan)
        self.plan, self._usual = plan, None
        if self._room() > self._buffer.size:
            larger = np.zeros(self._room(), dtype=np.float32)
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger

    def update_state(self, output: WindowOutput) -> None:
        """Take back what the windows to come need of a window: the memory, or the carried state."""
        if self.needs_order and output.memory is not None:
            self.memory = output.memory

    def with_current_state(self, window: Window) -> Window:
        """The window with what the stream has shown until now: for a window that had to wait its turn."""
        return replace(window, memory=self.memory) if self.needs_order else window

    def _next_span(self) -> Span:
        keep = self._kept_frames
        every = self.config.frames_per_output
        return Span(
            index=self._index,
            first_frame=max(0, keep - self.plan.left_frames),
            end_frame=keep + self.plan.hop_frames + self.plan.look_ahead_frames,
            keep_first=keep // every,
            keep_end=(keep + self.plan.hop_frames) // every,
            first_new_frame=keep + self.plan.look_ahead_frames if self._index else 0,
            last=False,
            stateful=self.plan.stateful,
        )

    def _sound(self, span: Span) -> tuple[int, int]:
        return sample_span(self.config.features, span.first_frame, span.end_frame)

    def _window(self, span: Span, end: int) -> Window:
        first, _ = self._sound(span)
        begin = first - self._buffer_at
        samples = self._buffer[begin : end - self._buffer_at].copy()
        self._index += 1
        self._kept_frames += self.plan.hop_frames
        if self._usual is not None:
            self.plan, self._usual = self._usual, None
        return Window(samples, span, self.memory)

    def _room(self) -> int:
        features = self.config.features
        return 2 * ((self.plan.frames + 1) * features.hop_samples + features.window_samples + 1)

    def _keep(self, samples: Samples, needed_from: int) -> None:
        dropped = min(max(0, needed_from - self._buffer_at), self._filled)
        if dropped and self._filled + samples.size > self._buffer.size:
            self._buffer[: self._filled - dropped] = self._buffer[dropped : self._filled].copy()
            self._buffer_at += dropped
            self._filled -= dropped
        self._buffer[self._filled : self._filled + samples.size] = samples
        self._filled += samples.size
        self._received += samples.size


def windows_of(samples: Samples, config: ModelConfig, plan: WindowPlan) -> Iterator[Window]:
    """All windows of a whole recording, as its stream would give them."""
    stream = StreamWindows(config, plan)
    yield from stream.push(samples)
    yield from stream.finish()


def _check(config: ModelConfig, plan: WindowPlan) -> None:
    step = config.stride_frames
    if plan.hop_frames < step or plan.hop_frames % step or plan.left_frames % step:
        raise AcousticError(
            f"{plan} does not fit steps of {step} frames: left and hop must be whole steps, "
            "the hop at least one. plan_for() rounds for you."
        )
    if plan.left_frames < 0 or plan.look_ahead_frames < 0:
        raise AcousticError(f"{plan}: contexts cannot be negative.")
    if not plan.stateful:
        if config.features.normalize == "causal":
            raise AcousticError(
                f"{plan}: causal normalization needs carried state. default_plan() carries it."
            )
        return
    if plan.left_frames or plan.look_ahead_frames < config.look_ahead_frames:
        raise AcousticError(
            f"{plan}: carried state takes the place of all left context and needs the whole look-ahead of "
            f"{config.look_ahead_frames} frames."
        )
    if config.features.normalize not in CARRIABLE:
        raise AcousticError(
            f"Carried state goes with fixed or causal normalization, not {config.features.normalize}."
        )


def _round_up(frames: float, step: int) -> int:
    # Seconds are decimal fractions: 0.64 s x 100 must stay 64 frames.
    return -int(-round(frames, 6) // step) * step
