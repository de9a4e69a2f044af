"""Is it alive, may it have work, what does it measure: /healthz, /readyz, /metrics, and a list of models."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from service.http.app_state import APP_STATE
from service.metrics import CONTENT_TYPE, build_version
from service.protocols.openai import models_list

TICK_S = 0.25
FRESH_S = 5.0


async def healthz(request: web.Request) -> web.Response:
    """The process lives and its loop turns."""
    return web.json_response({"status": "ok", "version": build_version()})


async def readyz(request: web.Request) -> web.Response:
    """May new streams be sent here? Warm, heartbeat fresh, not draining; otherwise 503 and why not."""
    state = request.app[APP_STATE]
    reasons = []
    if state.draining:
        reasons.append("draining: the server is being stopped")
    if not state.models.ready and not state.draining:
        reasons.append("models: not all loaded, warm and alive")
    if state.clock() - state.ticked_s > FRESH_S:
        reasons.append("heartbeat: the event loop has stood still")
    body = {"ready": not reasons, "reasons": reasons, "streams": state.client_streams.count}
    return web.json_response(body, status=503 if reasons else 200)


async def metrics(request: web.Request) -> web.Response:
    """Everything measured, for Prometheus."""
    return web.Response(body=request.app[APP_STATE].metrics.expose(), headers={"Content-Type": CONTENT_TYPE})


async def models(request: web.Request) -> web.Response:
    """What is served here and how full it is."""
    state = request.app[APP_STATE]
    listed = []
    for name, recognizer in state.models.items():
        room = recognizer.capacity()
        listed.append(
            {
                "name": name,
                "default": name == state.models.names[0],
                "device": state.settings.device,
                "ready": recognizer.ready,
                "streams": room.streams,
                "stream_capacity": room.stream_capacity,
                "hop_s": room.hop_s,
                "load": room.load,
            }
        )
    # `object` and `data` are what OpenAI's clients read, `models` is ours.
    named = models_list([name for name, _ in state.models.items()], created=0)
    return web.json_response({**named, "models": listed, "version": build_version()})


async def heartbeat_lifespan(app: web.Application) -> AsyncIterator[None]:
    """A tick that shows how long the loop is ever kept from its work."""
    state = app[APP_STATE]

    async def tick() -> None:
        while True:
            before = state.clock()
            await asyncio.sleep(TICK_S)
            state.ticked_s = state.clock()
            state.metrics.loop_stall_s.observe(max(0.0, state.ticked_s - before - TICK_S))

    task = asyncio.create_task(tick())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def add_health_routes(app: web.Application) -> None:
    """These routes need no key, apart from the list of models."""
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", models)
    app.cleanup_ctx.append(heartbeat_lifespan)
