"""The training loop: any objective, any feed, one process or many; stops, resumes and survives what goes
wrong.

Everything random in a step comes from the step's own seed, so that a resumed run is the run that was
interrupted.
"""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from acoustic.config import ModelConfig
from training.data.loader import Batch
from training.errors import TrainingError
from training.objectives.objective import Objective, PreparedBatch
from training.optim.ema import EmaWeights
from training.optim.optimizers import clip_gradients
from training.optim.schedules import Schedule
from training.run.checkpoints import RunFolder
from training.run.distributed import World, wrap
from training.run.evaluate import Score
from training.run.finetune import train_mode
from training.run.logger import RunLogger
from training.run.meters import Meters, StepResult
from training.run.precision import Precision
from training.run.prefetch import prefetch

log = logging.getLogger("silica.training")

SAME_ASK_S = 2.0
"""Signals so close to each other ask once."""


class StepSource(Protocol):
    """Where batches come from (training.data.loader.Feed is one): for each step, the pieces of this process."""

    def from_step(self, first_step: int) -> Iterator[list[Batch]]:
        """Batches of the steps from `first_step` on; endless."""

    def place(self, step: int) -> tuple[int, int]:
        """Epoch of a step and its place in that epoch."""


@dataclass(frozen=True)
class LoopSettings:
    """How a run goes on, apart from what it learns."""

    precision: str = "fp32"
    grad_clip: float | None = None
    ema_decay: float | None = 0.999
    sync_batchnorm: bool = True
    log_every: int = 20
    evaluate_every: int = 1000
    save_every_s: float = 300.0
    stop_after_s: float | None = None
    max_bad_steps: int = 25


@dataclass
class Progress:
    """What a run has come to."""

    step: int = 0
    best_rate: float | None = None
    seconds_heard: float = 0.0
    skipped: int = 0
    finished: bool = False
    losses: list[float] = field(default_factory=list)


class Loop:
    """One run. `run()` trains until the schedule's end, a signal, or `stop_after_s`, and leaves a
    checkpoint. Who makes one is alone in its folder (`RunFolder.alone`): its records are cut as it is made.
    """

    def __init__(
        self,
        model: nn.Module,
        config: ModelConfig,
        objective: Objective,
        feed: StepSource,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        folder: RunFolder,
        *,
        settings: LoopSettings = LoopSettings(),
        world: World = World(),  # noqa: B008 (frozen)
        evaluate: Callable[[nn.Module], Score] | None = None,
        card: dict[str, Any] | None = None,
        live: bool | None = None,
    ) -> None:
        self.config = config
        self.objective = objective
        self.feed = feed
        self.optimizer = optimizer
        self.schedule = schedule
        self.folder = folder
        self.settings = settings
        self.world = world
        self.evaluate = evaluate
        self.card = card or {}
        self.precision = Precision(settings.precision, world.device)
        self.model = model.to(world.device)
        self.average = EmaWeights(self.model, settings.ema_decay) if settings.ema_decay else None
        self.scaler = self.precision.scaler()
        self.progress = Progress()
        self._scales = [group["lr"] / max(group["lr"] for group in optimizer.param_groups) for group in
                        optimizer.param_groups]  # fmt: skip
        self._restore()
        self.wrapped = wrap(self.model, world, sync_batchnorm=settings.sync_batchnorm)
        self._bad_in_a_row = 0
        self._stop_asked = False
        self.watch = RunLogger(
            folder.path if world.is_main else None,
            total_steps=schedule.total_steps,
            resumed_at=self.progress.step,
            live=live,
        )

    def run(self) -> Progress:
        """Train. The checkpoint that is left behind continues exactly here."""
        self.precision.set_tf32()
        train_mode(self.model)
        began = saved = logged = time.monotonic()
        since_log = Meters()
        source = self.feed.from_step(self.progress.step)
        steps = prefetch(source, lambda batches: [self._hear(batch) for batch in batches])
        try:
            with self._signals():
                while self.progress.step < self.schedule.total_steps:
                    since_log.add(self._step(next(steps)))
                    step, now = self.progress.step, time.monotonic()
                    last = step == self.schedule.total_steps
                    if self._comes(self.settings.log_every):
                        self._log(since_log, now - logged, now - began)
                        since_log, logged = Meters(), now
                    if self.evaluate and self._comes(self.settings.evaluate_every):
                        self.hear()
                        train_mode(self.model)
                        logged = time.monotonic()
                    stopping = self._stopping(now - began)
                    if not last and not stopping and self._due(now - saved):
                        self.save()
                        saved = time.monotonic()
                    if stopping:
                        break
        finally:
            steps.close()
            self.watch.close()
        self.progress.finished = self.progress.step >= self.schedule.total_steps
        if not self.save():
            raise TrainingError(
                f"The state after step {self.progress.step} could not be written to {self.folder.path}. Make room "
                "there: the same line goes on from the last good checkpoint."
            )
        return self.progress

    def _hear(self, batch: Batch) -> PreparedBatch:
        return self.objective.hear(batch.to(self.world.device))

    def _step(self, pieces: Sequence[PreparedBatch]) -> StepResult:
        batches = [heard.batch for heard in pieces]
        torch.manual_seed(batches[0].seed)
        rate = self.schedule.rate(self.progress.step)
        for group, scale in zip(self.optimizer.param_groups, self._scales, strict=True):
            group["lr"] = rate * scale
        self.optimizer.zero_grad(set_to_none=True)
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        rows = self.world.sum([float(sum(len(batch) for batch in batches))])[0]
        total: Tensor | None = None
        figures: dict[str, Tensor] = {}
        for index, heard in enumerate(pieces):
            last = index == len(pieces) - 1
            with self._no_sync(not last):
                with self.precision.autocast():
                    loss = self.objective(self.wrapped, heard)
                # DDP averages the gradients over the processes: their sum is wanted, over the rows of them
                # all.
                scaled = self.scaler.scale(loss.total * (self.world.size / rows))
                scaled.backward()  # type: ignore[no-untyped-call]
            total = loss.total.detach() if total is None else total + loss.total.detach()
            for name, value in loss.figures.items():
                figures[name] = figures.get(name, torch.zeros_like(value.detach())) + value.detach()
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.model.parameters(), self.settings.grad_clip)
        assert total is not None
        values = [float(total), *(float(value) for value in figures.values())]
        audio_s = float(sum(int(batch.lengths.sum()) for batch in batches)) / self.config.features.sample_rate
        values = self.world.sum([*values, audio_s])
        finite = bool(torch.isfinite(norm)) and all(abs(value) < float("inf") for value in values)
        if finite:
            self.scaler.step(self.optimizer)
            if self.average:
                self.average.update(self.model)
            self._bad_in_a_row = 0
        else:
            self._skip(batches, buffers, values[0] / rows, float(norm))
        self.scaler.update()
        self.progress.step += 1
        self.progress.seconds_heard += values[-1]
        means = {name: value / rows for name, value in zip(("loss", *figures), values[:-1], strict=True)}
        return StepResult(means, rows, values[-1], float(norm), rate, finite)

    def _skip(self, batches: Sequence[Batch], buffers: list[Tensor], loss: float, norm: float) -> None:
        """A step that gave no numbers: weights, averages and batch-norm statistics stay as they were."""
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
        self.progress.skipped += 1
        self._bad_in_a_row += 1
        names = ", ".join(name for batch in batches for name in batch.names[:4])
        if self.settings.precision != "fp16":
            log.warning(
                "step %d skipped: loss %s, gradient %s, with clips such as %s",
                self.progress.step,
                loss,
                norm,
                names,
            )
        if self._bad_in_a_row >= self.settings.max_bad_steps:
            raise TrainingError(
                f"{self._bad_in_a_row} steps in a row gave no finite loss (now {loss}, at step "
                f"{self.progress.step}, with clips such as {names}). The last checkpoint in "
                f"{self.folder.path} is good: continue from it with a lower learning rate, a "
                "longer warm-up, or bf16 in place of fp16."
            )

    def _log(self, sums: Meters, seconds: float, since_start: float) -> None:
        epoch, _ = self.feed.place(max(0, self.progress.step - 1))
        means = sums.means()
        self.progress.losses.append(means["loss"])
        self.watch.log_step(
            {
                "step": self.progress.step,
                "epoch": float(epoch),
                **means,
                "learning_rate": sums.learning_rate,
                "grad_norm": sums.grad_norm,
                "hours_seen": self.progress.seconds_heard / 3600,
                "utterances_per_s": sums.rows / max(seconds, 1e-9),
                "times_real_time": sums.audio_s / max(seconds, 1e-9),
                "elapsed_s": since_start,
                "skipped": float(self.progress.skipped),
            }
        )

    def hear(self) -> None:
        """Word error rate of the development set now; the best weights so far are kept."""
        assert self.evaluate is not None
        with self.average.swapped_into(self.model) if self.average else contextlib.nullcontext():
            score = self.evaluate(self.model)
            rate = score.words.rate
            best = self.progress.best_rate is None or rate < self.progress.best_rate
            best = best and self._keep_best(rate)
            if best:
                self.progress.best_rate = rate
        self.watch.log_evaluation(self.progress.step, rate, score.characters.rate, best, score.example)

    def _keep_best(self, rate: float) -> bool:
        """Write these weights as the best ones; all processes learn whether they stand on the disk."""
        card = {**self.card, "step": self.progress.step, "dev_wer": rate}
        return self.world.any(
            self.world.is_main and self.folder.save_best(self.config, self.model.state_dict(), card)
        )

    def save(self) -> bool:
        """Write the whole state of the run (the leading process does)."""
        if not self.world.is_main:
            return True
        return self.folder.save(
            {
                "step": self.progress.step,
                "best_rate": self.progress.best_rate,
                "seconds_heard": self.progress.seconds_heard,
                "skipped": self.progress.skipped,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "average": self.average.state_dict() if self.average else None,
                "scaler": self.scaler.state_dict(),
            },
            self.config,
        )

    def _restore(self) -> None:
        state = self.folder.load(self.config)
        if state is None:
            return
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (ValueError, RuntimeError, KeyError) as error:
            raise TrainingError(
                f"The checkpoint in {self.folder.path} does not fit this recipe ({error}): the optimizer "
                "or the frozen parts differ. Continue it with its own recipe, or name a new folder."
            ) from error
        if self.average and state["average"] is not None:
            self.average.load_state_dict(state["average"])
        self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(
            state["step"], state["best_rate"], state["seconds_heard"], state["skipped"]
        )  # fmt: skip

    @contextlib.contextmanager
    def _no_sync(self, active: bool) -> Iterator[None]:
        """Gradients of all but the last piece of a step stay in their process."""
        if active and isinstance(self.wrapped, nn.parallel.DistributedDataParallel):
            with self.wrapped.no_sync():
                yield
        else:
            yield

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the step in hand, with a checkpoint; a second one ends it
        at once. (What torchrun passes on right after the terminal's own is the first one still.)
        """
        asked_s = float("inf")

        def ask(number: int, frame: FrameType | None) -> None:
            nonlocal asked_s
            now_s = time.monotonic()
            if now_s - asked_s > SAME_ASK_S:
                raise KeyboardInterrupt
            if self._stop_asked:
                return
            self._stop_asked, asked_s = True, now_s
            log.warning("stopping after this step; once more stops at once")

        before = {}
        with contextlib.suppress(ValueError):  # signals can be caught in the main thread only
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _comes(self, every_steps: int) -> bool:
        """True after every so many steps and after the last; 0 is never."""
        step = self.progress.step
        return every_steps > 0 and (step % every_steps == 0 or step == self.schedule.total_steps)

    def _stopping(self, seconds: float) -> bool:
        limit = self.settings.stop_after_s
        return self.world.any(self._stop_asked or (limit is not None and seconds >= limit))

    def _due(self, seconds: float) -> bool:
        return self.world.is_main and seconds >= self.settings.save_every_s
