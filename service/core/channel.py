"""One channel of a stream: sound into windows, outputs back into order, frames into utterances.

A Finalize closes a segment: its windows are padded and flushed, and a fresh segment goes on. Which frames make an
utterance is the segmenter's. No decoder, no queue, no clock here.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from acoustic.config import ModelConfig
from acoustic.constants import OUTPUT_S, OUTPUT_SAMPLES, SAMPLE_RATE
from acoustic.windows import Heard, StreamWindows, Window, WindowPlan
from lm.hypothesis import Hypothesis
from service.core.endpoint import Quiet, Signal, Speech
from service.core.energy import QuietFrames
from service.core.events import Alternative, Event, Final, Partial, SpeechStarted, UtteranceEnded
from service.core.messages import Conclude, Hear, Push, Replay, WindowKey
from service.core.segment import Heading, Segment
from service.core.segmenter import Frames, Segmenter, Step
from service.core.stream_settings import StreamSettings
from service.core.transcript import Transcript

Later = Callable[[], Event | None]
"""An event that is made when everything before it has been told."""


@dataclass
class OpenUtterance:
    """What must be kept until its final is told."""

    number: int
    start_samples: int
    kept: list[Frames] = field(default_factory=list)
    speech_final: bool = False
    from_finalize: bool = False
    probably_over: bool = False


class Channel:
    """The pipeline state of one channel."""

    def __init__(self, number: int, config: ModelConfig, plan: WindowPlan, settings: StreamSettings) -> None:
        self.number = number
        self.settings = settings
        self.transcript = Transcript()
        gap_ms = settings.utterance_end_ms
        self.segmenter = Segmenter(
            settings.endpoint_rule,
            config,
            plan,
            candidates=settings.interim,
            gap_frames=None if gap_ms is None else max(1, round(gap_ms / 1000 / OUTPUT_S)),
        )
        self.done = False
        self.told_samples = 0
        self._quiet = Quiet()
        self._hurry = settings.endpoint_rule.hurry_frames(self.segmenter.look_ahead_frames)
        self._config, self._plan = config, plan
        self._hop_frames = plan.hop_frames
        self._segments: deque[Segment] = deque([self._new_segment(0, 0)])
        self._asked: set[WindowKey] = set()
        self._held: deque[Hear] = deque()
        self._memory = self._segments[0].windows.memory
        self._utterances: dict[int, OpenUtterance] = {}
        self._open: OpenUtterance | None = None
        self._begun = 0
        self._ended_at_samples = 0
        self._cut_in_speech = False
        self._gap_told_s: float | None = None
        self._wants = settings.interim or gap_ms is not None

    # ---- sound in

    def set_hop(self, hop_frames: int) -> list[Hear]:
        """The hop of the windows to come. What was kept for a wider one is one window, not many narrow ones."""
        if hop_frames == self._hop_frames:
            return []
        segment, ready = self._segments[-1], []
        if segment.samples // self._config.features.hop_samples - segment.cut_frame > hop_frames:
            ready = self._ready(segment, segment.windows.cut_short(), urgent=False)
        self._hop_frames = hop_frames
        segment.windows.change_hop(hop_frames)
        return ready

    def push(self, samples: Frames) -> list[Hear]:
        """Take sound; answers the windows that may run now."""
        segment, ready, begin = self._segments[-1], [], 0
        for end, quiet in segment.quiet.push(samples):
            if quiet not in self._hurry:
                continue
            # Somebody may have finished: what can be heard of the end does not wait for the hop to fill.
            ready += self._ready(segment, segment.windows.push(samples[begin:end]), urgent=False)
            ready += self._ready(segment, segment.windows.cut_short(), urgent=False)
            begin = end
        return ready + self._ready(segment, segment.windows.push(samples[begin:]), urgent=False)

    def end_segment(self, heading: Heading) -> list[Hear]:
        """Flush what is owed. Finalizes without sound between them are answered as one."""
        segment = self._segments[-1]
        if heading is Heading.FINALIZE and not segment.samples and len(self._segments) > 1:
            return []
        segment.heading = heading
        ready = self._ready(segment, segment.windows.finish(), urgent=True)
        if heading is Heading.FINALIZE:
            base = segment.base_samples + segment.samples
            self._segments.append(self._new_segment(segment.number + 1, base))
        return ready

    @property
    def held(self) -> int:
        """Windows that wait for the one before them (running normalisation)."""
        return len(self._held)

    @property
    def early(self) -> int:
        """Windows that were heard before an earlier one: nothing is made of them until that one is."""
        return sum(len(segment.heard) for segment in self._segments)

    @property
    def processed_samples(self) -> int:
        """Samples whose frames are complete and in order."""
        if self.done:
            return self._ended_at_samples
        return self._segments[0].position(self._segments[0].frames_done)

    # ---- outputs back

    def awaits(self, key: WindowKey) -> bool:
        """Whether this window was asked for and has not come."""
        return key in self._asked

    def heard(self, key: WindowKey, heard: Heard) -> list[Hear]:
        """Take a window's outputs; answers the window that waited for it, if any."""
        self._asked.discard(key)
        for segment in self._segments:
            if segment.number == key.segment:
                segment.heard[key.index] = heard
        if heard.memory is not None:
            self._memory = heard.memory
        if not self._held:
            return []
        following = self._held.popleft()
        self._asked.add(following.key)
        return [replace(following, window=replace(following.window, memory=self._memory))]

    def advance(self, serial: int) -> Iterator[Push | Conclude | Later]:
        """What follows from the frames that are now in order; serials go on after the given one."""
        while not self.done:
            segment = self._segments[0]
            heard = segment.heard.pop(segment.next_index, None)
            if heard is not None:
                segment.next_index += 1
                for step in self._frames(segment, heard.log_probs, serial):
                    serial = step.serial if isinstance(step, Push | Conclude) else serial
                    yield step
            elif segment.heading is not None and segment.next_index == segment.made:
                for step in self._segment_ended(segment, serial):
                    serial = step.serial if isinstance(step, Push | Conclude) else serial
                    yield step
            else:
                return

    # ---- answers of the decoder

    def answered(self, command: Push | Conclude, hypotheses: tuple[Hypothesis, ...]) -> Event | None:
        """The event that the answer makes, if a listener would see something new."""
        self.told_samples = max(self.told_samples, command.position)
        utterance = self._utterances[command.utterance]
        begin, end = utterance.start_samples, command.position
        start_s, end_s = begin / SAMPLE_RATE, end / SAMPLE_RATE
        if isinstance(command, Conclude):
            del self._utterances[command.utterance]
            readings = self.transcript.final(hypotheses, begin, end)
            return Final(
                self.number,
                start_s,
                end_s,
                readings,
                utterance.speech_final,
                utterance.from_finalize,
            )
        utterance.kept.append(command.log_probs)
        if not command.want or not hypotheses:
            return None
        shown = self.transcript.partial(hypotheses[0], begin, end)
        turned = command.probably_over != utterance.probably_over
        utterance.probably_over = command.probably_over
        if not self.settings.interim or (shown is None and not turned):
            return None
        return Partial(
            self.number,
            start_s,
            end_s,
            self.transcript.shown,
            self.transcript.stable,
            command.probably_over,
        )

    def replays(self) -> list[Replay]:
        """What a new decode worker must hear before the unanswered commands."""
        return [
            Replay(self.number, each.number, np.concatenate(each.kept))
            for each in self._utterances.values()
            if each.kept
        ]

    # ---- inside

    def _new_segment(self, number: int, base_samples: int) -> Segment:
        windows = StreamWindows(self._config, self._plan)
        if self._hop_frames != self._plan.hop_frames:
            windows.change_hop(self._hop_frames)
        return Segment(number, windows, base_samples, QuietFrames(self._quiet))

    def _ready(self, segment: Segment, windows: list[Window], urgent: bool) -> list[Hear]:
        now: list[Hear] = []
        for window in windows:
            segment.made += 1
            segment.cut_frame = window.span.end_frame
            hear = Hear(WindowKey(self.number, segment.number, window.span.index), window, urgent)
            if segment.windows.needs_order and (self._asked or self._held):
                self._held.append(hear)
                continue
            self._asked.add(hear.key)
            if segment.windows.needs_order:
                hear = replace(hear, window=replace(window, memory=self._memory))
            now.append(hear)
        return now

    def _frames(self, segment: Segment, log_probs: Frames, serial: int) -> Iterator[Push | Conclude | Later]:
        """Walk over new frames: open, feed and end utterances."""
        before = segment.frames_done
        for step in self.segmenter.walk(log_probs, segment.quiet):
            segment.frames_done = before + step.frame
            if step.signal is Signal.STARTED:
                frame = segment.frames_done - 1
                self._begin(segment, frame - step.lead)
                if not self._cut_in_speech:
                    yield partial(SpeechStarted, self.number, segment.position(frame) / SAMPLE_RATE)
                self._cut_in_speech = False
            elif step.signal in (Signal.ENDED, Signal.CUT):
                cut_in_speech = self.segmenter.endpointer.frames_since_letter == 0
                self._cut_in_speech = step.signal is Signal.CUT and cut_in_speech
                yield self._push(segment, serial + 1, step.log_probs, False, want=False)
                serial += 2
                yield self._conclude(segment, serial, speech_final=step.signal is Signal.ENDED)
            else:
                if self._open is not None:
                    serial += 1
                    yield self._push(segment, serial, step.log_probs, self._likely(step))
                if step.signal is Signal.GAP:
                    yield self._gap
        segment.frames_done = before + len(log_probs)
        if self._open is None:
            yield self._reached(segment)
        self._ask_soon(segment)

    def _likely(self, step: Step) -> bool:
        """Whether the utterance is probably over; while a gap is told, that was said before."""
        return step.signal is not Signal.GAP and self.segmenter.endpointer.state is Speech.CANDIDATE

    def _ask_soon(self, segment: Segment) -> None:
        """In a pause the next window reaches no further than to where the utterance may end.

        Not where windows overlap: what is known of the sound by now hangs on how it was sent, and overlapping windows
        that are cut elsewhere hear a little else.
        """
        if not self._plan.carried:
            return
        wait = self.segmenter.endpointer.frames_to_next_question
        if wait is not None and segment.quiet.quiet_in(wait):
            steps = math.ceil(wait * self._config.frames_per_output / self._config.stride_frames)
            segment.windows.shorten_next(steps * self._config.stride_frames)

    def _begin(self, segment: Segment, frame: int) -> None:
        self._begun += 1
        self._open = OpenUtterance(self._begun, segment.base_samples + frame * OUTPUT_SAMPLES)
        self._utterances[self._begun] = self._open

    def _push(self, segment: Segment, serial: int, rows: Frames, likely: bool, want: bool = True) -> Push:
        assert self._open is not None
        position = segment.position(segment.frames_done)
        return Push(serial, self.number, self._open.number, rows, want and self._wants, likely, position)

    def _conclude(
        self, segment: Segment, serial: int, speech_final: bool, from_finalize: bool = False
    ) -> Conclude:
        assert self._open is not None
        self._open.speech_final, self._open.from_finalize = speech_final, from_finalize
        number, self._open = self._open.number, None
        self._ended_at_samples = segment.position(segment.frames_done)
        return Conclude(serial, self.number, number, self._ended_at_samples)

    def _segment_ended(self, segment: Segment, serial: int) -> Iterator[Push | Conclude | Later]:
        """The last frame of a segment is in: end its utterance, and say what was asked for."""
        finalize = segment.heading is Heading.FINALIZE
        end_samples = segment.base_samples + segment.samples
        self.segmenter.flush()
        self._cut_in_speech = False
        if self._open is not None:
            yield self._conclude(segment, serial + 1, speech_final=False, from_finalize=finalize)
        elif finalize:
            start_s, end_s = self._ended_at_samples / SAMPLE_RATE, end_samples / SAMPLE_RATE
            yield lambda: Final(self.number, start_s, end_s, (Alternative(()),), False, True)
        self._ended_at_samples = end_samples
        if finalize:
            self._segments.popleft()
        else:
            self.done = True
        yield lambda: self._tell_up_to(end_samples)

    def _reached(self, segment: Segment) -> Later:
        position = segment.position(segment.frames_done)
        return lambda: self._tell_up_to(position)

    def _tell_up_to(self, position: int) -> None:
        self.told_samples = max(self.told_samples, position)

    def _gap(self) -> Event | None:
        end_s = self.transcript.last_word_end_s
        if end_s is None or end_s == self._gap_told_s:
            return None  # letters that made no word
        self._gap_told_s = end_s
        return UtteranceEnded(self.number, end_s)
