"""NovoGrad and Muon, and the choice among them, AdamW and SGD by name. Learning rates over time are in schedules.py."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.errors import TrainingError

Name = Literal["novograd", "muon", "adamw", "sgd"]
NAMES: tuple[Name, ...] = ("novograd", "muon", "adamw", "sgd")


class ByGroup(torch.optim.Optimizer):
    """An optimizer that steps each group's parameters together."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._step_group(group, weights)
        return loss

    def _step_group(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        raise NotImplementedError


class NovoGrad(ByGroup):
    """NovoGrad (Ginsburg et al. 2019, arXiv 1905.11286, algorithm 1): Adam's idea with one second moment a
    layer.

    For the gradient g of layer l at step t, with decay d and rate r: v_1 = |g|^2, v_t = beta2 v_{t-1} + (1 -
    beta2) |g|^2 m_1 = g / sqrt(v_1) + d w, m_t = beta1 m_{t-1} + (g / (sqrt(v_t) + epsilon) + d w) w <- w - r
    m_t A layer is one parameter tensor. Decay is decoupled from the gradient, as in AdamW.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        rate: float = 0.01,
        betas: tuple[float, float] = (0.95, 0.98),
        decay: float = 0.001,
        epsilon: float = 1e-8,
    ) -> None:
        if rate < 0 or not 0 <= betas[0] < 1 or not 0 <= betas[1] < 1 or decay < 0:
            raise TrainingError(
                f"NovoGrad: rate {rate}, betas {betas}, decay {decay} are out of range; "
                "expected a rate and decay of 0 or more and both betas in [0, 1)."
            )
        super().__init__(parameters, {"lr": rate, "betas": betas, "decay": decay, "epsilon": epsilon})

    def _step_group(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norms = [norm.float() for norm in torch._foreach_norm(gradients)]
        directions = []
        for weight, gradient, norm in zip(weights, gradients, norms, strict=True):
            state = self.state[weight]
            if not state:
                state["second"] = norm.square()
                state["first"] = torch.zeros_like(weight)
            else:
                state["second"].mul_(beta2).add_(norm.square(), alpha=1 - beta2)
            directions.append(gradient / (state["second"].sqrt() + group["epsilon"]).to(gradient.dtype))
        if group["decay"]:
            torch._foreach_add_(directions, weights, alpha=group["decay"])
        firsts = [self.state[weight]["first"] for weight in weights]
        torch._foreach_mul_(firsts, beta1)
        torch._foreach_add_(firsts, directions)
        torch._foreach_add_(weights, firsts, alpha=-group["lr"])


class Muon(ByGroup):
    """Muon (Jordan et al. 2024): momentum whose singular values are all brought near one, for the matrices; Adam for
    whatever has no two wide sides (depthwise taps, norms, biases, the first group's `matrices` being false).

    A step is as long as Adam's would be (0.2 of the root of the longer side, Liu et al. 2025), so that one rate serves
    both. Decay is decoupled from the gradient.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        rate: float = 0.002,
        betas: tuple[float, float] = (0.9, 0.98),
        momentum: float = 0.95,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(groups, {"lr": rate, "betas": betas, "momentum": momentum, "epsilon": epsilon})

    def _step_group(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        (self._step_matrices if group["matrices"] else self._step_others)(group, weights)

    def _step_matrices(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        flat = [weight.view(len(weight), -1) for weight in weights]
        gradients = [weight.grad.reshape(len(weight), -1) for weight in weights if weight.grad is not None]
        firsts = [self._kept(weight, "first").view(len(weight), -1) for weight in weights]
        torch._foreach_mul_(firsts, group["momentum"])
        torch._foreach_add_(firsts, gradients)
        updates = orthogonalized_together(gradients, firsts, group["momentum"])
        for weight, update in zip(flat, updates, strict=True):
            weight.add_(update, alpha=-group["lr"] * 0.2 * max(update.shape) ** 0.5)

    def _step_others(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        firsts = [self._kept(weight, "first") for weight in weights]
        seconds = [self._kept(weight, "second") for weight in weights]
        group["steps"] = group.get("steps", 0) + 1
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(firsts, gradients, 1 - beta1)
        torch._foreach_mul_(seconds, beta2)
        torch._foreach_addcmul_(seconds, gradients, gradients, 1 - beta2)
        spread = torch._foreach_sqrt(seconds)
        torch._foreach_div_(spread, (1 - beta2 ** group["steps"]) ** 0.5)
        torch._foreach_add_(spread, group["epsilon"])
        rate = group["lr"] / (1 - beta1 ** group["steps"])
        torch._foreach_addcdiv_(weights, firsts, spread, -rate)

    def _kept(self, weight: Tensor, name: str) -> Tensor:
        state = self.state[weight]
        if name not in state:
            state[name] = torch.zeros_like(weight)
        kept: Tensor = state[name]
        return kept


def orthogonalized_together(
    matrices: Sequence[Tensor], others: Sequence[Tensor], share: float
) -> list[Tensor]:
    """Each matrix with that share of its other, `orthogonalized`. Of several processes that hold the same matrices each
    does its share of the work and hands it to the others.
    """
    joined = dist.is_available() and dist.is_initialized()
    size, rank = (dist.get_world_size(), dist.get_rank()) if joined else (1, 0)
    max_first = sorted(range(len(matrices)), key=lambda index: (-matrices[index].numel(), index))
    shares = [max_first[process::size] for process in range(size)]
    done: dict[int, Tensor] = {}
    if matrices[0].device.type == "cpu":  # one by one, which stays in its cache
        for index in shares[rank]:
            done[index] = orthogonalized(matrices[index].add(others[index], alpha=share))
    else:
        for shape in {matrices[index].shape for index in shares[rank]}:
            alike = [index for index in shares[rank] if matrices[index].shape == shape]
            wanted = [matrices[index].add(others[index], alpha=share) for index in alike]
            done |= dict(zip(alike, orthogonalized(torch.stack(wanted)), strict=True))
    if size > 1:
        done = _handed_round(matrices, shares, rank, done)
    return [done[index] for index in range(len(matrices))]


def _handed_round(
    matrices: Sequence[Tensor], shares: Sequence[Sequence[int]], rank: int, mine: dict[int, Tensor]
) -> dict[int, Tensor]:
    """Every process's share of the results, in 16 bits, in which they were made; all processes get the very same."""
    everything: dict[int, Tensor] = {}
    for process, share in enumerate(shares):
        if not share:
            continue
        sizes = [matrices[index].numel() for index in share]
        row = matrices[0].new_empty(sum(sizes), dtype=torch.bfloat16)
        if process == rank:
            torch.cat([mine[index].flatten() for index in share], out=row)
        dist.broadcast(row.view(torch.uint8), process)  # as bytes: not every backend knows these 16 bits
        for index, piece in zip(share, torch.split(row, sizes), strict=True):
            everything[index] = piece.view(matrices[index].shape)
    return everything


def orthogonalized(matrices: Tensor, steps: int = 4) -> Tensor:
    """A matrix, or [count, rows, columns] of them, with all singular values near one, in 16 bits: Newton-Schulz with
    the quintic of Muon, for which those are enough.

    The root of the Gram matrix's norm is a closer bound of the largest singular value than the matrix's own norm, and
    is worth nearly a step: four from there come almost as close as five from the other (experiments.csv: run D).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    sides = (-2, -1)
    sum_of = torch.addmm if matrices.ndim == 2 else torch.baddbmm
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=sides, keepdim=True).clamp(min=1e-7)).bfloat16()
    gram = x @ x.mT
    bound = gram.norm(dim=sides, keepdim=True).clamp(min=1e-7)
    x, gram = x / bound.sqrt(), gram / bound
    for step in range(steps):
        if step:
            gram = x @ x.mT
        x = sum_of(x, sum_of(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def build_optimizer(
    name: str,
    model: nn.Module,
    *,
    rate: float,
    betas: tuple[float, float] | None = None,
    decay: float = 0.0,
    momentum: float = 0.9,
) -> torch.optim.Optimizer:
    """The optimizer of a recipe over the parameters that are not frozen.

    AdamW and SGD do not decay vectors (biases, normalization); NovoGrad decays everything, as in its paper.
    """
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if not trainable:
        raise TrainingError("Every parameter is frozen: nothing would be trained. Freeze fewer parts.")
    if name == "novograd":
        return NovoGrad(trainable, rate, betas or (0.95, 0.98), decay)
    if name == "muon":
        # The output layer is stepped as Adam does.
        last = next((weight for weight in reversed(trainable) if weight.ndim > 1), None)
        wide = [
            weight for weight in trainable if weight.ndim > 1 and weight.shape[1] > 1 and weight is not last
        ]
        known = {id(weight) for weight in wide}
        rest = [weight for weight in trainable if id(weight) not in known]
        parts = [
            {"params": wide, "matrices": True, "weight_decay": decay},
            {"params": rest, "matrices": False, "weight_decay": 0.0},
        ]
        return Muon([part for part in parts if part["params"]], rate, betas or (0.9, 0.98), momentum or 0.95)
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in trainable if weight.ndim > 1], "weight_decay": decay},
        {"params": [weight for weight in trainable if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas or (0.9, 0.98), eps=1e-8, fused=True)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=momentum)
    raise TrainingError(f"Unknown optimizer {name!r}: expected one of {', '.join(NAMES)}.")


def clip_gradients(weights: Iterable[Tensor], limit: float | None) -> Tensor:
    """The norm of all gradients together; they are scaled down to `limit` when it is larger."""
    trained = [weight for weight in weights if weight.grad is not None]
    return nn.utils.clip_grad_norm_(trained, limit if limit is not None else float("inf"))
