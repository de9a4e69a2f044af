"""Extracts public-domain books as one text file, for training the shipped language models.

    python scripts/gather_books.py MIRROR SPEECH OUT.txt

MIRROR holds bare clones of the repositories in `SOURCES` as OWNER+NAME/repo; SPEECH holds the test sets. The output has
one paragraph per line, without duplicates. Paragraphs that share an n-gram of eight words with a transcript of `dev` or
a test set are dropped; a book with three of them is dropped completely, and so are books that are not English or are
marked as copyrighted. Takes five minutes on two cores; the result has 200 million words.
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
OVERLAP_WORDS = 8
BOOK_OVERLAPS = 3
_WORDS = re.compile(r"[a-z']+")
_START = re.compile(r"\*\*\* ?START OF (?:THIS|THE) PROJECT GUTENBERG.*?\*\*\*", re.DOTALL)
_END = re.compile(r"\*\*\* ?END OF (?:THIS|THE) PROJECT GUTENBERG|End of (?:the )?Project Gutenberg")
_HEADER_CHARACTERS = 4_000
_MARKUP = re.compile(r"\[[^\]]*\]|[_*#=~|>]+")
_test_ngrams: frozenset[str] = frozenset()


def main() -> None:
    """Read all books in parallel and write the paragraphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mirror", type=Path, help="folder of bare git clones")
    parser.add_argument("speech", type=Path, help="folder with the test sets")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    repositories = [arguments.mirror / name.replace("/", "+") / "repo" for name in SOURCES]
    if missing := [str(repository) for repository in repositories if not repository.is_dir()]:
        parser.error(f"no repository at {', '.join(missing)}")
    transcripts = list(test_transcripts(arguments.speech))
    if not transcripts:
        parser.error(f"no transcripts of `dev` or a test set in {arguments.speech}")
    test_ngrams = frozenset(ngram for text in transcripts for ngram in ngrams(text))
    seen: set[int] = set()
    kept = dropped = words = 0
    out = arguments.out
    with (
        out.with_suffix(".partial").open("w", encoding="utf-8") as file,
        multiprocessing.Pool(initializer=_set_test_ngrams, initargs=(test_ngrams,)) as pool,
    ):
        for repository in repositories:
            for name, paragraphs in pool.imap(_paragraphs, _books(repository), chunksize=4):
                if paragraphs is None:
                    dropped += 1
                    print(f"dropped: {name}", file=sys.stderr)
                    continue
                kept += 1
                for paragraph in paragraphs:
                    key = hash(tuple(_WORDS.findall(paragraph.lower())))
                    if key not in seen:
                        seen.add(key)
                        words += paragraph.count(" ") + 1
                        file.write(paragraph + "\n")
    out.with_suffix(".partial").replace(out)
    print(f"{kept} books, {dropped} dropped, {len(seen):,} paragraphs, {words:,} words")


def _set_test_ngrams(ngrams: frozenset[str]) -> None:
    global _test_ngrams
    _test_ngrams = ngrams


def test_transcripts(speech: Path) -> Iterator[str]:
    """The transcripts of `dev` and the test sets."""
    for manifest in sorted(speech.glob("*/manifest.jsonl")):
        if "train" not in manifest.parent.name:
            for line in manifest.read_text().splitlines():
                yield json.loads(line)["text"] or ""


def ngrams(text: str) -> Iterator[str]:
    """The n-grams that training text must not share with test transcripts."""
    words = _WORDS.findall(text.lower().replace("’", "'"))
    for start in range(len(words) - OVERLAP_WORDS + 1):
        yield " ".join(words[start : start + OVERLAP_WORDS])


def _books(repository: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every file."""
    git = ["git", "--git-dir", str(repository)]
    listing = subprocess.run([*git, "ls-tree", "-rz", "HEAD"], check=True, capture_output=True).stdout
    entries = [entry.decode().split("\t", 1) for entry in listing.split(b"\0") if entry]
    books = [
        (name, info.split()[2]) for info, name in entries if name.endswith((".txt", ".md")) and "/" in name
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


def _paragraphs(book: tuple[str, str]) -> tuple[str, list[str] | None]:
    """Name and paragraphs of a book; None if it is dropped."""
    name, text = book
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    header = text[:_HEADER_CHARACTERS]
    if "COPYRIGHTED" in header or ("Language:" in header and "Language: English" not in header):
        return name, None
    if match := _START.search(text):
        text = text[match.end() :]
    if match := _END.search(text, len(text) // 2):
        text = text[: match.start()]
    paragraphs, overlaps = [], 0
    for piece in re.split(r"\n\s*\n", text):
        paragraph = " ".join(_MARKUP.sub(" ", piece).split())
        lowercase = sum(map(str.islower, paragraph))
        if lowercase < 20 or lowercase < 0.6 * len(paragraph):
            continue  # headings, tables, numbers
        if not _test_ngrams.isdisjoint(ngrams(paragraph)):
            overlaps += 1
            continue
        paragraphs.append(paragraph)
    return name, None if overlaps >= BOOK_OVERLAPS else paragraphs


if __name__ == "__main__":
    main()
