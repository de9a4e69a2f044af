"""The tensor names that NeMo and DeepLearningExamples share, and what tensor shapes say about a network.

`<block>.{mconv|conv}.<j>` is a convolution or a batch norm, `<block>.res.<p>` a projection. Stride, dilation and
activation do not appear in tensors; each importer gets them from elsewhere.
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
# Front ends, losses and leftovers without network weights.
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
    """What the tensors of a block say about its configuration."""

    kernel: int
    channels: int
    repeat: int
    separable: bool
    groups: int
    projections: int


def group_tensors(state: Mapping[str, Tensor]) -> tuple[list[ForeignBlock], Parts]:
    """The blocks in order and the decoder, from a flat state dict. Raises on an unknown name."""
    blocks: dict[int, ForeignBlock] = defaultdict(ForeignBlock)
    decoder: Parts = {}
    for name, tensor in state.items():
        if name.removeprefix("module.").startswith(_IGNORED):
            continue
        if not isinstance(tensor, Tensor):
            raise AcousticError(f"The weights contain {name!r}, which is not a tensor.")
        if match := _DECODER.fullmatch(name):
            decoder[match[1]] = tensor
        elif match := _BLOCK.fullmatch(name):
            block = blocks[int(match[1])]
            parts = block.main[int(match[2])] if match[2] else block.projections[int(match[3])][int(match[4])]
            parts[match[5]] = tensor
        else:
            raise AcousticError(
                f"The weights contain {name!r}, which does not belong to a Jasper or QuartzNet."
            )
    if sorted(blocks) != list(range(len(blocks))) or not blocks or set(decoder) != {"weight", "bias"}:
        raise AcousticError(
            f"The weights are not a complete Jasper or QuartzNet: blocks {sorted(blocks)}, "
            f"decoder {sorted(decoder)}."
        )
    return [blocks[index] for index in range(len(blocks))], decoder


def shape_of(block: ForeignBlock) -> BlockShape:
    """The configuration of one block that follows from its tensors."""
    convolutions = [parts["weight"] for parts in ordered(block) if is_convolution(parts)]
    norms = sum(not is_convolution(parts) for parts in ordered(block))
    separable = len(convolutions) == 2 * norms
    if not norms or (not separable and len(convolutions) != norms):
        raise AcousticError(
            f"A block has {len(convolutions)} convolutions and {norms} batch norms: expected one or two per norm."
        )
    first = convolutions[0]
    pointwise = convolutions[1] if separable else first
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
        parts_each = 3 if separable else 2
        parts = ordered(block)
        for sub_block in range(len(parts) // parts_each):
            ours = f"blocks.{index}.units.{sub_block}"
            group = parts[sub_block * parts_each : (sub_block + 1) * parts_each]
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
    # PyTorch before 0.4.1 did not save this counter; nothing here uses it.
    complete = {"num_batches_tracked": torch.tensor(0)} | parts
    return {f"{ours}.norm.{name}": tensor for name, tensor in complete.items()}


def ordered(block: ForeignBlock) -> list[Parts]:
    """Convolutions and norms of the main path in order."""
    return [block.main[position] for position in sorted(block.main)]


def is_convolution(parts: Parts) -> bool:
    """Whether the tensors are a convolution's: its weight has three axes, a norm's has one."""
    return "weight" in parts and parts["weight"].dim() == 3
