"""From a recipe to a run: model, clips, feed, objective, optimiser, schedule, put together once and for
all verbs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from acoustic.config import published
from acoustic.network import build
from acoustic.shape import ModelConfig
from training.data.feed import Feed, Share, usable
from training.data.manifests import Clip, read_manifest
from training.data.noise import read_banks
from training.distill import (
    DistilObjective,
    Labelled,
    Ramp,
    Stored,
    StoredTeacher,
    Teacher,
    Weights,
    labelled_clips,
)
from training.errors import TrainingError
from training.evaluate import Evaluation
from training.finetune import freeze, grown, start_from
from training.hidden import attach_head, kept_basis, known_basis
from training.labels import LabelFolder, labelled_as, refuse_namesakes
from training.live import LiveTeacher
from training.loop import Loop, LoopSettings
from training.objectives import CtcObjective, Objective
from training.optimisers import build_optimiser
from training.parallel import World
from training.precision import AUTO, quickest
from training.recipe import Recipe
from training.reuse import Reuse
from training.rounding import attach_rounding
from training.runs import RunFolder
from training.schedules import Schedule
from training.stages import StagedObjective, StageTeacher, attach_stages


@dataclass(frozen=True)
class Material:
    """The clips of a run, what was left out for which reason, and a teacher's stored answers."""

    train: list[Clip]
    dev: list[Clip]
    left_out: dict[str, int]
    answers: dict[str, Stored] = field(default_factory=dict)


def starting_model(recipe: Recipe) -> tuple[nn.Module, ModelConfig]:
    """The network that a recipe begins with: fresh, or trained."""
    part = recipe.model
    if part.start:
        from acoustic.catalogue import find

        start = find(part.start)
        if part.name and part.name != start.config.name:
            start = grown(start, _published(part.name))
        model, config = start_from(start, part.alphabet or None)
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
        from acoustic.catalogue import find

        config = find(part.start).config
        if part.name:
            config = replace(_published(part.name), alphabet=config.alphabet)
        return replace(config, alphabet=part.alphabet) if part.alphabet else config
    return _published(part.name)


def _published(name: str) -> ModelConfig:
    if name not in published:
        raise TrainingError(f"No network is called {name!r}. Known: {', '.join(published)}.")
    return published[name]


def read_material(
    recipe: Recipe, config: ModelConfig, data: Path | None, seconds_per_output: float
) -> Material:
    """The clips that the recipe's manifests name; relative names lie below the data folder."""
    labelled = _read_labelled(recipe, config, data)
    train = labelled.clips
    dev = [clip for path in _paths(recipe.data.dev, data) for clip in read_manifest(path)]
    kept, left_out = usable(
        train,
        shortest_s=recipe.data.shortest_s,
        longest_s=recipe.data.longest_s,
        with_text=not recipe.distil.teacher,
        seconds_per_output=seconds_per_output * _fastest(recipe),
    )
    if not kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise TrainingError(
            f"No clip of {', '.join(recipe.data.train)} can be used ({reasons or 'they are empty'})."
        )
    return Material(kept, [clip for clip in dev if clip.text], left_out, labelled.answers)


def schedule_for(recipe: Recipe, steps_per_epoch: int) -> Schedule:
    """The recipe's schedule in steps."""
    part = recipe.schedule
    return Schedule(
        peak=recipe.optimiser.rate,
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
    if recipe.distil.hidden:
        attach_head(model, recipe.distil.hidden_layer)
    if recipe.stages.teacher:
        attach_stages(model, recipe.stages.by)
    if recipe.run.rounded:
        attach_rounding(model)
    seconds = config.frames_per_output / config.frames_per_second
    material = read_material(recipe, config, data, seconds)
    share = Share(world.rank, world.size, recipe.run.accumulation)
    feed = Feed(
        material.train,
        config.alphabet,
        batch_seconds=recipe.data.batch_seconds,
        most_rows=recipe.data.most_rows,
        seed=recipe.run.seed,
        share=share,
        resident=recipe.data.resident,
        device=world.device,
        threads=recipe.data.threads,
    )
    part = recipe.optimiser
    optimiser = build_optimiser(
        part.name,
        model,
        rate=part.rate,
        betas=(part.betas[0], part.betas[1]) if part.betas else None,
        decay=part.decay,
        momentum=part.momentum,
    )
    settings = LoopSettings(
        precision=quickest(world.device) if recipe.run.precision == AUTO else recipe.run.precision,
        clip=part.clip or None,
        average_decay=recipe.run.average_decay or None,
        joint_norms=recipe.run.joint_norms,
        reuse=Reuse(recipe.data.uses, recipe.data.uses_apart),
        log_every=recipe.run.log_every,
        evaluate_every=recipe.run.evaluate_every,
        save_every_s=recipe.run.save_every_s,
        stop_after_s=stop_after_s,
    )
    evaluate = Evaluation(material.dev, config, world) if material.dev and recipe.run.evaluate_every else None
    objective = objective_for(recipe, config, material, data, world.device, folder)
    if recipe.mistakes.weight:
        objective = with_mistakes(objective, model, recipe, config)
    corpora = sorted({clip.corpus for clip in material.train if clip.corpus})
    card = {"title": recipe.title, "recipe": recipe.source, "corpora": corpora, "hours": round(feed.hours, 2)}
    return Loop(
        model,
        config,
        objective,
        feed,
        optimiser,
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
    folder: Path,
) -> Objective:
    """What the run in `folder` minimises: CTC of transcripts, or a distillation where the recipe names a teacher or
    labels.
    """
    banks = read_banks(_paths((recipe.data.noise,), data)[0], device) if recipe.data.noise else None
    part = recipe.distil
    if (recipe.augment.splice or recipe.augment.scramble) and not (part.teacher or recipe.stages.teacher):
        raise TrainingError(
            "augment.splice joins pieces of two clips, augment.scramble those of one in another order, and neither a "
            "transcript nor a stored label says what is heard then: set both to 0, or let a teacher answer on the spot "
            "(distil.teacher, stages.teacher)."
        )
    if recipe.stages.teacher:
        from acoustic.catalogue import find

        if part.teacher or part.hidden:
            raise TrainingError(
                "stages.teacher is what a staged student learns from: leave distil.teacher and distil.hidden out."
            )
        guide = StageTeacher(find(recipe.stages.teacher), recipe.stages.of, device, config.features)
        guide.measure(material.train)
        return StagedObjective(
            config=config,
            device=device,
            teacher=guide,
            part=recipe.stages,
            alteration=recipe.augment,
            ramp=Ramp(part.ramp_first, part.ramp_steps),
            banks=banks,
            masks=recipe.masks,
        )
    if not part.teacher and not part.labels:
        return CtcObjective(config, device, alteration=recipe.augment, masks=recipe.masks, banks=banks)
    teacher: Teacher
    if part.teacher:
        if recipe.data.uses > 1:
            raise TrainingError(
                "A live teacher hears every sound anew, and data.uses keeps no sound: set data.uses to 1, or store the "
                "teacher's answers with `silica label`."
            )
        from acoustic.catalogue import find

        teacher = LiveTeacher(find(part.teacher), device, part.hidden_block or None)
        if part.hidden:
            teacher.learn(kept_basis(folder, teacher, lambda: material.train))
    else:
        frames, hidden = bool(part.frames or part.characters), bool(part.hidden)
        # For words alone the texts do.
        answers = material.answers if frames or hidden else {}
        if hidden and not answers:
            raise TrainingError(
                "distil.hidden has nothing to learn from: no clip of this recipe is labelled. Run `silica label "
                "--hidden` on its manifests, or set distil.hidden to 0."
            )
        teacher = StoredTeacher(answers, config.classes, frames=frames, hidden=hidden)
    return DistilObjective(
        config,
        device,
        teacher,
        weights=Weights(part.words, part.frames, part.characters, part.hidden, part.agree),
        alteration=recipe.augment,
        ramp=Ramp(part.ramp_first, part.ramp_steps),
        banks=banks,
        masks=recipe.masks,
        hidden_late=part.hidden_late,
    )


def with_mistakes(objective: Objective, model: nn.Module, recipe: Recipe, config: ModelConfig) -> Objective:
    """The objective, and the mistakes to be expected of the search that suits the model."""
    from acoustic.catalogue import find_description
    from lm.ngram import NGram
    from lm.search_settings import SearchSettings, suited
    from training.mistakes import WithMistakes

    start = recipe.model.start
    search = suited(find_description(start)[1]) if start else SearchSettings()
    return WithMistakes(objective, model, config.alphabet, recipe.mistakes, search, NGram.shipped())


def _read_labelled(recipe: Recipe, config: ModelConfig, data: Path | None) -> Labelled:
    """The training clips, with the texts and answers of the recipe's labels where it names some."""
    clips: list[Clip] = []
    answers: dict[str, Stored] = {}
    labels = _paths((recipe.distil.labels,), data)[0] if recipe.distil.labels else None
    manifests = _paths(recipe.data.train, data)
    if labels:
        refuse_namesakes(manifests)
    basis = known_basis(labels) if labels and recipe.distil.hidden else None
    if recipe.distil.hidden and not recipe.distil.teacher and not basis:
        raise TrainingError(
            "distil.hidden learns a hidden layer that `silica label --hidden BLOCK` kept, and "
            f"{labels or 'distil.labels (which names no folder)'} holds none: label with it, or set distil.hidden to 0."
        )
    for path in manifests:
        base, name = labelled_as(path)
        folder = LabelFolder(labels / name, config.classes, basis.name if basis else "") if labels else None
        labelled = labelled_clips(read_manifest(path), base, folder)
        clips += labelled.clips if not recipe.distil.teacher else read_manifest(path)
        answers |= labelled.answers
    return Labelled(clips, answers)


def _paths(names: Sequence[str], data: Path | None) -> list[Path]:
    """Relative names lie below the data folder."""
    return [Path(name) if Path(name).is_absolute() or data is None else data / name for name in names]


def _fastest(recipe: Recipe) -> float:
    """How much shorter the recipe's speed change can make a clip."""
    return max(1.0, recipe.augment.speed_range[1]) if recipe.augment.speed else 1.0
