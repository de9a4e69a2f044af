"""The tensor names that NeMo and DeepLearningExamples share, and the network's shape read off the tensors.

Both number what a block consists of: `<block>.{mconv|conv}.<j>` is a convolution or a batch norm,
`<block>.res.<p>` a projection. Stride, dilation and activation leave no trace in tensors: the importers know
them from elsewhere.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from acoustic.errors import AcousticError

Parts = dict[str, Tensor]

_BLOCK = re.compile(
    r"(?:module\.)?(?:encoder\.encoder|encoder\.layers|jasper_encoder\.encoder)\."
    r"(\d+)\.(?:(?:mconv|conv)\.(\d+)|res\.(\d+)\.(\d+))\.(?:conv\.)?(\w+)"
)
_DECODER = re.compile(
    r"(?:module\.)?(?:decoder\.decoder_layers|decoder\.layers|jasper_decoder\.decoder_layers)\.0\.(weight|bias)"
)
# Front ends, losses and remnants that carry no weights of the network.
_IGNORED = ("preprocessor.", "audio_preprocessor.", "acoustic_model.", "loss.", "spec_augmentation.")


@dataclass
class ForeignBlock:
    """The tensors of one block: the main path and its projections, by position."""

    main: dict[int, Parts] = field(default_factory=lambda: defaultdict(dict))
    projections: dict[int, dict[int, Parts]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )


@dataclass(frozen=True)
class BlockShape:
    """What the tensors of a block tell about it."""

    kernel: int
    channels: int
    repeat: int
    separable: bool
    groups: int
    projections: int


def sort_out(state: Mapping[str, Tensor]) -> tuple[list[ForeignBlock], Parts]:
    """The blocks in order and the decoder, from a flat state dict. An unknown name is an error."""
    blocks: dict[int, ForeignBlock] = defaultdict(ForeignBlock)
    decoder: Parts = {}
    for name, tensor in state.items():
        if name.removeprefix("module.").startswith(_IGNORED):
            continue
        if not isinstance(tensor, Tensor):
            raise AcousticError(f"The weights hold {name!r}, which is no tensor.")
        if match := _DECODER.fullmatch(name):
            decoder[match[1]] = tensor
        elif match := _BLOCK.fullmatch(name):
            block = blocks[int(match[1])]
            parts = block.main[int(match[2])] if match[2] else block.projections[int(match[3])][int(match[4])]
            parts[match[5]] = tensor
        else:
            raise AcousticError(f"The weights hold {name!r}, which is no part of a Jasper or QuartzNet.")
    if sorted(blocks) != list(range(len(blocks))) or not blocks or set(decoder) != {"weight", "bias"}:
        raise AcousticError(
            f"The weights are no whole Jasper or QuartzNet: blocks {sorted(blocks)}, "
            f"decoder {sorted(decoder)}."
        )
    return [blocks[index] for index in range(len(blocks))], decoder


def shape_of(block: ForeignBlock) -> BlockShape:
    """Kernel, channels, repeats and so on of one block."""
    cudnn_settings = [parts["weight"] for parts in ordered(block) if is_convolution(parts)]
    norms = sum(not is_convolution(parts) for parts in ordered(block))
    separable = len(cudnn_settings) == 2 * norms
    if not norms or (not separable and len(cudnn_settings) != norms):
        raise AcousticError(
            f"A block has {len(cudnn_settings)} convolutions and {norms} batch norms: expected one or two each."
        )
    first = cudnn_settings[0]
    pointwise = cudnn_settings[1] if separable else first
    return BlockShape(
        kernel=first.shape[2],
        channels=pointwise.shape[0],
        repeat=norms,
        separable=separable,
        groups=first.shape[0] // max(1, pointwise.shape[1]) if separable else 1,
        projections=len(block.projections),
    )


def convert(blocks: list[ForeignBlock], decoder: Parts) -> Parts:
    """The tensors under Silica's names."""
    state: Parts = {}
    for index, block in enumerate(blocks):
        separable = shape_of(block).separable
        each = 3 if separable else 2
        parts = ordered(block)
        for unit in range(len(parts) // each):
            ours = f"blocks.{index}.units.{unit}"
            group = parts[unit * each : unit * each + each]
            if separable:
                state[f"{ours}.depthwise.weight"] = group[0]["weight"]
            state[f"{ours}.conv.weight"] = group[-2]["weight"]
            state |= _norm(ours, group[-1])
        for projection, pair in sorted(block.projections.items()):
            ours = f"blocks.{index}.bypasses.{projection}"
            if "weight" not in pair[0]:
                raise AcousticError(f"Projection {projection} of block {index} has no convolution.")
            state[f"{ours}.conv.weight"] = pair[0]["weight"]
            state |= _norm(ours, pair[1])
    state |= {f"output.{name}": tensor for name, tensor in decoder.items()}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _norm(ours: str, parts: Parts) -> Parts:
    # Files older than PyTorch 0.4.1 do not count batches; nothing here reads the count.
    complete = {"num_batches_tracked": torch.tensor(0)} | parts
    return {f"{ours}.norm.{name}": tensor for name, tensor in complete.items()}


def ordered(block: ForeignBlock) -> list[Parts]:
    """The main path's convolutions and norms in order."""
    return [block.main[position] for position in sorted(block.main)]


def is_convolution(parts: Parts) -> bool:
    """Convolutions have three axes, norms one."""
    return "weight" in parts and parts["weight"].dim() == 3
