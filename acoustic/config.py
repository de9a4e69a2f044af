"""ModelConfig: a whole network, front end included, as one readable and checked value.

The networks of the papers by name are in `acoustic.architectures`; building one is `acoustic.network.build`.
Positions are in feature frames (10 ms); what the windows need is a property here, computed from the layers.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

from acoustic.constants import SAMPLE_RATE
from acoustic.errors import AcousticError

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"

Edge = Literal["reflect", "zero"]
Normalize = Literal["utterance", "fixed", "running", "causal"]
Residual = Literal["none", "identity", "residual", "dense_residual", "densenet", "dense_rnet"]
Norm = Literal["batch", "layer", "weight", "folded"]
Activation = Literal["relu", "clipped_relu", "leaky_relu", "glu", "gau"]
Masks = Literal["none", "conv", "conv_and_norm"]

KEEPS_BRANCHES: frozenset[str] = frozenset({"dense_residual", "densenet", "dense_rnet"})
"""Bypasses that need the outputs of all earlier blocks."""
GATED: frozenset[str] = frozenset({"glu", "gau"})
NEWER = "The file is damaged or comes from a newer Silica: update this one."
MAX_CHANNELS = 16_384
MAX_BLOCKS = 256
MIN_CAUSAL_FRAMES = 500
"""Half of what causal normalization remembers is longer than any window: within one it is halved once at most."""


@dataclass(frozen=True)
class FeatureConfig:
    """The log-mel front end of one model and how its features are normalized.

    normalize: `utterance` (mean and deviation of the whole utterance), `fixed` (the constants `mean` and
    `deviation`), `running` (what the stream has shown by the end of a window, with those constants as a prior that
    weighs `prior_frames`; older sound fades once `memory_frames` are exceeded) or `causal` (each frame by what the
    stream has shown up to it, with the same prior; what came before counts half whenever `memory_frames` are full).
    max_level_db: sound that is louder on average, in decibels of full scale, is turned down to that first
    (`acoustic.features.limiter`).
    """

    sample_rate: int = SAMPLE_RATE
    mels: int = 64
    window_samples: int = 320
    hop_samples: int = 160
    fft_samples: int = 512
    preemphasis: float = 0.97
    edge: Edge = "reflect"
    log_floor: float = 2.0**-24
    low_hz: float = 0.0
    high_hz: float = 8_000.0
    normalize: Normalize = "utterance"
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    deviation_floor: float = 1e-5
    prior_frames: int = 100
    memory_frames: int = 6_000
    max_level_db: int | None = None

    def __post_init__(self) -> None:
        check_choice("features.edge", self.edge, Edge)
        check_choice("features.normalize", self.normalize, Normalize)
        check_range("features.sample_rate", self.sample_rate, 4_000, 192_000)
        check_range("features.mels", self.mels, 1, 512)
        check_range("features.fft_samples", self.fft_samples, 2, 65_536)
        check_range("features.window_samples", self.window_samples, 2, self.fft_samples)
        check_range("features.hop_samples", self.hop_samples, 1, self.window_samples)
        check_range("features.prior_frames", self.prior_frames, 0, 10**9)
        check_range("features.memory_frames", self.memory_frames, 1, 10**9)
        if self.normalize == "causal":
            check_range("features.memory_frames", self.memory_frames, MIN_CAUSAL_FRAMES, 10**9)
        if self.max_level_db is not None:
            check_range("features.max_level_db", self.max_level_db, -80, 0)
            check_range("features.prior_frames", self.prior_frames, 1, self.memory_frames - 1)
        if self.window_samples % 2:
            raise AcousticError(f"features.window_samples must be even, not {self.window_samples}.")
        if not 0.0 <= self.low_hz < self.high_hz <= self.sample_rate / 2:
            raise AcousticError(
                f"features: {self.low_hz}..{self.high_hz} Hz is no band below half of {self.sample_rate} Hz."
            )
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if values is not None and len(values) != self.mels:
                raise AcousticError(f"features.{name} has {len(values)} values, expected {self.mels}.")
        if self.deviation is not None and min(self.deviation) <= 0:
            raise AcousticError("features.deviation must be above zero in every mel band.")
        if self.normalize != "utterance" and (self.mean is None or self.deviation is None):
            raise AcousticError(
                f"`{self.normalize}` normalization needs features.mean and features.deviation."
            )


@dataclass(frozen=True)
class BlockConfig:
    """A block of `repeat` equal sub-blocks (convolution, norm, activation) with at most one kind of bypass.

    look_ahead: how many taps of each sub-block's kernel lie in the future (a single number: of every one);
    None is the usual symmetric padding. The first sub-block carries the stride.
    residual: `residual` projects the block's input by a 1x1 convolution, `identity` adds it as it is,
    `dense_residual` adds a projection of every earlier block's output, `densenet` feeds the block with all of
    them concatenated, `dense_rnet` does that and adds a projection of the same concatenation.
    """

    kernel: int
    channels: int
    repeat: int = 1
    stride: int = 1
    dilation: int = 1
    separable: bool = False
    residual: Residual = "none"
    groups: int = 1
    look_ahead: int | tuple[int, ...] | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_choice("block.residual", self.residual, Residual)
        check_range("block.kernel", self.kernel, 1, 4_096)
        check_range("block.channels", self.channels, 1, MAX_CHANNELS)
        check_range("block.repeat", self.repeat, 1, 64)
        check_range("block.stride", self.stride, 1, 64)
        check_range("block.dilation", self.dilation, 1, 256)
        check_range("block.groups", self.groups, 1, self.channels)
        if self.channels % self.groups:
            raise AcousticError(f"block.groups {self.groups} does not divide {self.channels} channels.")
        if self.groups > 1 and not self.separable:
            raise AcousticError("block.groups shuffles pointwise convolutions: it needs separable=True.")
        if not 0.0 <= self.dropout < 1.0:
            raise AcousticError(f"block.dropout must be in [0, 1), not {self.dropout}.")
        if isinstance(self.look_ahead, tuple) and len(self.look_ahead) != self.repeat:
            raise AcousticError(
                f"block.look_ahead has {len(self.look_ahead)} values for {self.repeat} sub-blocks."
            )
        for taps in self.right_taps:
            check_range("block.look_ahead", taps, 0, self.kernel - 1)

    @property
    def right_taps(self) -> tuple[int, ...]:
        """Taps in the future, one number a sub-block."""
        if self.look_ahead is None:
            return ((self.kernel - 1) // 2,) * self.repeat
        if isinstance(self.look_ahead, int):
            return (self.look_ahead,) * self.repeat
        return self.look_ahead

    def strides(self) -> tuple[int, ...]:
        """The stride of each sub-block."""
        return (self.stride,) + (1,) * (self.repeat - 1)

    def padding(self, unit: int) -> tuple[int, int]:
        """Zeros left and right of the input of the convolution of sub-block `unit`, in frames at its own rate."""
        right = self.right_taps[unit]
        return (self.kernel - 1 - right) * self.dilation, right * self.dilation


@dataclass(frozen=True)
class ModelConfig:
    """A whole acoustic model: front end, blocks, alphabet. The decoder is one 1x1 convolution with a bias."""

    name: str
    features: FeatureConfig
    blocks: tuple[BlockConfig, ...]
    alphabet: str = ALPHABET
    outputs_per_step: int = 1
    norm: Norm = "batch"
    activation: Activation = "relu"
    masks: Masks = "conv"
    norm_epsilon: float = 1e-3
    norm_momentum: float = 0.1

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, Norm)
        check_choice("activation", self.activation, Activation)
        check_choice("masks", self.masks, Masks)
        check_range("the number of blocks", len(self.blocks), 1, MAX_BLOCKS)
        check_range("outputs_per_step", self.outputs_per_step, 1, 64)
        check_range("the size of the alphabet", len(self.alphabet), 1, 65_536)
        if len(set(self.alphabet)) != len(self.alphabet):
            raise AcousticError("The alphabet names a character twice.")
        if self.stride_frames % self.outputs_per_step:
            raise AcousticError(
                f"{self.outputs_per_step} outputs do not divide a step of {self.stride_frames} frames evenly."
            )
        channels = self.features.mels
        for index, block in enumerate(self.blocks):
            if block.residual == "identity" and (block.channels != channels or block.stride != 1):
                raise AcousticError(f"Block {index}: an identity bypass cannot change channels or rate.")
            if block.residual == "identity" and self.activation in GATED:
                raise AcousticError(f"Block {index}: an identity bypass does not fit before a gate.")
            if block.groups > 1 and channels % block.groups:
                raise AcousticError(f"Block {index}: {block.groups} groups do not divide {channels} inputs.")
            channels = block.channels

    @property
    def blank(self) -> int:
        """The index of the CTC blank: after the alphabet."""
        return len(self.alphabet)

    @property
    def classes(self) -> int:
        """Characters and the blank."""
        return len(self.alphabet) + 1

    @cached_property
    def stride_frames(self) -> int:
        """Feature frames for one step of the network."""
        stride = 1
        for block in self.blocks:
            stride *= block.stride
        return stride

    @property
    def frames_per_output(self) -> int:
        """Feature frames for one output."""
        return self.stride_frames // self.outputs_per_step

    @property
    def frames_per_second(self) -> float:
        """Feature frames a second."""
        return self.features.sample_rate / self.features.hop_samples

    @cached_property
    def left_frames(self) -> int:
        """Frames before a step's first frame that its outputs can depend on."""
        return self._reach(0)

    @cached_property
    def look_ahead_frames(self) -> int:
        """Frames after a step's first frame that its outputs can depend on."""
        return self._reach(1)

    @property
    def receptive_field_frames(self) -> int:
        """All frames that a step's outputs can depend on."""
        return self.left_frames + 1 + self.look_ahead_frames

    @property
    def look_ahead_s(self) -> float:
        """Seconds of sound after a step's beginning that its outputs can depend on (half a window more)."""
        half_window = self.features.window_samples / 2 / self.features.sample_rate
        return self.look_ahead_frames / self.frames_per_second + half_window

    @property
    def receptive_field_s(self) -> float:
        """Seconds of sound that an output can depend on."""
        window = self.features.window_samples / self.features.sample_rate
        return (self.receptive_field_frames - 1) / self.frames_per_second + window

    def _reach(self, side: int) -> int:
        # Bypasses are 1x1 convolutions: they never reach further than the convolutions they bypass.
        reach, rate = 0, 1
        for block in self.blocks:
            for unit, stride in enumerate(block.strides()):
                reach += block.padding(unit)[side] * rate
                rate *= stride
        return reach

    def outputs_for(self, frames: int) -> int:
        """Outputs for that many feature frames: one for each begun stretch of `frames_per_output`."""
        return -(-frames // self.frames_per_output)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "ModelConfig":
        """The reverse of `to_dict`, for values that nobody has checked yet."""
        try:
            config = msgspec.convert(values, ModelConfig)
        except msgspec.ValidationError as error:
            raise AcousticError(f"The model configuration cannot be read: {error}. {NEWER}") from error
        _refuse_unknown(ModelConfig, values)
        _refuse_unknown(FeatureConfig, values["features"])
        for block in values["blocks"]:
            _refuse_unknown(BlockConfig, block)
        return config


def _refuse_unknown(kind: type, table: Mapping[str, Any]) -> None:
    """msgspec passes over keys that a dataclass does not have."""
    unknown = sorted(set(table) - {field.name for field in fields(kind)})
    if unknown:
        raise AcousticError(f"{kind.__name__}: unknown settings {', '.join(unknown)}. {NEWER}")


def check_range(name: str, value: int, lowest: int, highest: int) -> None:
    """Refuse what is no whole number in the range: a configuration may come from an untrusted file."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise AcousticError(f"{name} must be a whole number from {lowest} to {highest}, not {value!r}.")


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuse what the literal type does not list."""
    if value not in get_args(choices):
        raise AcousticError(f"{name} must be one of {', '.join(get_args(choices))}, not {value!r}.")
