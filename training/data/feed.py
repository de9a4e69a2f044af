"""The feed of a run: for every step its batches, loaded ahead by threads, the same again when a run
resumes.
"""

import bisect
import itertools
import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from training.data.manifests import Clip
from training.data.sampler import Budget, plan_epoch
from training.data.sound import SAMPLE_RATE, ClipError, Samples, read_clip
from training.errors import TrainingError

log = logging.getLogger("silica.training")

PADDED_TO_SAMPLES = 1600
"""Batches are as long as a whole number of these (0.1 s), so that shapes repeat."""


@dataclass(frozen=True)
class Batch:
    """Rows of sound, right-padded, with their transcripts as label numbers one after another.

    `targets` is empty where no transcript is known. `seed` is the batch's own: whatever is drawn for it
    (alterations, masks) comes from it, so that a resumed run draws the same.
    """

    sound: Tensor
    lengths: Tensor
    targets: Tensor
    target_lengths: Tensor
    names: tuple[str, ...]
    seed: int
    step: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return replace(
            self,
            sound=self.sound.to(device, non_blocking=True),
            lengths=self.lengths.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            target_lengths=self.target_lengths.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class Share:
    """Which part of every step this process does: `rank` of `world` processes, in `accumulation` pieces."""

    rank: int = 0
    world: int = 1
    accumulation: int = 1

    @property
    def parts(self) -> int:
        """Pieces that a whole step is cut into."""
        return self.world * self.accumulation


class Feed:
    """Clips as an endless row of steps; `from_step(n)` begins anywhere, without going through what came
    before.
    """

    def __init__(
        self,
        clips: Sequence[Clip],
        alphabet: str,
        *,
        batch_seconds: float,
        most_rows: int = 4096,
        seed: int = 0,
        share: Share = Share(),
        resident: bool = False,
        threads: int = 2,
        ahead: int = 4,
    ) -> None:
        self.clips = list(clips)
        self.seed = seed
        self.share = share
        self.labels = [encode(clip, alphabet) for clip in self.clips]
        self.budget = Budget(batch_seconds * share.parts, most_rows * share.parts, share.parts)
        self.broken: dict[int, str] = {}
        self._threads = threads
        self._ahead = ahead
        self._resident: list[npt_int16 | None] | None = [None] * len(self.clips) if resident else None
        self._epoch_plans: dict[int, list[tuple[int, ...]]] = {}
        self._epoch_ends: list[int] = [0]

    @property
    def hours(self) -> float:
        """Sound in one epoch."""
        return sum(clip.duration_s for clip in self.clips) / 3600

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The global batches of an epoch."""
        if epoch not in self._epoch_plans:
            durations = [clip.duration_s for clip in self.clips]
            for old in [known for known in self._epoch_plans if known < epoch - 1]:
                del self._epoch_plans[old]
            self._epoch_plans[epoch] = plan_epoch(durations, self.budget, self.seed, epoch)
        return self._epoch_plans[epoch]

    def place(self, step: int) -> tuple[int, int]:
        """The epoch of a step and its place in it."""
        while self._epoch_ends[-1] <= step:
            self._epoch_ends.append(self._epoch_ends[-1] + len(self.plan(len(self._epoch_ends) - 1)))
        epoch = bisect.bisect_right(self._epoch_ends, step) - 1
        return epoch, step - self._epoch_ends[epoch]

    def from_step(self, first_step: int) -> Iterator[list[Batch]]:
        """For each step from `first_step` on, this process's batches (one for each piece of accumulation)."""
        step = first_step
        waiting: deque[Future[list[Batch]]] = deque()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="clips") as pool:
            try:
                while True:
                    while len(waiting) < self._ahead:
                        epoch, place = self.place(step)
                        waiting.append(pool.submit(self.load, step, self.plan(epoch)[place]))
                        step += 1
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def load(self, step: int, rows: Sequence[int]) -> list[Batch]:
        """This process's batches of the step that takes those rows in all."""
        longest_s = max(self.clips[row].duration_s for row in rows)
        mine = rows[self.share.rank :: self.share.world]
        pieces = [mine[part :: self.share.accumulation] for part in range(self.share.accumulation)]
        first = self.share.rank * self.share.accumulation
        return [
            replace(self._batch(piece, longest_s, batch_seed(self.seed, step, first + part)), step=step)
            for part, piece in enumerate(pieces)
        ]

    def _batch(self, rows: Sequence[int], longest_s: float, seed: int) -> Batch:
        loaded = [self._sound(row) for row in rows]
        sounds = [sound for _, sound in loaded]
        # All parts of a step are as long as its longest clip: batch norm then sees the same padding in one
        # process
        # as in eight.
        longest = max(math.ceil((longest_s + 0.01) * SAMPLE_RATE), *(len(sound) for sound in sounds))
        longest = -(-longest // PADDED_TO_SAMPLES) * PADDED_TO_SAMPLES
        padded = np.zeros((len(rows), longest), np.float32)
        for place, sound in zip(padded, sounds, strict=True):
            place[: len(sound)] = sound
        labels = [self.labels[row] for row, _ in loaded]
        return Batch(
            torch.from_numpy(padded),
            torch.tensor([len(sound) for sound in sounds]),
            torch.tensor([label for row in labels for label in row], dtype=torch.long),
            torch.tensor([len(row) for row in labels]),
            tuple(str(self.clips[row].audio) for row, _ in loaded),
            seed,
        )

    def _sound(self, row: int) -> tuple[int, Samples]:
        """The clip, or the next readable one in its place; what cannot be read is named once."""
        for candidate in range(row, row + 1 + len(self.clips)):
            index = candidate % len(self.clips)
            if index in self.broken:
                continue
            try:
                return index, self._read(index)
            except ClipError as error:
                self.broken[index] = str(error)
                log.warning("left out: %s", error)
                if len(self.broken) > max(10, len(self.clips) // 20):
                    raise TrainingError(
                        f"{len(self.broken)} of {len(self.clips)} clips cannot be read, the last: {error} "
                        "Run `silica prepare` again, or look at the disk."
                    ) from error
        raise TrainingError("No clip can be read.")

    def _read(self, index: int) -> Samples:
        if self._resident is None:
            return read_clip(self.clips[index].audio)
        kept = self._resident[index]
        if kept is None:
            sound = read_clip(self.clips[index].audio)
            self._resident[index] = np.round(sound.clip(-1.0, 1.0) * 32767).astype(np.int16)
            kept = self._resident[index]
        assert kept is not None
        return kept.astype(np.float32) / 32767


npt_int16 = np.ndarray[tuple[int, ...], np.dtype[np.int16]]


def batch_seed(seed: int, step: int, part: int) -> int:
    """A number that belongs to this part of this step of this run alone."""
    return int(np.random.SeedSequence([seed, step, part]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def encode(clip: Clip, alphabet: str) -> list[int]:
    """A transcript as label numbers; a character that the model does not know is an error that names it."""
    if clip.text is None:
        return []
    places = {character: index for index, character in enumerate(alphabet)}
    foreign = sorted(set(clip.text) - set(places))
    if foreign:
        raise TrainingError(
            f"The transcript of {clip.audio} has characters that the model does not know: "
            f"{' '.join(map(repr, foreign))} in {clip.text[:60]!r}. "
            "Prepare the corpus with `silica prepare`, or change the alphabet."
        )
    return [places[character] for character in clip.text]


def usable(
    clips: Sequence[Clip], *, shortest_s: float, longest_s: float, with_text: bool, seconds_per_output: float
) -> tuple[list[Clip], dict[str, int]]:
    """The clips a run can use, and how many were left out for which reason."""
    kept: list[Clip] = []
    reasons = {"too short": 0, "too long": 0, "no transcript": 0, "more characters than outputs": 0}
    for clip in clips:
        if clip.duration_s < shortest_s:
            reasons["too short"] += 1
        elif clip.duration_s > longest_s:
            reasons["too long"] += 1
        elif with_text and not (clip.text or "").strip():
            reasons["no transcript"] += 1
        elif clip.text and _labels_needed(clip.text) > clip.duration_s / seconds_per_output:
            reasons["more characters than outputs"] += 1
        else:
            kept.append(clip)
    return kept, {reason: count for reason, count in reasons.items() if count}


def _labels_needed(text: str) -> int:
    """Outputs that CTC needs at least: one a character, one more between equal neighbours."""
    return len(text) + sum(first == second for first, second in itertools.pairwise(text))
