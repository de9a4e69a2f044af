"""The vocabulary of a Transformer-XL: word ids by frequency, <unk> for all other words, </s> for sentence ends."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError

END, UNKNOWN = "</s>", "<unk>"


class Vocabulary:
    """Maps words to ids and back."""

    def __init__(self, words: Iterable[str], unknown_kinds: int) -> None:
        self.words = tuple(words)
        # The number of different training words that <unk> replaces. Each gets an equal share of its probability.
        self.unknown_kinds = max(1, unknown_kinds)
        self.word_ids = {word: word_id for word_id, word in enumerate(self.words)}
        if END not in self.word_ids or UNKNOWN not in self.word_ids:
            raise LanguageError(f"a vocabulary needs {END} and {UNKNOWN}")
        self.end, self.unknown = self.word_ids[END], self.word_ids[UNKNOWN]

    @classmethod
    def from_counts(cls, counts: Counter[str], size: int) -> "Vocabulary":
        """The `size` most frequent words, including </s> and <unk>. Equal counts are in alphabetical order."""
        if not counts:
            raise LanguageError("the text is empty; expected running text")
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        kept = ordered[: max(1, size - 2)]
        return cls([END, UNKNOWN, *kept], unknown_kinds=len(ordered) - len(kept))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, line: str) -> list[int]:
        """The word ids of a normalized line, without the sentence end."""
        return [self.word_ids.get(word, self.unknown) for word in line.split()]

    def encode_lines(self, lines: Iterable[str]) -> NDArray[np.int32]:
        """The word ids of all lines in one array, each line followed by the sentence end."""
        word_ids: list[int] = []
        for line in lines:
            word_ids.extend(self.encode(line))
            word_ids.append(self.end)
        return np.array(word_ids, dtype=np.int32)
