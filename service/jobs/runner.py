"""Hears jobs in the background, one after another, behind everything live. Goes on after a crash where a pause was.

Knows no HTTP and no SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from acoustic.constants import SAMPLE_RATE
from lm.hotwords import Hotword
from service.audio.containers import Nursery
from service.audio.resample import Samples
from service.core.events import Closed, Event, Final, Progress
from service.errors import ErrorCode, ServiceError
from service.jobs.job import Job
from service.jobs.store import AGAIN_S, UPLOAD_S, JobStore
from service.logs import say
from service.recordings import ReadSoFar, Sound, decoded, heard, reached_s
from service.streams import Recogniser, StreamSettings

MOST_ATTEMPTS = 5
"""A file that kills its server this often is not tried again."""
PROGRESS_S = 10.0
NO_ROOM = (
    ErrorCode.CAPACITY,
    ErrorCode.DRAINING,
    ErrorCode.STARTING,
    ErrorCode.CONTAINERS,
    ErrorCode.STORAGE,
)
"""After these the job waits and is tried again."""


@dataclass(frozen=True)
class RunnerSettings:
    """How jobs are heard and kept."""

    concurrency: int = 1
    lease_s: float = 30.0
    retention_s: float = 7 * 86400.0
    sweep_s: float = 3600.0


class JobRunner:
    """`start` and `stop` it with the server; `wake` it when there is a new job."""

    def __init__(
        self,
        store: JobStore,
        pick: Callable[[str | None], Recogniser],
        nursery: Nursery,
        base: StreamSettings,
        charge: Callable[[str, float], None],
        settings: RunnerSettings = RunnerSettings(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`charge` is told whose sound was heard and how many seconds more."""
        self.store = store
        self.pick = pick
        self.nursery = nursery
        self.base = base
        self.charge = charge
        self.settings = settings
        self.clock = clock
        self.name = secrets.token_hex(8)
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with whatever waits."""
        self._tasks = [asyncio.create_task(unceasing(self._next)) for _ in range(self.settings.concurrency)]
        self._tasks.append(asyncio.create_task(unceasing(self._sweep)))

    def wake(self) -> None:
        """There is a new job."""
        self._news.set()

    async def stop(self) -> None:
        """Leave what is being heard to the next runner."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        with contextlib.suppress(ServiceError):  # the leases end by themselves
            await asyncio.to_thread(self.store.release, self.name)

    async def _next(self) -> None:
        """Hear one job, or wait for one."""
        self._news.clear()
        now = self.clock()
        job = await asyncio.to_thread(self.store.claim, self.name, now, self.settings.lease_s)
        if job is not None:
            await self._run(job)
            return
        # Another process may have died with a job in hand: look again when its lease can have ended.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.lease_s):
                await self._news.wait()

    async def _run(self, job: Job) -> None:
        status, length_s, error = "done", None, None
        try:
            if job.attempts > MOST_ATTEMPTS:
                raise ServiceError(
                    ErrorCode.JOB, f"Hearing this file broke off {MOST_ATTEMPTS} times.", "Is the file sound?"
                )
            length_s = await self._hear(job)
            if length_s is None:
                return  # cancelled, or taken over
        except ServiceError as known:
            if known.code in NO_ROOM:
                await self._later(job, known)
                return
            status, error = "failed", {"code": known.code, "message": known.message, "advice": known.advice}
        except Exception:
            logging.getLogger("silica").exception("job failed", extra={"facts": {"job": job.id}})
            status, error = (
                "failed",
                {"code": ErrorCode.INTERNAL, "message": "Something went wrong here.", "advice": ""},
            )
        ending = (job.id, self.name, status, self.clock(), length_s, error)
        if await asyncio.to_thread(self.store.end, *ending):
            say(logging.INFO, "job ended", job=job.id, status=status)

    async def _later(self, job: Job, reason: ServiceError) -> None:
        """No room now: the job waits, and so does this worker."""
        if await asyncio.to_thread(self.store.release, self.name, job.id):
            say(logging.INFO, "job waits", job=job.id, reason=reason.code)
            await asyncio.sleep(reason.retry_after_s or 5.0)

    async def _hear(self, job: Job) -> float | None:
        """Hear the rest of a job; its whole length, or None when it is no longer ours."""
        from_s, number = await asyncio.to_thread(self.store.settled, job.id)
        path = self.store.file(job.id)
        hearing = _Hearing(job, await asyncio.to_thread(size_of, path), job.heard_s)
        samples = after(
            decoded(path, sound_of(job), 1, self.nursery, hearing.read), round(from_s * SAMPLE_RATE)
        )
        events = heard(self.pick(job.options.get("model")), self._stream_settings(job), samples)
        listening = asyncio.create_task(self._listen(hearing, events, from_s, number))
        renewing = asyncio.create_task(self._renew(hearing))
        try:
            # A job that is cancelled is let go of even while nothing is told of it.
            await asyncio.wait({listening, renewing}, return_when=asyncio.FIRST_COMPLETED)
            return listening.result() if listening.done() else None
        finally:
            listening.cancel()
            renewing.cancel()
            await asyncio.gather(listening, renewing, return_exceptions=True)

    async def _listen(
        self, hearing: _Hearing, events: AsyncGenerator[Event, None], from_s: float, number: int
    ) -> float | None:
        """Keep and charge what is heard from `from_s` on, its first segment with this number; as `_hear`."""
        length_s = from_s
        async with contextlib.aclosing(events) as told:
            async for event in told:
                if not isinstance(event, Final | Progress | Closed):
                    continue
                segment = None
                if isinstance(event, Final):
                    segment, number = (number, shifted(event, from_s)), number + 1
                elif isinstance(event, Closed):
                    length_s = from_s + event.audio_s
                self._reached(hearing, from_s + reached_s(event))
                if not await self._advance(hearing, segment):
                    return None
        return length_s

    def _reached(self, hearing: _Hearing, heard_s: float) -> None:
        """Charges what is new: not what an earlier attempt had heard already."""
        more_s = heard_s - hearing.heard_s
        if more_s > 0:
            hearing.heard_s = heard_s
            self.charge(hearing.job.owner, more_s)

    async def _advance(self, hearing: _Hearing, segment: tuple[int, Final] | None) -> bool:
        lease_until = self.clock() + self.settings.lease_s
        told = (hearing.job.id, self.name, lease_until, hearing.heard_s, hearing.share, segment)
        if not await asyncio.to_thread(self.store.advance, *told):
            hearing.ours = False
        return hearing.ours

    async def _renew(self, hearing: _Hearing) -> None:
        """Live streams may keep a job waiting for long: its lease must not end meanwhile. Ends when it is not ours."""
        while hearing.ours:
            await asyncio.sleep(self.settings.lease_s / 3)
            # A disk that fails: the hearing itself is told at its next segment.
            with contextlib.suppress(ServiceError):
                await self._advance(hearing, None)

    def _stream_settings(self, job: Job) -> StreamSettings:
        words = tuple(Hotword(phrase, weight) for phrase, weight in job.options.get("hotwords", ()))
        return replace(
            self.base,
            hotwords=words,
            priority="batch",
            interim=False,
            declared_file=True,
            progress_every_s=PROGRESS_S,
        )

    async def _sweep(self) -> None:
        gone = await asyncio.to_thread(self.store.sweep, self.clock() - self.settings.retention_s)
        if gone:
            say(logging.INFO, "old jobs forgotten", jobs=gone)
        await asyncio.to_thread(self.store.sweep_uploads, self.clock() - UPLOAD_S)
        await asyncio.sleep(self.settings.sweep_s)


@dataclass
class _Hearing:
    """How far one job is."""

    job: Job
    bytes: int
    heard_s: float
    """The farthest that any attempt has come."""
    read: ReadSoFar = field(default_factory=ReadSoFar)
    ours: bool = True

    @property
    def share(self) -> float:
        """Of the file's bytes: those read, less what is decoded and not yet heard."""
        if not self.read.samples or not self.bytes:
            return 0.0
        return min(1.0, self.read.bytes / self.bytes * self.heard_s * SAMPLE_RATE / self.read.samples)


async def unceasing(turn: Callable[[], Awaitable[None]]) -> None:
    """One turn after the other; what goes wrong in one (a full disk, a locked file) is logged and does not end them."""
    while True:
        try:
            await turn()
        except Exception:
            logging.getLogger("silica").exception("the jobs' work was interrupted and goes on")
            await asyncio.sleep(AGAIN_S)


def size_of(path: Path) -> int:
    """Bytes of a job's recording; ServiceError "job" when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise ServiceError(ErrorCode.JOB, "The recording is gone from the disk.", "Send it again.") from None


def sound_of(job: Job) -> Sound:
    """How the job's file is to be read."""
    return Sound(job.options.get("encoding"), job.options.get("sample_rate"), job.options.get("channels"))


async def after(sound: AsyncIterator[Samples], skip: int) -> AsyncIterator[Samples]:
    """The sound without its first samples, which were heard before a restart."""
    async for samples in sound:
        if skip < samples.shape[1]:
            yield samples[:, skip:]
        skip = max(0, skip - samples.shape[1])


def shifted(final: Final, by_s: float) -> Final:
    """A final of the rest of a file, in the time of the whole file."""
    if not by_s:
        return final
    alternatives = tuple(
        replace(
            one,
            words=tuple(replace(w, start_s=w.start_s + by_s, end_s=w.end_s + by_s) for w in one.words),
        )
        for one in final.alternatives
    )
    return replace(final, start_s=final.start_s + by_s, end_s=final.end_s + by_s, alternatives=alternatives)
