"""What every handler of one application may reach: settings, metrics, models, keys, open sessions, the clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from service.http.sessions import Sessions
from service.http.sisters import Sisters
from service.keys import KeyRing
from service.metrics import Metrics
from service.models import ServedModels
from service.settings import Settings


@dataclass
class State:
    """One application's belongings."""

    settings: Settings
    metrics: Metrics
    models: ServedModels
    keys: KeyRing
    listening: Sessions
    sisters: Sisters | None = None
    """The other processes behind this port, if there are any."""
    clock: Callable[[], float] = time.monotonic
    draining: bool = False
    ticked_s: float = field(default_factory=time.monotonic)


STATE: web.AppKey[State] = web.AppKey("state", State)
