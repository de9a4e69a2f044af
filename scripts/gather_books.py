"""Whole public-domain books as one text file, for the language model in the box.

    python scripts/gather_books.py MIRROR SPEECH OUT.txt

MIRROR holds snapshots of the repositories in `SOURCES`, as bare git directories OWNER+NAME/repo; SPEECH is the folder
of test folders that the text must not know. One paragraph a line, each once. A paragraph that shares eight words in a
row with a transcript of `dev` or a test folder is left out; a book with three such paragraphs is left out whole. So is
what is not English and what says of itself that it is under copyright. Five minutes on two cores; 200 million words.
"""

import argparse
import json
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = ("rcdm-uga/Gutenberg_Text", "mlschmitt/classic-books-markdown")
SHARED_WORDS = 8
BOOK_SHARES = 3
_WORDS = re.compile(r"[a-z']+")
_START = re.compile(r"\*\*\* ?START OF (?:THIS|THE) PROJECT GUTENBERG.*?\*\*\*", re.DOTALL)
_END = re.compile(r"\*\*\* ?END OF (?:THIS|THE) PROJECT GUTENBERG|End of (?:the )?Project Gutenberg")
_HEADER_CHARACTERS = 4_000
_NOISE = re.compile(r"\[[^\]]*\]|[_*#=~|>]+")
_shared: frozenset[str] = frozenset()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mirror", type=Path)
    parser.add_argument("speech", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    stores = [arguments.mirror / name.replace("/", "+") / "repo" for name in SOURCES]
    if missing := [str(store) for store in stores if not store.is_dir()]:
        parser.error(f"no snapshot at {', '.join(missing)}")
    transcripts = list(tested(arguments.speech))
    if not transcripts:
        parser.error(f"no transcripts of `dev` or test folders in {arguments.speech}")
    shared = frozenset(run for text in transcripts for run in runs(text))
    seen: set[int] = set()
    kept = refused = words = 0
    out = arguments.out
    with (
        out.with_suffix(".partial").open("w", encoding="utf-8") as file,
        multiprocessing.Pool(initializer=_remember, initargs=(shared,)) as pool,
    ):
        for store in stores:
            for name, paragraphs in pool.imap(_book, _books(store), chunksize=4):
                if paragraphs is None:
                    refused += 1
                    print(f"left out: {name}", file=sys.stderr)
                    continue
                kept += 1
                for paragraph in paragraphs:
                    mark = hash(tuple(_WORDS.findall(paragraph.lower())))
                    if mark not in seen:
                        seen.add(mark)
                        words += paragraph.count(" ") + 1
                        file.write(paragraph + "\n")
    out.with_suffix(".partial").replace(out)
    print(f"{kept} books, {refused} left out, {len(seen):,} paragraphs, {words:,} words")


def _remember(shared: frozenset[str]) -> None:
    global _shared
    _shared = shared


def tested(speech: Path) -> Iterator[str]:
    """The transcripts of `dev` and the test folders."""
    for manifest in sorted(speech.glob("*/manifest.jsonl")):
        if "train" not in manifest.parent.name:
            for line in manifest.read_text().splitlines():
                yield json.loads(line)["text"] or ""


def runs(text: str) -> Iterator[str]:
    """All that stands in a text in as many words as no text for training may share with what is tested."""
    found = _WORDS.findall(text.lower().replace("’", "'"))
    for start in range(len(found) - SHARED_WORDS + 1):
        yield " ".join(found[start : start + SHARED_WORDS])


def _books(store: Path) -> Iterator[tuple[str, str]]:
    git = ["git", "--git-dir", str(store)]
    listing = subprocess.run([*git, "ls-tree", "-rz", "HEAD"], check=True, capture_output=True).stdout
    entries = [entry.decode().split("\t", 1) for entry in listing.split(b"\0") if entry]
    books = [
        (name, about.split()[2]) for about, name in entries if name.endswith((".txt", ".md")) and "/" in name
    ]
    with subprocess.Popen(
        [*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdin and reader.stdout
        for name, blob in books:
            reader.stdin.write(blob.encode() + b"\n")
            reader.stdin.flush()
            head = reader.stdout.readline().split()
            if head[-1] == b"missing":
                continue
            content = reader.stdout.read(int(head[2]))
            reader.stdout.read(1)
            yield name, content.decode("utf-8", errors="replace")
        reader.stdin.close()


def _book(given: tuple[str, str]) -> tuple[str, list[str] | None]:
    """The paragraphs of a book; None where it must not be learned from."""
    name, text = given
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    header = text[:_HEADER_CHARACTERS]
    if "COPYRIGHTED" in header or ("Language:" in header and "Language: English" not in header):
        return name, None
    if match := _START.search(text):
        text = text[match.end() :]
    if match := _END.search(text, len(text) // 2):
        text = text[: match.start()]
    paragraphs, shares = [], 0
    for piece in re.split(r"\n\s*\n", text):
        paragraph = " ".join(_NOISE.sub(" ", piece).split())
        letters = sum(map(str.islower, paragraph))
        if letters < 20 or letters < 0.6 * len(paragraph):
            continue
        if not _shared.isdisjoint(runs(paragraph)):
            shares += 1
            continue
        paragraphs.append(paragraph)
    return name, None if shares >= BOOK_SHARES else paragraphs


if __name__ == "__main__":
    main()
