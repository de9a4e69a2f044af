"""The GPU backend: PyTorch in FP16, a few static shapes, each one captured CUDA graph, warmed before ready.

Features, normalisation, network and softmax are one graph: the host only lines up sound and copies results. A
stream's carried state travels with its windows, as on the CPU.
On a CPU the same code runs with the graphs off, which is how it is tested without a GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from acoustic.carried import Memory, State
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.features import FrontEnd
from acoustic.folding import fold
from acoustic.framing import Samples, line_up
from acoustic.network.carrying import Carrying
from acoustic.runtime.backend import (
    NOT_FINITE,
    NOT_HEARD,
    Precision,
    carried_state,
    failed,
    hop_frames,
    in_pieces,
    joined,
    kept_outputs,
    streaming_config,
    whole_features_of,
)
from acoustic.runtime.memories import Carried, Sums, following_states, normalise_rows
from acoustic.windows import Heard, LogProbs, Window, carries, default_plan, with_hop

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
HOPS_S = (0.16, 0.32, 0.64, 1.28)
# Longer windows than any bucket (a caller's own plan) run without a graph, in shapes rounded up to this.
ODD_FRAMES = 64
WARM_UP_RUNS = 3


class GpuBackend:
    """One model on one device, in buckets of (batch, frames)."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: Literal["cpu", "cuda"] = "cuda",
        precision: Precision | None = None,
        *,
        batches: Sequence[int] = BATCHES,
        hops_s: Sequence[float] = HOPS_S,
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise AcousticError(
                "There is no CUDA device that this PyTorch can use. Run on the CPU (device cpu), or install "
                "the CUDA build of PyTorch and the driver."
            )
        if precision == "int8":
            raise AcousticError("INT8 runs on a CPU; on a GPU choose fp16 or fp32.")
        if precision == "fp16" and device == "cpu":
            raise AcousticError("FP16 runs on a GPU; on a CPU choose fp32.")
        self.precision: Precision = precision or ("fp16" if device == "cuda" else "fp32")
        self.device = torch.device(device)
        self.trained_config = checkpoint.config
        self.config = streaming_config(checkpoint.config)
        self.plan = default_plan(self.config, carried=True)
        self.type = torch.float16 if self.precision == "fp16" else torch.float32
        self._network = fold(checkpoint).network().to(self.device, self.type)
        self.carrying = Carrying(self._network) if carries(self.config) else None
        self._front_end = FrontEnd(self.config.features).to(self.device)
        self._batches = tuple(sorted(batches))
        frames = {with_hop(self.config, self.plan, hop).frames for hop in hops_s} | {self.plan.frames}
        self._frames = tuple(sorted(frames))
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self.pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
        if device == "cuda":
            torch.backends.cudnn.benchmark = True
            self.warm()

    def warm(self) -> None:
        """Make every bucket now, largest first: the graphs share one pool of memory."""
        for frames in reversed(self._frames):
            for batch in reversed(self._batches):
                self._bucket(batch, frames)

    def forward(self, windows: Sequence[Window]) -> list[Heard]:
        """Each window's log-probabilities, in the order given, in as few buckets as hold them."""
        by_frames: dict[int, list[int]] = {}
        for index, window in enumerate(windows):
            if window.span.carried and self.carrying is None:
                raise AcousticError(f"{self.config.name} carries no state: cut its streams by its own plan.")
            by_frames.setdefault(self._room_for(window.span.frames), []).append(index)
        heard: dict[int, Heard] = {}
        for frames, indices in by_frames.items():
            for first in range(0, len(indices), self._batches[-1]):
                chosen = indices[first : first + self._batches[-1]]
                batch = next(size for size in self._batches if size >= len(chosen))
                bucket = self._bucket(batch, frames)
                results = bucket.hear([windows[index] for index in chosen])
                heard.update(zip(chosen, results, strict=True))
        return [heard[index] for index in range(len(windows))]

    def whole(self, samples: Samples) -> LogProbs:
        """A whole recording at once, normalised as the model was trained."""
        return joined(self.config, self.pieces([samples]))

    def pieces(self, sound: Iterable[Samples]) -> Iterator[LogProbs]:
        """The same of sound block by block, handed out as it is heard."""
        features = whole_features_of(self._front_end, self.trained_config.features, sound)
        return in_pieces(self.config, features, self._run)

    @torch.inference_mode()
    def _run(self, features: Tensor) -> LogProbs:
        log_probs, _ = self._network(features[None].to(self.type))
        return np.asarray(log_probs[0].float().cpu().numpy(), np.float32)

    def bucket(self, batch: int, frames: int) -> "Bucket":
        """The bucket of that shape: for benchmarks."""
        return self._bucket(batch, frames)

    def _room_for(self, frames: int) -> int:
        return next((room for room in self._frames if room >= frames), -(-frames // ODD_FRAMES) * ODD_FRAMES)

    def _bucket(self, batch: int, frames: int) -> "Bucket":
        known = self._buckets.get((batch, frames))
        if known is not None:
            return known
        bucket = Bucket(self, batch, frames, captured=self.device.type == "cuda")
        if frames in self._frames:  # the others are as many as callers invent: they are not kept
            self._buckets[batch, frames] = bucket
        return bucket

    def arithmetic(
        self, sound: Tensor, lengths: Tensor, known: Sums | None, carried: Carried | None
    ) -> "Results":
        """From lined-up sound [batch, samples] and each row's frames to everything, all on the device."""
        features = self._front_end.log_mels(sound)
        finite = torch.isfinite(features).flatten(1).all(dim=1)
        features, sums = normalise_rows(self.config.features, features, lengths, known)
        features = features.to(self.type)
        if carried is None or self.carrying is None:
            log_probs, _ = self._network(features, lengths)
            return Results(log_probs.float(), finite, sums)
        log_probs, following = self.carrying(features, lengths, carried.state, carried.hop)
        return Results(log_probs, finite, sums, following)


@dataclass
class Results:
    """What one run leaves on the device."""

    log_probs: Tensor  # [batch, outputs, classes]
    finite: Tensor  # [batch]: whether the features were
    sums: Sums | None = None
    following: Tensor | None = None  # [batch, numbers]: the state of the windows to come


class Bucket:
    """One static shape: its input and output tensors, and on a GPU the captured graph between them."""

    def __init__(self, backend: GpuBackend, batch: int, frames: int, *, captured: bool) -> None:
        self.backend = backend
        self.batch, self.frames = batch, frames
        features, device = backend.config.features, backend.device
        samples = (frames - 1) * features.hop_samples + features.window_samples
        pinned = device.type == "cuda"
        self._host_sound = torch.zeros(batch, samples, pin_memory=pinned)
        self._host_lengths = torch.zeros(batch, dtype=torch.int64, pin_memory=pinned)
        self._sound = self._host_sound.to(device)
        self._lengths = torch.full((batch,), frames, device=device)
        remembers = features.normalise in ("running", "causal")
        self._known = Sums.empty(batch, features.mels, device) if remembers else None
        self._carried: Carried | None = None
        if backend.carrying is not None:
            self._carried = Carried.empty(batch, backend.carrying.size, backend.type, device)
        self._results = self._compute()
        self._replay: Callable[[], Any] | None = None
        if captured:
            self._capture()

    @torch.inference_mode()
    def _compute(self) -> Results:
        return self.backend.arithmetic(self._sound, self._lengths, self._known, self._carried)

    def _capture(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.backend.pool):
            self._results = self._compute()
        self._replay = graph.replay

    def run(self) -> None:
        """The arithmetic alone, on whatever lies in the input tensors."""
        if self._replay is not None:
            self._replay()
        else:
            self._results = self._compute()

    def hear(self, windows: Sequence[Window]) -> list[Heard]:
        """Up to `batch` windows, each no longer than `frames`."""
        self._load(windows)
        self.run()
        # Copied out before any other graph of the shared pool may run.
        log_probs = self._results.log_probs[: len(windows)].cpu().numpy()
        finite = self._results.finite.cpu().tolist()
        memories = self._memories(windows)
        results = []
        config = self.backend.config
        for index, (window, memory) in enumerate(zip(windows, memories, strict=True)):
            kept = log_probs[index, kept_outputs(config, window)].copy()
            usable = np.isfinite(kept).all()
            if isinstance(memory, State):
                usable = usable and np.isfinite(memory.values).all()
                # A window that fails hands on the state it was given, also where that is the empty one.
                window = replace(window, memory=carried_state(window, State(np.zeros_like(memory.values))))
                memory = window.memory if window.span.last else memory
            if not finite[index]:
                results.append(failed(config, window, NOT_FINITE))
            elif not usable:
                results.append(failed(config, window, NOT_HEARD))
            else:
                results.append(Heard(window.span, kept, memory))
        return results

    def _load(self, windows: Sequence[Window]) -> None:
        features = self.backend.config.features
        self._host_sound.zero_()
        self._host_lengths.zero_()
        for row, window in enumerate(windows):
            span = window.span
            sound = line_up(features, window.samples, span.first_frame, span.end_frame)
            self._host_sound[row, : len(sound)] = torch.from_numpy(sound)
            self._host_lengths[row] = span.frames
        with torch.inference_mode():
            self._sound.copy_(self._host_sound, non_blocking=True)
            self._lengths.copy_(self._host_lengths, non_blocking=True)
            hops = [hop_frames(self.backend.config, window) for window in windows]
            if self._known is not None:
                self._known.load(features, windows, hops)
            if self._carried is not None:
                self._carried.load(windows, hops)

    def _memories(self, windows: Sequence[Window]) -> Sequence[Memory | State | None]:
        """What the next windows of these streams need to know."""
        if self._results.following is not None:
            return following_states(windows, self._results.following, self._results.sums)
        if self._results.sums is not None:
            return self._results.sums.memories(len(windows))
        return [None] * len(windows)
