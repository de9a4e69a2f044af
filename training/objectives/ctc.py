"""Connectionist temporal classification: minus the log-probability of each row's labels, and its gradient.

On a CPU a compiled kernel sums the paths in probabilities that are scaled to a sum of one at each output (Rabiner 1989,
section V A); PyTorch's works in logarithms and takes six times as long. Other devices use PyTorch's.
"""

from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

MIN_LOG_PROB = -80.0
"""Lower log-probabilities are raised to this: in FP32 their probability is 0, and one such output makes the whole row's
loss infinite."""


def ctc(log_probs: Tensor, outputs: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """The loss of each row of log-probabilities [rows, outputs, classes]; 0 for rows whose labels do not fit."""
    if log_probs.device.type == "cpu":
        loss: Tensor = _Ctc.apply(log_probs, outputs, targets, target_lengths, blank)  # type: ignore[no-untyped-call]
        return loss
    return F.ctc_loss(
        log_probs.float().transpose(0, 1),
        targets,
        outputs,
        target_lengths,
        blank,
        reduction="none",
        zero_infinity=True,
    )


class _Ctc(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, log_probs: Tensor, outputs: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
    ) -> Tensor:
        losses = torch.zeros(len(log_probs))
        gradient = torch.zeros(log_probs.shape)
        _sum_paths(
            log_probs.detach().float().clamp(min=MIN_LOG_PROB).exp().numpy(),
            outputs.long().numpy(),
            targets.long().numpy(),
            target_lengths.long().numpy(),
            blank,
            losses.numpy(),
            gradient.numpy(),
        )
        context.save_for_backward(gradient.to(log_probs.dtype))
        return losses

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = context.saved_tensors
        return gradient * gradients[0].to(gradient.dtype)[:, None, None], None, None, None, None


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def _sum_paths(
    probs: NDArray[np.float32],
    outputs: NDArray[np.int64],
    targets: NDArray[np.int64],
    target_lengths: NDArray[np.int64],
    blank: int,
    losses: NDArray[np.float32],
    gradient: NDArray[np.float32],
) -> None:
    """Fill in each row's loss and its gradient by the log-probabilities (minus the share of the paths that have the
    class at that output). Both stay 0 where no path fits.
    """
    first = 0
    for row in range(len(probs)):
        steps, count = outputs[row], target_lengths[row]
        labels = targets[first : first + count]
        first += count
        states = 2 * count + 1
        symbols = np.full(states, blank)
        skips = np.zeros(states)
        for index in range(count):
            symbols[2 * index + 1] = labels[index]
            if index and labels[index] != labels[index - 1]:
                skips[2 * index + 1] = 1.0
        # Two empty states before the first one: no special case for the first states.
        forward = np.zeros((steps + 1, states + 2))
        here = np.empty(states)
        loss = 0.0
        for t in range(steps):
            before, after = forward[t], forward[t + 1]
            for state in range(states):
                here[state] = probs[row, t, symbols[state]]
            total = 0.0
            if t == 0:
                for state in range(min(2, states)):
                    after[state + 2] = here[state]
                    total += here[state]
            else:
                for state in range(states):
                    into = before[state + 2] + before[state + 1] + skips[state] * before[state]
                    after[state + 2] = into * here[state]
                    total += after[state + 2]
            if total <= 0.0:
                loss = np.inf
                break
            scale = 1.0 / total
            for state in range(2, states + 2):
                after[state] *= scale
            loss -= np.log(total)
        if steps == 0 or loss == np.inf:
            continue
        ends = forward[steps, states + 1] + (forward[steps, states] if count else 0.0)
        if ends <= 0.0:
            continue
        losses[row] = loss - np.log(ends)
        backward, next_backward = np.zeros(states + 2), np.zeros(states + 2)
        backward[states - 1] = 1.0
        if count:
            backward[states - 2] = 1.0
        for t in range(steps - 1, -1, -1):
            total = 0.0
            for state in range(states):
                here[state] = forward[t + 1, state + 2] * backward[state]
                total += here[state]
            if total <= 0.0:  # forward and backward probabilities underflow together
                losses[row] = 0.0
                gradient[row] = 0.0
                break
            scale = 1.0 / total
            for state in range(states):
                gradient[row, t, symbols[state]] -= here[state] * scale
            biggest = 0.0
            for state in range(states):
                next_backward[state] = backward[state] * probs[row, t, symbols[state]]
            for state in range(states):
                skip = skips[state + 2] if state + 2 < states else 0.0
                backward[state] = (
                    next_backward[state] + next_backward[state + 1] + skip * next_backward[state + 2]
                )
                biggest = max(biggest, backward[state])
            scale = 1.0 / biggest if biggest > 0.0 else 0.0
            for state in range(states):
                backward[state] *= scale
