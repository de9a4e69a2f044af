"""Where the well-known corpora keep their clips, transcripts and speakers. Finding only: nothing is
decoded here.
"""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training.data.manifests import iterate_manifest
from training.errors import TrainingError

AUDIO_SUFFIXES = (".wav", ".flac", ".opus", ".ogg", ".mp3", ".m4a", ".sph", ".wv1", ".wv2", ".g722", ".aiff")


@dataclass(frozen=True)
class Found:
    """A clip as the corpus names it, its transcript not yet normalized."""

    audio: Path
    text: str | None
    speaker: str | None
    corpus: str
    licence: str | None = None
    source: str | None = None


def librispeech(folder: Path) -> Iterator[Found]:
    """`SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt`, a line `ID TEXT` for each clip beside it."""
    for transcript in sorted(folder.rglob("*.trans.txt")):
        for line in _lines(transcript):
            name, _, text = line.partition(" ")
            yield Found(_clip_named(transcript.parent, name), text, f"ls-{name.split('-')[0]}", "librispeech")


def common_voice(folder: Path) -> Iterator[Found]:
    """`validated.tsv` (else train, dev, test) with `path`, `sentence`, `client_id`; clips in `clips/`."""
    tables = [folder / "validated.tsv"]
    if not tables[0].exists():
        tables = [folder / f"{part}.tsv" for part in ("train", "dev", "test")]
    for table in tables:
        if not table.exists():
            continue
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                name = row["path"] if "." in row["path"] else row["path"] + ".mp3"
                yield Found(
                    folder / "clips" / name, row["sentence"], f"cv-{row['client_id'][:24]}", "commonvoice"
                )


def wsj(folder: Path) -> Iterator[Found]:
    """`*.dot`, `*.lsn` or `*.ptx` files with lines `TEXT (UTTERANCE)`, sound in .wv1, .sph or .wav
    anywhere below.
    """
    sounds = {
        path.stem.lower(): path for path in sorted(folder.rglob("*")) if path.suffix.lower() in AUDIO_SUFFIXES
    }
    seen: set[str] = set()
    for suffix in (".dot", ".lsn", ".ptx"):
        for transcript in sorted(folder.rglob(f"*{suffix}")):
            for line in _lines(transcript):
                match = re.fullmatch(r"(.*)\((\w+)[^()]*\)\s*", line)
                if not match or match[2].lower() not in sounds or match[2].lower() in seen:
                    continue
                name = match[2].lower()
                seen.add(name)
                yield Found(sounds[name], _plain_wsj(match[1]), f"wsj-{name[:3]}", "wsj")


def an4(folder: Path) -> Iterator[Found]:
    """`etc/*.transcription` with lines `<s> TEXT </s> (UTTERANCE)`, sound anywhere below as .sph or .wav."""
    sounds = {path.stem: path for path in sorted(folder.rglob("*")) if path.suffix.lower() in AUDIO_SUFFIXES}
    for transcript in sorted(folder.glob("**/etc/*.transcription")):
        for line in _lines(transcript):
            match = re.fullmatch(r"(?:<s>)?(.*?)(?:</s>)?\s*\((\S+)\)", line)
            if match and match[2] in sounds:
                speaker = match[2].split("-")[1] if "-" in match[2] else None
                yield Found(sounds[match[2]], match[1], f"an4-{speaker}" if speaker else None, "an4")


def speechocean(folder: Path) -> Iterator[Found]:
    """Kaldi tables `train/{text,wav.scp,utt2spk}` and `test/...`, clips below `WAVE/`."""
    for part in ("train", "test"):
        texts, speakers = _table(folder / part / "text"), _table(folder / part / "utt2spk")
        for name, place in _table(folder / part / "wav.scp").items():
            speaker = f"so-{speakers[name]}" if name in speakers else None
            yield Found(folder / place, texts.get(name), speaker, "speechocean762")


def ljspeech(folder: Path) -> Iterator[Found]:
    """`metadata.csv` with lines `ID|TEXT|NORMALIZED TEXT`, clips in `wavs/`."""
    for line in _lines(folder / "metadata.csv"):
        parts = line.split("|")
        yield Found(folder / "wavs" / f"{parts[0]}.wav", parts[-1], "lj", "ljspeech")


def any_folder(folder: Path) -> Iterator[Found]:
    """Every clip below the folder; its text, where there is any, in a .txt or .lab file of the same name
    beside it.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in AUDIO_SUFFIXES:
            texts = [path.with_suffix(suffix) for suffix in (".txt", ".lab")]
            text = next((_text(file) for file in texts if file.exists()), None)
            yield Found(path, text, None, folder.name)


def manifest(folder: Path) -> Iterator[Found]:
    """A folder with a `manifest.jsonl` already: everything in it is measured and checked anew."""
    for clip in iterate_manifest(folder):
        corpus = clip.corpus or folder.name
        yield Found(clip.audio, clip.text, clip.speaker, corpus, clip.licence, clip.source)


CORPORA: dict[str, Callable[[Path], Iterator[Found]]] = {
    "librispeech": librispeech,
    "commonvoice": common_voice,
    "wsj": wsj,
    "an4": an4,
    "speechocean": speechocean,
    "ljspeech": ljspeech,
    "manifest": manifest,
    "folder": any_folder,
}


def detect(folder: Path) -> str:
    """The name of the corpus that lies in a folder, by the files that only it has."""
    if not folder.is_dir():
        raise TrainingError(f"{folder} is no folder. Name the unpacked corpus.")
    if (folder / "manifest.jsonl").exists():
        return "manifest"
    if next(folder.rglob("*.trans.txt"), None):
        return "librispeech"
    if (folder / "clips").is_dir() and next(folder.glob("*.tsv"), None):
        return "commonvoice"
    if (folder / "metadata.csv").exists() and (folder / "wavs").is_dir():
        return "ljspeech"
    if (folder / "WAVE").is_dir() and (folder / "train" / "wav.scp").exists():
        return "speechocean"
    if next(folder.glob("**/etc/*.transcription"), None):
        return "an4"
    if next(folder.rglob("*.wv1"), None):
        return "wsj"
    return "folder"


def _text(path: Path) -> str:
    """What is no UTF-8 becomes U+FFFD, which is refused with the clip's name."""
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _lines(path: Path) -> list[str]:
    return [line for line in _text(path).splitlines() if line.strip()]


def _table(path: Path) -> dict[str, str]:
    """A Kaldi table: the first word of a line is the key."""
    if not path.exists():
        return {}
    pairs = (line.split(maxsplit=1) for line in _lines(path))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _clip_named(folder: Path, name: str) -> Path:
    """The clip of that name whatever its format; the first format where none is there (preparation reports
    it).
    """
    places = [folder / f"{name}{suffix}" for suffix in (".flac", ".wav", ".opus", ".mp3", ".ogg")]
    return next((place for place in places if place.exists()), places[0])


def _plain_wsj(text: str) -> str:
    """Without noise marks, emphasis, lengthening, and with its verbalised punctuation left as words."""
    text = re.sub(r"\[[^\]]*\]|<[^>]*>|~", " ", text)
    text = re.sub(r"[\"?!,.;:&%(){}/-]+(?=[A-Za-z])", "", text)
    return re.sub(r"[*\\`]", "", text)
