"""The student of a sitting: its steps, played as CUDA graphs where it can be, and the average of what they make of it.

Forward and backward are one graph each for every shape of batch. Between them the words are compared (by an operation
that asks the host), as their gradient by what is written: the backward graph takes that in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from acoustic.config import ModelConfig
from sitting.hearing import HeardBatch
from sitting.sound import BatchShape
from training.distillation.blockwise import (
    STAGES,
    STEPS_PER_DEVIATION,
    BlockwiseTeacher,
    Stages,
    stage_loss,
    stretched,
)
from training.distillation.blockwise_settings import BlockwiseConfig
from training.distillation.objective import ctc_per_character
from training.run.precision import fastest_precision


@dataclass(frozen=True)
class Made:
    """What a forward pass makes: what is written, the loss of each stage, and the sum of all but the words."""

    log_probs: Tensor
    losses: Tensor
    total: Tensor


class Learner:
    """A network in training, its optimizer, and the average of its weights."""

    def __init__(
        self,
        model: nn.Module,
        config: ModelConfig,
        teacher: BlockwiseTeacher,
        part: BlockwiseConfig,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        ema_decay: float,
    ) -> None:
        self.model, self.config, self.teacher, self.part = model, config, teacher, part
        self.optimizer, self.device, self.ema_decay = optimizer, device, ema_decay
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.mean = [weight.detach().clone() for weight in self.weights]
        self.steps = 0
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self.stages: Stages = getattr(model, STAGES)
        precision = fastest_precision(device)
        self._dtype = torch.bfloat16 if precision == "bf16" or device.type == "cuda" else None
        self._graphs: list[Captured] = []

    def step(self, heard: HeardBatch, rate: float) -> Tensor:
        """One step; the losses of the words and of each stage come back. What is not finite is passed over: the
        figures of the norms stay as they were, and the losses come back as they are."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        kept = torch._foreach_mul(self._buffers, 1.0)
        graph = self._graphs[heard.shape] if self._graphs else None
        made = graph.forward(heard) if graph else self.compute(*_given(heard))
        log_probs = made.log_probs.detach().requires_grad_()
        words = ctc_per_character(
            log_probs, heard.output_counts, heard.targets, heard.target_lengths, self.config.blank
        ).sum() / len(heard.output_counts)
        (pull,) = torch.autograd.grad(self.part.ctc_weight * words, log_probs)
        gradients = graph.backward(pull) if graph else self.gradients(made, pull)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        if bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))):
            self.optimizer.step()
            share = min(self.ema_decay, (1 + self.steps) / (4 + self.steps))
            torch._foreach_lerp_(self.mean, [weight.detach() for weight in self.weights], 1 - share)
        else:
            torch._foreach_copy_(self._buffers, kept)
            print(f"step {self.steps} is passed over: its gradients are not finite", flush=True)
        self.steps += 1
        return torch.cat([words.detach()[None], made.losses.detach()])

    def state(self, *, averaged: bool) -> dict[str, Tensor]:
        """Weights for a checkpoint."""
        state = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        names = [name for name, weight in self.model.named_parameters() if weight.requires_grad]
        return state | dict(zip(names, self.mean, strict=True)) if averaged else state

    def compute(
        self, features: Tensor, frames: Tensor, taught: Sequence[Tensor], outputs: Tensor, speaks: Tensor
    ) -> Made:
        """No shape in it depends on what the tensors hold: it can be captured."""
        every = self.config.frames_per_output
        longest, wanted = -(-features.shape[-1] // every), -(-frames // every)
        losses = []
        with self.stages.giving([None] * len(self.part.student_blocks)):
            with torch.autocast(
                self.device.type, self._dtype, enabled=self._dtype is not None, cache_enabled=False
            ):
                log_probs, written = self.model(features, frames)
            rows = torch.arange(len(outputs), device=self.device)[:, None]
            for made, values, late, shares in zip(
                self.stages.made, taught, self.part.delay_outputs, self.teacher.shares, strict=True
            ):
                places, counting = stretched(outputs, wanted, longest, late)
                counting = counting & speaks[:, None]
                told = values[rows, places].float() / STEPS_PER_DEVIATION * counting[..., None]
                losses.append(stage_loss(made.mT.float(), told, counting, shares))
        log_probs = log_probs.float()
        place = torch.arange(log_probs.shape[1], device=self.device)[None]
        silent = (place < written[:, None]) & ~speaks[:, None]
        apart = torch.where(silent, -log_probs[..., self.config.blank], 0.0).sum(1) / written.clamp(min=1)
        stages = torch.stack(losses)
        return Made(log_probs, stages, stages.sum() + self.part.ctc_weight * apart.sum() / len(outputs))

    def gradients(self, made: Made, pull: Tensor) -> Sequence[Tensor]:
        """Of everything, where `pull` is that of the words by what is written."""
        one = torch.ones_like(made.total)
        return torch.autograd.grad([made.log_probs, made.total], self.weights, [pull, one])

    def capture(self, shapes: Sequence[BatchShape]) -> None:
        """Steps of all shapes as graphs; what is learnt stays as it is."""
        kept = [buffer.clone() for buffer in self.model.buffers()]
        pool = torch.cuda.graph_pool_handle()
        graphs = [Captured(self, shape, pool) for shape in shapes]
        with torch.no_grad():
            for buffer, old in zip(self.model.buffers(), kept, strict=True):
                buffer.copy_(old)
        self._graphs = graphs


class Captured:
    """Forward and backward of one shape."""

    def __init__(self, learner: Learner, shape: BatchShape, pool: Any) -> None:
        device, config, rows = learner.device, learner.config, shape.rows
        features = torch.randn(rows, config.features.mels, shape.frames, device=device)
        frames = torch.full((rows,), shape.frames, device=device)
        taught = [
            torch.randint(0, 40, (rows, shape.outputs, config.blocks[by].channels), device=device).byte()
            for by in learner.part.student_blocks
        ]
        outputs = torch.full((rows,), shape.outputs, device=device)
        speaks = torch.ones(rows, dtype=torch.bool, device=device)
        self._given = (features, frames, taught, outputs, speaks)
        self._pull = torch.zeros(rows, shape.outputs, config.classes, device=device)
        self._one = torch.ones((), device=device)  # kept, as all that a graph reads
        # Once beforehand: kernels are compiled and chosen, which no graph may see.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made = learner.compute(*self._given)
            learner.gradients(made, self._pull)
            del made
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, pool=pool):
            made = learner.compute(*self._given)
        with torch.cuda.graph(self._backward, pool=pool):
            self._gradients = torch.autograd.grad(
                [made.log_probs, made.total], learner.weights, [self._pull, self._one]
            )
        self._made = Made(made.log_probs.detach(), made.losses.detach(), made.total.detach())
        learner.stages.made = []

    def forward(self, heard: HeardBatch) -> Made:
        """What is made is overwritten by the next step of this or another shape."""
        features, frames, taught, outputs, speaks = _given(heard)
        for mine, new in zip(
            (*self._given[:2], *self._given[2], *self._given[3:]),
            (features, frames, *taught, outputs, speaks),
            strict=True,
        ):
            mine.copy_(new)
        self._forward.replay()
        return self._made

    def backward(self, pull: Tensor) -> Sequence[Tensor]:
        self._pull.copy_(pull)
        self._backward.replay()
        return self._gradients


def _given(heard: HeardBatch) -> tuple[Tensor, Tensor, Sequence[Tensor], Tensor, Tensor]:
    return heard.features, heard.frames, heard.taught, heard.outputs, heard.speaks


def card_of(start: Mapping[str, Any], steps: int, hours: float) -> dict[str, Any]:
    """The card of what a sitting makes: what was measured of its beginning is not true of it."""
    kept = {name: value for name, value in start.items() if name not in ("int8_ranges", "measured", "search")}
    before = start.get("sitting", {})
    return kept | {
        "sitting": {
            "steps": before.get("steps", 0) + steps,
            "hours": round(before.get("hours", 0.0) + hours, 2),
        }
    }
