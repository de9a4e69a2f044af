"""`silica transcribe --jobs` shows each job once, however often it is asked about."""

import argparse

from service.clients import transcribing
from service.clients.jobs import JobsClient


class Bar:
    """Keeps what was added."""

    def __init__(self):
        self.added = []

    def add_task(self, description, total):
        self.added.append(description.strip())
        return len(self.added)

    def update(self, task, **more):
        pass

    def remove_task(self, task):
        pass


async def test_a_job_that_runs_for_long_has_one_bar(monkeypatch, tmp_path):
    file = tmp_path / "talk.wav"
    file.touch()
    states = iter([*["running"] * 5, "failed"])

    async def add(client, path, fields):
        return {"id": "job_1", "status": "queued"}

    async def show(client, id):
        return {"id": id, "status": next(states), "progress": {"share": 0.5}, "error": None}

    monkeypatch.setattr(JobsClient, "add", add)
    monkeypatch.setattr(JobsClient, "show", show)
    monkeypatch.setattr(transcribing, "WATCH_S", 0.0)
    bar, taken = Bar(), []
    asked = argparse.Namespace(server="http://host", key=None, model=None, hotword=[])
    await transcribing.as_jobs([str(file)], asked, bar, taken.append)
    assert bar.added == ["1 jobs", "talk.wav"]
    assert len(taken) == 1
