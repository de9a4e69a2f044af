"""Leave recordings with a server to be heard in the background; list, watch, fetch and cancel them."""

import argparse
import os
from pathlib import Path
from typing import Any

HELP = "leave recordings with a server, watch and fetch them"
FORMATS = ("text", "json", "srt", "vtt", "verbose_json")
PER_FILE_ERRORS = ("audio", "size")
"""Refusals after which the next file may still be welcome."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sub-verbs, each with the server's address."""
    commands = parser.add_subparsers(dest="job_verb", metavar="WHAT", required=True)
    add = commands.add_parser(
        "add", help="send files or folders, and go (silica transcribe --jobs waits for them)"
    )
    add.add_argument("paths", nargs="+", metavar="FILE", help="a recording, a folder or a wildcard")
    add.add_argument("--model", help="one of the server's models")
    add.add_argument("--prompt", help="phrases to expect, divided by commas")
    add.add_argument("--webhook", metavar="URL", help="called when each is over")
    list_jobs = commands.add_parser("list", help="your jobs, newest first")
    list_jobs.add_argument("--status", choices=("queued", "running", "done", "failed", "cancelled"))
    show = commands.add_parser("show", help="the transcript of one job")
    show.add_argument("id")
    show.add_argument("--format", choices=FORMATS, default="text")
    cancel = commands.add_parser("cancel", help="cancel jobs, or forget those that are over")
    cancel.add_argument("ids", nargs="+", metavar="ID")
    server = os.environ.get("SILICA_SERVER", "http://127.0.0.1:8765")
    for command in (add, list_jobs, show, cancel):
        command.add_argument(
            "--server", default=server, metavar="URL", help=f"its address (SILICA_SERVER; here {server})"
        )
        command.add_argument("--key", default=os.environ.get("SILICA_KEY"), help="API key (SILICA_KEY)")
        command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """0: as asked; 1: some files were refused."""
    import asyncio

    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    import json

    from service.clients.jobs import JobsClient

    async with JobsClient(arguments.server, arguments.key) as client:
        if arguments.job_command == "add":
            return await _add(client, arguments)
        if arguments.job_command == "list":
            jobs = await client.list(arguments.status)
            if arguments.json:
                print(json.dumps({"jobs": jobs}))
            elif not jobs:
                print("no jobs")
            for job in () if arguments.json else jobs:
                share = f"{job['progress']['share']:4.0%}"
                print(f"{job['id']}  {job['status']:9}  {share}  {job['name']}")
        elif arguments.job_command == "show":
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
    import json
    import sys

    from service.commands.transcribe import expand
    from service.errors import ErrorCode, ServiceError

    fields = {
        name: getattr(arguments, name) for name in ("model", "prompt", "webhook") if getattr(arguments, name)
    }
    paths = [Path(name) for name in expand(arguments.paths)]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:  # told before anything is sent
        raise ServiceError(ErrorCode.FILE, f"There is no file {missing}.", "Check the name and the folder.")
    sent: list[dict[str, Any]] = []
    for path in paths:
        try:
            job = await client.add(path, fields)
        except ServiceError as error:
            if error.code not in PER_FILE_ERRORS:
                raise
            print(f"silica: {path}: {error}", file=sys.stderr)
            continue
        sent.append({"file": str(path), **job})
        if not arguments.json:
            print(f"{job['id']}  {path}", flush=True)
    if arguments.json:
        print(json.dumps({"jobs": sent}))
    return 0 if len(sent) == len(paths) else 1
