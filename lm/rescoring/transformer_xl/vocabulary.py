"""Words by number, the frequent ones first; what is not among them is <unk>, sentences end in </s>."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError

END, UNKNOWN = "</s>", "<unk>"


class Vocabulary:
    """A list of words and the way back."""

    def __init__(self, words: Iterable[str], unknown_kinds: int) -> None:
        self.words = tuple(words)
        # How many different words of the training text <unk> stands for: it says only "one of these".
        self.unknown_kinds = max(1, unknown_kinds)
        self.numbers = {word: number for number, word in enumerate(self.words)}
        if END not in self.numbers or UNKNOWN not in self.numbers:
            raise LanguageError(f"a vocabulary needs {END} and {UNKNOWN}")
        self.end, self.unknown = self.numbers[END], self.numbers[UNKNOWN]

    @classmethod
    def from_counts(cls, counts: Counter[str], size: int) -> "Vocabulary":
        """The `size` most frequent words, two of them the marks; equal counts in alphabetical order."""
        if not counts:
            raise LanguageError("there is no word in the text; expected running text")
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        kept = ordered[: max(1, size - 2)]
        return cls([END, UNKNOWN, *kept], unknown_kinds=len(ordered) - len(kept))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, line: str) -> list[int]:
        """The words of a normal line by number, without the end mark."""
        return [self.numbers.get(word, self.unknown) for word in line.split()]

    def encode_lines(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """Lines one after the other, each closed by the end mark."""
        numbers: list[int] = []
        for line in lines:
            numbers.extend(self.encode(line))
            numbers.append(self.end)
        return np.array(numbers, dtype=np.int32)
