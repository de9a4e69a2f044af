"""Events are numbered and bounded; superseded partials are dropped, finals never."""

from service.session.event_log import EventLog
from service.session.events import Alternative, Closed, Event, Final, MarkerReached, Partial, Word


def partial(text: str, channel: int = 0) -> Partial:
    return Partial(channel, 0, 1, (Word(text, 0, 1, 1.0),), 0)


def final(text: str, channel: int = 0) -> Final:
    return Final(channel, 0, 1, (Alternative((Word(text, 0, 1, 1.0),)),), True)


def read_all(log: EventLog) -> list[tuple[int, Event]]:
    events = []
    while (entry := log.next()) is not None:
        events.append(entry)
    return events


def test_a_slow_reader_gets_the_newest_partial_of_each_channel_and_every_final() -> None:
    log = EventLog()
    for event in (partial("a"), partial("b"), partial("x", 1), final("b c"), partial("d"), partial("e")):
        log.append(event)
    assert read_all(log) == [(3, partial("x", 1)), (4, final("b c")), (6, partial("e"))]


def test_a_resumed_reader_gets_everything_after_what_it_saw() -> None:
    log = EventLog()
    log.append(final("one"))
    log.append(partial("tw"))
    assert len(read_all(log)) == 2
    log.append(final("two"))
    log.append(Closed("finished", 1.0))
    assert log.can_resume(1)
    log.rewind(1)
    assert read_all(log) == [(3, final("two")), (4, Closed("finished", 1.0))]


def test_read_events_are_stored_up_to_a_bound() -> None:
    log = EventLog(max_unread=1000, max_kept=10)
    for number in range(1, 101):
        log.append(MarkerReached(str(number)))
        assert log.next() == (number, MarkerReached(str(number)))
    assert len(list(log)) == 10
    assert log.can_resume(90) and not log.can_resume(89)
    assert not log.can_resume(101), "event 101 does not exist"


def test_unread_finals_are_never_dropped_and_count_towards_the_bound() -> None:
    log = EventLog(max_unread=10, max_kept=5)
    for number in range(11):
        assert not log.overflowed
        log.append(final(str(number)))
    assert log.overflowed
    assert len(read_all(log)) == 11


def test_unread_partials_collapse_into_one() -> None:
    log = EventLog()
    for number in range(10_000):
        log.append(partial(str(number)))
    assert not log.overflowed
    assert len(read_all(log)) == 1


def test_partials_of_alternating_channels_do_not_accumulate() -> None:
    log = EventLog(max_unread=10)
    for number in range(1000):
        log.append(partial(str(number), channel=number % 2))
    assert not log.overflowed
    assert [number for number, _ in read_all(log)] == [999, 1000]
