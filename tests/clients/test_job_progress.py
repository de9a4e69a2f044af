"""`silica transcribe --jobs` shows each job once, however often it is asked about, and rides out a restart."""

import argparse

from service.clients import jobs as jobs_client
from service.clients import transcribe
from service.clients.jobs import JobsClient
from service.errors import ErrorCode, ServiceError


class Bar:
    """Keeps what was added and said."""

    def __init__(self):
        self.added = []
        self.said = []
        self.console = self

    def print(self, text, **how):
        self.said.append(text)

    def add_task(self, description, total):
        self.added.append(description.strip())
        return len(self.added)

    def update(self, task, **more):
        pass

    def remove_task(self, task):
        pass


ASKED = argparse.Namespace(server="http://host", key=None, model=None, hotword=[])


async def test_a_job_that_runs_for_long_has_one_bar(monkeypatch, tmp_path):
    file = tmp_path / "talk.wav"
    file.write_bytes(b"sound")
    states = iter([*["running"] * 5, "failed"])

    async def add(client, path, fields):
        return {"id": "job_1", "status": "queued"}

    async def show(client, id):
        return {"id": id, "status": next(states), "progress": {"share": 0.5}, "error": None}

    monkeypatch.setattr(JobsClient, "add", add)
    monkeypatch.setattr(JobsClient, "show", show)
    monkeypatch.setattr(transcribe, "WATCH_S", 0.0)
    bar, taken = Bar(), []
    await transcribe.transcribe_as_jobs([str(file)], ASKED, bar, taken.append)
    assert bar.added == ["1 jobs", "talk.wav"]
    assert len(taken) == 1


async def test_a_server_that_is_started_again_is_waited_for(monkeypatch, tmp_path):
    file = tmp_path / "talk.wav"
    file.write_bytes(b"sound")
    states = iter(["running", None, None, "failed"])

    async def add(client, path, fields):
        return {"id": "job_1", "status": "queued"}

    async def show(client, id):
        if (state := next(states)) is None:
            raise ServiceError(ErrorCode.NETWORK, "Nobody answers.")
        return {"id": id, "status": state, "progress": {"share": 0.5}, "error": None}

    monkeypatch.setattr(JobsClient, "add", add)
    monkeypatch.setattr(JobsClient, "show", show)
    monkeypatch.setattr(transcribe, "WATCH_S", 0.0)
    monkeypatch.setattr(jobs_client, "RECONNECT_S", 0.0)
    bar, taken = Bar(), []
    await transcribe.transcribe_as_jobs([str(file)], ASKED, bar, taken.append)
    assert bar.said == ["silica: Nobody answers. The jobs wait there."]
    assert [transcript.error for transcript in taken] == [f"{file}: The job was cancelled."]
