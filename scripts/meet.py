"""Runs of one network meet: all go on from the mean of their averaged weights and of their optimisers' sums.

    python scripts/meet.py RUN RUN [MORE ...]

Stop them first and start each again with its own line: step, rate and batches stay its own. While the rate is high a
meeting brings each further than it comes alone (training/LOG.md, run N). The states before are kept as previous.pt.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acoustic.shape import ModelConfig
from training.errors import TrainingError
from training.runs import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    runs: list[Path] = parser.parse_args().runs
    if len(set(runs)) < 2:
        parser.error("it takes two runs to meet")
    for run in runs:
        if not (run / "last.pt").exists():
            parser.error(f"{run} holds no training run: there is no last.pt in it")
    try:
        meet(runs)
    except TrainingError as error:
        parser.error(str(error))


def meet(runs: Sequence[Path]) -> None:
    """Write each run's state anew."""
    with ExitStack() as held:
        folders = [RunFolder(run) for run in runs]
        for folder in folders:
            held.enter_context(folder.alone())
        states = [torch.load(folder.last, map_location="cpu", weights_only=True) for folder in folders]
        configs = [ModelConfig.from_dict(json.loads(state["config"])) for state in states]
        if any(config != configs[0] for config in configs):
            raise TrainingError(f"{', '.join(map(str, runs))} do not train one network.")
        try:
            weights = mean([(state["average"] or {"values": state["model"]})["values"] for state in states])
            sums = mean([state["optimiser"]["state"] for state in states])
        except (KeyError, RuntimeError) as error:
            raise TrainingError(
                f"{', '.join(map(str, runs))} do not learn alike: their optimisers, frozen parts or distil.hidden "
                "differ."
            ) from error
        for folder, state, config in zip(folders, states, configs, strict=True):
            state["model"], state["optimiser"]["state"] = weights, sums
            if state["average"]:
                state["average"]["values"] = weights
            if not folder.save(state, config):
                raise TrainingError(f"The new state of {folder.path} could not be written.")


def mean(alike: Sequence[Any]) -> Any:
    """Of tensors, however deep they lie; of whatever else the first."""
    first = alike[0]
    if isinstance(first, dict):
        if any(one.keys() != first.keys() for one in alike):
            raise KeyError("other parts")
        return {key: mean([one[key] for one in alike]) for key in first}
    if isinstance(first, Tensor) and first.is_floating_point():
        return torch.stack([one.float() for one in alike]).mean(0).to(first.dtype)
    return first


if __name__ == "__main__":
    main()
