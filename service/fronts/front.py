"""A front's process: its own event loop, sockets and streams; the device is the house's."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

from service.scheduling.process import one_thread


def main(channel: socket.socket, settings: Any, board: Any, folder: Path, home: str | None) -> None:
    """Serve until SIGTERM (drain) or until the house is gone (end at once)."""
    one_thread()
    # Ctrl-C reaches the whole group: the house answers it and tells its fronts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if home is not None:
        os.environ["SILICA_HOME"] = home
    from service.event_loop import loop_factory
    from service.logs import start_logging

    start_logging(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=loop_factory(settings.uvloop)) as runner:
        runner.run(serve(channel, settings, board, folder))


async def serve(channel: socket.socket, settings: Any, board: Any, folder: Path) -> None:
    """One front's whole life."""
    from service.errors import ServiceError
    from service.fronts.far import FarHouse
    from service.fronts.link import Link, Nudge, Refused, Renew, Serving
    from service.http.server import Server
    from service.http.sisters import Sisters
    from service.metrics import Metrics
    from service.models import ServedModels

    house = FarHouse(board, settings.device)
    metrics = Metrics()
    models = ServedModels(settings, metrics, board, house.open_device, house.reload)
    tasks: set[asyncio.Task[Any]] = set()

    def take(value: Any) -> None:
        if house.take(value):
            return
        if isinstance(value, Renew):
            task = asyncio.get_running_loop().create_task(models.renew(value.model))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        elif isinstance(value, Nudge):
            sisters.nudged()

    # Without the house there are no words: a new one starts its own fronts.
    link = house.link = Link(take, lambda: os._exit(1))
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    await loop.create_connection(lambda: link, sock=channel)
    sisters = Sisters(board.row, board.rows - 1, folder, house.nudge)
    server = Server(settings, metrics, models, owns_models=True, sisters=sisters)
    loop.call_soon(tick, board)
    try:
        async with server:
            await server.run_until_stopped(lambda: link.tell(Serving()), signals=(signal.SIGTERM,))
    except ServiceError as error:
        link.tell(Refused(0, error.code, error.message, error.advice))
    await asyncio.sleep(0)  # what was told last leaves with this turn of the loop


def tick(board: Any) -> None:
    """Twice a second: what this loop has used of a processor, for the estimate of what fits."""
    import time

    board.put("loop_s", time.thread_time())
    asyncio.get_running_loop().call_later(0.5, tick, board)
