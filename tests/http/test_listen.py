"""/v1/listen over real sockets with the real engine: results, additions, warnings, limits, closes."""

import asyncio
import hashlib
import io
import json

import av
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from service.http.app_state import APP_STATE
from service.http.websocket_connection import CATCH_UP

pytestmark = pytest.mark.asyncio(loop_scope="session")
RAW = "encoding=linear16&sample_rate=16000"


async def test_a_plain_client_gets_partials_finals_and_metadata(server, open_client, speech, pieces):
    async with open_client(server, f"{RAW}&interim_results=true") as client:
        await client.send(*pieces(speech, 3200), {"type": "CloseStream"})
        assert await client.to_the_end() == (1000, "")
    kinds = [message["type"] for message in client.received]
    assert set(kinds) == {"Results", "Metadata"}, "types that Deepgram does not have must be asked for"
    assert kinds[-1] == "Metadata" and client.received[-1]["duration"] == pytest.approx(2.0, abs=0.001)
    assert client.finals and client.finals[0]
    assert any(not message["is_final"] for message in client.of("Results"))
    numbers = [message["sequence"] for message in client.received]
    assert numbers == sorted(set(numbers))


async def test_how_sound_is_cut_changes_no_word(server, open_client, speech, pieces):
    heard = []
    for size in (1601, 7, len(speech)):
        async with open_client(server, f"{RAW}&source=file") as client:
            await client.send(*pieces(speech[:24000], size))
            await client.send({"type": "CloseStream"})
            await client.to_the_end()
        heard.append([(m["start"], m["channel"]["alternatives"][0]["words"]) for m in client.of("Results")])
    assert heard[0] == heard[1] == heard[2]


async def test_no_partials_unless_asked_for(server, open_client, speech):
    async with open_client(server) as client:
        await client.send(speech, {"type": "CloseStream"})
        await client.to_the_end()
    assert all(message["is_final"] for message in client.of("Results"))


async def test_finalize_is_answered_even_when_empty(server, open_client, speech):
    async with open_client(server) as client:
        await client.send({"type": "Finalize"})
        empty = await client.until("Results", from_finalize=True)
        assert empty["channel"]["alternatives"][0]["transcript"] == ""
        await client.send(speech, {"type": "Finalize"})
        full = await client.until("Results", from_finalize=True)
        assert full["start"] + full["duration"] == pytest.approx(2.0, abs=0.001)
        await client.send({"type": "CloseStream"})
        await client.to_the_end()


async def test_extensions_bring_started_marker_and_heartbeat(server, open_client, speech, pieces):
    async with open_client(server, f"{RAW}&extensions=true") as client:
        started = await client.until("Started")
        assert started["resumed"] is False and started["received_bytes"] == 0
        await client.send(*pieces(speech, 3200), {"type": "Marker", "name": "here"}, {"type": "CloseStream"})
        assert await client.to_the_end() == (1000, "")
    assert [message["name"] for message in client.of("Marker")] == ["here"]
    beats = client.of("Heartbeat")
    assert beats and beats[-1]["received_bytes"] == len(speech)
    assert beats[-1]["received_samples"] == len(speech) // 2


async def test_channels_are_transcribed_apart(server, open_client, speech):
    mono = np.frombuffer(speech, "<i2")
    stereo = np.stack([mono, np.zeros_like(mono)], axis=1).tobytes()
    async with open_client(server, f"{RAW}&channels=2&multichannel=true") as client:
        await client.send(stereo, {"type": "CloseStream"})
        await client.to_the_end()
    assert {tuple(message["channel_index"]) for message in client.of("Results")} == {(0, 2), (1, 2)}
    assert client.received[-1]["channels"] == 2


async def test_speech_and_utterance_events_when_asked_for(server, open_client, speech, pieces):
    query = f"{RAW}&vad_events=true&utterance_end_ms=200&interim_results=true"
    async with open_client(server, query) as client:
        await client.send(*pieces(speech, 6400), {"type": "CloseStream"})
        await client.to_the_end()
    assert [message["channel"] for message in client.of("SpeechStarted")][:1] == [[0, 1]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("encoding=speex", "encoding=speex is not supported"),
        ("sample_rate=96000", "from 8000 to 48000"),
        ("channels=9", "from 1 to 8"),
        ("redact=pci", "`redact` is not supported"),
        ("keyterm=a:lot", "weight -10 to 10"),
        ("endpointing=soon", "endpointing"),
    ],
)
async def test_bad_queries_are_refused_before_the_upgrade(server, open_client, query, expected):
    with pytest.raises(InvalidStatus) as refused:
        async with open_client(server, query):
            pass
    response = refused.value.response
    body = json.loads(response.body)
    assert response.status_code == 400
    assert expected in body["err_msg"] + body["advice"]
    assert body["request_id"] == response.headers["X-Request-Id"] == response.headers["dg-request-id"]


async def test_text_that_is_no_json_is_answered_with_advice(server, open_client):
    async with open_client(server, f"{RAW}&extensions=true") as client:
        await client.socket.send("UklGRiQAAABXQVZF")
        code, reason = await client.to_the_end()
    assert (code, reason.partition(":")[0]) == (1008, "DATA-0001")
    assert client.received[-1]["type"] == "Error" and "base64" in client.received[-1]["advice"]


async def test_garbage_is_undecodable(server, open_client):
    async with open_client(server, "extensions=true") as client:
        await client.send(b"this is no sound at all, whatever one may think")
        code, reason = await client.to_the_end()
    assert (code, reason.partition(":")[0]) == (1008, "DATA-0000")
    assert client.received[-1]["code"] == "DATA-0000" and "encoding=linear16" in client.received[-1]["advice"]


async def test_a_container_with_garbage_behind_its_head_is_counted_as_a_failed_decoder(server, open_client):
    failures = server.metrics.audio_decoder_failures.labels("undecodable")._value
    before = failures.get()
    async with open_client(server, "extensions=true") as client:
        await client.send(b"fLaC" + bytes(range(256)) * 200, {"type": "CloseStream"})
        code, reason = await client.to_the_end()
    assert (code, reason.partition(":")[0]) == (1008, "DATA-0000")
    assert failures.get() == before + 1 and server.metrics.container_children._value.get() == 0


async def test_an_unmodified_client_never_sees_our_types(server, open_client):
    async with open_client(server, "interim_results=true") as client:
        await client.send(b"this is no sound at all, whatever one may think")
        assert (await client.to_the_end())[0] == 1008
    assert client.received == []


async def test_float_sound_that_is_no_float_is_undecodable(server, open_client):
    async with open_client(server, "encoding=linear32&sample_rate=16000") as client:
        await client.send(b"\xff\xff\xff\xff" * 1000)
        code, reason = await client.to_the_end()
    assert (code, reason.partition(":")[0]) == (1008, "DATA-0000")


async def test_odd_bytes_are_said(server, open_client, speech):
    async with open_client(server) as client:
        await client.send(speech + b"\x01", {"type": "CloseStream"})
        await client.to_the_end()
    warnings = [message["warning"]["code"] for message in client.received if "warning" in message]
    assert warnings == ["odd_bytes"]


async def test_unknown_messages_and_options_are_warned_about_once(server, open_client, speech):
    async with open_client(server, f"{RAW}&diarize=true&colour=blue") as client:
        await client.send({"type": "Dance"}, {"type": "Dance"}, speech, {"type": "CloseStream"})
        await client.to_the_end()
        await asyncio.sleep(0)
    warnings = [message["warning"] for message in client.received if "warning" in message]
    assert warnings[0] == {"code": "option", "message": "`diarize` does nothing here.", "advice": ""}
    assert len(warnings) == len({warning["message"] for warning in warnings})


async def test_silence_on_the_wire_closes_with_net_0001(make_server, open_client):
    async with (
        make_server(idle_timeout_s=1.0) as server,
        open_client(server, f"{RAW}&extensions=true") as client,
    ):
        code, reason = await client.to_the_end()
    assert (code, reason.partition(":")[0]) == (1011, "NET-0001")
    assert client.received[-1]["type"] == "Error" and client.received[-1]["code"] == "NET-0001"


async def test_keep_alive_and_pings_are_life(make_server, open_client):
    async with make_server(idle_timeout_s=1.0) as server, open_client(server, ping_interval=None) as client:
        for turn in range(6):
            await asyncio.sleep(0.4)
            if turn % 2:
                await client.send({"type": "KeepAlive"})
            else:
                await client.socket.ping()
        await client.send({"type": "CloseStream"})
        assert await client.to_the_end() == (1000, "")


async def test_oversized_messages_are_refused_with_advice(make_server, open_client):
    async with make_server(max_message_bytes=4096) as server:
        async with open_client(server, f"{RAW}&extensions=true") as client:
            await client.send(bytes(5000))
            code, reason = await client.to_the_end()
        assert (code, reason.partition(":")[0]) == (1009, "SIZE-0000")
        assert client.received[-1]["code"] == "SIZE-0000"
        async with open_client(server) as client:
            await client.send(bytes(100_000))
            assert (await client.to_the_end())[0] == 1009


async def test_live_sound_far_ahead_is_read_slowly_and_files_are_not(make_server, open_client, speech):
    async with make_server(max_audio_lead_s=1.0) as server:
        throttled_s = server.metrics.throttled_s._value.get
        server.app[APP_STATE].clock = throttled_s  # no time passes but what is waited: hearing takes none
        async with open_client(server, f"{RAW}&source=file") as client:
            await client.send(speech, speech, {"type": "CloseStream"})
            await client.to_the_end()
        assert throttled_s() == 0
        async with open_client(server) as client:
            await client.send(speech, speech, {"type": "CloseStream"})
            await client.to_the_end()
        assert throttled_s() == pytest.approx(1.0 / CATCH_UP)
        assert client.received[-1]["duration"] == pytest.approx(4.0, abs=0.001), "slowed, never dropped"


async def test_a_wrong_declared_rate_is_noticed_and_said(make_server, open_client, speech, pieces):
    """Sound of 48 kHz, sent in real time and declared as 16 kHz: the clock tells."""
    async with make_server(max_audio_lead_s=60.0) as server:
        state = server.app[APP_STATE]
        # Time passes by what has arrived, not by how fast this machine is.
        sessions = state.client_streams._sessions
        state.clock = lambda: sum(each.received_bytes for each in sessions.values()) / 96_000
        async with open_client(server, f"{RAW}&interim_results=true&extensions=true") as client:
            await client.send(*pieces(speech * 8, 9600)[:55], {"type": "CloseStream"})
            await client.to_the_end()
    warnings = [message["warning"] for message in client.received if "warning" in message]
    assert [one["code"] for one in warnings] == ["rate"] and "48000 Hz" in warnings[0]["message"]


def webm(sound: bytes) -> bytes:
    """Opus in WebM, as a browser's MediaRecorder sends it."""
    file = io.BytesIO()
    with av.open(file, "w", format="webm") as target:
        stream = target.add_stream("libopus", rate=48000, layout="mono")
        resampler = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.frombuffer(sound, "<i2")[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        fifo = av.AudioFifo()
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            fifo.write(part)
        while (part := fifo.read(960)) is not None:
            target.mux(stream.encode(part))
        target.mux(stream.encode(None))
    return file.getvalue()


async def test_what_a_media_recorder_sends_is_heard_in_order_with_its_commands(
    server, open_client, speech, pieces
):
    data = webm(speech)
    async with open_client(server, "extensions=true") as client:
        await client.send(*pieces(data, 1000), {"type": "Finalize"})
        final = await client.until("Results", from_finalize=True)
        await client.send({"type": "CloseStream"})
        assert await client.to_the_end() == (1000, "")
    assert final["start"] + final["duration"] == pytest.approx(2.0, abs=0.1)
    assert final["channel"]["alternatives"][0]["transcript"]
    assert client.received[-1]["sha256"] == hashlib.sha256(data).hexdigest()


async def test_our_own_mistakes_end_one_stream_with_1011_and_are_logged(server, open_client, speech, caplog):
    async with open_client(server, f"{RAW}&extensions=true") as client, open_client(server) as other:
        session = (await client.until("Started"))["request_id"]
        state = server.app[APP_STATE]
        state.client_streams._sessions[session].decoder.push = lambda data: 1 / 0
        await client.send(speech)
        code, reason = await client.to_the_end()
        await other.send(speech, {"type": "CloseStream"})
        assert await other.to_the_end() == (1000, "")
    assert (code, reason.partition(":")[0]) == (1011, "INTERNAL")
    assert client.received[-1]["type"] == "Error" and "logged" in client.received[-1]["message"]
    assert any("connection failed" in record.getMessage() for record in caplog.records)


async def test_abrupt_disconnects_leave_nothing_behind(server, open_client, speech):
    client_streams = server.app[APP_STATE].client_streams
    for _ in range(5):
        async with open_client(server) as client:
            await client.send(speech[:9001])
            client.socket.transport.abort()
    async with asyncio.timeout(20):
        await client_streams._idle.wait()
    assert client_streams.count == 0
    room = server.models.default.capacity()
    assert room.streams == 0 and room.parked == 0


async def stop_reading(client, state):
    """Fill both socket buffers for the server, whose own messages are few. Its socket, and what is stuck there."""
    (session,) = state.client_streams._sessions.values()
    socket = session.connection.client.socket
    client.socket.transport.pause_reading()
    stuck: asyncio.Task[None] | None = None
    while stuck is None or stuck in (await asyncio.wait({stuck}, timeout=0.3))[0]:
        stuck = asyncio.create_task(socket.send_str("x" * 65536))
    return socket, stuck


async def test_a_client_that_asks_and_never_reads_is_cut_off(make_server, open_client, caplog):
    """Reader and writer wait for room together: who gives up first must not leave the connection to nobody."""
    async with make_server(send_timeout_s=1.0) as server:
        async with open_client(server, f"{RAW}&extensions=true", close_timeout=0.1) as client:
            state = server.app[APP_STATE]
            socket, stuck = await stop_reading(client, state)
            await client.send(*[{"type": "Configure"}] * 100)
            await state.client_streams._idle.wait()
            transport = socket._req.transport
            assert transport is None or transport.is_closing()
            await asyncio.gather(stuck, return_exceptions=True)
            client.socket.transport.abort()
        assert state.client_streams.count == 0
        assert server.metrics.sockets_closed.labels("deepgram", "1008")._value.get() == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_who_is_refused_and_has_left_is_not_waited_for(make_server, open_client):
    async with make_server() as server:
        for _ in range(3):
            async with open_client(server, f"{RAW}&extensions=true") as client:
                await client.until("Started")
                await client.socket.send("this is not JSON")
                client.socket.transport.close()
        client_streams = server.app[APP_STATE].client_streams
        async with asyncio.timeout(20):
            await client_streams._idle.wait()
        assert client_streams.count == 0


async def test_who_is_gone_while_being_answered_may_come_back(server, open_client):
    async with open_client(server, f"{RAW}&extensions=true") as client:
        session = (await client.until("Started"))["request_id"]
        connection = server.app[APP_STATE].client_streams._sessions[session].connection

        async def gone(_):
            client.socket.transport.abort()
            raise ConnectionResetError

        connection.client.socket.pong = gone
        await client.socket.ping()
        await connection._ended.wait()
    async with open_client(server, f"extensions=true&resume={session}&after=0") as client:
        assert (await client.until("Started"))["resumed"] is True
        await client.send({"type": "CloseStream"})
        assert await client.to_the_end() == (1000, "")


async def test_a_client_that_never_reads_is_closed_and_harms_nobody(make_server, open_client, speech, pieces):
    async with make_server(send_timeout_s=1.0) as server:
        async with open_client(
            server, f"{RAW}&interim_results=true&extensions=true", close_timeout=0.1
        ) as client:
            state = server.app[APP_STATE]
            _, stuck = await stop_reading(client, state)
            marks = [{"type": "Marker", "name": f"{number:0200d}"} for number in range(40)]
            await client.send(speech, {"type": "Finalize"}, *marks)
            async with asyncio.timeout(20):
                await state.client_streams._idle.wait()
            assert state.client_streams.count == 0
            await asyncio.gather(stuck, return_exceptions=True)
            client.socket.transport.abort()
        async with open_client(server) as other:
            await other.send(speech, {"type": "CloseStream"})
            assert await other.to_the_end() == (1000, "")
