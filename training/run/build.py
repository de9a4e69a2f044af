"""From a recipe to a run: model, clips, feed, objective, optimizer, schedule, put together once and for
all verbs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from acoustic.architectures import published
from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.network import build
from training.data.loader import Loader, Shard, filter_clips
from training.data.manifests import Clip, read_manifest
from training.data.noise import read_noise_banks
from training.distillation.blockwise import BlockwiseObjective, BlockwiseTeacher, attach_stages
from training.distillation.objective import PseudoLabelObjective
from training.distillation.pseudo_labels import (
    LabelFolder,
    check_unique_names,
    label_name,
    with_pseudo_labels,
)
from training.errors import TrainingError
from training.objectives.objective import CtcObjective, Objective
from training.optim.optimizers import build_optimizer
from training.optim.quantization_aware import attach_quantization
from training.optim.schedules import Schedule
from training.recipe import ModelSource, Recipe
from training.run.checkpoints import RunFolder
from training.run.distributed import World
from training.run.evaluate import Evaluation
from training.run.finetune import freeze, start_from
from training.run.loop import Loop, LoopSettings
from training.run.precision import AUTO, fastest_precision


@dataclass(frozen=True)
class Material:
    """The clips of a run, and how many were left out for which reason."""

    train: list[Clip]
    dev: list[Clip]
    left_out: dict[str, int]


def starting_model(recipe: Recipe) -> tuple[nn.Module, ModelConfig]:
    """The network that a recipe begins with: fresh, or trained."""
    part = recipe.model
    if part.start:
        model, config = start_from(_find_start(part), part.alphabet or None)
    else:
        config = shape_of(recipe)
        model = build(config)
    if part.freeze:
        freeze(model, part.freeze)
    return model, config


def shape_of(recipe: Recipe) -> ModelConfig:
    """The configuration of a recipe's network without its weights."""
    part = recipe.model
    if part.start:
        config = _find_start(part).config
        return replace(config, alphabet=part.alphabet) if part.alphabet else config
    if part.name not in published:
        raise TrainingError(f"No network is called {part.name!r}. Known: {', '.join(published)}.")
    return published[part.name]


def _find_start(part: ModelSource) -> Checkpoint:
    from acoustic.catalogue import find

    start = find(part.start)
    if part.name not in ("", start.config.name):
        raise TrainingError(
            f"model.start is {part.start}, a {start.config.name}, and model.name is {part.name}: "
            "leave out one of the two."
        )
    return start


def read_material(
    recipe: Recipe, config: ModelConfig, data: Path | None, seconds_per_output: float
) -> Material:
    """The clips that the recipe's manifests name; relative names lie below the data folder."""
    train = _read_train(recipe, data)
    dev = [clip for path in _paths(recipe.data.dev, data) for clip in read_manifest(path)]
    kept, left_out = filter_clips(
        train,
        min_duration_s=recipe.data.min_duration_s,
        max_duration_s=recipe.data.max_duration_s,
        seconds_per_output=seconds_per_output * _fastest(recipe),
    )
    if not kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise TrainingError(
            f"No clip of {', '.join(recipe.data.train)} can be used ({reasons or 'they are empty'})."
        )
    return Material(kept, [clip for clip in dev if clip.text], left_out)


def schedule_for(recipe: Recipe, steps_per_epoch: int) -> Schedule:
    """The recipe's schedule in steps."""
    part = recipe.schedule
    return Schedule(
        peak=recipe.optimizer.learning_rate,
        total_steps=part.steps or max(1, round(part.epochs * steps_per_epoch)),
        decay=part.decay,
        warmup_steps=part.warmup_steps or round(part.warmup_epochs * steps_per_epoch),
        hold_steps=part.hold_steps or round(part.hold_epochs * steps_per_epoch),
        floor=part.floor,
        power=part.power,
        gamma=part.gamma,
        decay_every=steps_per_epoch,
    )


def assemble(
    recipe: Recipe,
    folder: Path,
    *,
    data: Path | None = None,
    world: World = World(),  # noqa: B008 (frozen)
    stop_after_s: float | None = None,
    live: bool | None = None,
) -> Loop:
    """A loop that is ready to run; what the folder holds of an earlier start is continued."""
    torch.manual_seed(recipe.run.seed)
    model, config = starting_model(recipe)
    if recipe.blockwise.teacher:
        attach_stages(model, recipe.blockwise.student_blocks)
    if recipe.run.quantization_aware:
        attach_quantization(model)
    seconds = config.frames_per_output / config.frames_per_second
    material = read_material(recipe, config, data, seconds)
    shard = Shard(world.rank, world.size, recipe.run.accumulation)
    feed = Loader(
        material.train,
        config.alphabet,
        batch_duration_s=recipe.data.batch_duration_s,
        max_batch_size=recipe.data.max_batch_size,
        seed=recipe.run.seed,
        shard=shard,
        resident=recipe.data.resident,
        device=world.device,
        threads=recipe.data.threads,
    )
    part = recipe.optimizer
    optimizer = build_optimizer(
        part.name,
        model,
        learning_rate=part.learning_rate,
        betas=(part.betas[0], part.betas[1]) if part.betas else None,
        weight_decay=part.weight_decay,
        momentum=part.momentum,
    )
    settings = LoopSettings(
        precision=fastest_precision(world.device) if recipe.run.precision == AUTO else recipe.run.precision,
        grad_clip=part.grad_clip or None,
        ema_decay=recipe.run.ema_decay or None,
        sync_batchnorm=recipe.run.sync_batchnorm,
        log_every=recipe.run.log_every,
        evaluate_every=recipe.run.evaluate_every,
        save_every_s=recipe.run.save_every_s,
        stop_after_s=stop_after_s,
    )
    evaluate = Evaluation(material.dev, config, world) if material.dev and recipe.run.evaluate_every else None
    objective = objective_for(recipe, config, material, data, world.device)
    if recipe.mwer.weight:
        objective = with_mistakes(objective, model, recipe, config)
    corpora = sorted({clip.corpus for clip in material.train if clip.corpus})
    card = {"title": recipe.title, "recipe": recipe.source, "corpora": corpora, "hours": round(feed.hours, 2)}
    return Loop(
        model,
        config,
        objective,
        feed,
        optimizer,
        schedule_for(recipe, len(feed.plan(0))),
        RunFolder(folder),
        settings=settings,
        world=world,
        evaluate=evaluate,
        card=card,
        live=live,
    )


def objective_for(
    recipe: Recipe,
    config: ModelConfig,
    material: Material,
    data: Path | None,
    device: torch.device,
) -> Objective:
    """What the run minimizes: CTC of transcripts, of pseudo-labels too where the recipe names some, or a teacher's
    stages.
    """
    banks = read_noise_banks(_paths((recipe.data.noise,), data)[0], device) if recipe.data.noise else None
    if recipe.blockwise.teacher:
        from acoustic.catalogue import find

        guide = BlockwiseTeacher(
            find(recipe.blockwise.teacher), recipe.blockwise.teacher_blocks, device, config.features
        )
        guide.measure(material.train)
        return BlockwiseObjective(
            config=config,
            device=device,
            teacher=guide,
            part=recipe.blockwise,
            alteration=recipe.augment,
            banks=banks,
            masks=recipe.spec_augment,
        )
    if not recipe.data.pseudo_labels:
        return CtcObjective(config, device, alteration=recipe.augment, masks=recipe.spec_augment, banks=banks)
    return PseudoLabelObjective(
        config,
        device,
        augment=recipe.augment,
        banks=banks,
        spec_augment=recipe.spec_augment,
    )


def with_mistakes(objective: Objective, model: nn.Module, recipe: Recipe, config: ModelConfig) -> Objective:
    """The objective, and the mistakes to be expected of the search that suits the model."""
    from acoustic.catalogue import find_description
    from lm.ngram.trie import NGram
    from lm.search.settings import SearchSettings, settings_from_card
    from training.objectives.mwer import MwerObjective

    start = recipe.model.start
    search = settings_from_card(find_description(start)[1]) if start else SearchSettings()
    return MwerObjective(objective, model, config.alphabet, recipe.mwer, search, NGram.shipped())


def _read_train(recipe: Recipe, data: Path | None) -> list[Clip]:
    """The training clips that have a text, with the recipe's pseudo-labels where it names some."""
    clips: list[Clip] = []
    labels = _paths((recipe.data.pseudo_labels,), data)[0] if recipe.data.pseudo_labels else None
    manifests = _paths(recipe.data.train, data)
    if labels:
        check_unique_names(manifests)
    for path in manifests:
        base, name = label_name(path)
        clips += with_pseudo_labels(read_manifest(path), base, LabelFolder(labels / name) if labels else None)
    return clips


def _paths(names: Sequence[str], data: Path | None) -> list[Path]:
    """Relative names lie below the data folder."""
    return [Path(name) if Path(name).is_absolute() or data is None else data / name for name in names]


def _fastest(recipe: Recipe) -> float:
    """How much shorter the recipe's speed change can make a clip."""
    return max(1.0, recipe.augment.speed_range[1]) if recipe.augment.speed else 1.0
