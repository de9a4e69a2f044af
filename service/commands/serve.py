"""Serve live transcription on one port: websockets, HTTP, the page, metrics, health."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.settings import Settings

HELP = "serve live transcription on one port"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option a setting, plus where the settings come from."""
    from service.settings import add_settings_arguments

    parser.add_argument("--config", type=Path, help="TOML file of settings (below SILICA_* and this line)")
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force as TOML and stop"
    )
    parser.add_argument("--json", action="store_true", help="print the start-up facts as one JSON object")
    add_settings_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    import sys

    from service.preflight import unknown_variables
    from service.settings import as_toml, load_settings

    settings = load_settings(arguments.config, line=vars(arguments))
    for sentence in unknown_variables():
        print(f"silica: {sentence}", file=sys.stderr)
    if arguments.print_config:
        print(as_toml(settings), end="")
        return 0

    import os

    from service.preflight import allow_files, check, own_folder
    from service.screen import starting

    check(settings)
    for sentence in allow_files(settings):
        print(f"silica: {sentence}", file=sys.stderr)
    with own_folder() as folder, starting(settings) as ready:
        if settings.workers > 1:
            # Before prometheus_client is imported, here and in every process that we start.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        return serve(settings, folder, ready, arguments.json)


def serve(settings: "Settings", folder: Path, ready: "Callable[[], None]", as_json: bool) -> int:
    """Start everything, say so, and serve until told to stop."""
    import asyncio
    import signal

    from service.scheduling.process import begin_fork_server

    # Before our own imports, which take as long as those of the workers: side by side.
    begin_fork_server()
    from service.event_loop import loop_factory
    from service.logs import start_logging
    from service.screen import show

    start_logging(settings.log_format, settings.log_level)

    async def alone() -> None:
        from service.http.server import Server

        async with Server(settings) as server:

            def tell() -> None:
                ready()
                room = server.models.default.capacity().streams_most
                show(settings, server.port, room, server.keys.needed, as_json)

            await server.run_until_stopped(tell)

    async def as_house() -> None:
        from service.fronts.house import House
        from service.preflight import open_keys

        async with House(settings, folder) as house:

            def tell() -> None:
                ready()
                room = house.board.total(f"most:{settings.model}")
                show(settings, house.port, round(room), open_keys(settings).needed, as_json)

            await house.run_until_stopped(tell)

    async def life() -> None:
        # Until the server takes them over: SIGTERM stops the start, SIGHUP means nothing yet.
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        await (alone() if settings.workers == 1 else as_house())

    with asyncio.Runner(loop_factory=loop_factory(settings.uvloop)) as runner:
        try:
            runner.run(life())
        except asyncio.CancelledError:
            return 143
    return 0
