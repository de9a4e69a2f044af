"""Leave recordings with a server to be heard in the background; list, watch, fetch and cancel them."""

import argparse
import os
from pathlib import Path
from typing import Any

HELP = "leave recordings with a server, watch and fetch them"
FORMATS = ("text", "json", "srt", "vtt", "verbose_json")
WATCH_S = 0.5
ABOUT_THE_FILE = ("audio", "size")
"""Refusals after which the next file may still be welcome."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sub-verbs, each with the server's address."""
    verbs = parser.add_subparsers(dest="job_verb", metavar="WHAT", required=True)
    add = verbs.add_parser("add", help="send files or folders; with --wait, write what they say beside them")
    add.add_argument("paths", nargs="+", metavar="FILE", help="a recording, a folder or a wildcard")
    add.add_argument("--model", help="one of the server's models")
    add.add_argument("--prompt", help="phrases to expect, divided by commas")
    add.add_argument("--webhook", metavar="URL", help="called when each is over")
    add.add_argument("--wait", action="store_true", help="watch them and write the transcripts")
    add.add_argument("--format", choices=FORMATS, default="text", help="of the transcripts (default: text)")
    add.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write transcripts here, not beside the files"
    )
    listed = verbs.add_parser("list", help="your jobs, newest first")
    listed.add_argument("--status", choices=("queued", "running", "done", "failed", "cancelled"))
    show = verbs.add_parser("show", help="the transcript of one job")
    show.add_argument("id")
    show.add_argument("--format", choices=FORMATS, default="text")
    cancel = verbs.add_parser("cancel", help="cancel jobs, or forget those that are over")
    cancel.add_argument("ids", nargs="+", metavar="ID")
    server = os.environ.get("SILICA_SERVER", "http://127.0.0.1:8765")
    for verb in (add, listed, show, cancel):
        verb.add_argument(
            "--server", default=server, metavar="URL", help=f"its address (SILICA_SERVER; here {server})"
        )
        verb.add_argument("--key", default=os.environ.get("SILICA_KEY"), help="API key (SILICA_KEY)")
        verb.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """0: as asked; 1: some jobs failed."""
    import asyncio

    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    import json

    from service.clients.jobs import JobsClient

    async with JobsClient(arguments.server, arguments.key) as client:
        if arguments.job_verb == "add":
            return await _add(client, arguments)
        if arguments.job_verb == "list":
            jobs = await client.list(arguments.status)
            if arguments.json:
                print(json.dumps({"jobs": jobs}))
            elif not jobs:
                print("no jobs")
            for job in () if arguments.json else jobs:
                share = f"{job['progress']['share']:4.0%}"
                print(f"{job['id']}  {job['status']:9}  {share}  {job['name']}")
        elif arguments.job_verb == "show":
            text = await client.transcript(arguments.id, arguments.format)
            print(
                json.dumps({"id": arguments.id, "transcript": text}) + "\n" if arguments.json else text,
                end="",
            )
        else:
            for id in arguments.ids:
                await client.delete(id)
            if arguments.json:
                print(json.dumps({"deleted": arguments.ids}))
    return 0


async def _add(client: Any, arguments: argparse.Namespace) -> int:
    import asyncio
    import json

    from service.commands.transcribe import expand
    from service.errors import ServiceError
    from service.transcripts import refuse_equal_names

    fields = {
        name: getattr(arguments, name) for name in ("model", "prompt", "webhook") if getattr(arguments, name)
    }
    paths = [Path(name) for name in expand(arguments.paths)]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:  # told before anything is sent
        raise ServiceError("file", f"There is no file {missing}.", "Check the name and the folder.")
    if arguments.out is not None:
        refuse_equal_names([str(path) for path in paths], arguments.out)
    sent: list[tuple[Path, dict[str, Any]]] = []
    refused = 0
    with _bar() as bar:

        def away(error: ServiceError) -> None:
            told = f"silica: {error.message} The jobs wait there."
            bar.console.print(told, markup=False, highlight=False, soft_wrap=True)

        for path in paths:
            try:
                sent.append((path, await client.add(path, fields)))
            except ServiceError as error:
                if error.code not in ABOUT_THE_FILE:
                    raise
                refused += 1
                bar.console.print(f"silica: {path}: {error}", markup=False, highlight=False, soft_wrap=True)
                continue
            if not arguments.wait and not arguments.json:
                print(f"{sent[-1][1]['id']}  {path}")
        if arguments.wait:
            tasks = {job["id"]: bar.add_task(path.name, total=1.0) for path, job in sent}
            for index, (path, job) in enumerate(sent):
                while job["status"] in ("queued", "running"):
                    await asyncio.sleep(WATCH_S)
                    job = await client.follow(job["id"], away)
                    bar.update(tasks[job["id"]], completed=job["progress"]["share"])
                sent[index] = (path, job)
                if job["status"] == "done":
                    bar.update(tasks[job["id"]], completed=1.0)
                    text = await client.transcript(job["id"], arguments.format)
                    written(path, arguments.out, arguments.format).write_text(text, encoding="utf-8")
                else:
                    told = (job["error"] or {}).get("message", "it was cancelled")
                    bar.console.print(f"silica: {path}: {told}", markup=False, highlight=False)
    if arguments.json:
        print(json.dumps({"jobs": [{"file": str(path), **job} for path, job in sent]}))
    failed = arguments.wait and any(job["status"] != "done" for _, job in sent)
    return 1 if refused or failed else 0


def written(path: Path, folder: Path | None, form: str) -> Path:
    """Where the transcript of a recording goes."""
    suffix = {"text": ".txt", "verbose_json": ".json"}.get(form, f".{form}")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return (folder or path.parent) / (path.name + suffix)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
