"""Transcription in this process ends utterances where a stream with the same settings does."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from acoustic.windows import StreamWindows
from lm.decoders import open_decoder
from lm.search.settings import SearchSettings
from service.embedded.recognizer import iter_utterances
from service.session.events import Final
from service.session.stream_settings import LIVE, OFFLINE, StreamSettings
from tests.session.synchronous_driver import PLAN, TINY, alignment, spelling_model, transcribe

FRAMES_PER_CHARACTER = 3
TEXTS = {
    "short and long pauses": "yes " + "_" * 20 + "good morning to you all " * 5 + "_" * 15 + "good night" + "_" * 40,
    "no pause": "good morning to you all " * 60,
    "silence": "_" * 100,
}  # fmt: skip


def network(text: str, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The windows of a stream through a model that spells the text."""
    stream, spell = StreamWindows(TINY, PLAN), spelling_model(alignment(text, FRAMES_PER_CHARACTER))
    for block in blocks:
        yield from (spell(window).log_probs for window in stream.push(block))
    yield from (spell(window).log_probs for window in stream.finish())


def audio_of(text: str) -> np.ndarray:
    """Audio that is loud where the text has characters and faint elsewhere."""
    loud = np.repeat(
        [0.001, *(0.001 if character == "_" else 0.1 for character in text)], 320 * FRAMES_PER_CHARACTER
    )
    noise = np.random.default_rng(0).normal(0, 1, loud.size + 7 * 320)
    return (noise * np.append(np.full(7 * 320, 0.001), loud)).astype(np.float32)


def utterances(text: str, preset: StreamSettings, block: int = 160_000) -> list[Final]:
    audio = audio_of(text)
    blocks = [audio[at : at + block] for at in range(0, len(audio), block)]
    decoder, search = open_decoder("greedy", TINY.alphabet), SearchSettings()
    rule = preset.endpoint_rule
    return list(iter_utterances(blocks, partial(network, text), decoder, search, TINY, PLAN, rule))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("preset", [LIVE, OFFLINE], ids=["live", "offline"])
def test_utterances_match_a_stream_with_the_same_preset(text: str, preset: StreamSettings) -> None:
    settings = replace(preset, decoder="greedy")
    events = transcribe(spelling_model(alignment(text, FRAMES_PER_CHARACTER)), audio_of(text)[None], settings)
    assert utterances(text, preset) == [event for event in events if isinstance(event, Final)]


def test_the_offline_preset_does_not_end_short_utterances_at_a_pause() -> None:
    text = TEXTS["short and long pauses"]
    assert [final.text for final in utterances(text, LIVE)] == [
        "yes",
        " ".join(["good morning to you all"] * 5),
        "good night",
    ]
    assert [final.text for final in utterances(text, OFFLINE)] == [
        "yes" + " good morning to you all" * 5,
        "good night",
    ]


def test_speech_without_pauses_is_split_at_the_maximum_length() -> None:
    text = TEXTS["no pause"]
    for preset, limit_s in ((LIVE, 30.0), (OFFLINE, 60.0)):
        first, *_ = found = utterances(text, preset)
        assert first.end_s - first.start_s == pytest.approx(limit_s, abs=0.5)
        assert "".join(final.text for final in found).replace(" ", "") == text.replace(" ", "")


def test_word_times_are_relative_to_the_recording() -> None:
    (final,) = utterances("hello" + "_" * 10 + " world", OFFLINE)
    first, second = final.alternatives[0].words
    assert (first.text, second.text) == ("hello", "world")
    assert first.start_s == pytest.approx(10 * 0.02, abs=0.05)
    assert second.start_s == pytest.approx((10 + 16 * FRAMES_PER_CHARACTER) * 0.02, abs=0.05)


@pytest.mark.parametrize("block", [1_000, 16_000, 10_000_000])
def test_block_sizes_do_not_matter(block: int) -> None:
    text = TEXTS["short and long pauses"]
    assert utterances(text, OFFLINE, block) == utterances(text, OFFLINE)


def test_empty_audio_has_no_utterance() -> None:
    assert utterances("", OFFLINE) == []
