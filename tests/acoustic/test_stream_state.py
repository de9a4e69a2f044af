"""Carried state: a stream heard window by window without left context is the whole recording, however it is cut."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acoustic.architectures import published
from acoustic.catalogue import DEFAULT_MODEL, find, untrained
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig, ModelConfig
from acoustic.errors import AcousticError
from acoustic.export.onnx import onnx_bytes
from acoustic.export.streaming import METADATA_KEY, StateLayout
from acoustic.network.folding import fold
from acoustic.network.stream_state import StatefulNetwork
from acoustic.quantization.calibration import calibrate
from acoustic.quantization.ranges import with_ranges
from acoustic.runtime import Backend, stream_log_probs
from acoustic.runtime.backend import Precision
from acoustic.runtime.cpu import CpuBackend, open_session
from acoustic.runtime.gpu import GpuBackend
from acoustic.stream_state import NormalizationState, StreamState
from acoustic.windows import StreamWindows, Window, WindowPlan, default_plan, supports_stream_state
from tests.acoustic.signals import enlivened, audio

FEATURES = published["tiny"].features
STEM = tuple(BlockConfig(5, 16, stride=2, look_ahead=1) for _ in range(3))
AHEAD = BlockConfig(5, 16, 2, separable=True, residual="identity", look_ahead=(1, 0))
BACK = BlockConfig(7, 16, 2, separable=True, look_ahead=0)
DENSE = BlockConfig(5, 24, 2, look_ahead=(0, 1))
NETWORKS = {
    "like the model in the box": ModelConfig("s", FEATURES, (*STEM, AHEAD, BACK, AHEAD), outputs_per_step=4),
    "no look-ahead": ModelConfig("s", FEATURES, (replace(STEM[0], look_ahead=0), *[BACK] * 4)),
    "projected bypass": ModelConfig("s", FEATURES, (STEM[0], replace(DENSE, residual="residual"), DENSE)),
    "strided bypass": ModelConfig(
        "s", FEATURES, (STEM[0], replace(DENSE, residual="residual", stride=2), BACK, BACK)
    ),
    "dense residual": ModelConfig(
        "s", FEATURES, (STEM[0], *[replace(DENSE, residual="dense_residual", stride=s) for s in (1, 2, 1)])
    ),
    "densenet": ModelConfig(
        "s", FEATURES, (STEM[0], *[replace(DENSE, residual="densenet", stride=s) for s in (1, 2, 1)])
    ),
    "dense rnet": ModelConfig("s", FEATURES, (STEM[0], *[replace(DENSE, residual="dense_rnet")] * 3)),
    "groups": ModelConfig("s", FEATURES, (STEM[0], replace(AHEAD, residual="residual", groups=4), BACK)),
    "gate": ModelConfig("s", FEATURES, (STEM[0], DENSE, replace(BACK, kernel=11)), activation="glu"),
    # Its stem is separable: a dense convolution before a layer norm is in 32 bits also in INT8, and how its sums are
    # added up depends on how many steps there are (1.4e-6, which may round to the next of 256 steps).
    "layer norm": ModelConfig(
        "s", FEATURES, (replace(STEM[0], separable=True), AHEAD, replace(BACK, kernel=9)), norm="layer"
    ),
    "dilated": ModelConfig("s", FEATURES, (STEM[0], replace(BACK, dilation=3), DENSE)),
    "causal": ModelConfig(
        "s",
        replace(FEATURES, normalize="causal", memory_frames=500, prior_frames=300, max_level_db=-30),
        (*STEM, AHEAD, BACK, AHEAD),
        outputs_per_step=4,
    ),
}
STREAMED = ("like the model in the box", "causal")
BOX = untrained(NETWORKS["like the model in the box"])
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
Kind = Literal["fp32", "int8", "buckets"]
KINDS: tuple[Kind, ...] = ("fp32", "int8", "buckets")
"""The CPU backend in both precisions, and the GPU backend with its graphs off."""


@cache
def backend_of(kind: Kind, network: str = "like the model in the box") -> Backend:
    checkpoint = enlivened(untrained(NETWORKS[network]))
    if kind == "buckets":
        return GpuBackend(checkpoint, "cpu", batches=(1, 4, 8))
    if kind == "int8":
        checkpoint = with_ranges(checkpoint, calibrate(checkpoint, [audio(12)], keep=False))
    return CpuBackend(checkpoint, kind)


def assert_same(kind: Kind, heard: np.ndarray, whole: np.ndarray) -> None:
    assert heard.shape == whole.shape
    if kind != "int8" or not heard.size:
        np.testing.assert_allclose(heard, whole, atol=1e-4)
        np.testing.assert_array_equal(heard.argmax(axis=1), whole.argmax(axis=1))
    else:
        # A feature that differs in its last bit may round to the next of 256 steps.
        assert np.abs(np.exp(heard) - np.exp(whole)).mean() < 1e-3


@pytest.mark.parametrize("frames", [1, 3, 40, 203, 206])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_kind_of_layer_goes_on_where_it_stopped(name: str, precision: Precision, frames: int) -> None:
    """The graph alone: the same features in runs of changing hops, and at once, bit for bit in INT8."""
    config = NETWORKS[name]
    checkpoint = enlivened(untrained(config))
    ranges = calibrate(checkpoint, [audio(12)], keep=False) if precision == "int8" else None
    content = onnx_bytes(checkpoint, ranges, stateful=True)
    graph = onnx.load_from_string(content).graph
    read = {name for node in graph.node for name in node.input} | {port.name for port in graph.output}
    assert all(read.intersection(node.output) for node in graph.node)  # nothing is computed that nobody reads
    session = open_session(content)
    layout = StateLayout.read(session.get_modelmeta().custom_metadata_map[METADATA_KEY])
    features = torch.randn(2, 64, frames, generator=torch.Generator().manual_seed(5)).numpy()
    (whole,) = open_session(onnx_bytes(checkpoint, ranges)).run(None, {"features": features})
    state, at, known, pieces = np.stack([layout.empty(ranges is not None)] * 2), 0, 0, []
    hops = iter([1, 3, 2, 5, 1, 8] * 100)
    while at < frames:
        hop = next(hops) * config.stride_frames
        end = at + hop + config.look_ahead_frames
        last = end > frames
        end, completed = min(end, frames), frames - at if last else hop
        places = layout.places(completed, first=not at, last=last)
        given = {"features": features[:, :, known:end], "places": places, "state": state}
        log_probs, following = session.run(None, given)
        state, known, at = following, end, at + completed
        pieces.append(log_probs)
        if not last:  # nothing is heard that nobody needs
            assert log_probs.shape[1] == hop // config.frames_per_output
    heard = np.concatenate(pieces, axis=1)
    assert heard.shape == whole.shape
    np.testing.assert_allclose(heard, whole, atol=1e-4 if precision == "fp32" else 1e-5)


@pytest.mark.parametrize("network", STREAMED)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), samples=st.integers(0, 60_000), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stream_is_the_whole_recording_whatever_the_hops_and_pushes(
    kind: Kind, network: str, data: st.DataObject, samples: int, seed: int
) -> None:
    backend = backend_of(kind, network)
    recording = audio(4, seed)[:samples]
    stream = StreamWindows(backend.config, backend.plan)
    assert stream.needs_order
    pieces = [np.zeros((0, backend.config.classes), np.float32)]
    cuts = sorted(data.draw(st.lists(st.integers(0, samples), max_size=8)))
    for first, end in [*pairwise([0, *cuts, samples]), (samples, None)]:
        stream.change_hop(data.draw(st.integers(1, 16)) * backend.config.stride_frames)
        windows = stream.finish() if end is None else stream.push(recording[first:end])
        for window in windows:
            assert window.span.frames == stream.plan.frames or window.span.last
            (heard,) = backend.forward([stream.with_current_state(window)])
            assert heard.error is None
            stream.update_state(heard)
            pieces.append(heard.log_probs)
    assert_same(kind, np.concatenate(pieces), backend.recording_log_probs(recording))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.05, 0.64, 1.0, 7.337])
def test_the_default_plan_hears_it_all(kind: Kind, seconds: float) -> None:
    backend = backend_of(kind)
    assert backend.plan.stateful and not backend.plan.left_frames
    samples = audio(seconds)
    assert_same(kind, stream_log_probs(backend, samples), backend.recording_log_probs(samples))


def test_the_model_in_the_box_streams_so() -> None:
    """At its full size, with untrained weights."""
    backend = CpuBackend(untrained(published["silica-small"]), "fp32")
    assert backend.plan == WindowPlan(0, 64, 47, stateful=True)
    samples = audio(4.321)
    assert_same("fp32", stream_log_probs(backend, samples), backend.recording_log_probs(samples))


@pytest.mark.parametrize("seed", range(3))
def test_the_shipped_model_hears_long_sound_to_the_last_bit_as_its_stream(seed: int) -> None:
    """In INT8 the last digit of a sum may change a letter: nothing is summed in another order."""
    backend = CpuBackend(find(DEFAULT_MODEL), "int8")
    time = np.arange(16_000 * 40) / 16_000
    voice = np.sin(2 * np.pi * (200 + 150 * np.sin(2 * np.pi * 0.7 * time)) * time)
    swelling = 0.1 * voice * (1 + np.sin(2 * np.pi * 3 * time))
    noise = np.random.default_rng(seed).normal(0, 0.02, len(time))
    samples = (swelling + noise).astype(np.float32)
    np.testing.assert_array_equal(stream_log_probs(backend, samples), backend.recording_log_probs(samples))


@pytest.mark.parametrize("network", STREAMED)
@pytest.mark.parametrize("kind", KINDS)
def test_company_changes_nothing(kind: Kind, network: str) -> None:
    """Windows of many streams, at their beginning, within and at their end, of several hops, in any order."""
    backend = backend_of(kind, network)
    windows = []
    for seed in range(11):
        windows += ordered(backend, audio(0.7 + seed / 7, seed), hop_frames=(16, 64)[seed % 2])
    alone = [backend.forward([window])[0] for window in windows]
    order = np.random.default_rng(4).permutation(len(windows))
    together = backend.forward([windows[index] for index in order])
    for index, heard in zip(order, together, strict=True):
        assert heard.span == alone[index].span
        known, expected = normalized_by(heard.state), normalized_by(alone[index].state)
        if network == "causal" and not heard.span.last:
            assert known is not None and expected is not None
            np.testing.assert_allclose(known.sums, expected.sums)
        np.testing.assert_allclose(heard.log_probs, alone[index].log_probs, atol=1e-5)
        np.testing.assert_array_equal(heard.log_probs.argmax(axis=1), alone[index].log_probs.argmax(axis=1))
        np.testing.assert_allclose(values(heard.state), values(alone[index].state), atol=1e-5)


def ordered(backend: Backend, samples: np.ndarray, hop_frames: int) -> list[Window]:
    """The windows of a stream, each with the state that it would have had."""
    stream = StreamWindows(backend.config, replace(backend.plan, hop_frames=hop_frames))
    windows = []
    for window in [*stream.push(samples), *stream.finish()]:
        windows.append(stream.with_current_state(window))
        stream.update_state(backend.forward([windows[-1]])[0])
    return windows


def normalized_by(state: object) -> NormalizationState | None:
    assert isinstance(state, StreamState)
    return state.state


def values(state: object) -> np.ndarray:
    assert isinstance(state, StreamState)
    return state.array()


@pytest.mark.parametrize("network", STREAMED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_poisoned_window_leaves_its_state_and_its_company_as_they_were(
    kind: Kind, network: str, place: int, value: float
) -> None:
    backend = backend_of(kind, network)
    windows = [ordered(backend, audio(3, seed), 64)[place] for seed in range(4)]
    clean = backend.forward(windows)
    samples = windows[2].samples.copy()
    samples[len(samples) // 2] = value
    heard = backend.forward([*windows[:2], replace(windows[2], samples=samples), windows[3]])
    assert heard[2].error and heard[2].log_probs.shape == (0, 29)
    before = windows[2].state or backend.forward([replace(windows[2], samples=samples)])[0].state
    np.testing.assert_array_equal(values(heard[2].state), values(before))
    assert normalized_by(heard[2].state) == normalized_by(windows[2].state or StreamState(np.zeros(0)))
    for index in (0, 1, 3):
        np.testing.assert_allclose(heard[index].log_probs, clean[index].log_probs, atol=1e-5)
    following = ordered(backend, audio(3, 2), 64)[place + 1]
    assert backend.forward([replace(following, state=heard[2].state)])[0].error is None


def test_a_window_may_run_again() -> None:
    """The state is a value: who loses a worker runs the window once more, and nothing is known of the first time."""
    backend = backend_of("fp32")
    window = ordered(backend, audio(3), 64)[2]
    kept = values(window.state).copy()
    first, again = backend.forward([window])[0], backend.forward([window])[0]
    np.testing.assert_array_equal(first.log_probs, again.log_probs)
    np.testing.assert_array_equal(values(first.state), values(again.state))
    np.testing.assert_array_equal(values(window.state), kept)


@pytest.mark.parametrize("network", STREAMED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_begins_anew_whatever_was_heard_before_it(kind: Kind, network: str) -> None:
    """After a Finalize the first window of what follows may come with the state of what was."""
    backend = backend_of(kind, network)
    windows = ordered(backend, audio(2), 64)
    stale = replace(windows[0], state=windows[2].state)
    np.testing.assert_array_equal(
        backend.forward([stale])[0].log_probs, backend.forward([windows[0]])[0].log_probs
    )


def test_an_hour_is_held_in_the_room_of_two_windows() -> None:
    config = published["silica-small"]
    plan = default_plan(config, stateful=True)
    stream = StreamWindows(config, plan)
    second, most = np.zeros(16_000, np.float32), 0
    for _ in range(3_600):
        stream.push(second)
        most = max(most, stream.buffered_samples)
    assert most <= 2 * (plan.frames + 4) * 160


def test_the_state_is_as_small_as_what_the_kernels_reach_back() -> None:
    """On a CPU and ahead, since nothing is heard twice there; a shortcut finds what it needs among the same."""
    sizes: dict[Kind, int] = {"fp32": 4, "int8": 1, "buckets": 4}
    for kind, size in sizes.items():
        (heard,) = backend_of(kind).forward(ordered(backend_of(kind), audio(2), 64)[:1])
        config = NETWORKS["like the model in the box"]
        channels, back, ahead = config.features.mels, 0, 0
        for block in config.blocks:
            for unit in range(block.repeat):
                left, right = block.padding(unit)
                back, ahead = back + channels * left, ahead + channels * (right + block.stride - 1)
                channels = block.channels
        numbers = values(heard.state).nbytes / size
        assert back < numbers <= back + ahead if kind != "buckets" else numbers == back


@pytest.mark.parametrize("kind", ["fp32", "buckets"])
@pytest.mark.parametrize(
    "memory", [None, StreamState(np.zeros(3, np.float32))], ids=["none", "of another model"]
)
def test_windows_out_of_order_or_of_another_model_are_refused(state: StreamState | None, kind: Kind) -> None:
    backend = backend_of(kind)
    window = ordered(backend, audio(2), 64)[1]
    with pytest.raises(AcousticError, match=r"in order|another model"):
        backend.forward([replace(window, state=state)])


def test_a_model_that_carries_nothing_says_so() -> None:
    window = ordered(backend_of("fp32"), audio(2), 64)[0]
    tiny = untrained(published["tiny"])
    for backend in (CpuBackend(tiny, "fp32"), GpuBackend(tiny, "cpu", batches=(1,))):
        assert not backend.plan.stateful
        with pytest.raises(AcousticError, match="carries no state"):
            backend.forward([window])


@pytest.mark.parametrize("name", NETWORKS)
def test_pytorch_hears_what_the_onnx_graph_hears(name: str) -> None:
    """For every kind of layer, each with its own state: PyTorch hears ahead anew in every window, ONNX once."""
    config = NETWORKS[name]
    checkpoint = enlivened(untrained(config))
    session = open_session(onnx_bytes(checkpoint, stateful=True))
    layout = StateLayout.read(session.get_modelmeta().custom_metadata_map[METADATA_KEY])
    stateful_network = StatefulNetwork(fold(checkpoint).network())
    features = torch.randn(2, 64, 203, generator=torch.Generator().manual_seed(5))
    state, following, at, known = torch.zeros(2, stateful_network.size), np.stack([layout.empty(False)] * 2), 0, 0
    for hop in (1, 3, 2, 5, 1):
        hop *= config.stride_frames
        end = at + hop + config.look_ahead_frames
        given = {"features": features[:, :, known:end].numpy(), "state": following}
        log_probs, following = session.run(None, given | {"places": layout.places(hop, first=not at)})
        with torch.inference_mode():
            frames, hops = torch.full((2,), end - at), torch.full((2,), hop)
            heard, state = stateful_network(features[:, :, at:end], frames, state, hops)
        np.testing.assert_allclose(heard[:, : log_probs.shape[1]].numpy(), log_probs, atol=1e-4)
        at, known = at + hop, end


@pytest.mark.parametrize("kind", ["fp32", "buckets"])
def test_overlapping_windows_still_run_on_a_model_that_could_carry(kind: Kind) -> None:
    backend = backend_of(kind)
    samples = audio(3)
    streamed = stream_log_probs(backend, samples, default_plan(backend.config))
    np.testing.assert_allclose(streamed, backend.recording_log_probs(samples), atol=1e-4)


def test_who_carries() -> None:
    assert supports_stream_state(published["silica-small"]) and supports_stream_state(
        published["silica-streaming"]
    )
    for name in ("tiny", "quartznet15x5", "jasper10x5dr"):
        assert not supports_stream_state(published[name])
        assert not default_plan(published[name], stateful=True).stateful


@pytest.mark.parametrize("plan", [WindowPlan(8, 64, 47, True), WindowPlan(0, 64, 46, True)])
def test_plans_that_cannot_carry_are_refused(plan: WindowPlan) -> None:
    with pytest.raises(AcousticError, match="look-ahead"):
        StreamWindows(published["silica-small"], plan)


def test_only_fixed_and_causal_normalization_carry_and_the_latter_does_nothing_else() -> None:
    config = published["silica-small"]
    running = replace(config, features=replace(config.features, normalize="running"))
    with pytest.raises(AcousticError, match="fixed"):
        StreamWindows(running, default_plan(config, stateful=True))
    causal = NETWORKS["causal"]
    assert default_plan(causal).stateful
    with pytest.raises(AcousticError, match="carried state"):
        StreamWindows(causal, WindowPlan(64, 64, 47))


def test_both_kinds_of_graph_have_their_own_place_in_the_cache(tmp_path: Path) -> None:
    from acoustic.export.cache import fingerprint

    assert fingerprint(BOX) != fingerprint(BOX, stateful=True)
    checkpoint: Checkpoint = replace(BOX, card={"other": 1})
    assert fingerprint(BOX, stateful=True) == fingerprint(checkpoint, stateful=True)
