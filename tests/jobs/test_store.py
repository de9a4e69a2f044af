"""A disk that lets the jobs down for a while: nothing half done, told in words, and the work goes on by itself."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from service.errors import ErrorCode, ServiceError
from service.jobs import runner
from service.jobs.job import Job
from service.jobs.store import JobStore
from service.session.events import Alternative, Final, Word


def job(number: int) -> Job:
    return Job(f"job_{number}", "nobody", "queued", time.time(), "talk.wav", 10, "0" * 64)


def full(store: JobStore, pages: int) -> None:
    """SQLite's own limit on the file refuses writes as a full disk does."""
    store._database.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_told_and_changes_nothing(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.add(job(1), None, 10**9)
    assert store.claim("me", 0.0, 30.0) is not None
    words = tuple(Word("word" * 1000, 0.0, 1.0, 0.5) for _ in range(20))
    segment = (0, Final(0, 0.0, 1.0, (Alternative(words),), True))
    full(store, 1)
    with pytest.raises(ServiceError, match="list of jobs cannot be read or written") as refused:
        store.advance("job_1", "me", 60.0, 1.0, 0.5, segment)
    assert refused.value.code == "storage" and refused.value.retry_after_s
    assert store.finals("job_1") == [] and store.find("job_1", "nobody").processed_s == 0.0
    full(store, 10_000)
    assert store.advance("job_1", "me", 60.0, 1.0, 0.5, segment)
    assert len(store.finals("job_1")) == 1
    store.close()


def test_a_runner_lets_go_of_one_job_and_keeps_the_others(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    for number in (1, 2, 3):
        store.add(job(number), None, 10**9)
        assert store.claim("me", 0.0, 30.0) is not None
    assert store.release("me", "job_2") == 1
    found = [store.find(f"job_{number}", "nobody").status for number in (1, 2, 3)]
    assert found == ["running", "queued", "running"]
    assert store.release("me", "job_2") == 0 and store.release("me") == 2
    store.close()


def test_what_belongs_to_nobody_is_swept_and_what_another_process_swept_is_passed_over(
    tmp_path: Path,
) -> None:
    store = JobStore(tmp_path)
    store.add(job(1), None, 10**9)
    for name in ("job_1", "job_2", "job_3"):
        store.file(name).write_bytes(b"sound")
        os.utime(store.file(name), (1000.0, 1000.0))
    gone = store.file("job_4")
    gone.symlink_to(tmp_path / "nowhere")  # listed, and then not there
    assert store.sweep(2000.0) == 0
    assert [path.name for path in store.file("job_1").parent.iterdir() if path != gone] == ["job_1"]
    for name in ("left", "arriving"):
        (store.uploads / name).mkdir()
        (store.uploads / name / "file").write_bytes(b"half of it")
        os.utime(store.uploads / name, (1000.0, 1000.0))
    os.utime(store.uploads / "left" / "file", (1000.0, 1000.0))
    store.sweep_uploads(2000.0)
    assert [path.name for path in store.uploads.iterdir()] == ["arriving"]
    store.close()


async def test_work_goes_on_after_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "RETRY_DELAY_S", 0.0)
    turns = iter(
        [
            ServiceError(ErrorCode.STORAGE, "The disk is full."),
            OSError("gone"),
            None,
            asyncio.CancelledError(),
        ]
    )
    taken = []

    async def turn() -> None:
        trouble = next(turns)
        if trouble is not None:
            raise trouble
        taken.append("a job")

    with pytest.raises(asyncio.CancelledError):
        await runner.run_forever(turn)
    assert taken == ["a job"]
    assert caplog.text.count("the jobs' work was interrupted and goes on") == 2
