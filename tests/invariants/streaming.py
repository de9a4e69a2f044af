"""Runs streams through a recognizer, sliced as requested, and reduces their events to what must be equal."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from service.recognizer import Recognizer, RecognizerOptions, Stream, StreamSettings
from service.session.events import Closed, Event, Final, Partial, SpeechStarted, WordGap

Samples = npt.NDArray[np.float32]


def make_recognizer(model: Path, cache_folder: Path, **more: Any) -> Recognizer:
    """A recognizer that is not started: one worker of each kind, no language model, unlimited streams."""
    limits: dict[str, Any] = {"max_streams": 1000, "overcommit": True}
    workers: dict[str, Any] = {"engine_workers": 1, "decode_workers": 1, "language_model": None}
    return Recognizer(
        str(model), options=RecognizerOptions(**(limits | workers | {"cache_folder": cache_folder} | more))
    )


async def collect(stream: Stream) -> list[Event]:
    return [event async for event in stream.events()]


async def stream_through(
    recognizer: Recognizer,
    samples: Samples,
    settings: StreamSettings,
    cuts: Iterable[int] = (),
) -> list[Event]:
    """Run one stream, pushed in pieces that end at the cuts."""
    stream = recognizer.open(settings)
    reader = asyncio.ensure_future(collect(stream))
    edges = [0, *sorted(cuts), samples.shape[1]]
    for first, end in pairwise(edges):
        await stream.push(samples[:, first:end])
    await stream.finish()
    return await reader


ChannelResult = list[tuple[object, ...]]


def results(events: Iterable[Event]) -> ChannelResult:
    """What must not depend on other streams: words, times, utterance ends. Scores may differ by rounding."""
    found: ChannelResult = []
    for event in events:
        if isinstance(event, Final):
            words = tuple((word.text, word.start_s, word.end_s) for word in event.alternatives[0].words)
            found.append(
                (
                    "final",
                    event.channel,
                    event.start_s,
                    event.end_s,
                    words,
                    event.speech_final,
                    event.from_finalize,
                )
            )
        elif isinstance(event, SpeechStarted):
            found.append(("speech", event.channel, event.time_s))
        elif isinstance(event, WordGap):
            found.append(("ended", event.channel, event.last_word_end_s))
        elif isinstance(event, Closed):
            found.append(("closed", event.reason, event.audio_s))
    # Only the order within a channel is defined, not the order between channels.
    return sorted(found, key=lambda result: result[1] if isinstance(result[1], int) else 99)


def texts(events: Iterable[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Final)]


def check_committed_prefix_grows(events: Iterable[Event]) -> None:
    """Committed words stay, partials follow finals, nothing follows Closed."""
    committed: dict[int, list[str]] = {}
    final_end_s: dict[int, float] = {}
    closed = 0
    for event in events:
        assert not closed, "nothing follows Closed"
        if isinstance(event, Partial):
            now = [word.text for word in event.words[: event.stable_words]]
            before = committed.get(event.channel, [])
            assert now[: len(before)] == before
            committed[event.channel] = now
            assert event.start_s >= final_end_s.get(event.channel, 0.0)
        elif isinstance(event, Final):
            now = [word.text for word in event.alternatives[0].words]
            before = committed.pop(event.channel, [])
            assert now[: len(before)] == before
            assert event.start_s >= final_end_s.get(event.channel, 0.0)
            assert event.end_s >= event.start_s
            final_end_s[event.channel] = event.end_s
        elif isinstance(event, Closed):
            closed += 1
    assert closed == 1
