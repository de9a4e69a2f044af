"""The pieces of a block: masks, convolutions with norm and shuffle, bypasses, activations.

Tensors are [batch, channels, time]. Which piece goes where is `acoustic.network.network`. In training on a CPU, and in
16 bits on a GPU, the channels of one step lie side by side in memory (`time_major`): what is compiled wants it so.
"""

from functools import cache
from importlib.util import find_spec
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acoustic.config import GATED, BlockConfig, ModelConfig

NEAR_SHARE = 1 / 8
"""Taps so much of a kernel farther from a step count a third as much, when training begins."""


class Reaching:
    """What hears steps before its own (`left`) or after it (`right`), counted at `rate` frames a step; its output takes
    every `stride`-th. A stream with carried state keeps `left` steps of what it hears, `reaching_channels` high."""

    left: int
    right: int
    rate: int
    stride: int
    reaching_channels: int


class Masks:
    """Zeroes what lies beyond each item's length. `lengths` counts feature frames; None: nothing to zero."""

    def __init__(self, lengths: Tensor | None) -> None:
        self.lengths = lengths
        self._by_rate: dict[int, Tensor] = {}
        self._spread: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def at(self, x: Tensor, rate: int) -> Tensor | None:
        """The mask [batch, 1, time] for a tensor that runs at one step for `rate` frames."""
        if self.lengths is None:
            return None
        if rate not in self._by_rate:
            steps = torch.arange(x.shape[-1], device=x.device)
            self._by_rate[rate] = (steps[None, None, :] < self.steps(x, rate)[:, None, None]).to(x.dtype)
        return self._by_rate[rate]

    def steps(self, x: Tensor, rate: int) -> Tensor:
        """How many steps of each row count."""
        if self.lengths is None:
            return torch.full((len(x),), x.shape[-1], device=x.device)
        return (self.lengths.to(x.device) + (rate - 1)) // rate

    def apply(self, x: Tensor, rate: int) -> Tensor:
        """`x` with everything beyond the lengths set to zero."""
        mask = self.at(x, rate)
        if mask is None:
            return x
        if is_time_major(x):
            # A mask as large as `x` is quicker to multiply with, by far, than one that is repeated on the way.
            place = (rate, x.shape[1], x.dtype)
            if place not in self._spread:
                self._spread[place] = time_major(mask.expand(x.shape).to(x.dtype))
            return x * self._spread[place]
        return x * mask.to(x.dtype)

    def reached(self, x: Tensor, unit: Reaching) -> tuple[Tensor, int]:
        """What is heard, and how many zeros belong to its left (`acoustic.network.stream_state` puts what was heard
        before in their place)."""
        return x, unit.left


def time_major(x: Tensor) -> Tensor:
    """The same tensor; in memory the channels of a step follow one another."""
    return x.mT.contiguous().mT


def is_time_major(x: Tensor) -> bool:
    """Whether `time_major` laid it out."""
    return x.stride(1) == 1 != x.stride(2)


@cache
def triton_available() -> bool:
    """It comes with PyTorch where that is for GPUs."""
    return find_spec("triton") is not None


def prefers_time_major(x: Tensor) -> bool:
    """Whether what is compiled for training is for tensors such as this one, once they lie `time_major`."""
    if x.device.type == "cpu":
        return True
    if x.device.type != "cuda" or not torch.is_autocast_enabled("cuda") or not triton_available():
        return False
    return torch.get_autocast_dtype("cuda") == torch.bfloat16


def padded(x: Tensor, left: int, right: int) -> Tensor:
    """Zeros before and after, in the layout that `x` has."""
    return F.pad(x.mT, (0, 0, left, right)).mT if is_time_major(x) else F.pad(x, (left, right))


def convolve(x: Tensor, conv: nn.Conv1d, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
    """The convolution in the layout that `x` has: PyTorch's for one dimension knows only the usual."""
    if not is_time_major(x):
        return F.conv1d(x, conv.weight, conv.bias, stride, padding, dilation, conv.groups)
    if conv.weight.shape[1:] == (x.shape[1], 1) and stride == 1:
        return F.linear(x.mT, conv.weight.squeeze(2), conv.bias).mT
    plane, weight = x.unsqueeze(2), conv.weight.unsqueeze(2)
    settings = (conv.bias, (1, stride), (0, padding), (1, dilation), conv.groups)
    if conv.groups == 1:
        return F.conv2d(plane, weight, *settings).squeeze(2)
    # The gradient of single taps takes three times as long in 16 bits.
    exact = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        return F.conv2d(plane.to(exact), weight.to(exact), *settings).squeeze(2).to(x.dtype)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm that can leave padding out of its statistics."""

    def forward(self, x: Tensor) -> Tensor:
        """Over batch and time."""
        if not is_time_major(x):
            return super().forward(x)
        return super().forward(x.mT.flatten(0, 1)).view(x.mT.shape).mT

    def forward_masked(self, x: Tensor, mask: Tensor) -> Tensor:
        """As in training, with mean and variance over the frames where `mask` is one."""
        mask = mask.float()
        count = mask.sum().clamp(min=1.0)
        mean = (x * mask).sum(dim=(0, 2)) / count
        centred = x - mean[None, :, None]
        variance = (centred * mask).square().sum(dim=(0, 2)) / count
        assert self.running_mean is not None and self.running_var is not None  # always tracked here
        with torch.no_grad():
            share = self.momentum or 0.0
            unbiased = variance * count / (count - 1).clamp(min=1.0)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[None, :, None] + self.bias[None, :, None]).to(x.dtype)


class LayerNorm(nn.Module):
    """Norm over the channels of each frame alone, so that no frame depends on how much sound follows."""

    def __init__(self, channels: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, time] to the same shape."""
        # PyTorch's own sums up in 32 bits: in FP16 the square of 300 is infinite.
        normed = F.layer_norm(x.mT, self.weight.shape, self.weight, self.bias, self.epsilon).mT
        return normed if is_time_major(x) else normed.contiguous()


class ConvNorm(nn.Module):
    """A convolution (optionally depthwise first) and its norm: what every path in a block is made of."""

    def __init__(
        self, config: ModelConfig, inputs: int, channels: int, *, kernel: int, groups: int = 1
    ) -> None:
        super().__init__()
        # A gate halves its input: the convolution before it makes twice the channels.
        outputs = channels * 2 if config.activation in GATED else channels
        self.masks_norm = config.masks == "conv_and_norm"
        bias = config.norm in ("weight", "folded")
        conv = nn.Conv1d(inputs, outputs, kernel, groups=groups, bias=bias)
        nn.init.xavier_uniform_(conv.weight)
        if bias:
            nn.init.zeros_(cast(Tensor, conv.bias))
        self.conv = nn.utils.parametrizations.weight_norm(conv) if config.norm == "weight" else conv
        self.norm: nn.Module = nn.Identity()
        if config.norm == "batch":
            self.norm = BatchNorm(outputs, eps=config.norm_epsilon, momentum=config.norm_momentum)
        elif config.norm == "layer":
            self.norm = LayerNorm(outputs, config.norm_epsilon)

    def normed(self, x: Tensor, masks: Masks, rate: int, *, rectified: bool = False) -> Tensor:
        """The norm, without padding in its statistics where the configuration says so; `rectified`: what of it is above
        nought."""
        if self.masks_norm and self.training and isinstance(self.norm, BatchNorm):
            mask = masks.at(x, rate)
            if mask is not None:
                out = self.norm.forward_masked(x, mask)
                return F.relu(out) if rectified else out
        if norms_compiled(self.norm, x):
            if x.device.type == "cuda":
                from acoustic.network.triton_batch_norm import batch_normed
            else:
                from acoustic.network.batch_norm import batch_normed
            return batch_normed(x, cast(nn.BatchNorm1d, self.norm), rectified=rectified)
        out = cast(Tensor, self.norm(x))
        return F.relu(out) if rectified else out


class Unit(ConvNorm, Reaching):
    """One sub-block up to its norm: padding, (depthwise and) convolution, norm, channel shuffle."""

    def __init__(self, config: ModelConfig, block: BlockConfig, index: int, inputs: int, rate: int) -> None:
        super().__init__(
            config,
            inputs,
            block.channels,
            kernel=1 if block.separable else block.kernel,
            groups=block.groups,
        )
        self.masked = config.masks != "none"
        self.rate = rate
        self.stride = block.strides()[index]
        self.dilation = block.dilation
        self.left, self.right = block.padding(index)
        self.groups = block.groups
        self.depthwise: nn.Conv1d | None = None
        self.tapped = nn.Identity()
        """What the depthwise taps make passes here, for whoever hooks in."""
        if block.separable:
            self.depthwise = nn.Conv1d(inputs, inputs, block.kernel, groups=inputs, bias=False)
            nn.init.xavier_uniform_(self.depthwise.weight)
            if block.look_ahead is not None and block.residual != "none":
                begin_near(self.depthwise.weight, block.right_taps[index])
        self.reaching_channels = self.reaching.in_channels

    @property
    def reaching(self) -> nn.Conv1d:
        """The convolution that looks to the left and right."""
        return cast(nn.Conv1d, self.conv) if self.depthwise is None else self.depthwise

    def forward(self, x: Tensor, masks: Masks, *, rectified: bool = False) -> Tensor:
        """[batch, inputs, time] to [batch, outputs, time / stride]."""
        x = slide(self, self.reaching, x, masks, dilation=self.dilation, masked=self.masked)
        if self.depthwise is not None:
            x = convolve(self.tapped(x), self.conv)
        x = self.normed(x, masks, self.rate * self.stride, rectified=rectified)
        return x if self.groups == 1 else shuffle(x, self.groups)


@torch.no_grad()
def begin_near(taps: Tensor, right: int) -> None:
    """Depthwise taps [channels, 1, taps] of which `right` lie ahead begin near their own step. Were all of a one-sided
    kernel drawn alike, ten layers would hear a second ago before they hear now (experiments.csv: run P). A lone layer
    without a bypass, such as a head, is to reach as far as it can: it begins with all of its taps alike."""
    distance = torch.arange(taps.shape[-1] - 1 - right, -1 - right, -1).abs()
    shares = torch.exp(-distance / (taps.shape[-1] * NEAR_SHARE))
    taps.normal_().mul_(shares / shares.norm())


def slide(
    unit: Reaching, conv: nn.Conv1d, x: Tensor, masks: Masks, *, dilation: int = 1, masked: bool = True
) -> Tensor:
    """What a convolution with reach makes of [batch, channels, time]."""
    if slides_compiled(unit, conv, x, dilation):
        lengths = masks.steps(x, unit.rate) if masked else torch.full((len(x),), x.shape[-1], device=x.device)
        if x.device.type == "cuda":
            from acoustic.network.triton_depthwise import depthwise as on_gpu

            return on_gpu(x, conv.weight, lengths, unit.left, unit.stride, dilation)
        from acoustic.network.depthwise import depthwise

        return depthwise(x, conv.weight, lengths, unit.left)
    if masked:
        x = masks.apply(x, unit.rate)
    x, padding = masks.reached(x, unit)
    if padding != unit.right:
        x = padded(x, padding, unit.right)
        padding = 0
    x = convolve(x, conv, unit.stride, padding, dilation)
    return masks.apply(x, unit.rate * unit.stride) if masked and is_depthwise(conv) else x


def is_depthwise(conv: nn.Conv1d) -> bool:
    """Whether every channel is heard by itself."""
    return conv.groups == conv.in_channels == conv.out_channels


def slides_compiled(unit: Reaching, conv: nn.Conv1d, x: Tensor, dilation: int) -> bool:
    """Whether the compiled depthwise taps do for this: in training in 16 bits. A GPU's know strides and dilations too,
    but no gradient of them."""
    plain = unit.stride == dilation == 1 or (x.device.type == "cuda" and not torch.is_grad_enabled())
    return plain and is_depthwise(conv) and conv.bias is None and conv.training and fits_compiled(x)


def norms_compiled(norm: nn.Module, x: Tensor) -> bool:
    """Whether the compiled batch norm does for this: in training in 16 bits."""
    plain = type(norm) is BatchNorm and norm.training and norm.affine and norm.momentum is not None
    return plain and fits_compiled(x)


def fits_compiled(x: Tensor) -> bool:
    """Whether there is something compiled for a tensor such as this one."""
    if x.dtype != torch.bfloat16 or not is_time_major(x):
        return False
    return x.device.type == "cpu" or (x.device.type == "cuda" and triton_available())


class Bypass(ConvNorm):
    """A 1x1 convolution and norm of something earlier, brought to the block's channels and rate."""

    def __init__(self, config: ModelConfig, inputs: int, channels: int, stride: int, rate: int) -> None:
        super().__init__(config, inputs, channels, kernel=1)
        self.masked = config.masks != "none"
        self.stride = stride
        self.rate = rate

    def forward(self, x: Tensor, masks: Masks) -> Tensor:
        """[batch, inputs, time] to [batch, channels, time / stride]."""
        if self.masked:
            x = masks.apply(x, self.rate)
        if self.stride > 1:
            x = x[:, :, :: self.stride]
        return self.normed(convolve(x, self.conv), masks, self.rate * self.stride)


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Channel shuffle: the next grouped convolution then sees something of every group."""
    batch, channels, time = x.shape
    return x.reshape(batch, groups, channels // groups, time).transpose(1, 2).reshape(batch, channels, time)


def activate(x: Tensor, kind: str) -> Tensor:
    """One of the activations of the Jasper paper's study; the gated ones halve the channels."""
    if kind == "relu":
        return F.relu(x)
    if kind == "clipped_relu":
        return x.clamp(0.0, 20.0)
    if kind == "leaky_relu":
        return F.leaky_relu(x, 0.01)
    signal, gate = x.chunk(2, dim=1)
    if kind == "glu":
        return signal * torch.sigmoid(gate)
    return torch.tanh(signal) * torch.sigmoid(gate)
