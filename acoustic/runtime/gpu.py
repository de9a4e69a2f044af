"""The GPU backend: PyTorch in FP16, a few static shapes, each one captured CUDA graph, warmed before ready.

Features, normalization, network and softmax are one graph: the host only lines up sound and copies results. A
stream's carried state travels with its windows, as on the CPU, but its numbers stay on the device.
On a CPU the same code runs with the graphs off, which is how it is tested without a GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from acoustic.checkpoint import Checkpoint
from acoustic.config import ModelConfig
from acoustic.errors import AcousticError
from acoustic.features.framing import Samples, prepare_samples
from acoustic.features.front_end import FrontEnd
from acoustic.network.folding import fold
from acoustic.network.stream_state import StatefulNetwork
from acoustic.runtime.backend import (
    AUDIO_NOT_FINITE,
    NETWORK_NOT_FINITE,
    Precision,
    concatenate,
    failed,
    hop_frames,
    kept_outputs,
    run_in_blocks,
    stream_state_of,
    streaming_config,
    iter_recording_features,
)
from acoustic.runtime.batch_state import BatchedNormalization, StagedTensor, following_states, load_states, to_host
from acoustic.stream_state import NormalizationState, StreamState
from acoustic.windows import LogProbs, Window, WindowOutput, default_plan, supports_stream_state, with_hop

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
        self.plan = default_plan(self.config, stateful=True)
        self.type = torch.float16 if self.precision == "fp16" else torch.float32
        self._network = fold(checkpoint).network().to(self.device, self.type)
        self.stateful_network = StatefulNetwork(self._network) if supports_stream_state(self.config) else None
        self.empty = StreamState(
            torch.zeros(self.stateful_network.size if self.stateful_network else 0, dtype=self.type).to(self.device)
        )
        """The carried state of every stream that begins."""
        self._front_end = FrontEnd(self.config.features).to(self.device)
        self.normalization = BatchedNormalization(self.config.features, self.device)
        self._batches = tuple(sorted(batches))
        frames = {with_hop(self.config, self.plan, hop).frames for hop in hops_s} | {self.plan.frames}
        self._frames = tuple(sorted(frames))
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self.pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
        if device == "cuda":
            self.warm()

    def warm(self) -> None:
        """Make every bucket now, largest first: the graphs share one pool of memory."""
        for frames in reversed(self._frames):
            for batch in reversed(self._batches):
                self._bucket(batch, frames)

    def forward(self, windows: Sequence[Window]) -> list[WindowOutput]:
        """Each window's log-probabilities, in the order given, in as few buckets as hold them."""
        by_frames: dict[int, list[int]] = {}
        for index, window in enumerate(windows):
            if window.span.stateful and self.stateful_network is None:
                raise AcousticError(f"{self.config.name} carries no state: cut its streams by its own plan.")
            by_frames.setdefault(self._room_for(window.span.frames), []).append(index)
        heard: dict[int, WindowOutput] = {}
        for frames, indices in by_frames.items():
            for first in range(0, len(indices), self._batches[-1]):
                chosen = indices[first : first + self._batches[-1]]
                batch = next(size for size in self._batches if size >= len(chosen))
                bucket = self._bucket(batch, frames)
                results = bucket.forward([windows[index] for index in chosen])
                heard.update(zip(chosen, results, strict=True))
        return [heard[index] for index in range(len(windows))]

    def whole(self, samples: Samples) -> LogProbs:
        """A whole recording at once, normalized as the model was trained."""
        return concatenate(self.config, self.pieces([samples]))

    def pieces(self, sound: Iterable[Samples]) -> Iterator[LogProbs]:
        """The same of sound block by block, handed out as it is heard."""
        features = iter_recording_features(self._front_end, self.trained_config.features, sound)
        return run_in_blocks(self.config, features, self._run)

    @torch.inference_mode()
    def _run(self, features: Tensor) -> LogProbs:
        with cudnn_settings(benchmark=False):
            log_probs, _ = self._network(features[None].to(self.type).contiguous())
        return np.asarray(log_probs[0].float().cpu().numpy(), np.float32)

    def bucket(self, batch: int, frames: int) -> "Bucket":
        """A bucket of that shape, captured whatever its length: for benchmarks."""
        return Bucket(self, batch, frames, captured=self.device.type == "cuda")

    def _room_for(self, frames: int) -> int:
        return next((room for room in self._frames if room >= frames), -(-frames // ODD_FRAMES) * ODD_FRAMES)

    def _bucket(self, batch: int, frames: int) -> "Bucket":
        if frames not in self._frames:  # these are as many as callers invent: neither captured nor kept
            return Bucket(self, batch, frames, captured=False)
        if (batch, frames) not in self._buckets:
            self._buckets[batch, frames] = self.bucket(batch, frames)
        return self._buckets[batch, frames]

    def arithmetic(
        self, sound: Tensor, places: Tensor, known: Tensor | None, state: Tensor | None
    ) -> "Results":
        """From lined-up sound [batch, samples] to everything, all on the device. `places` [batch, 2]: each row's
        frames, and the one that its memory goes by."""
        lengths, place = places.unbind(1)
        features = self._front_end.log_mels(sound)
        finite = torch.isfinite(features).flatten(1).all(dim=1)
        features, known = self.normalization(features, lengths, place, known)
        # The front end's frames lie step by step, in which layout cuDNN's convolutions take four times as long.
        features = features.to(self.type).contiguous()
        if state is None or self.stateful_network is None:
            log_probs, _ = self._network(features, lengths)
            return Results(log_probs.float(), torch.stack([finite, finite], 1), known)
        log_probs, following = self.stateful_network(features, lengths, state, place)
        usable = torch.isfinite(following).all(dim=1)
        return Results(log_probs, torch.stack([finite, usable], 1), known, following)


def cudnn_settings(*, benchmark: bool) -> AbstractContextManager[None]:
    """cuDNN's settings. To search for the quickest algorithm takes seconds for each new length: only graphs are worth
    it. FP32 is 32 bits: by default cuDNN would round its factors to TF32."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=False)


@dataclass
class Results:
    """What one run leaves on the device."""

    log_probs: Tensor  # [batch, outputs, classes]
    finite: Tensor  # [batch, 2]: whether the features were, and the state that follows
    known: Tensor | None = None  # [batch, numbers]: the memory of normalization
    following: Tensor | None = None  # [batch, numbers]: the state of the windows to come


class Bucket:
    """One static shape: its input and output tensors, and on a GPU the captured graph between them."""

    def __init__(self, backend: GpuBackend, batch: int, frames: int, *, captured: bool) -> None:
        self.backend = backend
        self.batch, self.frames = batch, frames
        features, device = backend.config.features, backend.device
        samples = (frames - 1) * features.hop_samples + features.window_samples
        self._sound = StagedTensor(batch, samples, kind=torch.float32, device=device)
        self._filled = [0] * batch  # samples of each row; beyond them there are zeros
        self._places = StagedTensor(batch, 2, kind=torch.int64, device=device)
        numbers, stateful_network = backend.normalization.numbers, backend.stateful_network
        self._known = StagedTensor(batch, numbers, kind=torch.float64, device=device) if numbers else None
        self._state = (
            torch.zeros(batch, stateful_network.size, dtype=backend.type, device=device) if stateful_network else None
        )
        self._results: Results
        self._replay: Callable[[], Any] | None = None
        if captured:
            self._capture()

    @torch.inference_mode()
    def _compute(self, *, benchmark: bool = False) -> Results:
        known = self._known.tensor if self._known else None
        with cudnn_settings(benchmark=benchmark):
            return self.backend.arithmetic(self._sound.tensor, self._places.tensor, known, self._state)

    def _capture(self) -> None:
        self._places.rows[:, 0] = self.frames
        self._places.send(self.batch)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                self._compute(benchmark=True)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.backend.pool):
            self._results = self._compute(benchmark=True)
        self._replay = graph.replay

    def run(self) -> None:
        """The arithmetic alone, on whatever lies in the input tensors."""
        if self._replay is not None:
            self._replay()
        else:
            self._results = self._compute()

    @torch.inference_mode()
    def forward(self, windows: Sequence[Window]) -> list[WindowOutput]:
        """Up to `batch` windows, each no longer than `frames`."""
        self._load(windows)
        self.run()
        # Copied out before any other graph of the shared pool may run.
        count, results = len(windows), self._results
        following = following_states(windows, results.following) if results.following is not None else []
        wanted = (results.log_probs, results.finite, results.known)
        log_probs, finite, *known = to_host([rows[:count] for rows in wanted if rows is not None])
        memories = self.backend.normalization.memories(known[0]) if known else [None] * count
        heard = []
        for index, window in enumerate(windows):
            features_finite, state_finite = finite[index]
            kept = log_probs[index, kept_outputs(self.backend.config, window)].copy()
            memory: NormalizationState | StreamState | None = memories[index]
            if window.span.stateful:
                # A window that fails hands on the state it was given, also where that is the empty one.
                window = replace(window, memory=stream_state_of(window, self.backend.empty))
                memory = window.memory if window.span.last else StreamState(following[index], memories[index])
            if not features_finite:
                heard.append(failed(self.backend.config, window, AUDIO_NOT_FINITE))
            elif not state_finite or not np.isfinite(kept).all():
                heard.append(failed(self.backend.config, window, NETWORK_NOT_FINITE))
            else:
                heard.append(WindowOutput(window.span, kept, memory))
        return heard

    @torch.inference_mode()
    def _load(self, windows: Sequence[Window]) -> None:
        """Rows of no window keep what they hold: they have no frames, and no row hears another."""
        backend, count = self.backend, len(windows)
        self._places.rows[count:] = 0
        for row, window in enumerate(windows):
            span = window.span
            sound = prepare_samples(backend.config.features, window.samples, span.first_frame, span.end_frame)
            self._sound.rows[row, : len(sound)] = sound
            self._sound.rows[row, len(sound) : self._filled[row]] = 0.0
            self._filled[row] = len(sound)
            self._places.rows[row] = span.frames, state_frame(backend.config, window)
            if self._known is not None:
                self._known.rows[row] = backend.normalization.memory(window)
        if self._state is not None:
            load_states(self._state, windows, backend.empty)
        self._sound.send(count)
        self._places.send(self.batch)
        if self._known is not None:
            self._known.send(count)


def state_frame(config: ModelConfig, window: Window) -> int:
    """The frame of a window that its stream's memory goes by: with running normalization the first that counts, else
    that of the window to come."""
    if config.features.normalize == "running":
        return window.span.first_new_frame - window.span.first_frame
    return hop_frames(config, window)
