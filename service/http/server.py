"""The life of one serving process: bind, warm, serve, reload on SIGHUP, drain on SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Callable

from aiohttp import web

from service.errors import ServiceError
from service.http.app import make_app
from service.http.auth import check_exposed
from service.http.state import STATE
from service.keys import KeyRing, default_keys_file
from service.logs import say
from service.metrics import Metrics
from service.models import ServedModels
from service.settings import Settings


class Server:
    """`async with Server(settings) as server:` serves until the block ends; `run_until_stopped` waits for a signal.

    Several servers may share models that somebody else started (and stops).
    """

    def __init__(
        self, settings: Settings, metrics: Metrics | None = None, models: ServedModels | None = None
    ) -> None:
        keys_file = settings.keys_file or default_keys_file()
        self.keys = KeyRing(keys_file if settings.keys_file or keys_file.exists() else None)
        check_exposed(settings, self.keys.needed)
        self.settings = settings
        self.metrics = metrics if metrics is not None else Metrics()
        self._owns_models = models is None
        self.models = models if models is not None else ServedModels(settings, self.metrics)
        self.app = make_app(settings, self.metrics, self.models, self.keys)
        self.port = settings.port
        self._runner: web.AppRunner | None = None
        self._stopping = asyncio.Event()
        self._stopped = False

    @property
    def scheme(self) -> str:
        """http, or https with a certificate."""
        return "https" if self.settings.tls_certificate else "http"

    @property
    def address(self) -> str:
        """Where this machine's own programs reach it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(
            self.settings.host, self.settings.host
        )
        return f"{self.scheme}://{f'[{host}]' if ':' in host and '[' not in host else host}:{self.port}"

    async def __aenter__(self) -> "Server":
        await self.bind()
        try:
            if self._owns_models:
                await self.models.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(0.0)

    async def bind(self) -> None:
        """Open the port. Health is answered at once; /readyz says no until the models are warm."""
        tls = self._tls()
        self._runner = web.AppRunner(
            self.app, access_log=None, handle_signals=False, shutdown_timeout=5.0, keepalive_timeout=75.0
        )
        try:
            await self._runner.setup()
            site = web.TCPSite(
                self._runner,
                self.settings.host,
                self.settings.port,
                ssl_context=tls,
                backlog=1024,
            )
            await site.start()
        except OSError as error:
            await self._close()
            raise ServiceError(
                "port",
                f"cannot listen on {self.settings.host} port {self.settings.port}: {error.strerror or error}.",
                "Is another server running there? Choose another with --port.",
            ) from None
        except BaseException:
            await self._close()
            raise
        self.port = int(self._runner.addresses[0][1])

    async def run_until_stopped(self, when_ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, then drain. SIGHUP loads the models anew; a second signal ends at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            if when_ready is not None:
                when_ready()
            await self._stopping.wait()
            self._stopping.clear()
            drain = asyncio.create_task(self.stop(self.settings.drain_s))
            hurry = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            if not drain.done():
                drain.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await drain
                await self._close()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def begin_drain(self) -> None:
        """Take in nothing new from now on."""
        self.app[STATE].draining = True
        self.metrics.draining.set(1)

    async def stop(self, drain_s: float) -> None:
        """Drain: nothing new is taken, open streams may finish for so long, then they are finished and delivered."""
        if self._stopped:
            return
        self._stopped = True
        state = self.app[STATE]
        self.begin_drain()
        say(logging.INFO, "draining", streams=state.listening.count, seconds=drain_s)
        if self._owns_models:
            await self.models.stop(drain_s)
        # The last finals are with the sessions now; they still have to reach their sockets.
        await state.listening.delivered(self.settings.send_s)
        await self._close()
        say(logging.INFO, "stopped")

    def _signalled(self) -> None:
        self._stopping.set()

    def _reload(self) -> None:
        async def reload() -> None:
            with contextlib.suppress(Exception):
                await self.models.reload()

        self._reloading = asyncio.get_running_loop().create_task(reload())

    def _tls(self) -> ssl.SSLContext | None:
        if self.settings.tls_certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.settings.tls_certificate, self.settings.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ServiceError(
                "tls",
                f"cannot use the certificate {self.settings.tls_certificate} with its key: {error}.",
                "Both must be PEM files and belong together.",
            ) from None
        return context

    async def _close(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
