"""How much of a stream is still to be heard: what its sender's credit is counted in."""

from service.session.messages import AudioReceived, Cancel, Configured, RunWindow, WindowDone
from service.session.session import Session
from service.session.stream_settings import StreamSettings
from tests.session.synchronous_driver import PLAN, TINY, alignment, noise, spelling_model

NETWORK = spelling_model(alignment("hello you are there"))


def waiting_session() -> tuple[Session, list[RunWindow]]:
    session = Session(TINY, PLAN, StreamSettings(decoder="greedy"))
    session.handle(Configured("s", TINY.name))
    asked = [effect for effect in session.handle(AudioReceived(noise(5.0))) if isinstance(effect, RunWindow)]
    assert len(asked) > 3
    return session, asked


def test_windows_that_come_back_before_an_earlier_one_are_still_unheard() -> None:
    """A stalled lane must not let its stream run ahead through the others, without a limit."""
    session, (first, *others) = waiting_session()
    before = session.pending_work
    for hear in reversed(others):
        session.handle(WindowDone(hear.key, NETWORK(hear.window)))
        assert session.pending_work == before
    session.handle(WindowDone(first.key, NETWORK(first.window)))
    assert not session.windows_at_engine
    assert not session.channels[0].out_of_order_windows
    assert session.pending_work == len(session.outstanding) > 0


def test_nothing_is_unheard_once_it_is_over() -> None:
    session, (_, later, *_) = waiting_session()
    session.handle(WindowDone(later.key, NETWORK(later.window)))
    session.handle(Cancel("enough"))
    assert session.pending_work == 0
