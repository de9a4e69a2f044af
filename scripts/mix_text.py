"""Makes the training text of the rescoring language model from the texts of the n-gram recipe.

    python scripts/mix_text.py lm/pretrained/recipe.toml FOLDER OUT.txt [--words 27300000]

FOLDER holds the texts that the recipe names. The part with spelled lines is used completely; the remaining words are
sampled at even distances from the file of the other part. Blocks of about 60 lines stay together and are shuffled. In
books, one to three sentences form a line, because speakers do not pause after every sentence. `silica train-lm` trains
on the result. Takes 90 seconds.
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

BLOCK_LINES, BLOCK_WORDS, SPELLED_BLOCK_LINES = 60, 2400, 8
SENTENCES_PER_LINE, FREQUENCIES = (1, 2, 3), (5, 3, 2)
Blocks = list[list[str]]


def main() -> None:
    """Read, sample, shuffle, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--words", type=int, default=27_300_000, help="total number of words, counting line breaks"
    )
    arguments = parser.parse_args()
    rng = random.Random(7)
    parts = read_recipe(arguments.recipe, arguments.folder).parts
    general = [part for part in parts if part.settings.spelled_lines]
    large = [part for part in parts if not part.settings.spelled_lines]
    if len(general) != 1 or len(large) != 1 or len(large[0].texts) != 1:
        parser.error(f"{arguments.recipe}: expected one part with spelled lines and one with a single file")
    blocks, words = general_blocks(general[0], rng)
    blocks += sample_books(large[0].texts[0], arguments.words - words, rng)
    rng.shuffle(blocks)
    with arguments.out.open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for block in blocks for line in block)
    print(f"{sum(map(word_count, blocks)):,} words")


def general_blocks(part: Part, rng: random.Random) -> tuple[Blocks, int]:
    """All texts of a part with spelled lines for words that occur more than once, and the number of words."""
    blocks: Blocks = []
    words = 0
    counts: Counter[str] = Counter()
    for path in part.texts:
        lines = list(normalized_lines([path]))
        counts.update(word for line in lines for word in line.split())
        words += word_count(lines)
        text_blocks = list(split(lines, BLOCK_LINES))
        blocks += (
            [join_sentences(block, rng) for block in text_blocks]
            if path.name.startswith("books")
            else text_blocks
        )
    repeated = (word for word, count in counts.items() if count > 1)
    spelled = list(spelled_lines(repeated, part.settings.spelled_lines))
    return [*blocks, *split(spelled, SPELLED_BLOCK_LINES)], words + word_count(spelled)


def sample_books(path: Path, words: int, rng: random.Random) -> Blocks:
    """This many words of one large file, in blocks at even distances."""
    blocks: Blocks = []
    size, places, read = path.stat().st_size, words // BLOCK_WORDS, 0
    with path.open("rb") as file:
        for place in range(places):
            if read >= words:
                break
            file.seek(int(size * (place + rng.random() * 0.5) / places))
            file.readline()
            block: list[str] = []
            while word_count(block) < BLOCK_WORDS and (paragraph := file.readline()):
                text = paragraph.decode("utf-8", "ignore").rstrip("\n")
                normalized = [normal for each in sentences(text) if (normal := normalize(each))]
                block += join_sentences(normalized, rng)
            blocks.append(block)
            read += word_count(block)
    return blocks


def join_sentences(parts: Sequence[str], rng: random.Random) -> list[str]:
    """Lines of one to three sentences."""
    lines, remaining = [], iter(parts)
    for sentence in remaining:
        more = rng.choices(SENTENCES_PER_LINE, FREQUENCIES)[0] - 1
        lines.append(" ".join([sentence, *(other for _, other in zip(range(more), remaining, strict=False))]))
    return lines


def split(lines: Sequence[str], count: int) -> Iterator[list[str]]:
    """Blocks of this many lines."""
    for first in range(0, len(lines), count):
        yield list(lines[first : first + count])


def word_count(lines: Sequence[str]) -> int:
    """The number of words and line breaks."""
    return sum(len(line.split()) + 1 for line in lines)


if __name__ == "__main__":
    main()
