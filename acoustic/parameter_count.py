"""Counts a network's parameters from its ModelConfig alone, so that models are listed without PyTorch."""

from collections.abc import Sequence

from acoustic.config import GATED, BlockConfig, ModelConfig


def parameter_count(config: ModelConfig) -> int:
    """Trainable parameters of the network that `acoustic.network.build` builds."""
    branches = [config.features.mels]
    total = 0
    for block in config.blocks:
        # Dense variants start from the first block's output; the features are not among their branches.
        total += _block(config, block, branches[1:] or branches)
        branches.append(block.channels)
    outputs = config.classes * config.outputs_per_step
    return total + branches[-1] * outputs + outputs


def _block(config: ModelConfig, block: BlockConfig, branches: Sequence[int]) -> int:
    concatenates = block.residual in ("densenet", "dense_rnet")
    inputs = sum(branches) if concatenates else branches[-1]
    bypasses: Sequence[int] = ()
    if block.residual == "dense_residual":
        bypasses = branches
    elif block.residual in ("residual", "dense_rnet"):
        bypasses = [inputs]
    total = sum(_conv_and_norm(config, branch, block.channels, 1) for branch in bypasses)
    for index in range(block.repeat):
        channels = block.channels if index else inputs
        if block.separable:
            total += channels * block.kernel
            total += _conv_and_norm(config, channels // block.groups, block.channels, 1)
        else:
            total += _conv_and_norm(config, channels, block.channels, block.kernel)
    return total


def _conv_and_norm(config: ModelConfig, inputs: int, channels: int, kernel: int) -> int:
    outputs = channels * 2 if config.activation in GATED else channels
    # Batch and layer norm have scale and shift, weight norm has length and bias, a folded norm a bias only.
    return inputs * kernel * outputs + outputs * (1 if config.norm == "folded" else 2)
