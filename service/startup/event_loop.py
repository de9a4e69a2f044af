"""Selects the event loop."""

import asyncio
from collections.abc import Callable


def loop_factory(uvloop_wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's factory if enabled and installed; None selects asyncio's."""
    if uvloop_wanted:
        try:
            import uvloop
        except ImportError:
            return None
        return uvloop.new_event_loop
    return None
