"""Several processes as one trainer: joining them, and batch norm over the batch of all of them.

Started by torchrun (`torchrun --nproc-per-node 8 --no-python silica train RECIPE`); alone, everything here
does nothing.
"""

import inspect
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from acoustic.network.modules import BatchNorm


@dataclass(frozen=True)
class World:
    """This process among the others, and the device it trains on."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)

    @property
    def is_main(self) -> bool:
        """True for the one process that writes files and talks."""
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Numbers added over all processes."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def any(self, happened: bool) -> bool:
        """True for all as soon as it is true for one."""
        return self.sum([float(happened)])[0] > 0 if self.size > 1 else happened


@contextmanager
def distributed_world(device: str | None = None) -> Iterator[World]:
    """Join the processes that torchrun started (NCCL on GPUs, gloo on CPUs); alone without torchrun."""
    cuda = torch.cuda.is_available() if device is None else device.startswith("cuda")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    if size == 1:
        yield World(device=place)
        return
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), place)
    finally:
        dist.destroy_process_group()


class _SumOverProcesses(torch.autograd.Function):
    """all_reduce with a gradient: every process's output depends on every process's input."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone()
        dist.all_reduce(summed)
        return summed


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of this tensor of every process, with its gradient."""
    return cast(Tensor, _SumOverProcesses.apply(tensor))  # type: ignore[no-untyped-call]


class SyncedBatchNorm(BatchNorm):
    """Batch norm whose statistics are those of the joint batch of all processes, on CPUs as on GPUs.

    torch's own SyncBatchNorm runs on GPUs only and knows no mask.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[batch, channels, time]; outside training as ordinary batch norm."""
        if not self.training:
            return super().forward(input)
        return self.forward_masked(input, torch.ones_like(input[:, :1]))

    def forward_masked(self, x: Tensor, mask: Tensor) -> Tensor:
        """With mean and variance over the frames, of all processes, where `mask` is one."""
        assert self.running_mean is not None and self.running_var is not None  # always tracked here
        wide = x.float()
        local = torch.cat(
            [mask.expand(len(x), 1, x.shape[2]).sum().float()[None], (wide * mask).sum(dim=(0, 2))]
        )
        summed = sum_over_processes(local)
        count = summed[0].clamp(min=1.0).detach()
        mean = summed[1:] / count
        centred = (wide - mean[None, :, None]) * mask
        variance = sum_over_processes(centred.square().sum(dim=(0, 2))) / count
        with torch.no_grad():
            share = self.momentum or 0.0
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance * count / (count - 1).clamp(min=1.0), share)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        # Not F.batch_norm in its evaluation form: that would treat mean and variance as constants.
        scale = self.weight / torch.sqrt(variance + self.eps)
        normed = (wide - mean[None, :, None]) * scale[None, :, None] + self.bias[None, :, None]
        return normed.to(x.dtype)


def sync_batchnorm_statistics(model: nn.Module) -> nn.Module:
    """Every batch norm of the model over the joint batch from now on (weights and statistics are kept)."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.__class__ = SyncedBatchNorm
    return model


def wrap(model: nn.Module, world: World, *, sync_batchnorm: bool = True) -> nn.Module:
    """The model as every process calls it: gradients are averaged over the processes.

    Batch norm is over the joint batch, or, quicker, each process's own; statistics are then the leader's.
    """
    if world.size == 1:
        return model
    # Depthwise taps: a size of one has no stride to speak of.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    devices = [world.device.index] if world.device.type == "cuda" else None
    joined: Any = nn.parallel.DistributedDataParallel
    # Of joint norms the statistics are equal on all processes already; the setting has had two names.
    names = inspect.signature(joined).parameters
    setting = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    model = sync_batchnorm_statistics(model) if sync_batchnorm else model
    wrapped: nn.Module = joined(model, devices, **{setting: not sync_batchnorm})
    return wrapped
