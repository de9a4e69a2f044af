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

    from service.settings import as_toml, load_settings
    from service.startup.preflight import unknown_variables

    settings = load_settings(arguments.config, line=vars(arguments))
    for sentence in unknown_variables():
        print(f"silica: {sentence}", file=sys.stderr)
    if arguments.print_config:
        print(as_toml(settings), end="")
        return 0

    import os

    from service.startup.preflight import check, private_folder, raise_file_limit
    from service.startup.startup_banner import starting

    check(settings)
    for sentence in raise_file_limit(settings):
        print(f"silica: {sentence}", file=sys.stderr)
    with private_folder() as folder, starting(settings) as ready:
        if settings.workers > 1:
            # Before prometheus_client is imported, here and in every process that we start.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        return serve(settings, folder, ready, arguments.json)


def serve(settings: "Settings", folder: Path, ready: "Callable[[], None]", as_json: bool) -> int:
    """Start everything, say so, and serve until told to stop."""
    import asyncio
    import signal

    from service.scheduling.process import start_fork_server

    # Before our own imports, which take as long as those of the workers: side by side.
    start_fork_server()
    from service.logs import start_logging
    from service.startup.event_loop import loop_factory
    from service.startup.startup_banner import print_banner

    start_logging(settings.log_format, settings.log_level)

    async def in_one_process() -> None:
        from service.http.server import Server

        async with Server(settings) as server:

            def announce() -> None:
                ready()
                room = server.models.default.capacity().stream_capacity
                print_banner(settings, server.port, room, server.keys.required, as_json)

            await server.run_until_stopped(announce)

    async def with_workers() -> None:
        from service.startup.preflight import open_keys
        from service.workers.supervisor import Supervisor

        async with Supervisor(settings, folder) as supervisor:

            def announce() -> None:
                ready()
                room = supervisor.counters.total(f"most:{settings.model}")
                print_banner(settings, supervisor.port, round(room), open_keys(settings).required, as_json)

            await supervisor.run_until_stopped(announce)

    async def run_server() -> None:
        # Until the server takes them over: SIGTERM stops the start, SIGHUP means nothing yet.
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        await (in_one_process() if settings.workers == 1 else with_workers())

    with asyncio.Runner(loop_factory=loop_factory(settings.uvloop)) as runner:
        try:
            runner.run(run_server())
        except asyncio.CancelledError:
            return 143
    return 0
