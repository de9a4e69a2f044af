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

from acoustic.architectures import ModelConfig
from acoustic.constants import OUTPUT_S, OUTPUT_SAMPLES, SAMPLE_RATE
from acoustic.windows import StreamWindows, Window, WindowOutput, WindowPlan
from lm.hypothesis import Hypothesis
from service.session.endpoint import EndpointSignal, SilenceDetector, UtteranceState
from service.session.energy import QuietFrames
from service.session.events import Alternative, Event, Final, Partial, SpeechStarted, UtteranceEnded
from service.session.messages import EndUtterance, PushFrames, Replay, RunWindow, WindowKey
from service.session.segment import Segment, SegmentEnd
from service.session.segmenter import Frames, Segmenter, Step
from service.session.stream_settings import StreamSettings
from service.session.transcript import Transcript

DeferredEvent = Callable[[], Event | None]
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
        self.emitted_samples = 0
        self._quiet = SilenceDetector()
        self._early_cut_frames = settings.endpoint_rule.early_cut_frames(self.segmenter.look_ahead_frames)
        self._config, self._plan = config, plan
        self._hop_frames = plan.hop_frames
        self._segments: deque[Segment] = deque([self._new_segment(0, 0)])
        self._requested: set[WindowKey] = set()
        self._waiting: deque[RunWindow] = deque()
        self._memory = self._segments[0].windows.state
        self._utterances: dict[int, OpenUtterance] = {}
        self._open: OpenUtterance | None = None
        self._utterance_count = 0
        self._ended_at_samples = 0
        self._cut_in_speech = False
        self._gap_emitted_s: float | None = None
        self._wants_hypotheses = settings.interim or gap_ms is not None

    # ---- sound in

    def set_hop(self, hop_frames: int) -> list[RunWindow]:
        """The hop of the windows to come. What was kept for a wider one is one window, not many narrow ones."""
        if hop_frames == self._hop_frames:
            return []
        segment, ready = self._segments[-1], []
        if segment.samples // self._config.features.hop_samples - segment.cut_frame > hop_frames:
            ready = self._request_windows(segment, segment.windows.cut_early(), urgent=False)
        self._hop_frames = hop_frames
        segment.windows.change_hop(hop_frames)
        return ready

    def push(self, samples: Frames) -> list[RunWindow]:
        """Take sound; answers the windows that may run now."""
        segment, ready, begin = self._segments[-1], [], 0
        for end, quiet in segment.quiet.push(samples):
            if quiet not in self._early_cut_frames:
                continue
            # Somebody may have finished: what can be heard of the end does not wait for the hop to fill.
            ready += self._request_windows(segment, segment.windows.push(samples[begin:end]), urgent=False)
            ready += self._request_windows(segment, segment.windows.cut_early(), urgent=False)
            begin = end
        return ready + self._request_windows(segment, segment.windows.push(samples[begin:]), urgent=False)

    def end_segment(self, end_reason: SegmentEnd) -> list[RunWindow]:
        """Flush what is owed. Finalizes without sound between them are answered as one."""
        segment = self._segments[-1]
        if end_reason is SegmentEnd.FINALIZE and not segment.samples and len(self._segments) > 1:
            return []
        segment.end_reason = end_reason
        ready = self._request_windows(segment, segment.windows.finish(), urgent=True)
        if end_reason is SegmentEnd.FINALIZE:
            base = segment.base_samples + segment.samples
            self._segments.append(self._new_segment(segment.number + 1, base))
        return ready

    @property
    def waiting_windows(self) -> int:
        """Windows that wait for the one before them (running normalization)."""
        return len(self._waiting)

    @property
    def out_of_order_windows(self) -> int:
        """Windows that were heard before an earlier one: nothing is made of them until that one is."""
        return sum(len(segment.outputs) for segment in self._segments)

    @property
    def processed_samples(self) -> int:
        """Samples whose frames are complete and in order."""
        if self.done:
            return self._ended_at_samples
        return self._segments[0].position(self._segments[0].frames_done)

    # ---- outputs back

    def awaits(self, key: WindowKey) -> bool:
        """Whether this window was asked for and has not come."""
        return key in self._requested

    def outputs(self, key: WindowKey, outputs: WindowOutput) -> list[RunWindow]:
        """Take a window's outputs; answers the window that waited for it, if any."""
        self._requested.discard(key)
        for segment in self._segments:
            if segment.number == key.segment:
                segment.outputs[key.index] = outputs
        if outputs.state is not None:
            self._memory = outputs.state
        if not self._waiting:
            return []
        following = self._waiting.popleft()
        self._requested.add(following.key)
        return [replace(following, window=replace(following.window, state=self._memory))]

    def advance(self, serial: int) -> Iterator[PushFrames | EndUtterance | DeferredEvent]:
        """What follows from the frames that are now in order; serials go on after the given one."""
        while not self.done:
            segment = self._segments[0]
            outputs = segment.outputs.pop(segment.next_index, None)
            if outputs is not None:
                segment.next_index += 1
                for step in self._frames(segment, outputs.log_probs, serial):
                    serial = step.serial if isinstance(step, PushFrames | EndUtterance) else serial
                    yield step
            elif segment.end_reason is not None and segment.next_index == segment.window_count:
                for step in self._segment_ended(segment, serial):
                    serial = step.serial if isinstance(step, PushFrames | EndUtterance) else serial
                    yield step
            else:
                return

    # ---- answers of the decoder

    def decoded(self, command: PushFrames | EndUtterance, hypotheses: tuple[Hypothesis, ...]) -> Event | None:
        """The event that the answer makes, if a listener would see something new."""
        self.emitted_samples = max(self.emitted_samples, command.position)
        utterance = self._utterances[command.utterance]
        begin, end = utterance.start_samples, command.position
        start_s, end_s = begin / SAMPLE_RATE, end / SAMPLE_RATE
        if isinstance(command, EndUtterance):
            del self._utterances[command.utterance]
            alternatives = self.transcript.final(hypotheses, begin, end)
            return Final(
                self.number,
                start_s,
                end_s,
                alternatives,
                utterance.speech_final,
                utterance.from_finalize,
            )
        utterance.kept.append(command.log_probs)
        if not command.want_hypothesis or not hypotheses:
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

    def _request_windows(self, segment: Segment, windows: list[Window], urgent: bool) -> list[RunWindow]:
        now: list[RunWindow] = []
        for window in windows:
            segment.window_count += 1
            segment.cut_frame = window.span.end_frame
            hear = RunWindow(WindowKey(self.number, segment.number, window.span.index), window, urgent)
            if segment.windows.needs_order and (self._requested or self._waiting):
                self._waiting.append(hear)
                continue
            self._requested.add(hear.key)
            if segment.windows.needs_order:
                hear = replace(hear, window=replace(window, state=self._memory))
            now.append(hear)
        return now

    def _frames(
        self, segment: Segment, log_probs: Frames, serial: int
    ) -> Iterator[PushFrames | EndUtterance | DeferredEvent]:
        """Walk over new frames: open, feed and end utterances."""
        before = segment.frames_done
        for step in self.segmenter.walk(log_probs, segment.quiet):
            segment.frames_done = before + step.frame
            if step.signal is EndpointSignal.STARTED:
                frame = segment.frames_done - 1
                self._start_utterance(segment, frame - step.lead)
                if not self._cut_in_speech:
                    yield partial(SpeechStarted, self.number, segment.position(frame) / SAMPLE_RATE)
                self._cut_in_speech = False
            elif step.signal in (EndpointSignal.ENDED, EndpointSignal.CUT):
                cut_in_speech = self.segmenter.endpointer.frames_since_speech == 0
                self._cut_in_speech = step.signal is EndpointSignal.CUT and cut_in_speech
                yield self._push(segment, serial + 1, step.log_probs, False, want_hypothesis=False)
                serial += 2
                yield self._end_utterance(segment, serial, speech_final=step.signal is EndpointSignal.ENDED)
            else:
                if self._open is not None:
                    serial += 1
                    yield self._push(segment, serial, step.log_probs, self._probably_over(step))
                if step.signal is EndpointSignal.GAP:
                    yield self._gap
        segment.frames_done = before + len(log_probs)
        if self._open is None:
            yield self._progress_event(segment)
        self._shorten_next_window(segment)

    def _probably_over(self, step: Step) -> bool:
        """Whether the utterance is probably over; while a gap is told, that was said before."""
        return (
            step.signal is not EndpointSignal.GAP
            and self.segmenter.endpointer.state is UtteranceState.CANDIDATE
        )

    def _shorten_next_window(self, segment: Segment) -> None:
        """In a pause the next window reaches no further than to where the utterance may end.

        Not where windows overlap: what is known of the sound by now hangs on how it was sent, and overlapping windows
        that are cut elsewhere hear a little else.
        """
        if not self._plan.stateful:
            return
        wait = self.segmenter.endpointer.frames_to_next_decision
        if wait is not None and segment.quiet.quiet_in(wait):
            steps = math.ceil(wait * self._config.frames_per_output / self._config.stride_frames)
            segment.windows.shorten_next(steps * self._config.stride_frames)

    def _start_utterance(self, segment: Segment, frame: int) -> None:
        self._utterance_count += 1
        self._open = OpenUtterance(self._utterance_count, segment.base_samples + frame * OUTPUT_SAMPLES)
        self._utterances[self._utterance_count] = self._open

    def _push(
        self, segment: Segment, serial: int, rows: Frames, probably_over: bool, want_hypothesis: bool = True
    ) -> PushFrames:
        assert self._open is not None
        position = segment.position(segment.frames_done)
        return PushFrames(
            serial,
            self.number,
            self._open.number,
            rows,
            want_hypothesis and self._wants_hypotheses,
            probably_over,
            position,
        )

    def _end_utterance(
        self, segment: Segment, serial: int, speech_final: bool, from_finalize: bool = False
    ) -> EndUtterance:
        assert self._open is not None
        self._open.speech_final, self._open.from_finalize = speech_final, from_finalize
        number, self._open = self._open.number, None
        self._ended_at_samples = segment.position(segment.frames_done)
        return EndUtterance(serial, self.number, number, self._ended_at_samples)

    def _segment_ended(
        self, segment: Segment, serial: int
    ) -> Iterator[PushFrames | EndUtterance | DeferredEvent]:
        """The last frame of a segment is in: end its utterance, and say what was asked for."""
        finalize = segment.end_reason is SegmentEnd.FINALIZE
        end_samples = segment.base_samples + segment.samples
        self.segmenter.flush()
        self._cut_in_speech = False
        if self._open is not None:
            yield self._end_utterance(segment, serial + 1, speech_final=False, from_finalize=finalize)
        elif finalize:
            start_s, end_s = self._ended_at_samples / SAMPLE_RATE, end_samples / SAMPLE_RATE
            yield lambda: Final(self.number, start_s, end_s, (Alternative(()),), False, True)
        self._ended_at_samples = end_samples
        if finalize:
            self._segments.popleft()
        else:
            self.done = True
        yield lambda: self._advance_emitted(end_samples)

    def _progress_event(self, segment: Segment) -> DeferredEvent:
        position = segment.position(segment.frames_done)
        return lambda: self._advance_emitted(position)

    def _advance_emitted(self, position: int) -> None:
        self.emitted_samples = max(self.emitted_samples, position)

    def _gap(self) -> Event | None:
        end_s = self.transcript.last_word_end_s
        if end_s is None or end_s == self._gap_emitted_s:
            return None  # letters that made no word
        self._gap_emitted_s = end_s
        return UtteranceEnded(self.number, end_s)
