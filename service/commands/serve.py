"""Serve live transcription on one port: websockets, HTTP, the page, metrics, health."""

import argparse
from pathlib import Path

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
    from service.settings import as_toml, load_settings

    settings = load_settings(arguments.config, line=vars(arguments))
    if arguments.print_config:
        print(as_toml(settings), end="")
        return 0

    import asyncio
    import signal

    from service.scheduling.process import begin_fork_server

    # Before our own imports, which take as long as those of the workers: side by side.
    begin_fork_server()
    from service.http.server import Server
    from service.logs import start_logging
    from service.screen import show

    start_logging(settings.log_format, settings.log_level)

    async def serve() -> None:
        # Until the server takes them over: SIGTERM stops the start, SIGHUP means nothing yet.
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        async with Server(settings) as server:
            await server.run_until_stopped(lambda: show(server, as_json=arguments.json))

    factory = None
    if settings.uvloop:
        try:
            import uvloop

            factory = uvloop.new_event_loop
        except ImportError:
            pass
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(serve())
        except asyncio.CancelledError:
            return 143
    return 0
