"""Speak into the sound card and read along; finals stay, the open line rewrites itself. Ctrl-C ends in order."""

import argparse
import os
from pathlib import Path
from typing import Any

HELP = "speak into the microphone and read along"
FORMATS = ("txt", "srt", "vtt", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, which microphone, what to write."""
    server = os.environ.get("SILICA_SERVER", "ws://127.0.0.1:8765")
    parser.add_argument(
        "--server", default=server, metavar="URL", help=f"its address (SILICA_SERVER; here {server})"
    )
    parser.add_argument(
        "--key",
        default=os.environ.get("SILICA_KEY"),
        help="API key (SILICA_KEY; better there than on the line)",
    )
    parser.add_argument("--list", action="store_true", help="list the input devices and stop")
    parser.add_argument("--device", metavar="NAME", help="input device: number, name, or part of its name")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="a sound file instead, in real time"
    )
    parser.add_argument("--model", help="one of the server's models")
    parser.add_argument(
        "--hotword", action="append", default=[], metavar="PHRASE[:WEIGHT]", help="expect this phrase"
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="stop by itself after so long")
    parser.add_argument(
        "--output", choices=FORMATS, default="txt", help="what to write (default: txt, as it settles)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write there instead of to the standard output"
    )
    parser.add_argument("--quiet", action="store_true", help="no live line")
    parser.add_argument("--json", action="store_true", help="with --list: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0: heard to the end."""
    import asyncio

    if arguments.list:
        return _list_devices(arguments.json)
    return asyncio.run(_transcribe(arguments))


def _list_devices(as_json: bool) -> int:
    import json
    from dataclasses import asdict

    from service.clients.mic import devices

    found = devices()
    if as_json:
        print(json.dumps({"devices": [asdict(device) for device in found]}))
    else:
        for device in found:
            mark = "*" if device.default else " "
            print(f"{mark} {device.number:3}  {device.name}  ({device.driver}, {device.rate} Hz)")
        if not found:
            print(
                "no input device found: plug one in, or check that this user may use the sound card (group audio)"
            )
    return 0


async def _transcribe(arguments: argparse.Namespace) -> int:
    import asyncio
    import contextlib
    import signal
    import sys

    from service.audio.files import AudioFile
    from service.clients.file_microphone import FileMicrophone
    from service.clients.mic import Microphone, find_device
    from service.clients.models import resolve_model
    from service.clients.stream import StreamClient
    from service.clients.terminal_display import TerminalDisplay, run_session
    from service.clients.transcript_builder import TranscriptBuilder, format_lines
    from service.errors import ServiceError

    source: Microphone | FileMicrophone = (
        FileMicrophone(AudioFile(arguments.source))
        if arguments.source
        else Microphone(find_device(arguments.device))
    )
    options: dict[str, Any] = {"keyterm": arguments.hotword} if arguments.hotword else {}
    if arguments.model:
        options["model"] = await resolve_model(arguments.server, arguments.key, arguments.model)
    transcript = TranscriptBuilder()
    live_text = arguments.output == "txt" and arguments.out is None
    display = TerminalDisplay(transcript, quiet=arguments.quiet, print_text=live_text)
    loop = asyncio.get_running_loop()
    async with source as microphone:
        client = StreamClient(
            arguments.server,
            key=arguments.key,
            options=options,
            encoding="linear16",
            sample_rate=microphone.rate,
            on_state=display.state,
        )
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends at once there
            loop.add_signal_handler(signal.SIGINT, microphone.stop)
        failure: ServiceError | None = None
        try:
            await run_session(microphone, client, display, arguments.seconds)
        except ServiceError as error:
            failure = error
            display.add_lines(transcript.close())  # what was understood until then is kept
        finally:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)
    if not live_text and (transcript.lines or failure is None):
        text = format_lines(transcript.lines, arguments.output)
        if arguments.out is not None:
            arguments.out.write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    if source.lost_s:
        print(f"silica: {source.lost_s:.2f} s of sound were lost by this computer", file=sys.stderr)
    if client.reconnections:
        times = "once" if client.reconnections == 1 else f"{client.reconnections} times"
        print(f"silica: the connection was lost {times} and came back", file=sys.stderr)
    if failure is not None:
        raise failure
    return 0
