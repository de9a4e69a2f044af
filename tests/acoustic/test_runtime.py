"""The laws of the backends: company changes nothing, poison stays local, bounded streams hear it all."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acoustic.architectures import published
from acoustic.catalogue import untrained
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig
from acoustic.errors import AcousticError
from acoustic.features.framing import frame_count
from acoustic.features.front_end import FrontEnd
from acoustic.quantization.calibration import calibrate
from acoustic.quantization.ranges import with_ranges
from acoustic.runtime import Backend, open_backend, stream_log_probs
from acoustic.runtime.backend import run_in_blocks, recording_features
from acoustic.runtime.cpu import CpuBackend
from acoustic.runtime.gpu import GpuBackend
from acoustic.windows import StreamWindows, Window, WindowPlan, default_plan, windows_of
from tests.acoustic.signals import audio

TINY = untrained(published["tiny"])
RUNNING = replace(
    TINY, config=replace(TINY.config, features=replace(TINY.config.features, normalize="running"))
)
UTTERANCE = replace(
    TINY, config=replace(TINY.config, features=replace(TINY.config.features, normalize="utterance"))
)
# Like the student: steps of 80 ms with four outputs, little look-ahead.
STEPS = untrained(
    replace(
        TINY.config,
        blocks=(
            *(BlockConfig(5, 16, stride=2, look_ahead=1) for _ in range(3)),
            BlockConfig(5, 16, 2, separable=True, residual="identity", look_ahead=(1, 0)),
        ),
        outputs_per_step=4,
    )
)
PLAN = WindowPlan(left_frames=48, hop_frames=24, look_ahead_frames=20)

Maker = Callable[[Checkpoint], Backend]


def rounded(checkpoint: Checkpoint) -> Backend:
    return CpuBackend(with_ranges(checkpoint, calibrate(checkpoint, [audio(12)], keep=False)), "int8")


def buckets_on_cpu(checkpoint: Checkpoint) -> Backend:
    """The GPU backend with its graphs off."""
    return GpuBackend(checkpoint, "cpu", batches=(1, 4, 8))


BACKENDS: dict[str, Maker] = {
    "fp32": lambda checkpoint: CpuBackend(checkpoint, "fp32"),
    "int8": rounded,
    "buckets": buckets_on_cpu,
}


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Maker:
    return BACKENDS[request.param]


def poisoned(window: Window, value: float) -> Window:
    samples = window.samples.copy()
    samples[len(samples) // 2] = value
    return replace(window, samples=samples)


@pytest.mark.parametrize("checkpoint", [TINY, STEPS], ids=["tiny", "steps"])
@pytest.mark.parametrize("seconds", [0.001, 0.05, 1.0, 3.337])
def test_with_bounded_context_a_stream_hears_what_the_whole_recording_hears(
    make: Maker, checkpoint: Checkpoint, seconds: float
) -> None:
    backend = make(checkpoint)
    samples = audio(seconds)
    whole = backend.recording_log_probs(samples)
    for hop in (8, 16, 64):
        plan = replace(default_plan(checkpoint.config), hop_frames=hop)
        streamed = stream_log_probs(backend, samples, plan)
        assert streamed.shape == whole.shape
        if backend.precision == "int8":
            # A feature that differs in its last bit may round to the next of 256 steps.
            assert np.abs(np.exp(streamed) - np.exp(whole)).mean() < 1e-3
        else:
            np.testing.assert_allclose(streamed, whole, atol=2e-5)


@pytest.mark.parametrize("checkpoint", [TINY, RUNNING, STEPS], ids=["fixed", "running", "steps"])
def test_company_changes_nothing(make: Maker, checkpoint: Checkpoint) -> None:
    """Windows of many streams, of many lengths, alone and together."""
    backend = make(checkpoint)
    windows = []
    for seed in range(5):
        windows += first_windows(backend, audio(0.4 + seed / 4, seed))
    alone = [backend.forward([window])[0] for window in windows]
    for order in (list(range(len(windows))), list(range(len(windows)))[::-1]):
        together = backend.forward([windows[index] for index in order])
        for index, heard in zip(order, together, strict=True):
            assert heard.span == alone[index].span
            assert heard.error is None
            if isinstance(backend, CpuBackend):
                np.testing.assert_array_equal(heard.log_probs, alone[index].log_probs)
            # PyTorch's sums may differ in their last digits where the rows of a batch are more.
            np.testing.assert_allclose(heard.log_probs, alone[index].log_probs, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(
                heard.log_probs.argmax(axis=1), alone[index].log_probs.argmax(axis=1)
            )
            if heard.state is not None:
                np.testing.assert_allclose(heard.state.sums, alone[index].state.sums, rtol=1e-6)  # type: ignore[union-attr]


def first_windows(backend: Backend, samples: np.ndarray) -> list[Window]:
    """The windows of a stream, each with the memory that it would have had."""
    stream = StreamWindows(backend.config, PLAN)
    windows = []
    for window in [*stream.push(samples), *stream.finish()]:
        windows.append(stream.with_current_state(window))
        stream.update_state(backend.forward([windows[-1]])[0])
    return windows


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("checkpoint", [TINY, RUNNING], ids=["fixed", "running"])
def test_a_poisoned_window_spoils_only_itself(make: Maker, checkpoint: Checkpoint, value: float) -> None:
    backend = make(checkpoint)
    windows = [first_windows(backend, audio(1, seed))[0] for seed in range(4)]
    clean = backend.forward(windows)
    heard = backend.forward([*windows[:2], poisoned(windows[2], value), windows[3]])
    assert heard[2].error
    assert heard[2].log_probs.shape == (0, backend.config.classes)
    assert heard[2].state is windows[2].state
    for index in (0, 1, 3):
        assert heard[index].error is None
        np.testing.assert_array_equal(heard[index].log_probs, clean[index].log_probs)


def test_log_probabilities_add_up_to_one(make: Maker) -> None:
    for checkpoint in (TINY, STEPS):
        log_probs = make(checkpoint).recording_log_probs(audio(1.1))
        assert log_probs.dtype == np.float32
        assert log_probs.shape == (checkpoint.config.outputs_for(110), 29)
        np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1.0, atol=1e-4)


def test_both_backends_hear_the_same() -> None:
    for checkpoint in (TINY, RUNNING, UTTERANCE, STEPS):
        cpu, buckets = BACKENDS["fp32"](checkpoint), buckets_on_cpu(checkpoint)
        samples = audio(4.2, seed=8)
        np.testing.assert_allclose(buckets.recording_log_probs(samples), cpu.recording_log_probs(samples), atol=1e-4)
        np.testing.assert_allclose(
            stream_log_probs(buckets, samples, PLAN), stream_log_probs(cpu, samples, PLAN), atol=1e-4
        )


def test_running_normalization_refuses_windows_out_of_order(make: Maker) -> None:
    backend = make(RUNNING)
    windows = list(windows_of(audio(3), backend.config, PLAN))
    with pytest.raises(AcousticError, match="in order"):
        backend.forward([windows[1]])


def test_a_model_of_whole_utterances_streams_with_running_normalization(make: Maker) -> None:
    backend = make(UTTERANCE)
    assert backend.config.features.normalize == "running"
    assert StreamWindows(backend.config, backend.plan).needs_order
    assert stream_log_probs(backend, audio(2)).shape == (100, 29)


def test_long_recordings_are_heard_in_pieces_that_join_without_a_seam(make: Maker) -> None:
    backend = make(TINY)
    if not isinstance(backend, CpuBackend):
        pytest.skip("the pieces are shared code; one backend shows both ways")
    samples = audio(95)
    features = recording_features(backend.front_end, backend.trained_config.features, samples)
    pieces = list(backend.iter_recording_log_probs([samples]))
    assert len(pieces) == 4
    np.testing.assert_allclose(np.concatenate(pieces), backend.run(features), atol=1e-5)


@pytest.mark.parametrize("name", sorted(published))
def test_pieces_have_all_the_context_that_a_network_reaches(name: str) -> None:
    """Every Jasper and every model of ours; the QuartzNets, which reach 12 to 40 s, get 6 s."""
    config = published[name]
    frames = torch.arange(20_000)[None]
    heard: list[tuple[int, int]] = []

    def run(piece: torch.Tensor) -> np.ndarray:
        heard.append((int(piece[0, 0]), int(piece[0, -1]) + 1))
        return np.zeros((config.outputs_for(piece.shape[-1]), config.classes), np.float32)

    kept = [len(piece) * config.frames_per_output for piece in run_in_blocks(config, [frames], run)]
    assert sum(kept) == frames.shape[-1]
    far = name.startswith("quartznet")
    left, right = (600, 600) if far else (config.left_frames, config.look_ahead_frames)
    keep = 0
    for (first, end), count in zip(heard, kept, strict=True):
        assert first % config.stride_frames == 0
        assert first <= max(0, keep - left)
        keep += count
        assert end >= min(frames.shape[-1], keep + right)


@pytest.mark.parametrize("samples", [0, 1, 2, 159, 160, 161, 319, 320, 321])
def test_very_short_sounds(make: Maker, samples: int) -> None:
    backend = make(TINY)
    outputs = TINY.config.outputs_for(frame_count(TINY.config.features, samples))
    assert backend.recording_log_probs(audio(1)[:samples]).shape == (outputs, 29)
    assert stream_log_probs(backend, audio(1)[:samples]).shape == (outputs, 29)


def test_silence_is_heard_like_anything_else(make: Maker) -> None:
    for checkpoint in (TINY, RUNNING, UTTERANCE):
        backend = make(checkpoint)
        assert np.isfinite(backend.recording_log_probs(np.zeros(16_000, np.float32))).all()
        assert np.isfinite(stream_log_probs(backend, np.zeros(16_000, np.float32), PLAN)).all()


def test_a_recording_of_nothing_is_not_heard_as_average_speech() -> None:
    front_end = FrontEnd(UTTERANCE.config.features)
    nothing = recording_features(front_end, UTTERANCE.config.features, np.full(16_000, 1e-5, np.float32))
    assert float(nothing.max()) < -1.0
    speech = recording_features(front_end, UTTERANCE.config.features, audio(1))
    assert abs(float(speech.mean())) < 1e-3


def test_whole_recordings_with_bad_samples_are_refused(make: Maker) -> None:
    samples = audio(1)
    samples[100] = np.nan
    with pytest.raises(AcousticError, match="not finite"):
        make(TINY).recording_log_probs(samples)
    with pytest.raises(AcousticError, match="not finite"):
        stream_log_probs(make(TINY), samples, PLAN)
    with pytest.raises(AcousticError, match="one channel"):
        make(TINY).recording_log_probs(np.zeros((2, 100), np.float32))


def test_forward_of_nothing_is_nothing(make: Maker) -> None:
    assert make(TINY).forward([]) == []


def test_more_windows_than_the_largest_bucket() -> None:
    backend = buckets_on_cpu(TINY)
    window = first_windows(backend, audio(1))[0]
    heard = backend.forward([window] * 19)
    assert len(heard) == 19
    for one in heard:
        np.testing.assert_allclose(one.log_probs, heard[0].log_probs, atol=1e-5)


def test_a_window_longer_than_any_bucket_still_runs() -> None:
    backend = buckets_on_cpu(TINY)
    plan = WindowPlan(200, 400, 20)
    np.testing.assert_allclose(stream_log_probs(backend, audio(7), plan), backend.recording_log_probs(audio(7)), atol=2e-5)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "fp16"), ("cpu", "int8"), ("tpu", "fp32")])
def test_what_a_device_cannot_do_is_said(device: str, precision: str) -> None:
    with pytest.raises(AcousticError):
        open_backend("tiny", device, precision)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(AcousticError, match="CUDA"):
        open_backend("tiny", "cuda")


def test_opening_by_name_path_and_value(tmp_path: Path) -> None:
    from acoustic import checkpoint as files

    path = files.save(tmp_path, TINY.config, TINY.state)
    expected = open_backend("tiny").recording_log_probs(audio(1))
    for model in (path, str(tmp_path), TINY):
        np.testing.assert_array_equal(open_backend(model).recording_log_probs(audio(1)), expected)
    with pytest.raises(AcousticError, match="no model"):
        open_backend(tmp_path / "missing")


class Blocks:
    """Sound that is made as it is asked for, and knows how much of it somebody still holds."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.given, self.held, self.max_held = 0, 0, 0

    def __iter__(self) -> Iterator[np.ndarray]:
        self.given = 0
        for second in range(self.seconds):
            block = audio(1, seed=second)
            self.given, self.held = self.given + 1, self.held + 1
            self.max_held = max(self.max_held, self.held)
            weakref.finalize(block, self.let_go)
            yield block
            del block

    def let_go(self) -> None:
        self.held -= 1


@pytest.mark.parametrize("checkpoint", [TINY, RUNNING, UTTERANCE], ids=["fixed", "running", "utterance"])
def test_a_recording_heard_block_by_block_is_never_held_whole(checkpoint: Checkpoint) -> None:
    backend, seconds = BACKENDS["fp32"](checkpoint), 150
    blocks = Blocks(seconds)
    pieces, ahead_s = [], []
    for piece in backend.iter_recording_log_probs(blocks):
        pieces.append(piece)
        ahead_s.append(blocks.given - 30 * len(pieces))
    assert len(pieces) == 5
    assert max(ahead_s) < 20  # little more is read than a piece and its look-ahead need
    assert blocks.max_held < 5
    whole = backend.recording_log_probs(np.concatenate(list(blocks)))
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
