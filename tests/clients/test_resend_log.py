"""The resend log stores exactly what a resumed or a new session needs."""

import json

from hypothesis import given
from hypothesis import strategies as st

from service.clients.resend_log import MAX_PENDING_S, ResendLog


def payloads(entries):
    return [entry.payload for entry in entries]


def test_acknowledged_audio_is_not_resent():
    log = ResendLog(None, 16000)
    for part in (b"aa", b"bbb", b"c"):
        log.add(part)
    log.acknowledge(2, 0)
    assert payloads(log.unacknowledged_messages()) == [b"bbb", b"c"]
    assert log.unacknowledged_bytes == 4
    log.acknowledge(6, 0)
    assert log.unacknowledged_messages() == [] and not log._entries


def test_commands_are_counted_separately_and_keep_their_order():
    log = ResendLog(None, 16000)
    log.add(b"aa")
    log.add('{"type":"Finalize"}')
    log.add(b"bb")
    log.add('{"type":"CloseStream"}')
    log.acknowledge(2, 0)
    assert payloads(log.unacknowledged_messages()) == ['{"type":"Finalize"}', b"bb", '{"type":"CloseStream"}']
    log.acknowledge(2, 1)
    assert payloads(log.unacknowledged_messages()) == [b"bb", '{"type":"CloseStream"}']


def test_a_new_session_starts_after_the_last_final_with_continuous_times():
    log = ResendLog(2, 10)
    log.add(bytes(range(20)))
    log.add('{"type":"Finalize"}')
    log.add(b"xxxx")
    log.acknowledge(24, 1)
    log.mark_final(1.0)
    log.mark_answered("Finalize")
    assert payloads(log.restart()) == [b"xxxx"]
    assert log.offset_s == 1.0
    assert payloads(log.unacknowledged_messages()) == [b"xxxx"]
    log.acknowledge(4, 0)
    assert log.unacknowledged_messages() == [] and log.unacknowledged_bytes == 0


def test_a_final_within_a_message_splits_it():
    log = ResendLog(2, 10)
    log.add(bytes(range(20)))
    log.acknowledge(20, 0)
    log.mark_final(0.4)
    assert payloads(log.restart()) == [bytes(range(8, 20))]
    assert log.offset_s == 0.4


def test_an_unanswered_finalize_is_resent():
    log = ResendLog(2, 10)
    log.add(b"abcd")
    log.add('{"type":"Finalize"}')
    log.acknowledge(4, 1)
    assert payloads(log.restart()) == [b"abcd", '{"type":"Finalize"}']
    assert log.unacknowledged_messages() == log.restart()


@given(
    st.lists(st.one_of(st.binary(min_size=1, max_size=9), st.just("command")), max_size=30),
    st.integers(0, 30),
)
def test_unacknowledged_messages_are_returned_in_order(parts, received):
    log = ResendLog(None, 16000)
    sent = []
    for number, part in enumerate(parts):
        payload = part if isinstance(part, bytes) else json.dumps({"type": "Marker", "name": str(number)})
        sent.append(payload)
        log.add(payload)
    acknowledged = sent[:received]
    log.acknowledge(
        sum(len(one) for one in acknowledged if isinstance(one, bytes)),
        sum(isinstance(one, str) for one in acknowledged),
    )
    assert payloads(log.unacknowledged_messages()) == sent[received:]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30))
def test_final_and_acknowledged_messages_are_dropped(parts):
    log = ResendLog(1, 10)
    for part in parts:
        log.add(part)
        log.acknowledge(log.sent_bytes, 0)
        log.mark_final(log.sent_bytes / 10)
        assert not log._entries, "the log must not grow with the stream's length"


def test_hours_of_silence_are_dropped():
    log = ResendLog(2, 10)
    for _ in range(3 * 3600):
        log.add(bytes(20))
        log.acknowledge(log.sent_bytes, 0)
    assert sum(len(entry.payload) for entry in log._entries) <= (MAX_PENDING_S + 1) * 20
    sent = log.restart()
    assert log.offset_s == 3 * 3600 - MAX_PENDING_S
    assert sum(map(len, payloads(sent))) == MAX_PENDING_S * 20


def test_unacknowledged_silence_is_kept():
    log = ResendLog(2, 10)
    for _ in range(3600):
        log.add(bytes(20))
    assert len(log.restart()) == 3600
