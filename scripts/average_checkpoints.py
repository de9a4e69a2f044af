"""The mean of several states of one network: two sittings of one run, or two runs from one beginning, are often worth
more together than any of them.

    python scripts/average_checkpoints.py FIRST SECOND [MORE ...] [--shares 2 2 1] --out MEAN.safetensors

Each is a checkpoint file or a run's folder (its averaged weights). All count alike unless --shares says otherwise;
the card is the last one's. Release and measure what comes out (training/README.md).
"""

import argparse
from pathlib import Path

from acoustic import checkpoint
from acoustic.checkpoint import StateDict
from acoustic.errors import AcousticError
from training.errors import TrainingError
from training.export import trained_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("states", type=Path, nargs="+", metavar="STATE")
    parser.add_argument("--shares", type=float, nargs="+", help="how much each counts (default: all alike)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shares = arguments.shares or [1.0] * len(arguments.states)
    if len(shares) != len(arguments.states) or min(shares) < 0 or not sum(shares):
        parser.error(
            f"{len(arguments.states)} states want as many shares of nought or more, not {arguments.shares}"
        )
    mean: StateDict = {}
    for path, share in zip(arguments.states, shares, strict=True):
        try:
            one = trained_model(path)
        except (AcousticError, TrainingError) as error:
            parser.error(str(error))
        if not mean:
            config, mean = one.config, {name: tensor * 0.0 for name, tensor in one.state.items()}
        if one.config.blocks != config.blocks or one.config.alphabet != config.alphabet:
            parser.error(f"{path} is not of the same network as {arguments.states[0]}")
        for name, tensor in one.state.items():
            if tensor.is_floating_point():
                mean[name] += tensor.float() * (share / sum(shares))
            else:
                mean[name] = tensor
    checkpoint.save(arguments.out, one.config, mean, one.card)


if __name__ == "__main__":
    main()
