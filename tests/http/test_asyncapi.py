"""The AsyncAPI file tells the truth: what the server sends fits it, and its query is the one that is read."""

import asyncio
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

import service
from service.protocols.query import CONTAINERS, RAW, read_query

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOLD = yaml.safe_load((Path(service.__file__).parent / "asyncapi.yaml").read_text())


def schema(kind: str) -> dict:
    """The payload of one message with what it refers to."""
    return {**TOLD["components"]["messages"][kind]["payload"], "components": TOLD["components"]}


async def test_every_message_fits_its_schema(server, open_client, speech, pieces):
    query = (
        "encoding=linear16&sample_rate=16000&interim_results=true&extensions=true&vad_events=true"
        "&alternatives=2&utterance_end_ms=200&diarize=true"
    )
    quiet = bytes(32000)
    async with open_client(server, query) as client:
        await client.send(*pieces(speech, 3200), *pieces(quiet, 3200), {"type": "Configure"})
        await client.send({"type": "Marker", "name": "m"}, {"type": "Finalize"}, {"type": "CloseStream"})
        assert await client.to_the_end() == (1000, "")
    async with open_client(server, "extensions=true") as other:
        await other.send(b"no sound that anybody knows, and long enough")
        await other.to_the_end()
    seen = set()
    for message in client.received + other.received:
        seen.add(message["type"])
        jsonschema_rs.Draft202012Validator(schema(message["type"])).validate(message)
    assert {"Started", "Results", "SpeechStarted", "Heartbeat", "Marker", "Metadata", "Error"} <= seen
    assert "ConfigureFailure" in seen
    assert seen <= {
        name.rsplit("/", 1)[-1] for one in TOLD["operations"]["hear"]["messages"] for name in one.values()
    }


async def test_the_query_it_names_is_the_query_that_is_read():
    await asyncio.sleep(0)
    named = TOLD["channels"]["listen"]["bindings"]["ws"]["query"]["properties"]
    assert set(named["encoding"]["enum"]) == {*RAW, *CONTAINERS}
    for name, kind in named.items():
        value = str(
            kind.get("enum", [kind.get("minimum", "true" if kind.get("type") == "boolean" else "10")])[0]
        )
        assert not read_query([(name, value)]).warnings or name == "language", name
