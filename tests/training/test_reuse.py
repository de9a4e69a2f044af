"""Batches of altered sound that come back: which when, made once, and varied by every use."""

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from training.alteration import FeatureMasks
from training.augment import Altered, stretch
from training.data.feed import Batch
from training.errors import TrainingError
from training.objectives import Heard, vary
from training.reuse import Reuse, reused
from training.sums import StepResult, Sums
from training.watch import Watch


def numbers(first: int) -> Iterator[int]:
    return iter(itertools.count(first))


@pytest.mark.parametrize("reuse", [Reuse(), Reuse(2, 1), Reuse(3, 4), Reuse(4, 16), Reuse(3, 0)])
def test_every_batch_comes_as_often_as_it_is_told_once_for_each_use(reuse: Reuse) -> None:
    steps = 40 * reuse.uses
    taken = [reuse.batch_of(step) for step in range(steps)]
    settled = reuse.apart * reuse.uses
    counted = Counter(batch for batch, _ in taken)
    whole = range(settled, steps // reuse.uses - 1)
    assert all(counted[batch] == reuse.uses for batch in whole)
    assert len(set(taken)) == steps
    for batch in whole:
        places = [step for step, (number, _) in enumerate(taken) if number == batch]
        assert [taken[place][1] for place in places] == list(range(reuse.uses))
        apart = reuse.apart * reuse.uses + 1
        assert all(second - first == apart for first, second in itertools.pairwise(places))


@pytest.mark.parametrize(("uses", "apart"), [(0, 4), (-1, 4), (2, -1)])
def test_what_cannot_be_is_refused(uses: int, apart: int) -> None:
    with pytest.raises(TrainingError, match=rf"data\.uses is {uses} and data\.uses_apart {apart}"):
        Reuse(uses, apart)


@pytest.mark.parametrize("reuse", [Reuse(), Reuse(2, 1), Reuse(3, 4)])
def test_what_is_kept_is_worked_on_once_and_a_later_start_goes_on_the_same(reuse: Reuse) -> None:
    worked: list[int] = []

    def work(number: int) -> str:
        worked.append(number)
        return f"made of {number}"

    whole = list(itertools.islice(reused(numbers, work, reuse, 0), 40))
    assert whole == [(f"made of {batch}", use) for batch, use in map(reuse.batch_of, range(40))]
    assert worked == list(range(len(worked)))
    worked.clear()
    next(reused(numbers, work, reuse, 0))
    assert len(worked) == reuse.kept
    for start in range(12):
        later = itertools.islice(reused(numbers, work, reuse, start), 20)
        assert list(later) == whole[start : start + 20]


def test_no_more_is_kept_than_will_be_used_again() -> None:
    reuse = Reuse(3, 4)
    alive: set[int] = set()

    class Thing:
        def __init__(self, number: int) -> None:
            self.number = number
            alive.add(number)

        def __del__(self) -> None:
            alive.discard(self.number)

    for _ in itertools.islice(reused(numbers, Thing, reuse, 0), 100):
        assert len(alive) <= 2 * reuse.apart + 3


def heard() -> Heard:
    features = torch.randn(2, 16, 100, generator=torch.Generator().manual_seed(0))
    frames = torch.tensor([100, 60])
    features[1, :, 60:] = 0
    lengths = frames * 160
    batch = Batch(torch.zeros(2, 0), lengths, torch.tensor([1, 2]), torch.tensor([1, 1]), ("a", "b"), seed=7)
    return Heard(batch, Altered(torch.zeros(2, 0), lengths, lengths), features, frames)


def test_each_use_is_varied_anew_and_the_same_when_it_is_asked_again() -> None:
    masks = FeatureMasks(time_masks=1, time_frames=10, stretch=(0.8, 1.25), warp=(0.9, 1.1), colour=0.3)
    uses = [vary(heard(), masks, use) for use in range(3)]
    assert len(uses[0].features[0].T) == 100
    assert uses[1].frames.tolist() != uses[2].frames.tolist() != [100, 60]
    for use, varied in enumerate(uses):
        assert torch.equal(varied.features, vary(heard(), masks, use).features)
        for row, frames in enumerate(varied.frames.tolist()):
            assert not varied.features[row, :, frames:].any()
            ratio = frames / heard().frames[row]
            assert varied.altered.lengths[row] == pytest.approx(heard().batch.lengths[row] * ratio, abs=1)
            assert varied.altered.cut_at[row] == varied.altered.lengths[row]


def test_what_is_not_asked_for_is_left_alone() -> None:
    plain = vary(heard(), FeatureMasks(), 1)
    assert torch.equal(plain.features, heard().features)
    assert torch.equal(plain.frames, heard().frames)


def test_stretching_moves_what_happens_in_time() -> None:
    features = torch.arange(50.0).expand(2, 3, 50)
    changed, frames = stretch(features, torch.tensor([50, 25]), torch.tensor([0.5, 1.25]))
    assert frames.tolist() == [100, 20]
    assert changed[0, 0, 51] == pytest.approx((51 + 0.5) * 0.5 - 0.5)
    assert changed[1, 2, 10] == pytest.approx(10.5 * 1.25 - 0.5)
    assert not changed[1, :, 20:].any()
    same, frames = stretch(features, torch.tensor([50, 50]), torch.ones(2))
    assert torch.equal(same, features)


def test_what_is_heard_again_is_counted_apart_from_what_is_new() -> None:
    sums = Sums()
    for words, again in ((1.0, False), (0.25, True), (0.5, False), (0.75, True)):
        sums.add(StepResult({"loss": 2 * words, "words": words}, 4, 60.0, 1.0, 1e-3, True, again))
    assert sums.means() == {"loss": 1.5, "words": 0.75, "loss_again": 1.0}
    assert sums.sound_s == 240.0
    only_again = Sums()
    only_again.add(StepResult({"loss": 0.5, "words": 0.25}, 4, 60.0, 1.0, 1e-3, True, True))
    assert only_again.means() == {"loss": 0.5}
    watch = Watch(None, total_steps=9)
    values = {
        "step": 1,
        "rate": 1e-3,
        "gradient": 1,
        "utterances_per_s": 1,
        "times_real_time": 1,
    } | sums.means()
    assert "loss 1.50 (heard again 1.00) · words 0.75" in watch.line(values)
