"""What the GPU backend promises of itself, kept without one where that is possible: on a CPU, its graphs off."""

import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from acoustic.architectures import published
from acoustic.catalogue import untrained
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig
from acoustic.runtime import gpu, stream_log_probs
from acoustic.runtime.backend import NETWORK_NOT_FINITE, Precision
from acoustic.runtime.gpu import GpuBackend, cudnn_settings
from acoustic.stream_state import StreamState
from acoustic.windows import StreamWindows, Window, with_hop
from tests.acoustic.signals import enlivened, audio

TINY = published["tiny"]


def normalized(kind: str, blocks: tuple[BlockConfig, ...] = TINY.blocks) -> Checkpoint:
    features = replace(TINY.features, normalize=kind, memory_frames=500, prior_frames=300)  # type: ignore[arg-type]
    return enlivened(untrained(replace(TINY, features=features, blocks=blocks)))


BACK = (
    BlockConfig(5, 16, stride=2, look_ahead=1),
    *[BlockConfig(11, 16, 2, separable=True, residual="identity", look_ahead=0)] * 4,
)
MODELS = {
    "fixed": normalized("fixed"),
    "running": normalized("running"),
    "carried": normalized("fixed", BACK),
    "causal": normalized("causal", BACK),
}
STATEFUL = ("carried", "causal")


@pytest.fixture(params=MODELS)
def backend(request: pytest.FixtureRequest) -> GpuBackend:
    return opened(request.param)


def opened(name: str) -> GpuBackend:
    return GpuBackend(MODELS[name], "cpu", batches=(1, 4))


def windows_of(backend: GpuBackend, seed: int, seconds: float = 3.0) -> list[Window]:
    """The windows of a stream, each with what it needs of those before it."""
    stream = StreamWindows(backend.config, backend.plan)
    windows = []
    for window in [*stream.push(audio(seconds, seed)), *stream.finish()]:
        windows.append(stream.with_current_state(window))
        stream.update_state(backend.forward([windows[-1]])[0])
    return windows


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "hop_s", [0.64, 0.8, 2.4], ids=["a bucket's", "one of its own", "longer than any bucket"]
)
@pytest.mark.parametrize(("precision", "apart"), [("fp16", 0.02), ("fp32", 1e-4)])
@pytest.mark.parametrize("name", MODELS)
def test_captured_graphs_hear_what_the_cpu_hears(
    name: str, precision: Precision, apart: float, hop_s: float
) -> None:
    cpu, fast = opened(name), GpuBackend(MODELS[name], "cuda", precision, batches=(1, 4))
    plan = with_hop(cpu.config, cpu.plan, hop_s)
    exact, heard = stream_log_probs(cpu, audio(4), plan), stream_log_probs(fast, audio(4), plan)
    assert np.abs(np.exp(exact) - np.exp(heard)).max() < apart
    whole = np.exp(fast.recording_log_probs(audio(4)))
    assert np.abs(np.exp(cpu.recording_log_probs(audio(4))) - whole).max() < apart


class OnTheDeviceAlone(TorchFunctionMode):
    """Refuses what CUDA refuses while a graph is captured: numbers that come from the host or go there."""

    FORBIDDEN = frozenset(
        {"tensor", "as_tensor", "new_tensor", "item", "tolist", "cpu", "numpy", "nonzero", "__bool__"}
    )

    def __torch_function__(
        self, called: Callable[..., Any], types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(called, "__name__", "")
        assert name not in self.FORBIDDEN, f"{name} cannot be captured"
        return called(*args, **kwargs or {})


def test_what_is_captured_needs_nothing_of_the_host(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = backend.bucket(4, backend.plan.frames)
    bucket.forward(windows_of(backend, seed=1)[1:3])
    monkeypatch.delattr(torch, "from_numpy")  # no mode can see it
    with OnTheDeviceAlone():
        bucket.run()


def test_a_row_keeps_nothing_of_the_window_before(backend: GpuBackend) -> None:
    """Also not what was poisoned."""
    windows = windows_of(backend, seed=1, seconds=2.2)
    bucket = backend.bucket(4, backend.plan.frames)
    expected = bucket.forward(windows[-1:])[0]
    assert expected.span.frames < backend.plan.frames
    loud = replace(windows[1], samples=np.full_like(windows[1].samples, np.nan))
    assert all(heard.error for heard in bucket.forward([loud] * 4))
    again = bucket.forward(windows[-1:])[0]
    assert again.error is None
    np.testing.assert_array_equal(again.log_probs, expected.log_probs)


@pytest.fixture
def heard_by(backend: GpuBackend) -> Iterator[list[tuple[bool, bool, bool]]]:
    """Of every run of the first convolution: whether its input lies as usual, is searched for, may be TF32."""
    seen: list[tuple[bool, bool, bool]] = []

    def look(module: object, args: Any) -> None:
        cudnn = torch.backends.cudnn
        seen.append((args[0][0].is_contiguous(), cudnn.benchmark, cudnn.allow_tf32))

    first = backend._network.blocks[0]
    with first.register_forward_pre_hook(look):
        yield seen


def test_convolutions_take_the_usual_layout_and_exact_arithmetic_and_nobody_searches_outside_a_graph(
    backend: GpuBackend, heard_by: list[tuple[bool, bool, bool]]
) -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    windows_of(backend, seed=1)
    backend.recording_log_probs(audio(1))
    assert set(heard_by) == {(True, False, False)}
    with cudnn_settings(benchmark=True):
        assert torch.backends.cudnn.benchmark and not torch.backends.cudnn.allow_tf32
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == before


def test_only_lengths_that_have_a_bucket_are_captured_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened("fixed")
    made: list[tuple[int, bool]] = []
    monkeypatch.setattr(gpu, "Bucket", lambda _, batch, frames, captured: made.append((frames, captured)))
    backend.device = torch.device("cuda")
    for frames in (backend.plan.frames, 9_984) * 2:
        backend._bucket(1, frames)
    assert made == [(backend.plan.frames, True), (9_984, False), (9_984, False)]
    assert set(backend._buckets) == {(1, backend.plan.frames)}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_has_room_of_its_own_which_ends_with_its_stream(name: str) -> None:
    """A view would keep the whole batch's room for as long as the slowest of its streams."""
    backend = opened(name)
    windows = [windows_of(backend, seed)[1] for seed in range(4)]
    states = [heard.state for heard in backend.forward(windows)]
    rows = []
    for state in states:
        assert isinstance(state, StreamState) and isinstance(state.values, torch.Tensor)
        assert state.values.untyped_storage().nbytes() == state.values.nbytes
        rows.append(weakref.ref(state.values))
    del state, states[0]
    gc.collect()
    assert [row() is None for row in rows] == [True, False, False, False]


@pytest.mark.parametrize("name", STATEFUL)
def test_streams_that_begin_share_one_state_that_nobody_writes_to(name: str) -> None:
    backend = opened(name)
    firsts = [windows_of(backend, seed)[0] for seed in range(3)]
    spoiled = [replace(window, samples=np.full_like(window.samples, np.nan)) for window in firsts]
    for heard in backend.forward([*spoiled, *firsts])[:3]:
        assert heard.error and heard.state is backend.empty
    assert not backend.empty.array().any()


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_goes_over_the_host_where_another_device_takes_its_stream(name: str) -> None:
    backend, other = opened(name), opened(name)
    window = windows_of(backend, seed=1)[1]
    sent = pickle.loads(pickle.dumps(window.state))
    assert isinstance(sent, StreamState) and isinstance(sent.values, np.ndarray)
    there = other.forward([replace(window, state=sent), window])
    here = backend.forward([window, window])
    for one, same in zip(there, here, strict=True):
        np.testing.assert_array_equal(one.log_probs, same.log_probs)
        assert isinstance(one.state, StreamState) and isinstance(same.state, StreamState)
        np.testing.assert_array_equal(one.state.array(), same.state.array())


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_that_is_not_finite_harms_its_own_stream_alone_and_is_not_handed_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In FP16 a loud stream could make one."""
    backend = opened(name)
    windows = [windows_of(backend, seed)[1] for seed in range(3)]
    clean = backend.forward(windows)
    state, stateful_network = windows[1].state, backend.stateful_network
    assert isinstance(state, StreamState) and stateful_network is not None
    bad = replace(state, values=torch.full_like(torch.as_tensor(state.values), torch.nan))
    given = backend.forward([windows[0], replace(windows[1], state=bad), windows[2]])

    def overflowing(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs, following = stateful_network(*given)
        following[1, 0] = torch.inf
        return log_probs, following

    monkeypatch.setattr(backend, "stateful_network", overflowing)
    for heard, before in ((given, bad), (backend.forward(windows), state)):
        assert heard[1].error == NETWORK_NOT_FINITE and heard[1].state is before
        for index in (0, 2):
            assert heard[index].error is None
            np.testing.assert_array_equal(heard[index].log_probs, clean[index].log_probs)
