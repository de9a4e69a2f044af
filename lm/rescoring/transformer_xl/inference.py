"""What a Transformer-XL thinks of many readings of one utterance, in numpy.

Readings are alike for most of their length, so they are read as a tree: what several share is read once, and every word
sees the words on its own way back to the root. What was said before is the trunk. A reading that goes its own way for
a word or two comes back to the others once four words are the same again: what it said in between counts for no later
word, which costs nothing that can be measured and halves the work. Each way by itself is what `model.py` computes
(tests compare them), without PyTorch in a decode worker.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm.gelu import gelu
from lm.rescoring.transformer_xl.config import TransformerConfig
from lm.rescoring.transformer_xl.storage import read_model
from lm.rescoring.transformer_xl.vocabulary import Vocabulary

MAX_CONTEXT_WORDS = 256
SLICE_WORDS = 64
"""Words that are read between two looks at other work: some fifteen milliseconds of a core."""
MERGE_AFTER_WORDS = 4
"""Readings whose last so many words are the same go on as one."""
Matrix = NDArray[np.float32]


class WordTree:
    """Words that readings are made of; each node is a word after its own way back to the root."""

    def __init__(self, prefix: Sequence[int], memory: int, merge_after: int) -> None:
        self._memory, self._merge_after = memory, merge_after
        self._numbers = list(prefix)
        self._parents = [-1, *range(len(prefix) - 1)]
        self._root = len(prefix) - 1
        self._known: dict[tuple[tuple[int, ...], int], int] = {}

    def add(self, line: Sequence[int], end: int) -> list[tuple[int, int]]:
        """A reading's words become nodes where they are not yet; each of its steps as (node, the word that follows)."""
        steps, node = [], self._root
        said: Counter[tuple[int, ...]] = Counter()
        for place, word in enumerate(line):
            steps.append((node, word))
            lately = tuple(line[max(0, place + 1 - self._merge_after) : place + 1])
            said[lately] += 1  # who says four words a second time is not back where he said them first
            at = (lately, said[lately])
            if at not in self._known:
                self._known[at] = len(self._numbers)
                self._numbers.append(word)
                self._parents.append(node)
            node = self._known[at]
        return [*steps, (node, end)]

    def as_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The words, and each one's way back, itself first: [nodes, furthest + 1] nodes, -1 where there is none."""
        ancestors = np.full((len(self._numbers), self._memory + 1), -1, dtype=np.int64)
        for node, parent in enumerate(self._parents):
            if parent >= 0:
                ancestors[node, 1:] = ancestors[parent, :-1]
            ancestors[node, 0] = node
        return np.array(self._numbers, dtype=np.int64), ancestors


class NumpyRescorer:
    """The network as it is used for ranking."""

    def __init__(
        self,
        weights: dict[str, Matrix],
        config: TransformerConfig,
        vocabulary: Vocabulary,
        merge_after: int = MERGE_AFTER_WORDS,
    ) -> None:
        self.config, self.vocabulary, self._merge_after = config, vocabulary, merge_after
        self._weights = weights
        depth = config.width // config.heads
        # What each distance says to each layer, the same for every text: [heads, depth, distances].
        distances = sinusoids(config.memory + 1, config.width)
        self._positions = [
            (distances @ weights[f"layers.{layer}.attention.position.weight"].T)
            .reshape(-1, config.heads, depth)
            .transpose(1, 2, 0)
            for layer in range(config.layers)
        ]
        self._head = np.concatenate([weights["words.tables.0"], weights["words.cluster_vectors"]])
        self._head_bias = np.concatenate([weights["words.biases.0"], weights["words.cluster_biases"]])

    @classmethod
    def load(cls, path: Path) -> "NumpyRescorer":
        """Read a file that `silica train-lm` wrote."""
        return cls(*read_model(path))

    def score_in_slices(
        self, texts: Sequence[str], context: Sequence[str] = (), exempt_words: Collection[str] = ()
    ) -> Iterator[list[float] | None]:
        """Natural-log probability of each text, the end of the sentence included, after the sentences `context`. An
        unknown word costs its share of <unk>, and nothing if it is in `exempt_words`. Yields None after each few
        milliseconds of work, and the scores at the end."""
        words = self.vocabulary
        prefix = [number for text in context for number in (words.end, *words.encode(text))]
        tree = WordTree([*prefix[-MAX_CONTEXT_WORDS:], words.end], self.config.memory, self._merge_after)
        lines = [tree.add(words.encode(text), words.end) for text in texts]
        places = {
            step: place for place, step in enumerate(dict.fromkeys(step for line in lines for step in line))
        }
        asked = np.array(list(places), dtype=np.int64).reshape(-1, 2)
        found = np.empty(len(places), dtype=np.float64)
        word_ids, ancestors = tree.as_arrays()
        heads, depth = self.config.heads, self.config.width // self.config.heads
        key_values = [
            np.empty((2, heads, len(word_ids), depth), np.float32) for _ in range(self.config.layers)
        ]
        yield None
        for first in range(0, len(word_ids), SLICE_WORDS):
            end = min(first + SLICE_WORDS, len(word_ids))
            hidden = self._read(word_ids[first:end], ancestors[first:end], first, key_values)
            (here,) = ((asked[:, 0] >= first) & (asked[:, 0] < end)).nonzero()
            if len(here):
                found[here] = self._log_probs(hidden[asked[here, 0] - first], asked[here, 1])
            yield None
        share = math.log(words.unknown_kinds)
        found[asked[:, 1] == words.unknown] -= share
        scores = []
        for text, line in zip(texts, lines, strict=True):
            free = [word in exempt_words and word not in words.word_ids for word in text.split()]
            scores.append(
                sum(
                    float(found[places[step]])
                    for step, none in zip(line, [*free, False], strict=True)
                    if not none
                )
            )
        yield scores

    def _read(
        self, word_ids: NDArray[np.int64], ancestors: NDArray[np.int64], first: int, key_values: list[Matrix]
    ) -> Matrix:
        """Nodes to hidden vectors; `key_values` holds the keys and values of the nodes before and takes theirs in."""
        weights, config = self._weights, self.config
        count, end = len(word_ids), first + len(word_ids)
        # Of all nodes only those count that one of these comes from: which, and how far back each lies for each.
        seen = np.unique(ancestors[ancestors >= 0])
        rows, backs = (ancestors >= 0).nonzero()
        distances = np.zeros((count, len(seen)), dtype=np.int64)
        unseen = np.ones((count, len(seen)), dtype=bool)
        columns = np.searchsorted(seen, ancestors[rows, backs])
        distances[rows, columns], unseen[rows, columns] = backs, False
        distances = np.broadcast_to(distances, (config.heads, *distances.shape))
        hidden = self._embed(word_ids)
        for layer in range(config.layers):
            name = f"layers.{layer}."
            normal = self._norm(hidden, name + "attention_norm")
            query = self._heads(normal @ weights[name + "attention.query.weight"].T)
            both = (normal @ weights[name + "attention.key_value.weight"].T).reshape(
                count, 2, config.heads, -1
            )
            key_values[layer][:, :, first:end] = both.transpose(1, 2, 0, 3)
            key, value = key_values[layer][:, :, seen]
            scores = (query + weights[name + "attention.content_bias"]) @ key.transpose(0, 2, 1)
            far = (query + weights[name + "attention.position_bias"]) @ self._positions[layer]
            scores += np.take_along_axis(far, distances, axis=2)
            scores /= math.sqrt(config.width // config.heads)
            scores[:, unseen] = -np.inf
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=2, keepdims=True)
            mixed = (scores @ value).transpose(1, 0, 2).reshape(count, config.width)
            hidden = hidden + mixed @ weights[name + "attention.out.weight"].T
            inner = self._norm(hidden, name + "inner_norm") @ weights[name + "wide.weight"].T
            inner = gelu(inner + weights[name + "wide.bias"])
            hidden = hidden + inner @ weights[name + "narrow.weight"].T + weights[name + "narrow.bias"]
        return self._norm(hidden, "norm")

    def _heads(self, rows: Matrix) -> Matrix:
        return rows.reshape(len(rows), self.config.heads, -1).transpose(1, 0, 2)

    def _norm(self, rows: Matrix, name: str) -> Matrix:
        centred = rows - rows.mean(axis=1, keepdims=True)
        centred /= np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
        return np.asarray(centred * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"])

    def _embed(self, word_ids: NDArray[np.int64]) -> Matrix:
        vectors = np.empty((len(word_ids), self.config.width), np.float32)
        for cluster, (first, end) in enumerate(self.config.clusters):
            (at,) = ((word_ids >= first) & (word_ids < end)).nonzero()
            rows = self._weights[f"words.tables.{cluster}"][word_ids[at] - first]
            vectors[at] = rows @ self._weights[f"words.read.{cluster - 1}.weight"].T if cluster else rows
        return vectors

    def _log_probs(self, hidden: Matrix, targets: NDArray[np.int64]) -> Matrix:
        """Natural-log probability of each word after its hidden vector."""
        (_, shortlist), *rarer = self.config.clusters
        index = np.minimum(targets, shortlist - 1)
        for cluster, (first, end) in enumerate(rarer):
            index[(targets >= first) & (targets < end)] = shortlist + cluster
        found = _chosen(hidden @ self._head.T + self._head_bias, index)
        for cluster, (first, end) in enumerate(rarer):
            (at,) = ((targets >= first) & (targets < end)).nonzero()
            if len(at):
                narrow = hidden[at] @ self._weights[f"words.write.{cluster}.weight"].T
                tail = narrow @ self._weights[f"words.tables.{cluster + 1}"].T
                found[at] += _chosen(tail + self._weights[f"words.biases.{cluster + 1}"], targets[at] - first)
        return found


def _chosen(scores: Matrix, index: NDArray[np.int64]) -> Matrix:
    """The log-softmax of each row at one place."""
    most = scores.max(axis=1)
    total = np.log(np.exp(scores - most[:, None]).sum(axis=1)) + most
    return np.asarray(scores[np.arange(len(scores)), index] - total)


def sinusoids(count: int, width: int) -> Matrix:
    """Distances 0 ... count-1 as sines and cosines."""
    distance = np.arange(count, dtype=np.float32)[:, None]
    turned = distance * (10000.0 ** (-np.arange(0.0, width, 2.0) / width)).astype(np.float32)
    return np.asarray(np.concatenate([np.sin(turned), np.cos(turned)], axis=1)[:, :width])
