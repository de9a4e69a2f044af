"""Words that the recordings lack, spoken by the synthesisers that Debian has: a folder of training clips.

    python scripts/speak_text.py DATA OUT [--hours 12] [--seed 1] [--processes 2]

DATA is the folder that scripts/gather_speech.py makes: `shared/text` gives the sentences, the transcripts of all
that is for training say how often each word has been heard. Sentences are taken in the order of what they bring: words
that text often has and the recordings seldom. What shares eight words in a row with a transcript of `dev` or of a test
folder is left out. Voices: those installed of flite and espeak-ng (Debian main), pico2wave (libttspico-utils) and
RHVoice-test (rhvoice, rhvoice-english; both non-free). Pace and, where the voice can, pitch differ from clip to clip.
A core speaks an hour in a minute.
"""

import argparse
import collections
import itertools
import lzma
import math
import random
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

import soundfile

from training.data.manifests import Clip, read_manifest, write_manifest
from training.data.sound import SAMPLE_RATE, read_clip

SHARED_WORDS = 8
WORDS = (5, 38)
LONGEST_S = 16.5
_WORDS = re.compile(r"[a-z']+")
_SENTENCES = re.compile(r"(?<=[.!?;])\s+")
_PLAIN = re.compile(r"[A-Za-z' ,.;:!?\"“”‘’-]+")


@dataclass(frozen=True)
class Voice:
    """One synthesised voice: how much of the speech is its, and the command that speaks a text into a file
    (RHVoice reads it from its input).
    """

    name: str
    share: float
    licence: str
    command: str

    def says(self, text: str, out: str, pace: float, pitch: float) -> list[str]:
        values = {"text": text, "out": out, "stretch": f"{1 / pace:.2f}", "words": f"{165 * pace:.0f}"}
        values |= {"pace": f"{100 * pace:.0f}", "pitch": f"{100 * pitch:.0f}", "half": f"{50 * pitch:.0f}"}
        return [part.format(**values) for part in self.command.split("|")]


FLITE = "flite|-voice|{}|--setf|duration_stretch={{stretch}}|-t|{{text}}|-o|{{out}}"
PICO = "pico2wave|-l|{}|-w|{{out}}|<pitch level='{{pitch}}'><speed level='{{pace}}'>{{text}}</speed></pitch>"
RHVOICE = "RHVoice-test|-p|{}|-r|{{pace}}|-t|{{pitch}}|-o|{{out}}"
ESPEAK = "espeak-ng|-v|{}|-s|{{words}}|-p|{{half}}|-w|{{out}}|{{text}}"
VOICES = tuple(
    Voice(f"{command.split('|')[0]}-{name}", share, licence, command.format(name))
    for command, licence, share, names in (
        (FLITE, "BSD-like (CMU)", 1.2, "slt rms awb"),
        (FLITE, "BSD-like (CMU)", 0.3, "kal16"),
        (PICO, "Apache-2.0", 1.2, "en-US en-GB"),
        (RHVOICE, "LGPL-2.1+", 1.0, "alan bdl clb"),
        (ESPEAK, "GPL-3.0+", 0.12, "en-us+m3 en-us+f2 en-gb+m7 en-gb+f4 en-gb-scotland+m1 en-gb-x-rp+m4"),
    )
    for name in names.split()
)


def words_of(text: str) -> list[str]:
    return _WORDS.findall(text.lower().replace("’", "'").replace("‘", "'"))


def sentences(folder: Path) -> Iterator[str]:
    """What can be said as it is written: letters and stops only, neither too short nor too long."""
    for file in sorted(folder.glob("*.txt.xz")):
        with lzma.open(file, "rt", encoding="utf-8") as lines:
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


def speak(task: tuple[Path, Voice, str, float, float]) -> Clip | None:
    out, voice, text, pace, pitch = task
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        spoken = f"{folder}/spoken.wav"
        ended = subprocess.run(
            voice.says(text, spoken, pace, pitch), input=text, text=True, capture_output=True
        )
        if ended.returncode or not Path(spoken).exists():
            return None
        samples = read_clip(Path(spoken))
    seconds = len(samples) / SAMPLE_RATE
    if not 1.0 <= seconds <= LONGEST_S:
        return None
    soundfile.write(
        out, samples * min(1.0, 0.9 / max(1e-9, abs(samples).max())), SAMPLE_RATE, subtype="PCM_16"
    )
    return Clip(
        out, seconds, " ".join(words_of(text)), voice.name, "spoken-text", voice.licence, "shared/text"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    data = arguments.data
    speech = data / "shared" / "speech"
    if not speech.is_dir():
        parser.error(f"{data} has no folder shared/speech: scripts/gather_speech.py makes it")
    kept_out = {
        tuple(words[i : i + SHARED_WORDS])
        for words in transcripts(p for p in speech.iterdir() if "train" not in p.name and p.is_dir())
        for i in range(len(words) - SHARED_WORDS + 1)
    }
    heard = collections.Counter(
        word
        for words in transcripts(
            [*speech.glob("*train*"), *(f.parent for f in data.glob("collected/*/manifest.jsonl"))]
        )
        for word in words
    )
    texts = []
    for sentence in sorted(set(sentences(data / "shared" / "text"))):
        words = words_of(sentence)
        if words and not any(tuple(words[i : i + SHARED_WORDS]) in kept_out for i in range(len(words))):
            texts.append(sentence)
    print(
        f"{len(texts):,} sentences; {heard.total():,} words heard, {len(heard):,} different ones", flush=True
    )
    draw = random.Random(arguments.seed)
    said = chosen(texts, heard, draw)
    voices = [voice for voice in VOICES if shutil.which(voice.command.split("|")[0])]
    if not voices:
        parser.error("no synthesiser is installed: apt-get install flite espeak-ng")
    print("voices: " + " ".join(voice.name for voice in voices), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)

    def tasks() -> Iterator[tuple[Path, Voice, str, float, float]]:
        for number, text in enumerate(said):
            (voice,) = draw.choices(voices, [v.share for v in voices])
            pace, pitch = draw.uniform(0.85, 1.2), draw.uniform(0.85, 1.15)
            yield arguments.out / f"{number:06}.wav", voice, text, pace, pitch

    clips: list[Clip] = []
    seconds, told = 0.0, 0
    waiting = tasks()
    with ThreadPool(arguments.processes) as pool:  # the synthesisers are processes of their own
        while seconds < arguments.hours * 3600 and (some := list(itertools.islice(waiting, 200))):
            spoken = [clip for clip in pool.map(speak, some) if clip]
            clips += spoken
            seconds += sum(clip.duration_s for clip in spoken)
            if seconds >= (told + 1) * 1800:
                told += 1
                print(f"{seconds / 3600:.1f} of {arguments.hours:g} hours", flush=True)
    write_manifest(arguments.out / "manifest.jsonl", clips)
    print(f"{len(clips):,} clips, {seconds / 3600:.1f} hours")


if __name__ == "__main__":
    main()
