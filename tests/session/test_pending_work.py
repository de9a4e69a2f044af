"""Pending work of a session: the measure of its back-pressure."""

from service.session.messages import AudioReceived, Cancel, Configured, RunWindow, WindowDone
from service.session.session import Session
from service.session.stream_settings import StreamSettings
from tests.session.synchronous_driver import PLAN, TINY, alignment, noise, spelling_model

NETWORK = spelling_model(alignment("hello you are there"))


def waiting_session() -> tuple[Session, list[RunWindow]]:
    session = Session(TINY, PLAN, StreamSettings(decoder="greedy"))
    session.handle(Configured("s", TINY.name))
    requests = [
        effect for effect in session.handle(AudioReceived(noise(5.0))) if isinstance(effect, RunWindow)
    ]
    assert len(requests) > 3
    return session, requests


def test_out_of_order_windows_count_as_pending() -> None:
    """A stalled executor must not let its stream run ahead without limit through the others."""
    session, (first, *others) = waiting_session()
    before = session.pending_work
    for request in reversed(others):
        session.handle(WindowDone(request.key, NETWORK(request.window)))
        assert session.pending_work == before
    session.handle(WindowDone(first.key, NETWORK(first.window)))
    assert not session.windows_at_engine
    assert not session.channels[0].out_of_order_windows
    assert session.pending_work == len(session.outstanding) > 0


def test_a_closed_session_has_no_pending_work() -> None:
    session, (_, later, *_) = waiting_session()
    session.handle(WindowDone(later.key, NETWORK(later.window)))
    session.handle(Cancel("enough"))
    assert session.pending_work == 0
