"""OpenAI's realtime wire with lists of messages: whatever comes is answered, and cleared sound is never told."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.protocols.commands import Finalize, Flush, SendText
from service.protocols.openai_realtime import RealtimeProtocol
from service.protocols.wire_protocol import Received
from service.session.events import Alternative, Final, Partial, SpeechStarted, Word

COMPLETED = "conversation.item.input_audio_transcription.completed"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def words(text: str) -> tuple[Word, ...]:
    return tuple(Word(word, 0.0, 0.1, 0.9) for word in text.split())


def answer(text: str) -> Final:
    return Final(0, 0.0, 1.0, (Alternative(words(text)),), False, True)


def update_event(one: RealtimeProtocol, kind: str, **fields: object) -> list:
    return one.receive(json.dumps({"type": kind, **fields}))


def append(one: RealtimeProtocol, sound: bytes = b"\0" * 480) -> None:
    update_event(one, "input_audio_buffer.append", audio=base64.b64encode(sound).decode())


def sent(one: RealtimeProtocol, *events: Partial | Final | SpeechStarted) -> list[str]:
    """What the events are on the wire: transcripts, and the kinds of the other messages."""
    messages = [json.loads(text) for event in events for text in one.write(1, event, Received(0, None, 0))]
    return [message.get("transcript", message["type"]) for message in messages]


def test_each_answer_is_told_or_dropped_as_its_own_request_wants():
    one = RealtimeProtocol("0" * 32, "tiny")
    for kind in ("commit", "clear", "clear", "commit"):
        append(one)
        assert Finalize() in update_event(one, f"input_audio_buffer.{kind}")
    assert sent(one, answer("kept"))[-1] == "kept"
    dropped = (SpeechStarted(0, 0.5), Partial(0, 0.0, 1.0, words("secret"), 1), answer("secret"))
    assert sent(one, *dropped) == []
    assert sent(one, answer("")) == []
    assert sent(one, answer("kept too"))[-1] == "kept too"
    assert "".join(sent(one, Partial(0, 0.0, 1.0, words("going on"), 2))).endswith(".delta")


def test_half_a_sample_is_no_sound_to_commit_or_to_clear():
    one = RealtimeProtocol("0" * 32, "tiny")
    append(one, b"\0")
    (refused,) = update_event(one, "input_audio_buffer.commit")
    assert json.loads(refused.text)["error"]["code"] == "input_audio_buffer_commit_empty"
    assert Finalize() not in update_event(one, "input_audio_buffer.clear")
    append(one, b"\0")
    assert update_event(one, "input_audio_buffer.commit") == [Flush(), Finalize()]


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"audio": [1]}, "session.audio"),
        ({"audio": {"input": [1]}}, "session.audio.input"),
        ({"audio": {"input": {"format": {"type": []}}}}, "session.audio.input.format"),
        ({"audio": {"input": {"transcription": [1]}}}, "session.audio.input.transcription"),
    ],
)
def test_a_mistake_names_its_field(session: object, param: str):
    (refused,) = update_event(RealtimeProtocol("0" * 32, "tiny"), "session.update", session=session)
    assert json.loads(refused.text)["error"]["param"] == param


@given(
    kind=st.sampled_from(["session.update", "transcription_session.update", "input_audio_buffer.append"]),
    path=st.lists(
        st.sampled_from(["audio", "input", "format", "type", "rate", "transcription", "language", "prompt"])
        | st.sampled_from(["model", "turn_detection", "silence_duration_ms", "input_audio_format"]),
        max_size=4,
    ),
    value=ANYTHING,
)
def test_whatever_comes_is_answered(kind: str, path: list[str], value: object):
    for name in reversed(path):
        value = {name: value}
    for command in update_event(RealtimeProtocol("0" * 32, "tiny"), kind, session=value, audio=value):
        assert not isinstance(command, SendText) or json.loads(command.text)["type"]
