"""One text for the model that ranks readings again: a recipe's general texts, spelled lines, a part of its books.

    python scripts/mix_text.py lm/pretrained/recipe.toml FOLDER OUT.txt [--words 27300000]

FOLDER holds the texts that the recipe names. Parts with spelled lines are taken whole; the rest of the words is read at
even distances out of the other part's one file. Runs of some sixty lines stay together and are shuffled. In books one
to three sentences make a line, for people do not pause after each. A minute and a half. `silica train-lm`
learns from it.
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lm.ngram.recipe import Part, read_recipe
from lm.text.corpus import normalized_lines, sentences
from lm.text.normalize import normalize
from lm.text.spelled_letters import spelled_lines

RUN_LINES, RUN_WORDS, SPELLED_RUN_LINES = 60, 2400, 8
SENTENCES_A_LINE, HOW_OFTEN = (1, 2, 3), (5, 3, 2)
Runs = list[list[str]]


def main() -> None:
    """Read, mix, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=int, default=27_300_000, help="in all, ends of lines counted")
    arguments = parser.parse_args()
    draw = random.Random(7)
    parts = read_recipe(arguments.recipe, arguments.folder).parts
    whole = [part for part in parts if part.settings.spelled_lines]
    large = [part for part in parts if not part.settings.spelled_lines]
    if len(whole) != 1 or len(large) != 1 or len(large[0].texts) != 1:
        parser.error(f"{arguments.recipe}: expected a part with spelled lines and one of a single file")
    runs, words = general(whole[0], draw)
    runs += books(large[0].texts[0], arguments.words - words, draw)
    draw.shuffle(runs)
    with arguments.out.open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for run in runs for line in run)
    print(f"{sum(map(length, runs)):,} words")


def general(part: Part, draw: random.Random) -> tuple[Runs, int]:
    """Everything, and lines that spell what is said more than once; the words of both, ends of sentences counted."""
    runs: Runs = []
    words = 0
    counts: Counter[str] = Counter()
    for path in part.texts:
        lines = list(normalized_lines([path]))
        counts.update(word for line in lines for word in line.split())
        words += length(lines)
        here = list(cut(lines, RUN_LINES))
        runs += [joined(run, draw) for run in here] if path.name.startswith("books") else here
    often = (word for word, seen in counts.items() if seen > 1)
    spelled = list(spelled_lines(often, part.settings.spelled_lines))
    return [*runs, *cut(spelled, SPELLED_RUN_LINES)], words + length(spelled)


def books(path: Path, words: int, draw: random.Random) -> Runs:
    """So many words of one large file, a run here and a run there."""
    runs: Runs = []
    size, places, read = path.stat().st_size, words // RUN_WORDS, 0
    with path.open("rb") as file:
        for place in range(places):
            if read >= words:
                break
            file.seek(int(size * (place + draw.random() * 0.5) / places))
            file.readline()
            run: list[str] = []
            while length(run) < RUN_WORDS and (paragraph := file.readline()):
                text = paragraph.decode("utf-8", "ignore").rstrip("\n")
                run += joined([normal for each in sentences(text) if (normal := normalize(each))], draw)
            runs.append(run)
            read += length(run)
    return runs


def joined(lines: Sequence[str], draw: random.Random) -> list[str]:
    """Sentences as they may follow one another in one breath."""
    found, following = [], iter(lines)
    for line in following:
        more = draw.choices(SENTENCES_A_LINE, HOW_OFTEN)[0] - 1
        found.append(" ".join([line, *(other for _, other in zip(range(more), following, strict=False))]))
    return found


def cut(lines: Sequence[str], count: int) -> Iterator[list[str]]:
    """Runs of so many lines."""
    for first in range(0, len(lines), count):
        yield list(lines[first : first + count])


def length(run: Sequence[str]) -> int:
    """Words and ends of lines."""
    return sum(len(line.split()) + 1 for line in run)


if __name__ == "__main__":
    main()
