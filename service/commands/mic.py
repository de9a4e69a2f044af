"""Speak into the sound card and read along; finals stay, the open line rewrites itself. Ctrl-C ends in order."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.clients.dictation import Dictation
    from service.clients.files import FileMicrophone
    from service.clients.mic import Microphone
    from service.clients.stream import StreamClient

HELP = "speak into the microphone and read along"
FORMATS = ("txt", "srt", "vtt", "json")
METER_LOW_DB = -60.0
METER_CELLS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, which microphone, what to write."""
    server = os.environ.get("SILICA_SERVER", "ws://127.0.0.1:8765")
    parser.add_argument("--server", default=server, metavar="URL", help=f"(SILICA_SERVER; default {server})")
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
        return _list(arguments.json)
    return asyncio.run(_speak(arguments))


def _list(as_json: bool) -> int:
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
            print("no input device found")
    return 0


async def _speak(arguments: argparse.Namespace) -> int:
    import asyncio
    import contextlib
    import signal
    import sys

    from service.clients.dictation import Dictation, written
    from service.clients.files import FileMicrophone
    from service.clients.mic import Microphone, find_device
    from service.clients.stream import StreamClient

    source: Microphone | FileMicrophone = (
        FileMicrophone(arguments.source) if arguments.source else Microphone(find_device(arguments.device))
    )
    options: dict[str, Any] = {"keyterm": arguments.hotword} if arguments.hotword else {}
    if arguments.model:
        options["model"] = arguments.model
    dictation = Dictation()
    live_text = arguments.output == "txt" and arguments.out is None
    screen = _Screen(dictation, quiet=arguments.quiet, prints=live_text)
    loop = asyncio.get_running_loop()
    async with source as microphone:
        client = StreamClient(
            arguments.server,
            key=arguments.key,
            options=options,
            encoding="linear16",
            sample_rate=microphone.rate,
            on_state=screen.state,
        )
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends at once there
            loop.add_signal_handler(signal.SIGINT, microphone.stop)
        try:
            async with client:
                with screen:
                    sending = asyncio.create_task(_send(microphone, client, screen, arguments.seconds))
                    try:
                        async for message in client:
                            screen.finished(dictation.take(message))
                        screen.finished(dictation.close())
                    finally:
                        microphone.stop()
                        sending.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await sending
        finally:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)
    if not live_text:
        text = written(dictation.lines, arguments.output)
        if arguments.out is not None:
            arguments.out.write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    if source.lost_s:
        print(f"silica: {source.lost_s:.2f} s of sound were lost by this computer", file=sys.stderr)
    if client.reconnections:
        print(
            f"silica: the connection was lost and taken up again {client.reconnections} times",
            file=sys.stderr,
        )
    return 0


async def _send(
    microphone: "Microphone | FileMicrophone",
    client: "StreamClient",
    screen: "_Screen",
    seconds: float | None,
) -> None:
    """Sound to the server until it ends; a session that has ended meanwhile tells why to the reader."""
    from service.errors import ServiceError

    sent_s = 0.0
    try:
        async for block in microphone:
            await client.send(block.pcm)
            sent_s += len(block.pcm) / 2 / microphone.rate
            screen.level(block.level_db, block.peak, sent_s, microphone.lost_s)
            if seconds is not None and sent_s >= seconds:
                microphone.stop()
                break
        await client.finish()
    except ServiceError:
        return


def meter(level_db: float, peak: float) -> str:
    """The level as a bar; `!` where it is clipped."""
    share = max(0.0, min(1.0, (level_db - METER_LOW_DB) / -METER_LOW_DB))
    cells = round(share * METER_CELLS)
    return "█" * cells + "·" * (METER_CELLS - cells) + ("!" if peak >= 0.99 else " ")


class _Screen:
    """The terminal: finished lines scroll up, one line at the bottom lives."""

    def __init__(self, dictation: "Dictation", *, quiet: bool, prints: bool) -> None:
        import sys

        from rich.console import Console
        from rich.live import Live

        self.dictation = dictation
        self.prints = prints
        self.to_terminal = sys.stdout.isatty()
        self.console = Console(stderr=not self.to_terminal)
        shown = not quiet and self.console.is_terminal
        self.live = Live(console=self.console, refresh_per_second=12, transient=True) if shown else None
        self._state = "connecting"
        self._level = (METER_LOW_DB, 0.0, 0.0, 0.0)

    def __enter__(self) -> None:
        if self.live is not None:
            self.live.start()
            self._draw()

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def state(self, state: str) -> None:
        """Connecting, listening, reconnecting, closed."""
        self._state = state
        self._draw()

    def level(self, level_db: float, peak: float, sent_s: float, lost_s: float) -> None:
        """How loud it is and how much was sent."""
        self._level = (level_db, peak, sent_s, lost_s)
        self._draw()

    def finished(self, lines: list[Any]) -> None:
        """Lines that stay."""
        for line in lines:
            if not self.prints:
                continue
            if self.to_terminal:
                self.console.print(line.text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line.text, flush=True)
        self._draw()

    def _draw(self) -> None:
        if self.live is None:
            return
        from rich.text import Text

        level_db, peak, sent_s, lost_s = self._level
        told = Text(no_wrap=False)
        if self._state == "listening":
            told.append(meter(level_db, peak), style="red" if peak >= 0.99 else "green")
            told.append(f" {int(sent_s) // 60}:{int(sent_s) % 60:02} ", style="dim")
        else:
            told.append(f"{self._state} ... ", style="yellow")
        lag_s = self.dictation.lag_s
        if lag_s is not None and lag_s > 2:
            told.append(f"{lag_s:.1f} s behind ", style="yellow")
        if lost_s:
            told.append(f"{lost_s:.2f} s lost ", style="red")
        told.append(self.dictation.open_text, style="italic")
        self.live.update(told)
