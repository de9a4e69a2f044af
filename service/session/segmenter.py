"""Network outputs into utterances: which frames belong to one, where it begins, where it ends.

The service and recognition in one process (service/embedded/batch.py) both end utterances here, by the rule of their
preset.
Frames of quiet never reach the decoder, but for a short lead before the first letter. No decoder, no clock here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acoustic.architectures import ModelConfig
from acoustic.constants import OUTPUT_S
from acoustic.windows import WindowPlan
from service.session.endpoint import Endpointer, EndpointRule, EndpointSignal
from service.session.energy import QuietFrames

LEAD_FRAMES = 20
"""Frames before the first letter that the decoder gets too."""

Frames = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Step:
    """What happens at one frame, and the frames for the open utterance's decoder that are due with it."""

    signal: EndpointSignal | None
    """None: nothing happens, the outputs end here."""
    frame: int
    """Outputs of this call up to and including the frame."""
    log_probs: Frames
    lead: int = 0
    """With STARTED: so many frames before this one the utterance begins."""


class Segmenter:
    """The utterances of one channel. `walk` takes the outputs in order; how they are cut into calls changes nothing."""

    def __init__(
        self,
        rule: EndpointRule,
        config: ModelConfig,
        plan: WindowPlan,
        *,
        candidates: bool = False,
        gap_frames: int | None = None,
    ) -> None:
        """`candidates`: steps where an utterance is probably over; `gap_frames`: one after so long without letters."""
        self.endpointer = Endpointer(rule)
        self.look_ahead_frames = math.ceil(plan.look_ahead_frames / config.frames_per_second / OUTPUT_S)
        # Energy is known as far ahead as the network looks, less its edge.
        known = math.floor(plan.look_ahead_frames / config.frames_per_second / OUTPUT_S) - 1
        self._energy_ahead_frames = min(rule.energy_ahead_frames, max(0, known))
        self._silent = [config.blank, *([config.alphabet.find(" ")] if " " in config.alphabet else [])]
        self._candidates, self._gap_frames = candidates, gap_frames
        self._gap_pending = False
        self._lead: Frames = np.zeros((0, config.classes), np.float32)

    def walk(self, log_probs: Frames, quiet: QuietFrames) -> Iterator[Step]:
        """The steps of these outputs in order; while the caller handles one, the endpointer stands at its frame."""
        lead = len(self._lead)
        rows = np.concatenate([self._lead, log_probs]) if lead else log_probs
        letters = 1.0 - np.exp(log_probs[:, self._silent]).sum(axis=1)
        first, lowest = 0, 0
        for row, mass in enumerate(letters.tolist(), start=lead):
            signal = self.endpointer.step(mass, *quiet.next(self._energy_ahead_frames))
            frame, since = row - lead + 1, self.endpointer.frames_since_speech
            if since == 0:
                self._gap_pending = True
            if signal is EndpointSignal.STARTED:
                first = max(lowest, row - LEAD_FRAMES)
                yield Step(signal, frame, rows[:0], row - first)
            elif signal in (EndpointSignal.ENDED, EndpointSignal.CUT):
                yield Step(signal, frame, rows[first : row + 1])
                first = lowest = row + 1
            elif signal is EndpointSignal.CANDIDATE and self._candidates:
                yield Step(signal, frame, rows[first : row + 1])
                first = row + 1
            if self._gap_pending and since == self._gap_frames:
                self._gap_pending = False
                yield Step(
                    EndpointSignal.GAP, frame, rows[first : row + 1] if self.endpointer.open else rows[:0]
                )
                first = row + 1 if self.endpointer.open else first
        if not self.endpointer.open:
            self._lead = rows[max(lowest, len(rows) - LEAD_FRAMES) :].copy()
            return
        self._lead = self._lead[:0]
        if first < len(rows):
            yield Step(None, len(log_probs), rows[first:])

    def flush(self) -> None:
        """The sound ends here, or a Finalize ended the utterance."""
        self.endpointer.flush()
        self._lead = self._lead[:0]
