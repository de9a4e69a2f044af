"""Calls a job's webhook when it is over: signed, retried with growing waits, remembered across restarts.

Only hosts that the operator listed are called, and no redirect is followed: an address from a client must not make
the server reach into its own network.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import aiohttp

from service.errors import ErrorCode, ServiceError
from service.jobs.job import Job
from service.jobs.runner import run_forever
from service.jobs.store import JobStore
from service.logs import log_event

RETRY_DELAYS_S = (5.0, 30.0, 120.0, 600.0, 3600.0)
CALL_TIMEOUT_S = 15.0
SIGNATURE_HEADER = "Silica-Signature"


def check_webhook(address: str, hosts: Sequence[str]) -> None:
    """ServiceError "request" unless the address is http(s) and its host (or host:port) is listed."""
    try:
        parts = urlsplit(address)
        named = {
            parts.hostname or "",
            f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}",
        }
    except ValueError:
        raise ServiceError(ErrorCode.REQUEST, f"The webhook {address[:200]!r} is no address.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ServiceError(ErrorCode.REQUEST, "A webhook is an http or https address without a user name.")
    if not named & set(hosts):
        raise ServiceError(
            ErrorCode.REQUEST,
            f"This server may not call {parts.hostname!r}.",
            "Its operator lists the hosts that may be called in the setting `allowed_webhook_hosts`.",
        )


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """`t=MOMENT,v1=HEX`: HMAC-SHA256 of "MOMENT.BODY". Receivers compare it and refuse old moments."""
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


class WebhookCaller:
    """One task that calls what is due."""

    def __init__(
        self,
        store: JobStore,
        hosts: Sequence[str],
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.hosts = hosts
        self.retry_delays_s = retry_delays_s
        self.clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with what was due before a restart."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """What is not told yet is told after the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            await run_forever(lambda: self._next(session))

    async def _next(self, session: aiohttp.ClientSession) -> None:
        now = self.clock()
        claimed = await asyncio.to_thread(self.store.claim_webhook, now, now + 2 * CALL_TIMEOUT_S)
        if claimed is None:
            wait_s = await asyncio.to_thread(self.store.seconds_to_next_webhook, now)
            await asyncio.sleep(min(1.0, wait_s) if wait_s is not None else 1.0)
            return
        job, attempt = claimed
        outcome = await self._call(session, job)
        retry = outcome is not None and attempt <= len(self.retry_delays_s)
        due_at = self.clock() + self.retry_delays_s[attempt - 1] if retry else None
        status = "told" if outcome is None else f"try {attempt}: {outcome}"
        await asyncio.to_thread(self.store.set_webhook_result, job.id, status, due_at)
        log_event(logging.INFO, "webhook called", job=job.id, outcome=status)

    async def _call(self, session: aiohttp.ClientSession, job: Job) -> str | None:
        """None when it was taken (2xx), else what happened."""
        assert job.webhook is not None
        try:
            check_webhook(job.webhook, self.hosts)
        except ServiceError:
            return "the host is no longer listed"
        body = json.dumps({"type": f"job.{job.status}", "job": job.as_json()}).encode()
        header_value = signature(job.webhook_secret or "", int(self.clock()), body)
        headers = {"Content-Type": "application/json", SIGNATURE_HEADER: header_value, "User-Agent": "silica"}
        try:
            async with session.post(
                job.webhook, data=body, headers=headers, allow_redirects=False
            ) as response:
                return None if 200 <= response.status < 300 else f"answered {response.status}"
        except TimeoutError:
            return f"no answer in {CALL_TIMEOUT_S:g} s"
        except aiohttp.ClientError as error:
            return type(error).__name__
