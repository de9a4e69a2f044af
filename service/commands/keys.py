"""Create, list and revoke API keys. A server with keys accepts only clients that send one."""

import argparse
from pathlib import Path

HELP = "create, list and revoke API keys"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands add, list and revoke."""
    actions = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
    add = actions.add_parser("add", help="create a key and print it; it is shown only once")
    add.add_argument("name", metavar="NAME", help="name of the client or user")
    add.add_argument(
        "--max-streams", type=int, metavar="N", help="maximum concurrent streams (default: no limit)"
    )
    add.add_argument(
        "--minutes-per-day",
        type=float,
        metavar="N",
        help="maximum minutes of audio per day, UTC (default: no limit)",
    )
    add.add_argument("--admin", action="store_true", help="allow administration, such as reloading models")
    listing = actions.add_parser(
        "list", help="list the keys with their limits and usage, without the secrets"
    )
    revoke = actions.add_parser(
        "revoke", help="delete a key; running servers close its streams within seconds"
    )
    revoke.add_argument("name", metavar="NAME", help="name or id of the key")
    for action in (add, listing, revoke):
        action.add_argument(
            "--file", type=Path, metavar="FILE", help="file of keys (default: the setting keys_file)"
        )
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Change or list the keys file."""
    import json
    from dataclasses import asdict

    from service.auth.keys import add_key, default_keys_file, read_keys, revoke_key
    from service.auth.usage import Usage, usage_file
    from service.settings import load_settings

    file: Path = arguments.file or load_settings().keys_file or default_keys_file()
    if arguments.action == "add":
        key, secret = add_key(
            file,
            arguments.name,
            max_streams=arguments.max_streams,
            minutes_per_day=arguments.minutes_per_day,
            admin=arguments.admin,
        )
        if arguments.json:
            print(json.dumps({"id": key.id, "name": key.name, "key": secret, "file": str(file)}))
        else:
            print(f"{secret}\n\nThe key is shown only once. Its hash is in {file}.")
        return 0
    if arguments.action == "revoke":
        revoked = revoke_key(file, arguments.name)
        if arguments.json:
            print(json.dumps({"id": revoked.id, "name": revoked.name}))
        else:
            print(f"revoked {revoked.name}")
            if not read_keys(file):
                print(
                    "This was the last key: servers that use this file now reject every client. Create another key "
                    f"with `silica keys add NAME`, or delete {file} and restart the servers: without keys they listen "
                    "on loopback only."
                )
        return 0
    used = Usage(usage_file(file)) if usage_file(file).exists() else None
    keys = [
        {name: value for name, value in asdict(key).items() if name != "hash"}
        | {"minutes_today": round(used.seconds(key.id) / 60, 1) if used else 0.0}
        for key in read_keys(file)
    ]
    if arguments.json:
        print(json.dumps({"file": str(file), "keys": keys}))
        return 0
    print(f"{file}: {len(keys)} key{'' if len(keys) == 1 else 's'}")
    for entry in keys:
        limits = [
            f"{entry['max_streams']} streams" if entry["max_streams"] else "",
            f"{entry['minutes_per_day']:g} min/day" if entry["minutes_per_day"] else "",
            "admin" if entry["admin"] else "",
            f"{entry['minutes_today']:g} min today" if entry["minutes_today"] else "",
        ]
        print(f"  {entry['id']}  {entry['name']:<24} {entry['created']}  {', '.join(filter(None, limits))}")
    return 0
