"""Resolving a model name with an HTTP server that is still starting and then serves two models."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from service.clients.models import ModelsClient, resolve_model
from service.errors import ServiceError

SERVED = [{"name": "one", "default": True}, {"name": "two", "default": False}]


@pytest.fixture
async def server():
    """Loads one more model at each /readyz request."""
    loaded = []

    async def models(request):
        return web.json_response({"models": loaded})

    async def readyz(request):
        if len(loaded) < len(SERVED):
            loaded.append(SERVED[len(loaded)])
            return web.json_response({"ready": False}, status=503)
        return web.json_response({"ready": True})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.get("/readyz", readyz)])
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/")


async def test_a_starting_server_is_not_an_unknown_model(server):
    async with ModelsClient(server) as client:
        for requested in (None, "two"):
            with pytest.raises(ServiceError) as caught:
                await client.resolve(requested)
            assert caught.value.code == "starting" and caught.value.retry_after_s == 2.0
        assert await client.resolve(None) == "one"
        assert await client.resolve("two") == "two"
        with pytest.raises(ServiceError, match=r"has no model 'unknown'\. It serves one, two") as caught:
            await client.resolve("unknown")
        assert caught.value.code == "model"


async def test_a_starting_server_is_waited_for_with_a_message(server, capsys, monkeypatch):
    monkeypatch.setattr("service.clients.http.MAX_WAIT_S", 0.0)
    assert await resolve_model(server, None, "two") == "two"
    assert capsys.readouterr().err == f"silica: {server} is still loading its models. Waiting.\n"
