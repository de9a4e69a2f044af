"""NovoGrad, and the choice among it, AdamW and SGD by name. Learning rates over time are in schedules.py."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from training.errors import TrainingError

Name = Literal["novograd", "adamw", "sgd"]
NAMES: tuple[Name, ...] = ("novograd", "adamw", "sgd")


class NovoGrad(torch.optim.Optimizer):
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


def build_optimiser(
    name: str,
    model: nn.Module,
    *,
    rate: float,
    betas: tuple[float, float] | None = None,
    decay: float = 0.0,
    momentum: float = 0.9,
) -> torch.optim.Optimizer:
    """The optimiser of a recipe over the parameters that are not frozen.

    AdamW and SGD do not decay vectors (biases, normalisation); NovoGrad decays everything, as in its paper.
    """
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if not trainable:
        raise TrainingError("Every parameter is frozen: nothing would be trained. Freeze fewer parts.")
    if name == "novograd":
        return NovoGrad(trainable, rate, betas or (0.95, 0.98), decay)
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in trainable if weight.ndim > 1], "weight_decay": decay},
        {"params": [weight for weight in trainable if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas or (0.9, 0.98), eps=1e-8, fused=True)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=momentum)
    raise TrainingError(f"Unknown optimiser {name!r}: expected one of {', '.join(NAMES)}.")


def clip_gradients(weights: Iterable[Tensor], limit: float | None) -> Tensor:
    """The norm of all gradients together; they are scaled down to `limit` when it is larger."""
    trained = [weight for weight in weights if weight.grad is not None]
    return nn.utils.clip_grad_norm_(trained, limit if limit is not None else float("inf"))
