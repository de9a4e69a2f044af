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
from lm.search.hotwords import Hotword
from service.audio.decoder_pool import AudioDecoderPool
from service.audio.resample import Samples
from service.errors import ErrorCode, ServiceError
from service.jobs.job import Job
from service.jobs.recordings import AudioFormat, ReadProgress, audio_end_s, decode_file, transcribe
from service.jobs.store import RETRY_DELAY_S, UPLOAD_S, JobStore
from service.logs import log_event
from service.recognizer import Recognizer, StreamSettings
from service.session.events import Closed, Event, Final, Progress

MAX_ATTEMPTS = 5
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
        pick: Callable[[str | None], Recognizer],
        audio_decoders: AudioDecoderPool,
        base: StreamSettings,
        charge: Callable[[str, float], None],
        settings: RunnerSettings = RunnerSettings(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`charge` is told whose sound was heard and how many seconds more."""
        self.store = store
        self.pick = pick
        self.audio_decoders = audio_decoders
        self.base = base
        self.charge = charge
        self.settings = settings
        self.clock = clock
        self.name = secrets.token_hex(8)
        self._job_added = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with whatever waits."""
        self._tasks = [asyncio.create_task(run_forever(self._next)) for _ in range(self.settings.concurrency)]
        self._tasks.append(asyncio.create_task(run_forever(self._sweep)))

    def wake(self) -> None:
        """There is a new job."""
        self._job_added.set()

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
        self._job_added.clear()
        now = self.clock()
        job = await asyncio.to_thread(self.store.claim, self.name, now, self.settings.lease_s)
        if job is not None:
            await self._run(job)
            return
        # Another process may have died with a job in hand: look again when its lease can have ended.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.lease_s):
                await self._job_added.wait()

    async def _run(self, job: Job) -> None:
        status, length_s, error = "done", None, None
        try:
            if job.attempts > MAX_ATTEMPTS:
                raise ServiceError(
                    ErrorCode.JOB, f"Hearing this file broke off {MAX_ATTEMPTS} times.", "Is the file sound?"
                )
            length_s = await self._transcribe(job)
            if length_s is None:
                return  # cancelled, or taken over
        except ServiceError as known:
            if known.code in NO_ROOM:
                await self._requeue(job, known)
                return
            status, error = "failed", {"code": known.code, "message": known.message, "advice": known.advice}
        except Exception:
            logging.getLogger("silica").exception("job failed", extra={"fields": {"job": job.id}})
            status, error = (
                "failed",
                {"code": ErrorCode.INTERNAL, "message": "Something went wrong here.", "advice": ""},
            )
        ending = (job.id, self.name, status, self.clock(), length_s, error)
        if await asyncio.to_thread(self.store.end, *ending):
            log_event(logging.INFO, "job ended", job=job.id, status=status)

    async def _requeue(self, job: Job, reason: ServiceError) -> None:
        """No room now: the job waits, and so does this worker."""
        if await asyncio.to_thread(self.store.release, self.name, job.id):
            log_event(logging.INFO, "job waits", job=job.id, reason=reason.code)
            await asyncio.sleep(reason.retry_after_s or 5.0)

    async def _transcribe(self, job: Job) -> float | None:
        """Hear the rest of a job; its whole length, or None when it is no longer ours."""
        from_s, number = await asyncio.to_thread(self.store.resume_point, job.id)
        path = self.store.file(job.id)
        progress = _JobProgress(job, await asyncio.to_thread(size_of, path), job.processed_s)
        samples = skip_samples(
            decode_file(path, audio_format_of(job), 1, self.audio_decoders, progress.read),
            round(from_s * SAMPLE_RATE),
        )
        events = transcribe(self.pick(job.options.get("model")), self._stream_settings(job), samples)
        transcribing = asyncio.create_task(self._store_events(progress, events, from_s, number))
        renewing = asyncio.create_task(self._renew(progress))
        try:
            # A job that is cancelled is let go of even while nothing is told of it.
            await asyncio.wait({transcribing, renewing}, return_when=asyncio.FIRST_COMPLETED)
            return transcribing.result() if transcribing.done() else None
        finally:
            transcribing.cancel()
            renewing.cancel()
            await asyncio.gather(transcribing, renewing, return_exceptions=True)

    async def _store_events(
        self, progress: _JobProgress, events: AsyncGenerator[Event, None], from_s: float, number: int
    ) -> float | None:
        """Keep and charge what is heard from `from_s` on, its first segment with this number; as `_transcribe`."""
        length_s = from_s
        async with contextlib.aclosing(events) as events:
            async for event in events:
                if not isinstance(event, Final | Progress | Closed):
                    continue
                segment = None
                if isinstance(event, Final):
                    segment, number = (number, shift_final(event, from_s)), number + 1
                elif isinstance(event, Closed):
                    length_s = from_s + event.audio_s
                self._charge(progress, from_s + audio_end_s(event))
                if not await self._advance(progress, segment):
                    return None
        return length_s

    def _charge(self, progress: _JobProgress, processed_s: float) -> None:
        """Charges what is new: not what an earlier attempt had heard already."""
        more_s = processed_s - progress.processed_s
        if more_s > 0:
            progress.processed_s = processed_s
            self.charge(progress.job.owner, more_s)

    async def _advance(self, progress: _JobProgress, segment: tuple[int, Final] | None) -> bool:
        lease_until = self.clock() + self.settings.lease_s
        events = (progress.job.id, self.name, lease_until, progress.processed_s, progress.share, segment)
        if not await asyncio.to_thread(self.store.advance, *events):
            progress.ours = False
        return progress.ours

    async def _renew(self, progress: _JobProgress) -> None:
        """Live streams may keep a job waiting for long: its lease must not end meanwhile. Ends when it is not ours."""
        while progress.ours:
            await asyncio.sleep(self.settings.lease_s / 3)
            # A disk that fails: the hearing itself is told at its next segment.
            with contextlib.suppress(ServiceError):
                await self._advance(progress, None)

    def _stream_settings(self, job: Job) -> StreamSettings:
        words = tuple(Hotword(phrase, weight) for phrase, weight in job.options.get("hotwords", ()))
        return replace(
            self.base,
            hotwords=words,
            priority="batch",
            interim=False,
            faster_than_realtime=True,
            progress_interval_s=PROGRESS_S,
        )

    async def _sweep(self) -> None:
        gone = await asyncio.to_thread(self.store.sweep, self.clock() - self.settings.retention_s)
        if gone:
            log_event(logging.INFO, "old jobs forgotten", jobs=gone)
        await asyncio.to_thread(self.store.sweep_uploads, self.clock() - UPLOAD_S)
        await asyncio.sleep(self.settings.sweep_s)


@dataclass
class _JobProgress:
    """How far one job is."""

    job: Job
    bytes: int
    processed_s: float
    """The farthest that any attempt has come."""
    read: ReadProgress = field(default_factory=ReadProgress)
    ours: bool = True

    @property
    def share(self) -> float:
        """Of the file's bytes: those read, less what is decoded and not yet heard."""
        if not self.read.samples or not self.bytes:
            return 0.0
        return min(1.0, self.read.bytes / self.bytes * self.processed_s * SAMPLE_RATE / self.read.samples)


async def run_forever(turn: Callable[[], Awaitable[None]]) -> None:
    """One turn after the other; what goes wrong in one (a full disk, a locked file) is logged and does not end them."""
    while True:
        try:
            await turn()
        except Exception:
            logging.getLogger("silica").exception("the jobs' work was interrupted and goes on")
            await asyncio.sleep(RETRY_DELAY_S)


def size_of(path: Path) -> int:
    """Bytes of a job's recording; ServiceError "job" when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise ServiceError(ErrorCode.JOB, "The recording is gone from the disk.", "Send it again.") from None


def audio_format_of(job: Job) -> AudioFormat:
    """How the job's file is to be read."""
    return AudioFormat(
        job.options.get("encoding"), job.options.get("sample_rate"), job.options.get("channels")
    )


async def skip_samples(sound: AsyncIterator[Samples], skip: int) -> AsyncIterator[Samples]:
    """The sound without its first samples, which were heard before a restart."""
    async for samples in sound:
        if skip < samples.shape[1]:
            yield samples[:, skip:]
        skip = max(0, skip - samples.shape[1])


def shift_final(final: Final, by_s: float) -> Final:
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
