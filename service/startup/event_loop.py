"""Which event loop serves."""

import asyncio
from collections.abc import Callable


def loop_factory(uvloop_wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is wanted and installed; None: Python's own."""
    if uvloop_wanted:
        try:
            import uvloop
        except ImportError:
            return None
        return uvloop.new_event_loop
    return None
