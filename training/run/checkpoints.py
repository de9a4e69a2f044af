"""The checkpoints of a run, written so that a crash or a full disk never loses the last good one.

`last.pt` is the whole training state, `previous.pt` the one before it, `best.safetensors` the model (averaged weights)
with the lowest WER on the development set.
"""

import errno
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acoustic import checkpoint
from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.files import PARTIAL, replacing_file, sync
from training.errors import TrainingError
from training.run.file_lock import exclusive

log = logging.getLogger("silica.training")

FORMAT = "silica-training-1"


class RunFolder:
    """The folder of a training run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = path / "last.pt"
        self.previous = path / "previous.pt"
        self.best = path / "best.safetensors"
        self.progress = path / "progress.csv"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"The run folder {path} cannot be created: {error.strerror}.") from error

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the folder for the duration of a run, and remove partial files that a killed run left."""
        with exclusive(self.path, "training"):
            for stale in self.path.glob(f".*{PARTIAL}"):
                stale.unlink(missing_ok=True)
            yield

    def save(self, state: Mapping[str, Any], config: ModelConfig) -> bool:
        """Write `last.pt` and keep the one before it as `previous.pt`. Returns False if it could not be written.

        A full disk does not end the run: the last good checkpoint stays, and a later attempt may succeed.
        """
        content = {"format": FORMAT, "config": json.dumps(config.to_dict()), **state}
        try:
            with replacing_file(self.last) as partial:
                with partial.open("wb") as file:
                    torch.save(content, file)
                sync(partial)
                if self.last.exists():
                    self.last.replace(self.previous)
        except (OSError, RuntimeError) as error:
            if _is_full(error) and self.last.exists() and self.previous.exists():
                self.previous.unlink()  # makes room for the new one; `last.pt` stays until that is complete
                return self.save(state, config)
            kept = "the last good one is kept" if self.last.exists() else "there is no earlier one"
            log.error(
                "the checkpoint could not be written (%s): %s, training continues", _reason(error), kept
            )
            return False
        return True

    def load(self, config: ModelConfig) -> dict[str, Any] | None:
        """The newest readable state, or None in a new folder. Raises if it belongs to another model."""
        problems = []
        for file in (self.last, self.previous):
            if not file.exists():
                continue
            try:
                state = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # torch raises many types for a damaged file
                problems.append(f"{file} cannot be read ({type(error).__name__})")
                log.warning("%s; trying the previous one", problems[-1])
                continue
            if not isinstance(state, dict) or state.get("format") != FORMAT:
                raise TrainingError(f"{file} is not a checkpoint of a Silica training run.")
            written = ModelConfig.from_dict(json.loads(state["config"]))
            if written != config:
                raise TrainingError(
                    f"{file} is a checkpoint of another model: {written.name} "
                    f"{_difference(written, config)}. Continue it with its own recipe, or name a new folder."
                )
            return state
        if problems:
            raise TrainingError(
                "No checkpoint of this run can be read: "
                + "; ".join(problems)
                + ". Start again in another folder."
            )
        return None

    def save_best(self, config: ModelConfig, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> bool:
        """Write the best model so far as a model checkpoint. Returns False if it could not be written."""
        try:
            checkpoint.save(self.best, config, weights, card)
        except (OSError, AcousticError) as error:
            log.error("the best model could not be written (%s): training continues", error)
            return False
        return True


def _reason(error: BaseException) -> str:
    """The operating system's message: PyTorch wraps a full disk in an error about its file format."""
    return str(_system_error(error) or error)


def _is_full(error: BaseException) -> bool:
    inner = _system_error(error)
    return inner is not None and inner.errno in (errno.ENOSPC, errno.EDQUOT)


def _system_error(error: BaseException | None) -> OSError | None:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _difference(written: ModelConfig, expected: ModelConfig) -> str:
    if written.name != expected.name:
        return f"where this run trains {expected.name}"
    names = [name for name, value in written.to_dict().items() if expected.to_dict()[name] != value]
    return f"with other values for {', '.join(names)}"
