"""How much of a stream is still to be heard: what its sender's credit is counted in."""

from service.core.messages import Audio, Cancel, Configured, Hear, Logits
from service.core.session import Session
from service.core.stream_settings import StreamSettings
from tests.core.plain_loop import PLAN, TINY, noise, spelling_network, spoken

NETWORK = spelling_network(spoken("hello you are there"))


def waiting_session() -> tuple[Session, list[Hear]]:
    session = Session(TINY, PLAN, StreamSettings(decoder="greedy"))
    session.take(Configured("s", TINY.name))
    asked = [effect for effect in session.take(Audio(noise(5.0))) if isinstance(effect, Hear)]
    assert len(asked) > 3
    return session, asked


def test_windows_that_come_back_before_an_earlier_one_are_still_unheard() -> None:
    """A stalled lane must not let its stream run ahead through the others, without a limit."""
    session, (first, *others) = waiting_session()
    before = session.unheard_windows
    for hear in reversed(others):
        session.take(Logits(hear.key, NETWORK(hear.window)))
        assert session.unheard_windows == before
    session.take(Logits(first.key, NETWORK(first.window)))
    assert not session.windows_at_engine
    assert not session.channels[0].early
    assert session.unheard_windows == len(session.outstanding) > 0


def test_nothing_is_unheard_once_it_is_over() -> None:
    session, (_, later, *_) = waiting_session()
    session.take(Logits(later.key, NETWORK(later.window)))
    session.take(Cancel("enough"))
    assert session.unheard_windows == 0
