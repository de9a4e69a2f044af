"""Every metric of the service: name, help, labels, buckets. One place; passed in, no globals.

Who sets what stands in the comments: `streams` is the recognizer with its workers, `http` the faces.
"""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

LATENCY_S = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.65, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
WORK_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 5.0)
BATCH = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
REVISION = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Set before prometheus_client is imported: several processes then keep their figures in files of that folder."""
SUM: Literal["livesum"] = "livesum"
MOST: Literal["livemax"] = "livemax"
"""How a gauge of several processes is told: their sum, or the largest of them."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_version() -> str:
    """The version of the installed package."""
    try:
        return version("silica-stt")
    except PackageNotFoundError:
        return "0+unknown"


def forget_process(pid: int) -> None:
    """A process of several is gone: its gauges no longer count, its counters do."""
    if os.environ.get(SHARED):
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


class Metrics:
    """Every metric as an attribute. One object a process (or a test), with its own registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time stamp beside every counter doubles the page and helps nobody
        self.registry = registry if registry is not None else CollectorRegistry()

        # Streams (set by `streams`; each accepted stream is counted open once and closed once).
        self.sessions_open = self._gauge("sessions_open", "Streams being served now.")
        self.sessions_parked = self._gauge(
            "sessions_parked", "Streams whose client vanished and may come back."
        )
        self.sessions = self._counter("sessions", "Streams accepted.")
        self.sessions_closed = self._counter("sessions_closed", "Streams ended, by reason.", ("code",))
        self.sessions_resumed = self._counter("sessions_resumed", "Streams whose client came back in time.")
        # By `http`, instead of a stream: capacity, draining, key, key_streams, key_minutes, origin, request.
        self.sessions_rejected = self._counter(
            "sessions_rejected", "Streams refused, by reason.", ("reason",)
        )

        # Sound (received by `streams` as it is taken in; dropped is what was taken and never heard).
        self.audio_received_s = self._counter("audio_received_seconds", "Sound taken in.")
        self.audio_processed_s = self._counter("audio_processed_seconds", "Sound heard.")
        self.audio_dropped_s = self._counter("audio_dropped_seconds", "Sound taken in and never heard.")
        self.lag_s = self._histogram(
            "lag_seconds", "Sound received but not yet heard, seen at each window.", LATENCY_S
        )

        # Engine and decoders (set by `streams`).
        self.batch_size = self._histogram(
            "batch_size", "Windows that went through the model together.", BATCH
        )
        self.queue_wait_s = self._histogram(
            "queue_wait_seconds", "A ready window waits for its batch.", WORK_S
        )
        self.features_s = self._histogram(
            "features_seconds", "The front end's part of a batch (on a GPU it is not told apart).", WORK_S
        )
        self.forward_s = self._histogram(
            "forward_seconds", "A batch at the backend: features and network.", WORK_S
        )
        self.decode_s = self._histogram(
            "decode_seconds", "Word search over one window's outputs, processor time.", WORK_S
        )
        self.emit_s = self._histogram("emit_seconds", "From hypothesis to events handed to the face.", WORK_S)
        self.hop_s = self._gauge("hop_seconds", "Hop in force.", ("model",), mode=MOST)
        self.load = self._gauge(
            "load_ratio", "Work asked for as a share of what was measured possible.", ("model",), mode=MOST
        )
        self.capacity_streams = self._gauge(
            "capacity_streams",
            "Streams this machine carries with this model, as estimated now.",
            ("model",),
            mode=MOST,
        )
        self.worker_restarts = self._counter("worker_restarts", "Workers replaced, by kind.", ("kind",))
        self.windows_non_finite = self._counter(
            "windows_non_finite", "Windows with NaN or infinite log-probabilities."
        )

        # What a client feels (set by `streams`).
        self.first_partial_s = self._histogram(
            "first_partial_seconds",
            "From the sound of an utterance's first word to its first partial.",
            LATENCY_S,
        )
        self.chunk_response_s = self._histogram(
            "chunk_response_seconds",
            "From the arrival of a hop's last sample to the events it caused.",
            LATENCY_S,
        )
        self.finalization_s = self._histogram(
            "finalization_seconds", "From the end of speech, Finalize or Finish to the final.", LATENCY_S
        )
        self.partial_revision = self._histogram(
            "partial_revision_ratio",
            "Times a word of an utterance's partials was taken back, by the words of its final.",
            REVISION,
        )

        # Faces (set by `http`).
        self.http_requests = self._counter("http_requests", "Requests answered.", ("route", "status"))
        self.sockets_open = self._gauge("sockets_open", "Websockets open now, by dialect.", ("dialect",))
        self.sockets_closed = self._counter(
            "sockets_closed", "Websockets closed, by code.", ("dialect", "code")
        )
        self.messages_received = self._counter(
            "messages_received", "Websocket messages from clients.", ("dialect",)
        )
        self.messages_sent = self._counter("messages_sent", "Websocket messages to clients.", ("dialect",))
        self.audio_received_bytes = self._counter("audio_received_bytes", "Audio as it came over the wire.")
        self.throttled_s = self._counter("throttled_seconds", "Reading paused: sound far ahead of real time.")
        self.container_children = self._gauge("container_children", "Confined decoder processes now.")
        self.audio_decoder_failures = self._counter(
            "audio_decoder_failures", "Audio decoder processes that failed.", ("reason",)
        )
        self.warnings = self._counter(
            "warnings", "Things noticed in clients' sound and said to them.", ("kind",)
        )
        self.model_reloads = self._counter("model_reloads", "Models loaded anew while serving.", ("outcome",))
        self.draining = self._gauge("draining", "1 while no new streams are taken in.", mode=MOST)
        self.loop_stall_s = self._histogram(
            "loop_stall_seconds", "How late the event loop's own tick came.", WORK_S
        )

        self.build = self._gauge(
            "build_info", "Version and Python that run.", ("version", "python"), mode=MOST
        )
        self.build.labels(build_version(), platform.python_version()).set(1)
        self.model = self._gauge(
            "model_info",
            "1 for each model being served.",
            ("name", "architecture", "device", "precision"),
            mode=MOST,
        )

    def expose(self) -> bytes:
        """Everything in Prometheus' text format."""
        if not os.environ.get(SHARED):
            return generate_latest(self.registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)

    def _gauge(
        self, name: str, help: str, labels: Sequence[str] = (), mode: Literal["livesum", "livemax"] = SUM
    ) -> Gauge:
        return Gauge(f"silica_{name}", help, labels, registry=self.registry, multiprocess_mode=mode)

    def _counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"silica_{name}", help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"silica_{name}", help, buckets=buckets, registry=self.registry)
