"""Two models served at once by name: each stream is heard by the one it named, also while the other is loaded anew."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import aiohttp
import numpy as np

from acoustic import catalogue
from acoustic.architectures import published
from acoustic.checkpoint import save
from acoustic.runtime import open_backend
from acoustic.windows import with_hop
from service.http.server import Server
from service.scheduling.decode_worker import UtteranceTable
from service.session.events import Final
from service.session.stream_settings import StreamSettings
from service.settings import Settings
from tests.http.conftest import RAW, cut
from tests.session.synchronous_driver import transcribe

HOP_S = 0.64


def offline(model: str, speech: bytes) -> list[str]:
    """What this model hears in a plain loop, with no server and nobody beside it."""
    backend = open_backend(model)
    sound = np.frombuffer(speech, "<i2").astype(np.float32)[None] / 32768
    settings = StreamSettings(endpointing_ms=None, decoder="greedy")
    events = transcribe(
        lambda window: backend.forward([window])[0],
        sound,
        settings,
        backend.config,
        with_hop(backend.config, backend.plan, HOP_S),
        UtteranceTable(backend.config.alphabet, None),
    )
    return [event.alternatives[0].text for event in events if isinstance(event, Final)]


async def test_two_models_by_name_at_once(
    settings: Settings, open_client, speech: bytes, tmp_path: Path
) -> None:
    other = catalogue.untrained(published["tiny"], seed=2)
    second = str(save(tmp_path / "second", other.config, other.state, other.card))
    expected = {name: offline(name, speech) for name in ("tiny", second)}
    assert all("".join(texts) for texts in expected.values()) and expected["tiny"] != expected[second]

    async with Server(replace(settings, more_models=(second,), hops_s=(HOP_S,))) as server:

        async def transcript_of(asked: str, answers: str) -> None:
            """Ask for one model and be answered by the other name, or the same."""
            async with open_client(server, f"{RAW}&endpointing=false&model={asked}") as client:
                for piece in cut(speech, 6400):
                    await client.send(piece)
                    await asyncio.sleep(0)
                await client.send({"type": "CloseStream"})
                assert (await client.to_the_end())[0] == 1000
                assert [text for text in client.finals if text] == [
                    text for text in expected[answers] if text
                ]

        await asyncio.gather(
            transcript_of("tiny", "tiny"), transcript_of(second, second), transcript_of("nova-2", "tiny")
        )
        async with aiohttp.ClientSession() as session, session.get(f"{server.address}/v1/models") as answer:
            listed = json.loads(await answer.text())["models"]
        assert [(each["name"], each["default"], each["ready"]) for each in listed] == [
            ("tiny", True, True),
            (second, False, True),
        ]

        # The second model's file changes; the first goes on meanwhile and the server never says that it drains.
        first = catalogue.untrained(published["tiny"], seed=1)
        save(Path(second), first.config, first.state, first.card)
        expected[second] = expected["tiny"]
        await asyncio.gather(server.models.reload(second), transcript_of("tiny", "tiny"))
        await transcript_of(second, second)
        page = server.metrics.expose().decode()
        assert "silica_draining 0.0" in page
        assert page.count("silica_model_info{") == 2
        assert 'silica_sessions_closed_total{code="finished"} 5.0' in page
        for name in ("tiny", second):
            assert f'silica_capacity_streams{{model="{name}"}} {settings.max_streams}.0' in page

        # Gauges that the models share are added up, whoever spoke last.
        one, two = server.models.pick("tiny"), server.models.pick(second)
        kept, back = two.open(), one.open()
        two.park(kept)
        one.park(back)
        one.resume(back.id)
        assert "silica_sessions_parked 1.0" in server.metrics.expose().decode()
    assert "silica_sessions_parked 0.0" in server.metrics.expose().decode()
