"""The mean of two checkpoints of one network: two sittings of one run are often worth more together than either.

    python scripts/mean_weights.py FIRST SECOND --share 0.7 --out MEAN.safetensors

`--share` is the second one's; the card is the second one's too. Release and measure what
comes out (training/README.md).
"""

import argparse
from pathlib import Path

from acoustic import checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="the second one's (default 0.5)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if not 0.0 <= arguments.share <= 1.0:
        parser.error(f"the share lies between 0 and 1, not {arguments.share}")
    first, second = checkpoint.load(arguments.first), checkpoint.load(arguments.second)
    if first.config.blocks != second.config.blocks or first.config.alphabet != second.config.alphabet:
        parser.error(f"{arguments.first} and {arguments.second} are not of one network")
    state = {
        name: first.state[name].lerp(tensor, arguments.share) if tensor.is_floating_point() else tensor
        for name, tensor in second.state.items()
    }
    checkpoint.save(arguments.out, second.config, state, second.card)


if __name__ == "__main__":
    main()
