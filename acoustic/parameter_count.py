"""How many weights a network has: counted from its shape alone, so that models are listed without PyTorch."""

from collections.abc import Sequence

from acoustic.config import GATED, BlockConfig, ModelConfig


def parameter_count(config: ModelConfig) -> int:
    """Trainable parameters of the network that `acoustic.network.build` would make."""
    branches = [config.features.mels]
    total = 0
    for block in config.blocks:
        # The features themselves are no pane of the dense variants: the prologue's output is the first.
        total += _block(config, block, branches[1:] or branches)
        branches.append(block.channels)
    outputs = config.classes * config.outputs_per_step
    return total + branches[-1] * outputs + outputs


def _block(config: ModelConfig, block: BlockConfig, branches: Sequence[int]) -> int:
    joins = block.residual in ("densenet", "dense_rnet")
    inputs = sum(branches) if joins else branches[-1]
    bypasses: Sequence[int] = ()
    if block.residual == "dense_residual":
        bypasses = branches
    elif block.residual in ("residual", "dense_rnet"):
        bypasses = [inputs]
    total = sum(_normed(config, branch, block.channels, 1) for branch in bypasses)
    for unit in range(block.repeat):
        taken = block.channels if unit else inputs
        if block.separable:
            total += taken * block.kernel + _normed(config, taken // block.groups, block.channels, 1)
        else:
            total += _normed(config, taken, block.channels, block.kernel)
    return total


def _normed(config: ModelConfig, inputs: int, channels: int, kernel: int) -> int:
    """A convolution and its norm."""
    outputs = channels * 2 if config.activation in GATED else channels
    # Batch and layer norm: scale and shift; weight norm: length and bias; folded: the bias alone.
    return inputs * kernel * outputs + outputs * (1 if config.norm == "folded" else 2)
