"""The training loop: it overfits ten utterances, a killed run resumes exactly, two processes equal one."""

import csv
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acoustic import checkpoint
from acoustic.config import ModelConfig
from acoustic.network import build
from lm.score import ErrorCounts
from tests.full_disk import full_disk
from tests.training.worker import make
from training.data.batch_shapes import BatchShape
from training.data.loader import Batch, Loader
from training.data.manifests import read_manifest
from training.errors import TrainingError
from training.objectives.objective import CtcObjective, ForwardPass, Graphed, Loss, PreparedBatch
from training.optim.optimizers import build_optimizer
from training.optim.schedules import Schedule
from training.run.checkpoints import RunFolder
from training.run.distributed import World
from training.run.evaluate import Evaluation, Score
from training.run.loop import Loop, LoopSettings
from training.run.precision import fastest_precision

WORKER = Path(__file__).with_name("worker.py")


def records(folder: Path, column: str = "loss") -> list[tuple[int, str]]:
    with (folder / "progress.csv").open() as file:
        return [(int(row["step"]), row[column]) for row in csv.DictReader(file) if row.get(column)]


@contextmanager
def started(
    spoken: Path, out: Path, settings: dict[str, Any], **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """The worker, killed at the end of the block at the latest."""
    with subprocess.Popen(
        [sys.executable, str(WORKER), str(spoken), str(out), json.dumps(settings)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_small_network_overfits_ten_utterances(
    spoken: Path, small_network: ModelConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    clips = read_manifest(spoken)
    model = build(small_network)
    loop = Loop(
        model,
        small_network,
        CtcObjective(small_network, torch.device("cpu")),
        Loader(clips, small_network.alphabet, batch_duration_s=10.0, resident=True),
        build_optimizer("adamw", model, learning_rate=0.005, weight_decay=0.001),
        Schedule(peak=0.005, total_steps=120, warmup_steps=20),
        RunFolder(tmp_path),
        settings=LoopSettings(grad_clip=5.0, log_every=40, evaluate_every=60, ema_decay=0.9),
        evaluate=Evaluation(clips, small_network, World()),
    )
    progress = loop.run()
    assert progress.finished
    assert progress.best_rate == 0.0
    best = checkpoint.load(tmp_path / "best.safetensors")
    assert Evaluation(clips, small_network, World())(best.network()).words.rate == 0.0
    assert best.card["dev_wer"] == 0.0
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_killed_run_resumes_with_the_losses_of_an_uninterrupted_one(spoken: Path, tmp_path: Path) -> None:
    make(spoken, tmp_path / "whole", World()).run()
    killed = tmp_path / "killed"
    with started(spoken, killed, {"steps": 12, "killed_after": 6}) as process:
        assert process.wait() == -signal.SIGKILL
    assert 5 <= len(records(killed)) < 12
    resumed = make(spoken, killed, World())
    assert 4 <= resumed.progress.step < 12
    assert resumed.run().finished
    assert records(killed) == records(tmp_path / "whole")
    assert [step for step, _ in records(killed)] == list(range(1, 13))
    first, second = (
        torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("whole", "killed")
    )
    for name, value in first["model"].items():
        assert torch.equal(value, second["model"][name]), name
    for name, value in first["average"]["values"].items():
        assert torch.equal(value, second["average"]["values"][name]), name


def train_in_two(spoken: Path, out: Path, settings: dict[str, Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first, second = (
        started(spoken, out, settings, RANK=str(rank), LOCAL_RANK=str(rank), **names) for rank in range(2)
    )
    with first as one, second as two:
        errors = [process.communicate()[1] for process in (one, two)]
        assert [one.returncode, two.returncode] == [0, 0], errors


def test_two_processes_have_the_losses_of_one_with_the_global_batch(spoken: Path, tmp_path: Path) -> None:
    settings = {"steps": 6, "dropout": False, "dither": 0.0, "save_every_s": 1e9}
    make(spoken, tmp_path / "one", World(), batch_duration_s=40.0, **settings).run()
    train_in_two(spoken, tmp_path / "two", {**settings, "batch_duration_s": 20.0})
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert len(one) == len(two) == 6
    assert [float(loss) for _, loss in two] == pytest.approx([float(loss) for _, loss in one], rel=2e-4)
    assert float(one[-1][1]) < float(one[0][1])
    states = [torch.load(tmp_path / name / "last.pt", weights_only=True)["model"] for name in ("one", "two")]
    for name, value in states[0].items():
        if value.is_floating_point():
            assert torch.allclose(value, states[1][name], atol=2e-3, rtol=1e-2), name


@pytest.mark.parametrize("optimizer", ["novograd", "muon"])
def test_processes_without_synced_batch_norm_equal_accumulated_pieces(
    spoken: Path, tmp_path: Path, optimizer: str
) -> None:
    """With Muon, whose matrix products are divided among the processes."""
    settings: dict[str, Any] = {
        "steps": 6,
        "dropout": False,
        "dither": 0.0,
        "save_every_s": 1e9,
        "batch_duration_s": 20.0,
    }
    settings["optimizer"] = optimizer
    make(spoken, tmp_path / "pieces", World(), accumulation=2, **settings).run()
    train_in_two(spoken, tmp_path / "two", {**settings, "sync_batchnorm": False})
    pieces, two = ([float(loss) for _, loss in records(tmp_path / name)] for name in ("pieces", "two"))
    assert two == pytest.approx(pieces, rel=2e-4)


def test_accumulation_equals_the_whole_batch(spoken: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 4, "norm": "layer", "dither": 0.0, "save_every_s": 1e9}
    make(spoken, tmp_path / "whole", World(), batch_duration_s=40.0, **settings).run()
    make(spoken, tmp_path / "pieces", World(), batch_duration_s=20.0, accumulation=2, **settings).run()
    whole, pieces = ([float(loss) for _, loss in records(tmp_path / name)] for name in ("whole", "pieces"))
    assert pieces == pytest.approx(whole, rel=1e-4)


class NonFinite:
    """CTC, except for some steps whose loss is NaN."""

    def __init__(self, inner: CtcObjective, steps: range) -> None:
        self.inner, self.steps, self.calls = inner, steps, 0

    graphed: Sequence[Graphed] = ()

    def prepare(self, batch: Batch) -> PreparedBatch:
        return self.inner.prepare(batch)

    def forward(self, model: nn.Module, prepared: PreparedBatch) -> ForwardPass:
        return self.inner.forward(model, prepared)

    def transcript_loss(self, prepared: PreparedBatch, log_probs: Tensor) -> Loss:
        loss = self.inner.transcript_loss(prepared, log_probs)
        self.calls += 1
        return Loss(loss.total * float("nan")) if self.calls - 1 in self.steps else loss


def make_non_finite(loop: Loop, steps: range) -> Loop:
    assert isinstance(loop.objective, CtcObjective)
    loop.objective = NonFinite(loop.objective, steps)
    return loop


def test_a_non_finite_step_changes_nothing_and_is_counted(spoken: Path, tmp_path: Path) -> None:
    loop = make_non_finite(make(spoken, tmp_path, World(), steps=1), range(1))
    before = {name: value.clone() for name, value in loop.model.state_dict().items()}
    progress = loop.run()
    assert progress.skipped == 1
    for name, value in loop.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_many_non_finite_steps_end_the_run_and_keep_the_checkpoint(spoken: Path, tmp_path: Path) -> None:
    loop = make_non_finite(make(spoken, tmp_path, World(), steps=60), range(3, 60))
    with pytest.raises(
        TrainingError, match=r"25 steps in a row gave no finite loss .* clips such as .*\.wav"
    ):
        loop.run()
    kept = torch.load(tmp_path / "last.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in kept["model"].values())


def test_an_overflow_halves_the_loss_scale_which_the_checkpoint_keeps(spoken: Path, tmp_path: Path) -> None:
    # FP16 itself needs a GPU; its loss scale runs anywhere.
    loop = make_non_finite(make(spoken, tmp_path, World(), steps=4), range(2, 3))
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    assert loop.run().skipped == 1
    assert loop.scaler.get_scale() == 512.0
    whole = make(spoken, tmp_path / "plain", World(), steps=4)
    whole.run()
    first_two = [float(loss) for _, loss in records(tmp_path)][:2]
    assert first_two == pytest.approx([float(loss) for _, loss in records(tmp_path / "plain")][:2], rel=1e-3)
    assert torch.load(tmp_path / "last.pt", weights_only=True)["scaler"]["scale"] == 512.0


def test_bf16_trains_on_a_cpu_and_fp16_is_refused(spoken: Path, tmp_path: Path) -> None:
    make(spoken, tmp_path / "wide", World(), steps=3).run()
    make(spoken, tmp_path / "narrow", World(), steps=3, precision="bf16").run()
    wide, narrow = ([float(loss) for _, loss in records(tmp_path / name)] for name in ("wide", "narrow"))
    assert narrow == pytest.approx(wide, rel=0.05)
    assert narrow != wide
    with pytest.raises(TrainingError, match="fp16 needs a CUDA device; on a CPU use fp32 or bf16"):
        make(spoken, tmp_path, World(), precision="fp16")


@pytest.mark.parametrize(("narrow_s", "chosen"), [(0.001, "bf16"), (0.9, "fp32"), (40.0, "fp32")])
def test_auto_precision_is_bf16_only_where_it_is_faster(
    narrow_s: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {torch.float32: 1.0, torch.bfloat16: narrow_s}
    monkeypatch.setattr("training.run.precision._matmul_s", lambda dtype: times[dtype])
    assert fastest_precision(torch.device("cpu")) == chosen


def test_the_fastest_precision_trains_on_this_machine(spoken: Path, tmp_path: Path) -> None:
    chosen = fastest_precision(torch.device("cpu"))
    assert make(spoken, tmp_path, World(), steps=1, precision=chosen).run().finished


def test_a_full_disk_leaves_the_last_good_checkpoint_and_the_run_continues(
    spoken: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = make(spoken, tmp_path, World(), steps=3)
    assert loop.save()
    good = (tmp_path / "last.pt").read_bytes()
    with full_disk():
        assert not loop.save()
        assert not loop.folder.save_best(loop.config, loop.model.state_dict(), {})
    assert "the best model could not be written" in caplog.text
    assert "File too large" in caplog.text
    assert not loop.folder.best.exists()
    assert (tmp_path / "last.pt").read_bytes() == good
    assert not list(tmp_path.glob(".*.part"))
    assert "could not be written" in caplog.text
    assert "the last good one is kept" in caplog.text
    assert loop.run().finished
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == 3


def test_a_full_disk_at_the_end_is_an_error(spoken: Path, tmp_path: Path) -> None:
    loop = make(spoken, tmp_path, World(), steps=2)
    assert loop.save()
    with (
        full_disk(),
        pytest.raises(TrainingError, match=r"after step 2 could not be written .* last good checkpoint"),
    ):
        loop.run()
    assert make(spoken, tmp_path, World(), steps=2).run().finished


def test_the_previous_checkpoint_is_removed_to_make_room_for_the_next(
    spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make(spoken, tmp_path, World(), steps=2)
    assert loop.save() and loop.save()
    write = torch.save

    def with_room_for_two(state: object, file: Any) -> None:
        if loop.folder.previous.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(state, file)

    monkeypatch.setattr("training.run.checkpoints.torch.save", with_room_for_two)
    assert loop.run().finished
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == 2


def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(spoken: Path, tmp_path: Path) -> None:
    make(spoken, tmp_path, World(), steps=4).run()
    (tmp_path / "last.pt").write_bytes((tmp_path / "last.pt").read_bytes()[:1000])
    assert make(spoken, tmp_path, World(), steps=4).progress.step == 3
    (tmp_path / "previous.pt").write_bytes(b"nothing")
    with pytest.raises(TrainingError, match="No checkpoint of this run can be read"):
        make(spoken, tmp_path, World(), steps=4)


def test_a_checkpoint_of_another_model_is_refused_by_name(spoken: Path, tmp_path: Path) -> None:
    make(spoken, tmp_path, World(), steps=1).run()
    with pytest.raises(
        TrainingError, match="checkpoint of another model: worker with other values for blocks, norm"
    ):
        make(spoken, tmp_path, World(), steps=1, norm="layer")


def scored(wrong: int) -> Callable[[nn.Module], Score]:
    """An evaluation with so many substitutions in 100 words."""
    counts = ErrorCounts(words=100, substitutions=wrong)
    return lambda model: Score(counts, counts, None)


def test_a_best_model_that_could_not_be_written_does_not_count(spoken: Path, tmp_path: Path) -> None:
    loop = make(spoken, tmp_path, World(), steps=1)
    loop.evaluate = scored(20)
    with full_disk():
        loop.validate()
    assert loop.progress.best_rate is None
    loop.evaluate = scored(30)
    loop.validate()
    assert loop.progress.best_rate == checkpoint.load(loop.folder.best).card["dev_wer"] == 0.3


@dataclass(frozen=True)
class Follower(World):
    """A process that gets from the main process whether the best model was written."""

    rank: int = 1
    written: bool = True

    def any(self, happened: bool) -> bool:
        assert not happened
        return self.written


@pytest.mark.parametrize(("written", "best"), [(True, 0.2), (False, None)])
def test_all_processes_agree_on_the_best_model(
    spoken: Path, tmp_path: Path, written: bool, best: float | None
) -> None:
    loop = make(spoken, tmp_path, Follower(written=written), steps=1)
    loop.evaluate = scored(20)
    loop.validate()
    assert loop.progress.best_rate == best
    assert not loop.folder.best.exists()


def test_an_interval_of_zero_steps_is_never(spoken: Path, tmp_path: Path) -> None:
    loop = make(spoken, tmp_path, World(), steps=2)
    loop.settings = replace(loop.settings, log_every=0, evaluate_every=0)
    loop.evaluate = scored(20)
    progress = loop.run()
    assert progress.finished
    assert progress.losses == [] and progress.best_rate is None


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_a_signal_stops_the_run_after_the_step_with_a_checkpoint(
    spoken: Path, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    """The second signal is the one that torchrun forwards."""
    with started(spoken, tmp_path, {"steps": 100000, "save_every_s": 1e9}) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        next(line for line in lines if line.startswith("step 2 "))
        for each in signals:
            process.send_signal(each)
        rest = list(lines)
        assert process.wait() == 0, rest
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] >= 2


def test_the_loop_takes_any_source_of_batches(spoken: Path, tmp_path: Path) -> None:
    loop = make(spoken, tmp_path, World(), steps=2)
    inner = loop.source

    class Doubled:
        shapes: Sequence[BatchShape] = ()

        def from_step(self, first_step: int) -> Iterator[list[Batch]]:
            for batches in inner.from_step(first_step):
                yield [*batches, *batches]

        def place(self, step: int) -> tuple[int, int]:
            return inner.place(step)

    loop.source = Doubled()
    assert loop.run().finished
