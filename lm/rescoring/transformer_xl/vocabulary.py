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
        self.word_ids = {word: number for number, word in enumerate(self.words)}
        if END not in self.word_ids or UNKNOWN not in self.word_ids:
            raise LanguageError(f"a vocabulary needs {END} and {UNKNOWN}")
        self.end, self.unknown = self.word_ids[END], self.word_ids[UNKNOWN]

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
        return [self.word_ids.get(word, self.unknown) for word in line.split()]

    def encode_lines(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """Lines one after the other, each closed by the end mark."""
        word_ids: list[int] = []
        for line in lines:
            word_ids.extend(self.encode(line))
            word_ids.append(self.end)
        return np.array(word_ids, dtype=np.int32)
