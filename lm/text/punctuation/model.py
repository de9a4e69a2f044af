"""Tagger inference in numpy: a few matrix products per word, weights of about 2 MB."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm import PRETRAINED
from lm.gelu import gelu
from lm.text.punctuation.labels import MARKS
from lm.weight_files import FileFormat, read_weights

FILE_FORMAT = FileFormat("silica punctuation 1", "punctuation model", "silica lm train-punctuation")
KERNEL_SIZE = 5
SUFFIX_LENGTH = 3
Matrix = NDArray[np.float32]


def context_words(layers: int) -> int:
    """The receptive field of the network in words on either side. The dilation doubles with each layer.

    Utterances are padded with this many empty words on both sides, as in training.
    """
    return KERNEL_SIZE // 2 * ((1 << layers) - 1)


@dataclass(frozen=True)
class WordIndex:
    """Maps words to rows of the embedding tables. Frequent words have their own rows, others share rows by hash."""

    words: tuple[str, ...]
    shared_rows: int
    suffix_rows: int

    @property
    def rows(self) -> int:
        """The number of rows of the word table. Row 0 is padding."""
        return 1 + len(self.words) + self.shared_rows

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words, start=1)}

    def lookup(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row of each word, and the row of its suffix."""
        first_shared = 1 + len(self.words)
        rows = [
            self._rows.get(word) or first_shared + zlib.crc32(word.encode()) % self.shared_rows
            for word in words
        ]
        suffixes = [1 + zlib.crc32(word[-SUFFIX_LENGTH:].encode()) % (self.suffix_rows - 1) for word in words]
        return np.array(rows, dtype=np.int64), np.array(suffixes, dtype=np.int64)


class Punctuator:
    """Predicts punctuation and capitals for the words of an utterance."""

    def __init__(self, word_index: WordIndex, weights: dict[str, Matrix], metadata: dict[str, str]) -> None:
        self.word_index = word_index
        self.metadata = metadata
        self.weights = weights
        layers = sum(name.startswith("layers.") and name.endswith(".weight") for name in weights)
        self.context_words = context_words(layers)
        # [kernel size, in, out], contiguous: matrix products with torch's layout [out, in, kernel size] are 10x slower.
        self._kernels = [
            np.ascontiguousarray(weights[f"layers.{layer}.weight"].transpose(2, 1, 0))
            for layer in range(layers)
        ]

    @classmethod
    def load(cls, path: Path) -> "Punctuator":
        """Read a file that `silica lm train-punctuation` wrote."""
        weights, metadata = read_weights(path, FILE_FORMAT)
        shape = json.loads(metadata["shape"])
        word_index = WordIndex(
            tuple(metadata["words"].split(" ")), shape["shared_rows"], shape["suffix_rows"]
        )
        return cls(word_index, weights, metadata)

    @classmethod
    def shipped(cls) -> "Punctuator | None":
        """The shipped model, or None if there is none."""
        path = PRETRAINED / "punctuation.safetensors"
        return cls.load(path) if path.is_file() else None

    def scores(self, words: Sequence[str]) -> tuple[Matrix, Matrix]:
        """The scores of each word for MARKS and for CAPITALS."""
        rows, suffixes = self.word_index.lookup(words)
        weights = self.weights
        pad = (self.context_words, self.context_words)
        hidden = np.concatenate(
            [weights["words"][np.pad(rows, pad)], weights["suffixes"][np.pad(suffixes, pad)]], axis=1
        )
        hidden = hidden @ weights["enter.weight"].T + weights["enter.bias"]
        for layer, kernel in enumerate(self._kernels):
            hidden = hidden + gelu(_convolve(hidden, kernel, weights[f"layers.{layer}.bias"], 2**layer))
        hidden = hidden[self.context_words : self.context_words + len(words)]
        out = hidden @ weights["leave.weight"].T + weights["leave.bias"]
        return out[:, : len(MARKS)], out[:, len(MARKS) :]

    def tag(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The best mark and capitals of each word. The last word always gets a full stop or a question mark."""
        if not words:
            return [], []
        marks, capitals = self.scores(words)
        best = marks.argmax(axis=1)
        best[-1] = 2 + int(marks[-1, 3] > marks[-1, 2])
        return best.tolist(), capitals.argmax(axis=1).tolist()


def capitalize(word: str, capital: int, sentence_start: bool) -> str:
    """Apply a capitals label to a word. The word I and the first word of a sentence are always capitalized."""
    if capital == 2 and not sentence_start:
        return word.upper()
    if word == "i" or word.startswith("i'"):
        return "I" + word[1:]
    return word[:1].upper() + word[1:] if capital == 1 or sentence_start or capital == 2 else word


def _convolve(hidden: Matrix, kernel: Matrix, bias: Matrix, dilation: int) -> Matrix:
    """Same-length convolution over words."""
    reach = KERNEL_SIZE // 2 * dilation
    padded = np.pad(hidden, ((reach, reach), (0, 0)))
    result = np.broadcast_to(bias, (len(hidden), len(bias))).copy()
    for position, weight in enumerate(kernel):
        result += padded[position * dilation : position * dilation + len(hidden)] @ weight
    return result
