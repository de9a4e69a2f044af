"""A recipe: everything that makes a training run, as one TOML file in words; checked as it is read.

The shipped ones are in recipes/. What a recipe's values do is written beside the thing they set.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from training.augment.config import NO_AUGMENT, AugmentConfig, FeatureMasks
from training.distillation.blockwise_settings import BlockwisePart
from training.errors import TrainingError
from training.validation import ABOVE_NOUGHT, BELOW_ONE, NOUGHT_OR_MORE, ONE_OR_MORE, SHARE, check

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class ModelPart:
    """Which network: a published one from scratch by `name`, or a trained one to go on from by `start`."""

    name: str = ""
    start: str = ""
    alphabet: str = ""
    freeze: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataPart:
    """Manifests (below the data folder) and what is taken from them. `hours` is what the corpus should hold;
    `noise` is a manifest of noise and impulse responses, of which those with `split` "train" are mixed in.
    """

    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    hours: float = 0.0
    noise: str = ""
    min_duration_s: float = 0.1
    max_duration_s: float = 16.7
    batch_seconds: float = 240.0
    max_rows: int = 4096
    resident: bool = False
    threads: int = 4

    def __post_init__(self) -> None:
        check("data", self, ONE_OR_MORE, "max_rows", "threads")
        check("data", self, NOUGHT_OR_MORE, "hours", "min_duration_s")
        check("data", self, ABOVE_NOUGHT, "max_duration_s", "batch_seconds")


@dataclass(frozen=True)
class DistilPart:
    """Learning from pseudo-labels (training/distillation/objective.py): `labels` is a folder that `silica label`
    filled, one below it
    a manifest. The alteration rises from `ramp_first` of its strength to all of it at step `ramp_steps`.
    """

    labels: str = ""
    ramp_first: float = 0.2
    ramp_steps: int = 20_000

    def __post_init__(self) -> None:
        check("distil", self, NOUGHT_OR_MORE, "ramp_steps")
        check("distil", self, SHARE, "ramp_first")


@dataclass(frozen=True)
class MistakesPart:
    """Words wrong as they are counted, beside what else is learnt (training/objectives/mwer.py): with a `weight`,
    the search
    lists so many `readings` of every row, each time with one of the `lm_weights` of the language model in the box.
    """

    weight: float = 0.0
    readings: int = 24
    width: int = 128
    lm_weights: tuple[float, ...] = (0.0, 0.375, 0.75)

    def __post_init__(self) -> None:
        check("mistakes", self, NOUGHT_OR_MORE, "weight", "lm_weights")
        check("mistakes", self, ONE_OR_MORE, "readings", "width")
        if not self.lm_weights or self.readings > self.width:
            raise TrainingError(
                f"mistakes.readings is {self.readings} of a search that keeps {self.width}, and mistakes.lm_weights "
                f"names {len(self.lm_weights)} weights: expected no more readings than mistakes.width, and a weight."
            )


@dataclass(frozen=True)
class OptimiserPart:
    """See training/optim/optimizers.py; `clip` limits the norm of all gradients (0: no limit)."""

    name: str = "novograd"
    rate: float = 0.01
    betas: tuple[float, ...] = ()
    decay: float = 0.001
    momentum: float = 0.9
    clip: float = 0.0

    def __post_init__(self) -> None:
        check("optimizer", self, ABOVE_NOUGHT, "rate")
        check("optimizer", self, BELOW_ONE, "betas", "momentum")
        check("optimizer", self, NOUGHT_OR_MORE, "decay", "clip")
        if len(self.betas) not in (0, 2):
            raise TrainingError(
                f"optimizer.betas is {list(self.betas)}: expected two values, or none for the optimizer's own."
            )


@dataclass(frozen=True)
class SchedulePart:
    """See training/optim/schedules.py. Lengths in epochs, or (not nought) in steps."""

    epochs: float = 0.0
    steps: int = 0
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    hold_epochs: float = 0.0
    hold_steps: int = 0
    decay: str = "cosine"
    floor: float = 0.0
    power: float = 2.0
    gamma: float = 0.981

    def __post_init__(self) -> None:
        lengths = ("epochs", "steps", "warmup_epochs", "warmup_steps", "hold_epochs", "hold_steps")
        check("schedule", self, NOUGHT_OR_MORE, *lengths, "floor", "power")
        check("schedule", self, SHARE, "gamma")


@dataclass(frozen=True)
class RunPart:
    """The rest. A global batch is `processes` x `accumulation` x a batch of the data part. Where that part is large,
    `joint_norms = false` spares the processes from waiting for each other at every batch norm. `evaluate_every` and
    `log_every` count steps, and the last one counts too; 0 is never. An `average_decay` of 0 is no average.
    `rounded`: weights and activations as INT8 will have them (training.optim.quantization_aware), for a run's last
    steps.
    """

    processes: int = 1
    accumulation: int = 1
    precision: str = "fp32"
    average_decay: float = 0.999
    joint_norms: bool = True
    rounded: bool = False
    evaluate_every: int = 1000
    log_every: int = 20
    save_every_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        check("run", self, ONE_OR_MORE, "processes", "accumulation")
        check("run", self, NOUGHT_OR_MORE, "evaluate_every", "log_every", "save_every_s", "seed")
        check("run", self, BELOW_ONE, "average_decay")


@dataclass(frozen=True)
class Recipe:
    """One training run. `published` holds the figures it aims at, as they are printed in its source."""

    title: str
    source: str = ""
    model: ModelPart = field(default_factory=ModelPart)
    data: DataPart = field(default_factory=DataPart)
    distil: DistilPart = field(default_factory=DistilPart)
    stages: BlockwisePart = field(default_factory=BlockwisePart)
    mistakes: MistakesPart = field(default_factory=MistakesPart)
    augment: AugmentConfig = NO_AUGMENT
    masks: FeatureMasks = field(default_factory=FeatureMasks)
    optimizer: OptimiserPart = field(default_factory=OptimiserPart)
    schedule: SchedulePart = field(default_factory=SchedulePart)
    run: RunPart = field(default_factory=RunPart)
    published: Mapping[str, Any] = field(default_factory=dict)


def shipped() -> list[str]:
    """The names of the recipes that come with Silica."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """A shipped recipe by name, or a TOML file."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = RECIPES / f"{name_or_path}.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainingError(
            f"There is no recipe {name_or_path!r}. Shipped: {', '.join(shipped())}; or name a .toml file."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path} is no TOML file: {error}.") from None
    return from_values(values, str(path))


def from_values(values: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from plain values; unknown names and wrong types are refused by name."""
    if "title" not in values:
        raise TrainingError(f"{where}: a recipe needs a `title`.")
    _refuse_unknown(Recipe, values, where)
    # What an [augment] table leaves out is off, not at the strength of `AugmentConfig`'s defaults.
    augment = values.get("augment", {})
    if isinstance(augment, Mapping):
        values = {**values, "augment": {**asdict(NO_AUGMENT), **augment}}
    try:
        recipe = msgspec.convert(values, Recipe)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        raise TrainingError(f"{where}: {path.rstrip('`')}: {reason}.") from None
    if not recipe.model.name and not recipe.model.start:
        raise TrainingError(f"{where}: [model] needs `name` (from scratch) or `start` (from a checkpoint).")
    if not recipe.schedule.steps and not recipe.schedule.epochs:
        raise TrainingError(f"{where}: [schedule] needs `epochs` or `steps`.")
    return recipe


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with values replaced, each written as `part.name=value` (value in TOML)."""
    values = asdict(recipe)
    for setting in settings:
        key, equals, text = setting.partition("=")
        part, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise TrainingError(f"{setting!r}: expected part.name=value, such as optimizer.rate=0.005.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        if not isinstance(values.get(part), dict):
            raise TrainingError(f"{setting!r}: a recipe has no part {part!r}.")
        values[part][name] = value
    return from_values(values, " ".join(settings))


def _refuse_unknown(kind: Any, values: Mapping[str, Any], where: str) -> None:
    """msgspec passes over names that a dataclass does not have."""
    known = get_type_hints(kind)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise TrainingError(f"{where}: unknown {', '.join(unknown)}. Known: {', '.join(known)}.")
    for name, value in values.items():
        if is_dataclass(known[name]) and isinstance(value, Mapping):
            _refuse_unknown(known[name], value, f"{where}: {name}")
