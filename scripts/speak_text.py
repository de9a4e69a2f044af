"""Words that the recordings lack, spoken by a small neural synthesizer: a folder of training clips.

    pip install hibari-tts==0.2.1
    python scripts/speak_text.py DATA OUT [--hours 12] [--seed 1] [--texts FOLDER]

DATA is the folder that scripts/gather_speech.py makes: `shared/text` gives the sentences (or --texts, where the books
of scripts/gather_books.py may lie beside the rest), the transcripts of all that is for training say how often each
word has been heard. Only texts that the language model in the box is made of are spoken: none is share-alike. Half of
the sentences come in the order of what they bring (words that text often has and the recordings seldom), half as text
has them. What shares eight words in a row with a transcript of `dev` or of a test folder is left out. The voice
(hibari's own, Apache-2.0, its weights are in the package) is one woman's; each clip has a mouth, a pitch, a breath and
a pace of its own, drawn by chance. A core speaks a hundred times as fast as people do. A second folder wants another
seed; what the first one says counts as heard once it lies below DATA/collected.
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
from gather_books import runs, tested
from numpy.typing import NDArray

from acoustic.constants import SAMPLE_RATE
from training.data.manifests import Clip, read_manifest, write_manifest

TEXTS = Path(__file__).parents[1] / "lm" / "pretrained" / "recipe.toml"
WORDS = (5, 38)
MOST = 1_500_000
"""Sentences to choose from: whole libraries of books do not fit into memory as words."""
MIN_S, MAX_DURATION_S = 1.0, 16.5
SYNTHESIZED_HZ = 24_000
VOICED_HZ = 40.0
"""Below it hibari means that nothing vibrates."""
_WORDS = re.compile(r"[a-z']+")
_SENTENCES = re.compile(r"(?<=[.!?;])\s+")
_PLAIN = re.compile(r"[A-Za-z' ,.;:!?\"“”‘’-]+")
Floats = NDArray[np.float32]


def words_of(text: str) -> list[str]:
    return _WORDS.findall(text.lower().replace("’", "'").replace("‘", "'"))


def texts_below(folder: Path) -> list[Path]:
    with TEXTS.open("rb") as recipe:
        names = [text["file"] for text in tomllib.load(recipe)["text"]]
    return [folder / name for name in sorted(names) if (folder / name).is_file()]


def sentences(folder: Path) -> Iterator[str]:
    """What can be said as it is written: letters and stops only, neither too short nor too long."""
    for file in texts_below(folder):
        with (lzma.open if file.suffix == ".xz" else open)(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                for sentence in _SENTENCES.split(line.strip()):
                    if _PLAIN.fullmatch(sentence) and WORDS[0] <= len(sentence.split()) <= WORDS[1]:
                        yield sentence.strip(" \"“”'‘’-")


def transcripts(folders: Iterable[Path]) -> Iterator[list[str]]:
    for folder in folders:
        for clip in read_manifest(folder):
            yield words_of(clip.text or "")


def chosen(texts: list[str], heard: Counter[str], draw: random.Random) -> Iterator[str]:
    """The sentences, those first that bring most for their length: a word is worth the root of how often text has it,
    the less the oftener it has been heard. In rounds, each with half the bar of the one before.
    """
    split = [words_of(text) for text in texts]
    written = collections.Counter(word for words in split for word in words)
    bar, left = 8.0, list(range(len(texts)))
    draw.shuffle(left)
    while left:
        rest = []
        for i in left:
            worth = sum(math.sqrt(written[w]) / (1 + heard[w]) for w in split[i] if written[w] >= 3)
            if worth < bar * len(split[i]):
                rest.append(i)
                continue
            heard.update(split[i])
            yield texts[i]
        left, bar = rest, bar / 2 if bar > 0.01 else 0.0


def texts_and_words(data: Path, folder: Path, draw: random.Random) -> tuple[list[str], Counter[str]]:
    """The folder's sentences, without what dev or a test shares, and how often each word is heard in training."""
    speech = data / "shared" / "speech"
    kept_out = {run for text in tested(speech) for run in runs(text)}
    recorded = [*speech.glob("*train*"), *(f.parent for f in data.glob("collected/*/manifest.jsonl"))]
    heard = collections.Counter(word for words in transcripts(recorded) for word in words)
    every = sorted(set(sentences(folder)))
    texts = [
        sentence
        for sentence in (draw.sample(every, MOST) if len(every) > MOST else every)
        if words_of(sentence) and kept_out.isdisjoint(runs(sentence))
    ]
    return texts, heard


class Speaker:
    """hibari's voice in other mouths: between its network and its vocoder the spectrum is stretched (the tract's length
    follows the pitch, and chance), bent a little, tilted and made more or less breathy, the melody raised, lowered
    and made flatter or livelier."""

    def __init__(self) -> None:
        import hibari
        from hibari import dsp

        self.voice, self.synthesize = hibari.Hibari(threads=1), dsp.synth

    def say(self, text: str, draw: np.random.Generator) -> Floats:
        lower = draw.random() < 0.5
        pitch = math.exp(draw.uniform(*np.log((0.45, 0.7) if lower else (0.75, 1.3))))
        liveliness, pace = draw.uniform(0.5, 1.4), math.exp(draw.uniform(*np.log((0.85, 1.25))))
        breath, tilt = np.float32(draw.normal(0, 0.35)), draw.normal(0, 0.6)
        mouth: NDArray[np.float64] | None = None
        parts = []
        for phonemes in self.voice.phonemize(text):
            made = self.voice.sess.run(
                None,
                {
                    "ids": np.asarray([self.voice.ids(phonemes)], np.int64),
                    "speed": np.asarray([pace], np.float32),
                },
            )
            harmonic, turn, noise, free, phase, melody = (part[0] for part in made)
            if mouth is None:
                mouth = _mouth(len(harmonic), pitch, draw)
            slope = (tilt * (np.linspace(0, 1, len(harmonic)) - 0.2)).astype(np.float32)[:, None]
            parts.append(
                self.synthesize(
                    _stretched(harmonic, mouth) + slope,
                    _stretched(turn, mouth),
                    _stretched(noise, mouth) + slope + breath,
                    _stretched(free, mouth) + slope,
                    phase[np.round(mouth).astype(int)],
                    _sung(melody, pitch, liveliness),
                    draw,
                )
            )
        if not parts:
            return np.zeros(0, np.float32)
        samples = soxr.resample(np.concatenate(parts), SYNTHESIZED_HZ, SAMPLE_RATE)
        loud: Floats = (samples * (0.6 / max(float(abs(samples).max()), 1e-3))).astype(np.float32)
        return loud


def _mouth(bins: int, pitch: float, draw: np.random.Generator) -> NDArray[np.float64]:
    """For each bin the place that it takes its value from: low voices come from longer tracts."""
    stretch = float(np.clip(math.exp(0.3 * math.log(pitch) + draw.normal(0, 0.05)), 0.78, 1.15))
    axis = np.linspace(0, 1, bins)
    bent = draw.normal(0, 0.025, 7)
    bent[0] = 0
    where: NDArray[np.float64] = axis / stretch * (1 + np.interp(axis, np.linspace(0, 1, 7), bent))
    return np.clip(where, 0, 1) * (bins - 1)


def _stretched(values: Floats, where: NDArray[np.float64]) -> Floats:
    low = np.floor(where).astype(int)
    part = (where - low)[:, None].astype(np.float32)
    between: Floats = values[low] * (1 - part) + values[np.minimum(low + 1, len(values) - 1)] * part
    return between


def _sung(melody: Floats, pitch: float, liveliness: float) -> Floats:
    voiced = melody > VOICED_HZ
    if not voiced.any():
        return melody
    middle = math.exp(float(np.log(melody[voiced]).mean()))
    other = middle * pitch * (np.maximum(melody, 1.0) / middle) ** liveliness
    return np.where(voiced, np.maximum(other, VOICED_HZ + 5), melody).astype(np.float32)


def speak(texts: Iterable[str], out: Path, hours: float, seed: int) -> Iterator[Clip]:
    """The clips, one by one, until there are so many hours."""
    speaker, seconds, told = Speaker(), 0.0, 0
    for number, text in enumerate(texts):
        samples = speaker.say(text, np.random.default_rng([seed, number]))
        length = len(samples) / SAMPLE_RATE
        if not MIN_S <= length <= MAX_DURATION_S:
            continue
        path = out / f"{number:06}.wav"
        soundfile.write(path, samples, SAMPLE_RATE, subtype="PCM_16")
        yield Clip(
            path,
            length,
            " ".join(words_of(text)),
            "hibari-heart",
            "spoken-text",
            "Apache-2.0",
            "shared/text",
        )
        seconds += length
        if seconds >= (told + 1) * 1800:
            told += 1
            print(f"{seconds / 3600:.1f} of {hours:g} hours", flush=True)
        if seconds >= hours * 3600:
            return


def mixed(texts: list[str], heard: Counter[str], draw: random.Random) -> Iterator[str]:
    """By turns what brings most and what comes by chance."""
    by_chance = draw.sample(texts, len(texts))
    for pair in zip(chosen(texts, heard, draw), by_chance, strict=True):
        yield from pair


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="DATA/shared/text unless said otherwise")
    arguments = parser.parse_args()
    if not (arguments.data / "shared" / "speech").is_dir():
        parser.error(f"{arguments.data} has no folder shared/speech: scripts/gather_speech.py makes it")
    if importlib.util.find_spec("hibari") is None:
        parser.error("hibari is not installed: pip install hibari-tts==0.2.1")
    folder, draw = arguments.texts or arguments.data / "shared" / "text", random.Random(arguments.seed)
    if not texts_below(folder):
        parser.error(f"{folder} holds none of the texts that {TEXTS.parent.name}/{TEXTS.name} names")
    texts, heard = texts_and_words(arguments.data, folder, draw)
    print(
        f"{len(texts):,} sentences; {heard.total():,} words heard, {len(heard):,} different ones", flush=True
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    said = mixed(texts, heard, draw)
    clips = list(speak(said, arguments.out, arguments.hours, arguments.seed))
    write_manifest(arguments.out / "manifest.jsonl", clips)
    print(f"{len(clips):,} clips, {sum(clip.duration_s for clip in clips) / 3600:.1f} hours")


if __name__ == "__main__":
    main()
