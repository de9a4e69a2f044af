"""Synthesizes training clips for words that the training recordings lack, with perturbed voices.

    pip install hibari-tts==0.2.1
    python scripts/speak_text.py DATA OUT [--hours 12] [--seed 1] [--texts FOLDER]

DATA is the folder of scripts/gather_speech.py. Sentences come from DATA/shared/text, or from --texts, which may also
hold the output of scripts/gather_books.py; only the texts of the shipped language models' recipe are used, because
their licenses are not share-alike. Half of the sentences are ordered by the rare words that they add to the
transcripts of the training clips, half are random. Sentences that share an n-gram of eight words with a test
transcript are excluded. The voice is hibari's (Apache-2.0, one speaker, weights in the package); vocal-tract length,
pitch, breathiness and tempo are perturbed per clip. One core synthesizes 100 times faster than real time. Use another
seed for a second folder; clips below DATA/collected count as training clips.
"""

import argparse
import collections
import importlib.util
import lzma
import math
import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr
from gather_books import ngrams, test_transcripts
from numpy.typing import NDArray

from acoustic.constants import SAMPLE_RATE
from training.data.manifests import Clip, read_manifest, write_manifest

RECIPE = Path(__file__).parents[1] / "lm" / "pretrained" / "recipe.toml"
MIN_WORDS, MAX_WORDS = 5, 38
MAX_SENTENCES = 1_500_000
"""Sentences to select from, at most: the memory limit."""
MIN_S, MAX_DURATION_S = 1.0, 16.5
MIN_COUNT = 3
"""Words that are rarer in the texts do not count in the selection."""
SYNTHESIS_RATE = 24_000
VOICED_HZ = 40.0
"""Below this pitch hibari marks a frame as unvoiced."""
_WORDS = re.compile(r"[a-z']+")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_PLAIN = re.compile(r"[A-Za-z' ,.;:!?\"“”‘’-]+")
Floats = NDArray[np.float32]


def words_of(text: str) -> list[str]:
    """Lowercase words."""
    return _WORDS.findall(text.lower().replace("’", "'").replace("‘", "'"))


def text_files(folder: Path) -> list[Path]:
    """The files of the recipe that the folder holds."""
    with RECIPE.open("rb") as recipe:
        names = [text["file"] for text in tomllib.load(recipe)["text"]]
    return [folder / name for name in sorted(names) if (folder / name).is_file()]


def sentences(folder: Path) -> Iterator[str]:
    """Sentences of a suitable length without digits and symbols."""
    for file in text_files(folder):
        with (lzma.open if file.suffix == ".xz" else open)(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                for sentence in _SENTENCE_END.split(line.strip()):
                    if _PLAIN.fullmatch(sentence) and MIN_WORDS <= len(sentence.split()) <= MAX_WORDS:
                        yield sentence.strip(" \"“”'‘’-")


def transcripts(folders: Iterable[Path]) -> Iterator[list[str]]:
    """The words of every clip."""
    for folder in folders:
        for clip in read_manifest(folder):
            yield words_of(clip.text or "")


def by_new_words(texts: list[str], recorded: Counter[str], rng: random.Random) -> Iterator[str]:
    """All sentences, those first that add most for their length.

    A word is worth the square root of its count in the texts, divided by one plus its count in the recordings so far.
    The order is approximate: each round takes the sentences above a threshold and then halves it.
    """
    split = [words_of(text) for text in texts]
    counts = collections.Counter(word for words in split for word in words)
    threshold, remaining = 8.0, list(range(len(texts)))
    rng.shuffle(remaining)
    while remaining:
        below = []
        for i in remaining:
            value = sum(math.sqrt(counts[w]) / (1 + recorded[w]) for w in split[i] if counts[w] >= MIN_COUNT)
            if value < threshold * len(split[i]):
                below.append(i)
                continue
            recorded.update(split[i])
            yield texts[i]
        remaining, threshold = below, threshold / 2 if threshold > 0.01 else 0.0


def select_texts(data: Path, folder: Path, rng: random.Random) -> tuple[list[str], Counter[str]]:
    """The folder's sentences without overlap with test transcripts, and the word counts of the training clips."""
    speech = data / "shared" / "speech"
    excluded = {ngram for text in test_transcripts(speech) for ngram in ngrams(text)}
    folders = [*speech.glob("*train*"), *(f.parent for f in data.glob("collected/*/manifest.jsonl"))]
    recorded = collections.Counter(word for words in transcripts(folders) for word in words)
    unique = sorted(set(sentences(folder)))
    texts = [
        sentence
        for sentence in (rng.sample(unique, MAX_SENTENCES) if len(unique) > MAX_SENTENCES else unique)
        if words_of(sentence) and excluded.isdisjoint(ngrams(sentence))
    ]
    return texts, recorded


class Speaker:
    """hibari with voices perturbed between its network and its vocoder.

    The spectrum is warped (vocal-tract length, correlated with the pitch, and formants), tilted and made more or less
    breathy; the pitch is shifted and its range scaled.
    """

    def __init__(self) -> None:
        import hibari
        from hibari import dsp

        self.voice, self.synthesize = hibari.Hibari(threads=1), dsp.synth

    def speak(self, text: str, rng: np.random.Generator) -> Floats:
        """The audio at SAMPLE_RATE; empty if the text has no phonemes."""
        low = rng.random() < 0.5
        pitch = math.exp(rng.uniform(*np.log((0.45, 0.7) if low else (0.75, 1.3))))
        pitch_range, tempo = rng.uniform(0.5, 1.4), math.exp(rng.uniform(*np.log((0.85, 1.25))))
        breath, tilt = np.float32(rng.normal(0, 0.35)), rng.normal(0, 0.6)
        warp: NDArray[np.float64] | None = None
        parts = []
        for phonemes in self.voice.phonemize(text):
            outputs = self.voice.sess.run(
                None,
                {
                    "ids": np.asarray([self.voice.ids(phonemes)], np.int64),
                    "speed": np.asarray([tempo], np.float32),
                },
            )
            # The inputs of hibari's vocoder by frequency bin and frame; the last one is the pitch contour.
            harmonic, turn, noise, free, phase, contour = (part[0] for part in outputs)
            if warp is None:
                warp = _frequency_warp(len(harmonic), pitch, rng)
            slope = (tilt * (np.linspace(0, 1, len(harmonic)) - 0.2)).astype(np.float32)[:, None]
            parts.append(
                self.synthesize(
                    _warped(harmonic, warp) + slope,
                    _warped(turn, warp),
                    _warped(noise, warp) + slope + breath,
                    _warped(free, warp) + slope,
                    phase[np.round(warp).astype(int)],
                    _scaled_pitch(contour, pitch, pitch_range),
                    rng,
                )
            )
        if not parts:
            return np.zeros(0, np.float32)
        samples = soxr.resample(np.concatenate(parts), SYNTHESIS_RATE, SAMPLE_RATE)
        normalized: Floats = (samples * (0.6 / max(float(abs(samples).max()), 1e-3))).astype(np.float32)
        return normalized


def _frequency_warp(bins: int, pitch: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """For each frequency bin the source bin. Lower voices get a longer vocal tract."""
    stretch = float(np.clip(math.exp(0.3 * math.log(pitch) + rng.normal(0, 0.05)), 0.78, 1.15))
    axis = np.linspace(0, 1, bins)
    bend = rng.normal(0, 0.025, 7)
    bend[0] = 0
    source: NDArray[np.float64] = axis / stretch * (1 + np.interp(axis, np.linspace(0, 1, 7), bend))
    return np.clip(source, 0, 1) * (bins - 1)


def _warped(values: Floats, warp: NDArray[np.float64]) -> Floats:
    """The rows at fractional positions, interpolated linearly."""
    low = np.floor(warp).astype(int)
    fraction = (warp - low)[:, None].astype(np.float32)
    interpolated: Floats = (
        values[low] * (1 - fraction) + values[np.minimum(low + 1, len(values) - 1)] * fraction
    )
    return interpolated


def _scaled_pitch(contour: Floats, pitch: float, pitch_range: float) -> Floats:
    """The contour with its geometric mean multiplied by `pitch` and its logarithmic range by `pitch_range`."""
    voiced = contour > VOICED_HZ
    if not voiced.any():
        return contour
    mean = math.exp(float(np.log(contour[voiced]).mean()))
    scaled = mean * pitch * (np.maximum(contour, 1.0) / mean) ** pitch_range
    return np.where(voiced, np.maximum(scaled, VOICED_HZ + 5), contour).astype(np.float32)


def synthesize_clips(texts: Iterable[str], out: Path, hours: float, seed: int) -> Iterator[Clip]:
    """Writes clips until they have the given total duration."""
    speaker, seconds, reports = Speaker(), 0.0, 0
    for number, text in enumerate(texts):
        samples = speaker.speak(text, np.random.default_rng([seed, number]))
        duration_s = len(samples) / SAMPLE_RATE
        if not MIN_S <= duration_s <= MAX_DURATION_S:
            continue
        path = out / f"{number:06}.wav"
        soundfile.write(path, samples, SAMPLE_RATE, subtype="PCM_16")
        yield Clip(
            path,
            duration_s,
            " ".join(words_of(text)),
            "hibari-heart",
            "spoken-text",
            "Apache-2.0",
            "shared/text",
        )
        seconds += duration_s
        if seconds >= (reports + 1) * 1800:
            reports += 1
            print(f"{seconds / 3600:.1f} of {hours:g} hours", flush=True)
        if seconds >= hours * 3600:
            return


def interleaved(texts: list[str], recorded: Counter[str], rng: random.Random) -> Iterator[str]:
    """Alternates sentences in the order of new words and in random order."""
    shuffled = rng.sample(texts, len(texts))
    for pair in zip(by_new_words(texts, recorded, rng), shuffled, strict=True):
        yield from pair


def main() -> None:
    """Select the sentences, synthesize them, write the manifest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder made by scripts/gather_speech.py")
    parser.add_argument("out", type=Path, help="output folder")
    parser.add_argument("--hours", type=float, default=12.0, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="default: DATA/shared/text")
    arguments = parser.parse_args()
    if not (arguments.data / "shared" / "speech").is_dir():
        parser.error(f"{arguments.data} has no folder shared/speech: run scripts/gather_speech.py first")
    if importlib.util.find_spec("hibari") is None:
        parser.error("hibari is not installed: pip install hibari-tts==0.2.1")
    folder, rng = arguments.texts or arguments.data / "shared" / "text", random.Random(arguments.seed)
    if not text_files(folder):
        parser.error(f"{folder} has none of the texts in {RECIPE.parent.name}/{RECIPE.name}")
    texts, recorded = select_texts(arguments.data, folder, rng)
    print(
        f"{len(texts):,} sentences; {recorded.total():,} words in training clips, {len(recorded):,} distinct",
        flush=True,
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    selected = interleaved(texts, recorded, rng)
    clips = list(synthesize_clips(selected, arguments.out, arguments.hours, arguments.seed))
    write_manifest(arguments.out / "manifest.jsonl", clips)
    print(f"{len(clips):,} clips, {sum(clip.duration_s for clip in clips) / 3600:.1f} hours")


if __name__ == "__main__":
    main()
