"""Averages the weights of several checkpoints of one network.

    python scripts/average_checkpoints.py FIRST SECOND [MORE ...] [--shares 2 2 1] --out MEAN.safetensors

Each is a checkpoint file or the folder of a training run (its EMA weights). The model card is the last one's. Averaging
the checkpoints of one run, or of two runs from one starting point, often gives a lower WER than any of them.
"""

import argparse
from pathlib import Path

from acoustic import checkpoint
from acoustic.checkpoint import StateDict
from acoustic.errors import AcousticError
from training.errors import TrainingError
from training.export import trained_model


def main() -> None:
    """Read, average, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT")
    parser.add_argument(
        "--shares", type=float, nargs="+", help="weight of each checkpoint in the average (default: equal)"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    paths = arguments.checkpoints
    shares = arguments.shares or [1.0] * len(paths)
    if len(shares) != len(paths) or min(shares) < 0 or not sum(shares):
        parser.error(f"--shares needs {len(paths)} numbers of 0 or more, not all 0; got {arguments.shares}")
    mean: StateDict = {}
    for path, share in zip(paths, shares, strict=True):
        try:
            model = trained_model(path)
        except (AcousticError, TrainingError) as error:
            parser.error(str(error))
        if not mean:
            config, mean = model.config, {name: tensor * 0.0 for name, tensor in model.state.items()}
        if model.config.blocks != config.blocks or model.config.alphabet != config.alphabet:
            parser.error(f"{path} and {paths[0]} are of different networks")
        for name, tensor in model.state.items():
            if tensor.is_floating_point():
                mean[name] += tensor.float() * (share / sum(shares))
            else:
                mean[name] = tensor
    checkpoint.save(arguments.out, model.config, mean, model.card)


if __name__ == "__main__":
    main()
