"""What this machine carries: what a second of sound costs, the hop that allows, the streams that allows.

Costs are measured at start, corrected both ways by everything that runs, and kept in a file. No clock, no worker.
"""

import hashlib
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from acoustic.constants import SAMPLE_RATE
from acoustic.files import write_file

TARGET_LOAD = 0.75
"""So much of the measured throughput is promised; the rest is for unevenness and whatever else runs."""
NARROW_LOAD = 0.65
"""A narrower hop is taken again only when it would load the machine less than this."""
CORRECTION = 0.02
"""Weight of one batch in the live correction."""
AVERAGING_S = 300.0
"""So much sound weighs as much as everything that was learned before it."""
LATE = 0.5
"""Windows that wait for longer than this share of the hop are late: something the curve does not know takes time."""
MAX_PRESSURE = 8.0
MIN_STREAMS = 2
EARLY_CUTS_PER_S = 0.4
"""Windows a second of speech that pauses cut short, beside those whose hop fills: people pause, and a final hurries."""
LOOP_BY_SOUND, LOOP_BY_WINDOW = 8.0, 3.5
"""A first guess at the event loop's work: so many times what a bare session takes to take a second of sound in.
Sockets, JSON and pipes are the rest (3.5 ms a second of sound at 100 streams, where the session's part was 0.3 ms)."""
IPC_OVERHEAD = 1.5
"""Several fronts and the house that they are linked to need so many times what one process needs (benchmarks/load.py,
120 streams of `tiny`: 5.6 ms a second of sound instead of 3.8)."""
SUPERVISOR_SHARE = 0.25
"""... and the house so much of that, however many the fronts are."""


@dataclass
class Curve:
    """Seconds a forward takes: a line through measured points, scaled by what is seen live."""

    base_s: float = 0.002
    per_sample_s: float = 2e-7
    scale: float = 1.0

    def forward_s(self, windows: int, samples: int) -> float:
        """Seconds for a batch."""
        return (self.base_s + self.per_sample_s * windows * samples) * self.scale

    def observe(self, windows: int, samples: int, seconds: float) -> None:
        """A batch took so long: the scale follows slowly, within bounds."""
        ratio = seconds / max(1e-9, self.forward_s(windows, samples))
        step = 1 + CORRECTION * (min(10.0, ratio) - 1)
        self.scale = min(20.0, max(0.2, self.scale * step))

    @staticmethod
    def through(points: Sequence[tuple[int, int, float]]) -> "Curve":
        """The least-squares line over (windows, samples, seconds), never negative."""
        sounds = [windows * samples for windows, samples, _ in points]
        seconds = [point[2] for point in points]
        mean_x, mean_y = sum(sounds) / len(sounds), sum(seconds) / len(seconds)
        spread = sum((x - mean_x) ** 2 for x in sounds)
        slope = (
            sum((x - mean_x) * (y - mean_y) for x, y in zip(sounds, seconds, strict=True)) / spread
            if spread
            else 0.0
        )
        slope = max(slope, 1e-10)
        return Curve(max(1e-5, mean_y - slope * mean_x), slope)


@dataclass
class Costs:
    """What a second of one stream's sound costs, in processor seconds."""

    curve: Curve
    decode_s_per_s: float
    """Word search."""
    loop_s_per_s: float
    """Event loops and transport, all together: taking the sound in."""
    loop_s_per_window: float
    """... and each window, with what it brings about."""

    @staticmethod
    def guessed(
        curve: Curve, decode_s_per_s: float, session_s_per_s: float, server_processes: int = 1
    ) -> "Costs":
        """Before any client has come: the engine and the search as measured, event loops from a bare session."""
        loops = session_s_per_s * (IPC_OVERHEAD if server_processes > 1 else 1.0)
        return Costs(curve, decode_s_per_s, LOOP_BY_SOUND * loops, LOOP_BY_WINDOW * loops)

    def loop_s(self, sound_s: float, windows: float) -> float:
        """What so much sound in so many windows costs the event loop."""
        return sound_s * self.loop_s_per_s + windows * self.loop_s_per_window

    def observe(self, processed_s: float, windows: int, decode_s: float, loop_s: float) -> None:
        """So much sound was heard, and cost so much: what is believed follows, upwards as downwards."""
        weight = processed_s / (processed_s + AVERAGING_S)
        self.decode_s_per_s += weight * (min(10.0, decode_s / processed_s) - self.decode_s_per_s)
        # The error is shared out by what may have caused it (normalized least mean squares): hops of different
        # widths tell in time which part is the sound's and which the windows'.
        error = (
            weight
            * (min(processed_s, loop_s) - self.loop_s(processed_s, windows))
            / (processed_s**2 + windows**2)
        )
        self.loop_s_per_s = max(1e-5, self.loop_s_per_s + error * processed_s)
        self.loop_s_per_window = max(1e-5, self.loop_s_per_window + error * windows)


@dataclass
class CapacityModel:
    """Load and room, from the costs and what there is of engine, decoders and processors."""

    costs: Costs
    executors: int
    processors: float
    """Processors that engine, decoders and loops share; infinite where the engine is a device of its own."""
    context_samples: int
    """Left context and look-ahead of a window."""
    hops_s: tuple[float, ...]
    decode_executors: int = 1
    server_processes: int = 1
    """Processes that share the streams; more than one have the device in a house of its own."""
    batch: int = 8
    hop_s: float = field(default=0.0)
    pressure: float = 1.0
    """How much more everything costs than measured, as far as lateness shows it."""

    def __post_init__(self) -> None:
        self.hop_s = self.hop_s or self.hops_s[0]

    def engine_s_per_s(self, hop_s: float) -> float:
        """Engine seconds a second of one stream's sound."""
        windows = windows_per_s(hop_s)
        samples = self.context_samples + round(SAMPLE_RATE / windows)
        return self.costs.curve.forward_s(self.batch, samples) / self.batch * windows

    def load(self, streams: float, hop_s: float) -> float:
        """Share of what the machine can do: the fullest of engine, decoders and processors."""
        engine = streams * self.engine_s_per_s(hop_s)
        decode = streams * self.costs.decode_s_per_s
        loop = streams * self.costs.loop_s(1.0, windows_per_s(hop_s))
        return self.pressure * max(
            engine / self.executors,
            decode / self.decode_executors,
            loop * busiest_loop_share(self.server_processes),
            (engine + decode + loop) / self.processors,
        )

    def stream_capacity(self, others: float = 0.0) -> int:
        """Live streams that fit at the widest hop beside what other models load the machine with."""
        room = max(0.0, TARGET_LOAD - others)
        return max(MIN_STREAMS, int(room / self.load(1.0, self.hops_s[-1])))

    def choose_hop(self, streams: float, others: float = 0.0) -> float:
        """The narrowest hop that the load allows; it widens at once and narrows only with room to spare."""
        for hop_s in self.hops_s:
            limit = TARGET_LOAD if hop_s >= self.hop_s else NARROW_LOAD
            if self.load(streams, hop_s) + others <= limit:
                self.hop_s = hop_s
                return hop_s
        self.hop_s = self.hops_s[-1]
        return self.hop_s

    def observe_wait(self, wait_s: float | None) -> None:
        """Windows waited so long lately (None: there were none): pressure rises quickly and falls slowly."""
        if wait_s is not None and wait_s > LATE * self.hop_s:
            self.pressure = min(MAX_PRESSURE, self.pressure * 1.3)
        else:
            self.pressure = max(1.0, self.pressure * 0.95)


def busiest_loop_share(server_processes: int) -> float:
    """How much of all event loops' work the fullest one does."""
    return (
        1.0 if server_processes == 1 else max(SUPERVISOR_SHARE, (1.0 - SUPERVISOR_SHARE) / server_processes)
    )


def windows_per_s(hop_s: float) -> float:
    """Windows a second of sound."""
    return 1.0 / hop_s + EARLY_CUTS_PER_S


def curve_key(*parts: object) -> str:
    """Names a measurement: the model, how it runs, and on which machine."""
    machine = (platform.machine(), platform.processor(), platform.node(), os.cpu_count())
    return hashlib.sha256(repr((parts, machine)).encode()).hexdigest()[:24]


SAVED_FIELDS = ("base_s", "per_sample_s", "decode_s_per_s", "loop_s_per_s", "loop_s_per_window")


def load_capacity(folder: Path, key: str) -> Costs | None:
    """Kept costs; None when there are none or they cannot be read (they are then measured again)."""
    try:
        saved = json.loads((folder / f"capacity-{key}.json").read_text(encoding="utf-8"))
        base_s, per_sample_s, *rest = (float(saved[name]) for name in SAVED_FIELDS)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = all(math.isfinite(each) and each >= 0 for each in (base_s, per_sample_s, *rest))
    return Costs(Curve(base_s, per_sample_s), *rest) if sound and base_s + per_sample_s > 0 else None


def save_capacity(folder: Path, key: str, costs: Costs) -> None:
    """Keep the costs as they are believed now; a folder that cannot be written only costs measuring again."""
    curve = costs.curve
    engine = (curve.base_s * curve.scale, curve.per_sample_s * curve.scale)
    loop = (costs.loop_s_per_s, costs.loop_s_per_window)
    saved = dict(zip(SAVED_FIELDS, (*engine, costs.decode_s_per_s, *loop), strict=True))
    try:
        write_file(folder / f"capacity-{key}.json", json.dumps(saved))
    except OSError:
        return
