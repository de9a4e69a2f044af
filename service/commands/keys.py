"""Make, list and revoke the API keys that a server asks for."""

import argparse
from pathlib import Path

HELP = "make, list and revoke API keys"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sub-verbs add, list, revoke."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="make a key; it is shown once")
    add.add_argument("name", help="whose or what for")
    add.add_argument("--max-streams", type=int, help="streams it may have open at once")
    add.add_argument("--minutes-per-day", type=float, help="minutes of audio it may send a day (UTC)")
    add.add_argument("--admin", action="store_true", help="may also reload models")
    revoke = actions.add_parser("revoke", help="take a key out; running servers notice within seconds")
    revoke.add_argument("name", help="name or id")
    listing = actions.add_parser("list", help="show the keys (never the secrets)")
    for action in (add, revoke, listing):
        action.add_argument("--file", type=Path, help="keys file (default: the server's)")
        action.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Change or show the keys file."""
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
            print(f"{secret}\n\nThis is the only time the key is shown. Its hash is in {file}.")
        return 0
    if arguments.action == "revoke":
        revoked = revoke_key(file, arguments.name)
        print(
            json.dumps({"id": revoked.id, "name": revoked.name})
            if arguments.json
            else f"revoked {revoked.name}"
        )
        if not read_keys(file) and not arguments.json:
            print(
                "That was the last key: servers that use this file let nobody in now. Make another with "
                f"`silica keys add NAME`, or remove {file} and start them anew: without keys they "
                "listen on this machine only."
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
