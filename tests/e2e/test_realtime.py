"""OpenAI's realtime socket through its unmodified client, and what is told to clients that make mistakes."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from tests.e2e.server_process import Served, speech

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openai

COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


def pcm(seconds_of_quiet: float = 1.5) -> bytes:
    sound = np.concatenate(
        [speech("all-circuits-busy-now", 24000), np.zeros(round(24000 * seconds_of_quiet))]
    )
    return bytes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def heard(connection: Any, sound: bytes, size: int, commit: bool) -> list[Any]:
    """Every event up to the first completed transcription (with a commit: up to the last)."""
    for start in range(0, len(sound), size):
        audio = base64.b64encode(sound[start : start + size]).decode()
        connection.send({"type": "input_audio_buffer.append", "audio": audio})
    if commit:
        connection.send({"type": "input_audio_buffer.commit"})
    events = []
    for event in connection:
        events.append(event)
        assert event.type != "error", event
        if event.type == COMPLETED:
            return events
    raise AssertionError("the socket ended")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_turns_are_found_and_deltas_add_up(client: openai.OpenAI) -> None:
    with client.realtime.connect(model="any", extra_query={"intent": "transcription"}) as connection:
        connection.send(
            {
                "type": "session.update",
                "session": {
                    "type": "transcription",
                    "audio": {
                        "input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 300}}
                    },
                },
            }
        )
        events = heard(connection, pcm(), 4800, commit=False)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["session.created", "session.updated"]
    assert "input_audio_buffer.speech_started" in kinds
    assert kinds.index("input_audio_buffer.speech_stopped") < kinds.index("input_audio_buffer.committed")
    deltas = "".join(event.delta for event in events if event.type == DELTA)
    assert deltas == events[-1].transcript != ""
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_without_turn_detection_only_a_commit_decides_however_sound_is_cut(client: openai.OpenAI) -> None:
    said = []
    for size in (960, 48_000):
        with client.realtime.connect(model="any", extra_query={"intent": "transcription"}) as connection:
            session = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
            connection.send({"type": "session.update", "session": session})
            events = heard(connection, pcm(0.2), size, commit=True)
        said.append(events[-1].transcript)
        assert "input_audio_buffer.speech_started" not in [event.type for event in events]
    assert said[0] == said[1] != ""


def test_mistakes_are_told_and_the_session_goes_on(served: Served) -> None:
    address = served.address.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    mistakes = {
        "{": "invalid_json",
        "[]": "invalid_event",
        '{"type": "response.create"}': "unknown_event",
        '{"type": "input_audio_buffer.append", "audio": "***"}': "invalid_audio",
        '{"type": "input_audio_buffer.append"}': "invalid_audio",
        '{"type": "input_audio_buffer.commit"}': "input_audio_buffer_commit_empty",
        '{"type": "session.update", "session": {"type": "realtime"}}': "invalid_session",
        '{"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 8000}}}}}':
            "invalid_format",
        '{"type": "session.update", "session": {"audio": {"input": {"transcription": {"language": "fi"}}}}}':
            "invalid_language",
    }  # fmt: skip
    with connect(address) as socket:
        assert json.loads(socket.recv())["type"] == "session.created"
        for message, code in mistakes.items():
            socket.send(message)
            assert json.loads(socket.recv())["error"]["code"] == code
        socket.send(b"\0\0")
        assert json.loads(socket.recv())["error"]["code"] == "invalid_event"
        socket.send('{"type": "input_audio_buffer.clear"}')
        assert json.loads(socket.recv())["type"] == "input_audio_buffer.cleared"
