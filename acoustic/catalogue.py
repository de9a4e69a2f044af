"""Names to weights: the model in the box, the models a user imported or pulled, and files by path.

Imported models live in `acoustic.files.models_folder`, one folder each. Where
weights can be fetched from is in `acoustic.downloads`. PyTorch comes only with weights: listing is quick.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acoustic.architectures import published
from acoustic.checkpoint_header import FILE_NAME, SUFFIX, describe, file_in
from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.files import models_folder

if TYPE_CHECKING:
    from acoustic.checkpoint import Checkpoint, Dtype

PRETRAINED_FOLDER = Path(__file__).parent / "pretrained"
DEFAULT_MODEL = "silica-streaming-en"
UNTRAINED = "tiny"  # the one published shape that `find` gives weights to without training: tests stand on it


@dataclass(frozen=True)
class Entry:
    """One model that can be named: its shape, and the file with its weights if there is one."""

    name: str
    config: ModelConfig
    path: Path | None
    origin: str  # "shipped", "imported" or "published"


def check_name(name: str) -> str:
    """A model name that is safe as a folder name, or a refusal."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise AcousticError(
            f"{name!r} is no model name: letters, digits, '.', '_' and '-' only, at most 100 of them."
        )
    return name


def shipped_path() -> Path:
    """Where the model in the box lies when it is there."""
    return PRETRAINED_FOLDER / (DEFAULT_MODEL + SUFFIX)


def default_name() -> str:
    """The model that is used when nobody names one."""
    if shipped_path().is_file():
        return DEFAULT_MODEL
    raise AcousticError(
        f"This copy of Silica has no model in the box ({DEFAULT_MODEL}). Name one with --model: bring weights in "
        "with `silica models import PATH` or `silica models pull quartznet15x5-en`; "
        "`silica models list` shows what is here."
    )


def locate(name: str) -> Path | None:
    """The checkpoint file of a named model, or None."""
    if name == DEFAULT_MODEL and shipped_path().is_file():
        return shipped_path()
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        path = models_folder() / name / FILE_NAME
        if path.is_file():
            return path
    return None


def find(name_or_path: str | Path) -> "Checkpoint":
    """The checkpoint of that name, or in that file or folder (Silica's own or one an importer recognizes)."""
    from acoustic import checkpoint, importers

    name = str(name_or_path)
    located = locate(name)
    if located is not None:
        return checkpoint.load(located)
    if name == UNTRAINED:
        return untrained(published[UNTRAINED])
    path = Path(name).expanduser()
    if name and path.exists() and name not in published:
        return importers.read(path)
    if name == DEFAULT_MODEL:
        default_name()  # says how to get one
    if name in published:
        raise AcousticError(
            f"{name} is a published shape without weights here. Train it with `silica train`, or bring "
            "weights in with `silica models import PATH` or `silica models pull NAME`."
        )
    known = ", ".join(entry.name for entry in entries() if entry.path is not None) or "none"
    raise AcousticError(f"There is no model {name!r}: neither a name nor a file. Models here: {known}.")


def find_description(name_or_path: str | Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Configuration and card of that name or file; its weights (and PyTorch) are loaded only where no header of ours
    tells them."""
    name = str(name_or_path)
    path = locate(name)
    if path is None and name == UNTRAINED:
        return published[UNTRAINED], {}
    if path is None and name and name not in published:
        path = file_in(Path(name).expanduser())
    if path is not None and path.is_file():
        return describe(path)
    model = find(name)
    return model.config, dict(model.card)


def untrained(config: ModelConfig, seed: int = 1) -> "Checkpoint":
    """Weights that are always the same and mean nothing, with outputs that do differ from frame to frame."""
    import torch

    from acoustic.checkpoint import Checkpoint
    from acoustic.network import build

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(config)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    # Freshly initialized scores are so close to one another that every frame would read the same.
    state["output.weight"] *= 8.0
    return Checkpoint(config, state, {"title": f"{config.name}, untrained", "trained": False})


def install(name: str, model: "Checkpoint", dtype: "Dtype" = "fp16", *, replacing: bool = True) -> Path:
    """Put a checkpoint among the user's models; one of its name that is there is replaced only where that is meant."""
    from acoustic import checkpoint

    folder = models_folder() / check_name(name)
    if name == DEFAULT_MODEL:
        raise AcousticError(f"{name} is the model in the box, and stays that: give yours another name.")
    if not replacing and (folder / FILE_NAME).exists():
        raise AcousticError(
            f"There is a model {name} already, in {folder}. Give this one another name with --name, or replace "
            "that one with --force."
        )
    return checkpoint.save(folder, model.config, model.state, model.card, dtype)


def entries() -> Iterator[Entry]:
    """Everything that has a name: shipped and imported models first, then the published shapes."""
    if shipped_path().is_file():
        yield Entry(DEFAULT_MODEL, describe(shipped_path())[0], shipped_path(), "shipped")
    seen = {DEFAULT_MODEL}
    for name, path in _installed():
        if name not in seen:
            try:
                config, _ = describe(path)
            except AcousticError:
                continue  # `damaged` names it; one bad file must not hide the others
            seen.add(name)
            yield Entry(name, config, path, "imported")
    for name, config in published.items():
        if name not in seen:
            yield Entry(name, config, None, "published")


def damaged() -> list[str]:
    """What is wrong with each installed file that cannot be read."""
    problems = []
    for _, path in _installed():
        try:
            describe(path)
        except AcousticError as error:
            problems.append(str(error))
    return problems


def _installed() -> list[tuple[str, Path]]:
    folder = models_folder()
    paths = sorted(folder.glob(f"*/{FILE_NAME}")) if folder.is_dir() else []
    return [(path.parent.name, path) for path in paths]
