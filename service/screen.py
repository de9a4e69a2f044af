"""The one friendly screen that `silica serve` prints: where it is, what runs, how much it carries."""

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.http.server import Server


def facts(server: "Server") -> dict[str, object]:
    """What a person or a script wants to know about a server that just became ready."""
    room = server.models.default.capacity()
    socket = server.address.replace("http", "ws", 1)
    return {
        "page": f"{server.address}/",
        "listen": f"{socket}/v1/listen",
        "vosk": f"{socket}/vosk",
        "health": f"{server.address}/readyz",
        "metrics": f"{server.address}/metrics",
        "models": list(server.models.names),
        "device": server.settings.device,
        "streams_most": room.streams_most,
        "keys": server.keys.needed,
        "port": server.port,
    }


def show(server: "Server", as_json: bool = False) -> None:
    """Print it."""
    known = facts(server)
    if as_json:
        sys.stdout.write(json.dumps(known) + "\n")
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    keys = "asked for" if known["keys"] else "not asked for (loopback only)"
    if not known["keys"] and server.settings.insecure:
        keys = "not asked for, and open to the network (--insecure)"
    for name, value in (
        ("page", known["page"]),
        ("live", known["listen"]),
        ("vosk", known["vosk"]),
        ("metrics", known["metrics"]),
        ("model", ", ".join(server.models.names)),
        ("device", known["device"]),
        ("capacity", f"about {known['streams_most']} live streams"),
        ("keys", keys),
    ):
        table.add_row(f"[bold]{name}[/bold]", str(value))
    Console().print(Panel(table, title="Silica listens", expand=False, border_style="green"))
