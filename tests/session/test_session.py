"""The session as a table: what each input means, and that no order of answers changes what is told."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acoustic.windows import Span, Window, WindowOutput
from service.errors import ErrorCode
from service.scheduling.decode_worker import OpenStream, UtteranceTable
from service.session.events import (
    Closed,
    Event,
    Failed,
    Final,
    MarkerReached,
    Partial,
    Progress,
    SpeechStarted,
    Started,
    UtteranceEnded,
)
from service.session.messages import (
    AudioReceived,
    Cancel,
    Configured,
    Decoded,
    Disconnected,
    Effect,
    Emit,
    EndUtterance,
    Fail,
    Finalize,
    Finish,
    Input,
    PlaceMarker,
    PushFrames,
    Release,
    Replay,
    Resumed,
    RunWindow,
    WindowDone,
    WorkerLost,
)
from service.session.session import Session, SessionState
from service.session.stream_settings import StreamSettings
from tests.session.synchronous_driver import PLAN, TINY, SynchronousDriver, noise, spelling_model, spoken

GREEDY = StreamSettings(decoder="greedy")
CARRIED = replace(PLAN, left_frames=0, stateful=True)
HELLO = spelling_model(spoken("hello_you" + "_" * 20 + "again"))


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Final)]


def test_two_utterances_with_a_silence_between() -> None:
    loop = SynchronousDriver(HELLO, GREEDY)
    loop.take(AudioReceived(np.concatenate([noise(0.8), noise(1.2, loudness=0), noise(2.0)], axis=1)))
    loop.take(Finish())
    kinds = [type(event) for event in loop.events if not isinstance(event, Partial)]
    assert kinds == [Started, SpeechStarted, Final, SpeechStarted, Final, Closed]
    assert texts(loop.events) == ["helloyou", "again"]
    first, second = loop.finals
    assert first.speech_final and second.speech_final
    assert first.end_s <= second.start_s
    assert loop.events[-1] == Closed("finished", 4.0)


def test_a_candidate_is_shown_before_the_final_and_says_the_same() -> None:
    loop = SynchronousDriver(HELLO, GREEDY)
    quiet_and_loud = [noise(0.1, loudness=0.0005), noise(0.75), noise(1.2, loudness=0), noise(2.0)]
    loop.take(AudioReceived(np.concatenate(quiet_and_loud, axis=1)))
    partials = [event for event in loop.events if isinstance(event, Partial)]
    candidate = next(event for event in partials if event.probably_over)
    assert candidate.text == "helloyou"
    assert loop.events.index(candidate) < loop.events.index(loop.finals[0])


def test_a_pause_does_not_wait_for_the_hop_to_fill() -> None:
    """The windows change with the quiet, the words do not, and neither depends on how the sound was cut."""
    said = np.concatenate([noise(0.1, loudness=0), noise(0.75), noise(1.2, loudness=0), noise(1.0)], axis=1)
    wide, asked = SynchronousDriver(HELLO, GREEDY), []
    for at in range(0, said.shape[1], 800):
        wide.take(AudioReceived(said[:, at : at + 800]))
        asked.append((wide.session.received_samples / 16000, len(wide.finals)))
    told_s = next(received_s for received_s, finals in asked if finals)
    assert wide.finals[0].text == "helloyou"
    assert told_s - wide.finals[0].end_s <= 0.3, "the look-ahead and a step of the network, not a hop"
    at_once = SynchronousDriver(HELLO, GREEDY)
    at_once.take(AudioReceived(said))
    assert at_once.finals == wide.finals


def test_what_was_kept_for_a_wide_hop_is_one_window_when_the_hop_narrows() -> None:
    said, asked = np.concatenate([noise(0.1, loudness=0.0005), noise(1.1)], axis=1), []

    def hear(window: Window) -> WindowOutput:
        asked.append(window.span.kept)
        return HELLO(window)

    loop, at_once = SynchronousDriver(hear, GREEDY), SynchronousDriver(HELLO, GREEDY)
    loop.take(AudioReceived(said, 128))
    assert asked == []
    loop.take(AudioReceived(said[:, :0], 16))
    assert len(asked) == 1 and asked[0] > 50
    loop.take(AudioReceived(noise(0.4), 16))
    assert asked[1:] == [8, 8]
    at_once.take(AudioReceived(np.concatenate([said, noise(0.4)], axis=1)))
    for each in (loop, at_once):
        each.take(Finish())
    assert loop.finals == at_once.finals


@pytest.mark.parametrize("later", range(0, 64, 8))
def test_where_letters_come_later_than_the_sound_windows_wait_no_longer_than_the_question(later: int) -> None:
    """The sound has been quiet for 0.3 s when the last letter comes, wherever the hops happen to lie."""
    lead_s = later * 0.02
    network = spelling_model(spoken("hello_you" + "_" * 20 + "again", lead=10 + later))
    parts = [noise(0.1, loudness=0.0005), noise(0.45 + lead_s), noise(1.5, loudness=0), noise(1.0)]
    said = np.concatenate(parts, axis=1)
    loop, told_s = SynchronousDriver(network, GREEDY, plan=CARRIED), None
    for at in range(0, said.shape[1], 800):
        loop.take(AudioReceived(said[:, at : at + 800]))
        told_s = told_s or (loop.session.received_samples / 16000 if loop.finals else None)
    assert told_s is not None and loop.finals[0].text == "helloyou"
    assert told_s - loop.finals[0].end_s <= 0.15, "the look-ahead of 0.1 s and a message of 0.05 s"
    at_once = SynchronousDriver(network, GREEDY, plan=CARRIED)
    at_once.take(AudioReceived(said))
    assert at_once.finals == loop.finals


def test_overlapping_windows_are_cut_alike_however_the_sound_comes() -> None:
    network = spelling_model(spoken("hello_you" + "_" * 20 + "again", lead=10))
    said = np.concatenate(
        [noise(0.1, loudness=0.0005), noise(0.45), noise(1.5, loudness=0), noise(1.0)], axis=1
    )
    spans = []
    for size in (said.shape[1], 8000, 800, 37):
        heard: list[Span] = []

        def hear(window: Window, heard: list[Span] = heard) -> WindowOutput:
            heard.append(window.span)
            return network(window)

        loop = SynchronousDriver(hear, GREEDY)
        for at in range(0, said.shape[1], size):
            loop.take(AudioReceived(said[:, at : at + size]))
        loop.take(Finish())
        spans.append(heard)
    assert all(each == spans[0] for each in spans)


def test_finalize_flushes_what_is_open_and_says_so_even_when_nothing_is() -> None:
    loop = SynchronousDriver(HELLO, GREEDY)
    loop.take(AudioReceived(noise(0.6)))
    assert texts(loop.events) == []
    loop.take(Finalize())
    assert texts(loop.events) == ["helloy"]
    assert loop.finals[0].from_finalize and not loop.finals[0].speech_final
    loop.take(Finalize())
    assert loop.finals[1] == Final(0, 0.6, 0.6, loop.finals[1].alternatives, False, True)
    assert loop.finals[1].text == ""


def test_after_finalize_times_go_on_from_the_sample_count() -> None:
    loop = SynchronousDriver(HELLO, GREEDY)
    loop.take(AudioReceived(noise(1.01)))
    loop.take(Finalize())
    loop.take(AudioReceived(noise(1.0)))
    loop.take(Finish())
    # The network of this test hears the same again in each segment, 0.2 s after its beginning.
    starts = [final.alternatives[0].words[0].start_s for final in loop.finals if final.text]
    assert starts[1] - starts[0] == pytest.approx(1.01, abs=1e-3)


def test_a_mark_comes_when_everything_before_it_was_told() -> None:
    loop = SynchronousDriver(HELLO, GREEDY)
    loop.take(AudioReceived(noise(1.0)))
    loop.take(PlaceMarker("here"))
    assert MarkerReached("here") not in loop.events, "the last frames still want their look-ahead"
    loop.take(AudioReceived(noise(2.0)))
    at = loop.events.index(MarkerReached("here"))
    assert texts(loop.events[:at]) == ["helloyou"], "what was said before it"
    loop.take(PlaceMarker("end"))
    loop.take(Finish())
    assert loop.events[-2:] == [MarkerReached("end"), Closed("finished", 3.0)]


def test_utterance_end_is_told_once_a_pause_after_the_final() -> None:
    loop = SynchronousDriver(HELLO, StreamSettings(decoder="greedy", utterance_end_ms=1000))
    loop.take(AudioReceived(np.concatenate([noise(0.8), noise(4, loudness=0)], axis=1)))
    loop.take(Finish())
    told = [event for event in loop.events if isinstance(event, UtteranceEnded)]
    assert [event.last_word_end_s for event in told] == [
        final.alternatives[0].words[-1].end_s for final in loop.finals
    ]
    for final, event in zip(loop.finals, told, strict=True):
        assert loop.events.index(final) < loop.events.index(event)


def test_progress_tells_how_far_words_lag_behind_sound() -> None:
    loop = SynchronousDriver(HELLO, StreamSettings(decoder="greedy", progress_every_s=0.5))
    loop.take(AudioReceived(noise(3.0)))
    told = [event for event in loop.events if isinstance(event, Progress)]
    assert told and all(event.lag_s == event.received_s - event.processed_s >= 0 for event in told)
    assert [event.processed_s for event in told] == sorted(event.processed_s for event in told)


def test_interim_off_tells_finals_only() -> None:
    loop = SynchronousDriver(HELLO, StreamSettings(decoder="greedy", interim=False))
    loop.take(AudioReceived(noise(3.0)))
    loop.take(Finish())
    assert not any(isinstance(event, Partial) for event in loop.events)
    assert texts(loop.events)


def test_channels_are_heard_apart() -> None:
    loop = SynchronousDriver(HELLO, StreamSettings(decoder="greedy", channels=2))
    loop.take(AudioReceived(np.concatenate([noise(3.0), noise(3.0, loudness=0)])))
    loop.take(Finish())
    assert {final.channel for final in loop.finals} == {0, 1}
    assert isinstance(loop.events[-1], Closed)


def test_a_poisoned_window_fails_its_stream_with_one_closed() -> None:
    def poisoned(window: object) -> WindowOutput:
        return WindowOutput(window.span, np.zeros((0, 29), np.float32), None, "not finite")  # type: ignore[attr-defined]

    loop = SynchronousDriver(poisoned, GREEDY)
    loop.take(AudioReceived(noise(3.0)))
    loop.take(Finish())
    assert isinstance(loop.events[-2], Failed) and loop.events[-2].code == "audio"
    assert loop.events[-1] == Closed("failed", 3.0)
    assert sum(isinstance(event, Closed) for event in loop.events) == 1


def test_parked_work_goes_on_and_finishing_parked_closes() -> None:
    loop = SynchronousDriver(HELLO, GREEDY)
    loop.take(Disconnected())
    assert loop.session.state is SessionState.PARKED
    loop.take(AudioReceived(noise(1.8)))
    loop.take(Resumed())
    assert loop.session.state is SessionState.STREAMING
    loop.take(Disconnected())
    loop.take(Finish("drained"))
    assert texts(loop.events) == ["helloyou"]
    assert loop.events[-1] == Closed("drained", 1.8)


@pytest.mark.parametrize(
    "late",
    [
        AudioReceived(noise(1.0)),
        Finalize(),
        PlaceMarker("x"),
        Finish(),
        Cancel(),
        Fail(ErrorCode.INTERNAL, "b", "c"),
        WorkerLost(),
        Resumed(),
    ],
)
def test_after_closed_nothing_means_anything(late: object) -> None:
    loop = SynchronousDriver(HELLO, GREEDY)
    loop.take(Cancel())
    before = list(loop.events)
    loop.take(late)  # type: ignore[arg-type]
    assert loop.events == before
    assert loop.session.state is SessionState.CLOSED


# ---- any order of answers


class Chaos:
    """Carries effects out late, in any order the service could, with repeats, losses of the worker and resumes."""

    def __init__(self, rng: random.Random, settings_: StreamSettings) -> None:
        self.rng = rng
        self.session = Session(TINY, PLAN, settings_)
        self.open = OpenStream(settings_.n_best, (), "greedy")
        self.utterances = UtteranceTable(TINY.alphabet, None)
        self.utterances.handle([("s", self.open)])
        self.windows: list[RunWindow] = []
        self.commands: list[PushFrames | EndUtterance | Replay] = []
        self.events: list[Event] = []
        self.carry(self.session.take(Configured("s", "tiny")))

    def carry(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RunWindow):
                self.windows.append(effect)
            elif isinstance(effect, PushFrames | EndUtterance | Replay):
                self.commands.append(effect)
            elif isinstance(effect, Emit):
                self.events.append(effect.event)
            elif isinstance(effect, Release):
                self.windows.clear()
                self.commands.clear()

    def steps(self) -> Iterator[str]:
        if self.windows:
            yield "hear"
        if self.commands:
            yield from ("decode", "decode", "die")

    def step(self) -> bool:
        """One thing that could happen; False when nothing is left."""
        possible = list(self.steps())
        if not possible:
            return False
        what = self.rng.choice(possible)
        if what == "hear":
            hear = self.windows.pop(self.rng.randrange(len(self.windows)))
            for _ in range(self.rng.choice((1, 1, 2))):
                self.carry(self.session.take(WindowDone(hear.key, HELLO(hear.window))))
        elif what == "decode":
            answers = self.utterances.handle([("s", self.commands.pop(0))])
            for answer in answers:
                assert answer.error is None
                self.carry(self.session.take(Decoded(answer.serial, answer.hypotheses)))
                self.carry(self.session.take(Decoded(answer.serial, answer.hypotheses)))
        else:
            self.utterances = UtteranceTable(TINY.alphabet, None)
            self.utterances.handle([("s", self.open)])
            self.commands.clear()
            self.carry(self.session.take(WorkerLost()))
        return True


SOUND = np.concatenate([noise(0.8), noise(1.2, loudness=0), noise(2.0)], axis=1)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 64000), max_size=8), st.booleans())
def test_slicing_order_repeats_and_dead_workers_change_no_final(
    rng: random.Random, cuts: list[int], interim: bool
) -> None:
    asked = StreamSettings(decoder="greedy", interim=interim)
    plain = SynchronousDriver(HELLO, asked)
    plain.take(AudioReceived(SOUND))
    plain.take(Finish())
    chaos = Chaos(rng, asked)
    edges = sorted({0, *cuts, SOUND.shape[1]})
    for first, end in pairwise(edges):
        chaos.carry(chaos.session.take(AudioReceived(SOUND[:, first:end])))
        while rng.random() < 0.7 and chaos.step():
            pass
    chaos.carry(chaos.session.take(Finish()))
    for _ in range(2000):
        if not chaos.step():
            break
    assert [event for event in chaos.events if isinstance(event, Final)] == plain.finals
    assert [type(event) for event in chaos.events if not isinstance(event, Partial)] == [
        type(event) for event in plain.events if not isinstance(event, Partial)
    ]
    assert chaos.events[-1] == Closed("finished", 4.0)


@pytest.mark.parametrize(
    "before", [(Disconnected(), Finish()), (Finish(), Disconnected())], ids=["parked first", "finished first"]
)
def test_sound_that_comes_late_to_a_parked_stream_that_has_ended_is_nobodys(
    before: tuple[Input, ...],
) -> None:
    chaos = Chaos(random.Random(1), GREEDY)
    for what in (AudioReceived(noise(0.7)), *before, AudioReceived(noise(0.7)), Resumed()):
        chaos.carry(chaos.session.take(what))
    while chaos.step():
        pass
    assert chaos.events[-1] == Closed("finished", 0.7)


@settings(max_examples=60, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.lists(
        st.sampled_from(
            [
                AudioReceived(noise(0.7)),
                Finalize(),
                PlaceMarker("m"),
                Finish(),
                Disconnected(),
                Resumed(),
                Cancel(),
                Fail(ErrorCode.INTERNAL, "y", "z"),
                WorkerLost(),
            ]
        ),
        max_size=12,
    ),
)
def test_whatever_happens_it_ends_once_and_nothing_follows(rng: random.Random, inputs: list[object]) -> None:
    chaos = Chaos(rng, GREEDY)
    for what in inputs:
        chaos.carry(chaos.session.take(what))  # type: ignore[arg-type]
        while rng.random() < 0.5 and chaos.step():
            pass
    chaos.carry(chaos.session.take(Resumed()))
    chaos.carry(chaos.session.take(Finish()))
    while chaos.step():
        pass
    assert [type(event) for event in chaos.events].count(Closed) == 1
    assert isinstance(chaos.events[-1], Closed)
    assert chaos.session.pending_work == 0
    received = [event.name for event in chaos.events if isinstance(event, MarkerReached)]
    assert len(received) <= len(inputs)
