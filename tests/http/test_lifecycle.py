"""The lifecycle of `silica serve`: start, a stream, SIGHUP, SIGTERM, the last results."""

import asyncio
import json
import os
import signal
import sys

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

RAW = "encoding=linear16&sample_rate=16000&extensions=true"


async def test_from_start_to_drain(tmp_path, speech):
    environment = {**os.environ, "SILICA_HOME": str(tmp_path), "SILICA_LOG_FORMAT": "json"}
    line = "--model tiny --language-model none --decoder greedy --port 0 --drain-timeout-s 2 --json"
    line += " --max-streams 4 --overcommit --engine-workers 1 --decode-workers 1"
    line += f" --idle-timeout-s 120 --cache-folder {tmp_path}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from service.commands import main; raise SystemExit(main())", "serve"),
        *line.split(),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    logs = asyncio.create_task(process.stderr.read())
    try:
        async with asyncio.timeout(120):
            facts = json.loads(await process.stdout.readline())
            assert facts["models"] == ["tiny"] and facts["stream_capacity"] == 4 and facts["keys"] is False
            async with connect(f"{facts['listen']}?{RAW}", compression=None) as socket:
                await socket.send(speech)
                process.send_signal(signal.SIGHUP)
                await until(facts["metrics"], 'silica_model_reloads_total{outcome="done"} 1.0')
                process.send_signal(signal.SIGTERM)
                await until(facts["metrics"], "silica_draining 1.0")
                with pytest.raises(InvalidStatus) as refused:
                    await connect(facts["listen"])
                assert refused.value.response.status_code == 503
                received = []
                with pytest.raises(ConnectionClosed):
                    while True:
                        received.append(json.loads(await socket.recv()))
                assert (socket.close_code, socket.close_reason[:8]) == (1012, "DRAINING")
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        text = (await logs).decode()
    finals = [one for one in received if one["type"] == "Results" and one["is_final"]]
    assert finals and finals[-1]["start"] + finals[-1]["duration"] == pytest.approx(2.0, abs=0.01)
    assert [one["type"] for one in received[-2:]] == ["Error", "Metadata"]
    words = finals[0]["channel"]["alternatives"][0]["transcript"]
    assert words and words not in text, "no transcript in logs"
    events = [json.loads(record)["event"] for record in text.splitlines() if record.startswith("{")]
    assert {"stream opened", "model reloaded", "draining", "stopped"} <= set(events), text


async def until(address: str, text: str) -> None:
    """Poll the metrics until they contain the text."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(address) as answer:
                if text in await answer.text():
                    return
            await asyncio.sleep(0.1)
