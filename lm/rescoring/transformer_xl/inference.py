"""Transformer-XL inference in numpy, for rescoring an n-best list without PyTorch in the decode worker.

The hypotheses of a list share most of their words, so they are evaluated as a tree: a shared prefix is computed once,
and each word attends to its ancestors. The context sentences are the prefix of all hypotheses. A hypothesis that
differs in some words joins the others again after MERGE_AFTER_WORDS equal words; later words then attend to the
ancestors of the first hypothesis. This is an approximation that halves the work. Without merging, the scores are those
of `model.py`.
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
"""Words per slice of work: about 15 ms on one core."""
MERGE_AFTER_WORDS = 4
"""Hypotheses share a node again when this many of their last words are equal."""
Matrix = NDArray[np.float32]


class WordTree:
    """The words of several hypotheses. A node is a word, given its ancestors."""

    def __init__(self, prefix: Sequence[int], memory: int, merge_after: int) -> None:
        self._memory, self._merge_after = memory, merge_after
        self._word_ids = list(prefix)
        self._parents = [-1, *range(len(prefix) - 1)]
        self._root = len(prefix) - 1
        self._nodes: dict[tuple[tuple[int, ...], int], int] = {}

    def add(self, words: Sequence[int], end: int) -> list[tuple[int, int]]:
        """Add a hypothesis. Returns its predictions as (node, next word), the last one with the word `end`."""
        predictions, node = [], self._root
        occurrences: Counter[tuple[int, ...]] = Counter()
        for index, word in enumerate(words):
            predictions.append((node, word))
            history = tuple(words[max(0, index + 1 - self._merge_after) : index + 1])
            occurrences[history] += 1  # a repeated history is a new node, or it would be its own ancestor
            key = (history, occurrences[history])
            if key not in self._nodes:
                self._nodes[key] = len(self._word_ids)
                self._word_ids.append(word)
                self._parents.append(node)
            node = self._nodes[key]
        return [*predictions, (node, end)]

    def as_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The word id of each node, and its ancestors [nodes, memory + 1]: itself first, -1 beyond the root."""
        ancestors = np.full((len(self._word_ids), self._memory + 1), -1, dtype=np.int64)
        for node, parent in enumerate(self._parents):
            if parent >= 0:
                ancestors[node, 1:] = ancestors[parent, :-1]
            ancestors[node, 0] = node
        return np.array(self._word_ids, dtype=np.int64), ancestors


class NumpyRescorer:
    """A trained Transformer-XL as a `Rescorer`."""

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
        # The projected position encodings of each layer, independent of the text: [heads, depth, distances].
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
        """Natural-log probability of each text as the sentence after `context`, including the sentence end. An unknown
        word gets an equal share of the probability of <unk>, or costs nothing if it is in `exempt_words`. Yields None
        after each slice of work, and finally the scores."""
        vocabulary = self.vocabulary
        prefix = [word for text in context for word in (vocabulary.end, *vocabulary.encode(text))]
        prefix = [*prefix[-MAX_CONTEXT_WORDS:], vocabulary.end]
        tree = WordTree(prefix, self.config.memory, self._merge_after)
        predictions = [tree.add(vocabulary.encode(text), vocabulary.end) for text in texts]
        unique = list(dict.fromkeys(prediction for hypothesis in predictions for prediction in hypothesis))
        rows = {prediction: row for row, prediction in enumerate(unique)}
        nodes_and_words = np.array(unique, dtype=np.int64).reshape(-1, 2)
        log_probs = np.empty(len(unique), dtype=np.float64)
        word_ids, ancestors = tree.as_arrays()
        heads, depth = self.config.heads, self.config.width // self.config.heads
        key_values = [
            np.empty((2, heads, len(word_ids), depth), np.float32) for _ in range(self.config.layers)
        ]
        yield None
        for first in range(0, len(word_ids), SLICE_WORDS):
            end = min(first + SLICE_WORDS, len(word_ids))
            hidden = self._forward(word_ids[first:end], ancestors[first:end], first, key_values)
            nodes, words = nodes_and_words.T
            (in_slice,) = ((nodes >= first) & (nodes < end)).nonzero()
            if len(in_slice):
                log_probs[in_slice] = self._log_probs(hidden[nodes[in_slice] - first], words[in_slice])
            yield None
        log_probs[nodes_and_words[:, 1] == vocabulary.unknown] -= math.log(vocabulary.unknown_kinds)
        scores = []
        for text, hypothesis in zip(texts, predictions, strict=True):
            exempt = [word in exempt_words and word not in vocabulary.word_ids for word in text.split()]
            counted = zip(hypothesis, [*exempt, False], strict=True)
            scores.append(sum(float(log_probs[rows[prediction]]) for prediction, skip in counted if not skip))
        yield scores

    def _forward(
        self, word_ids: NDArray[np.int64], ancestors: NDArray[np.int64], first: int, key_values: list[Matrix]
    ) -> Matrix:
        """The hidden vectors of nodes. `key_values` has the keys and values of all earlier nodes; those of these nodes
        are added."""
        weights, config = self._weights, self.config
        count, end = len(word_ids), first + len(word_ids)
        # Only ancestors of these nodes are attended to: find them, and the distance of each to each node.
        attended = np.unique(ancestors[ancestors >= 0])
        rows, backs = (ancestors >= 0).nonzero()
        distances = np.zeros((count, len(attended)), dtype=np.int64)
        masked = np.ones((count, len(attended)), dtype=bool)
        columns = np.searchsorted(attended, ancestors[rows, backs])
        distances[rows, columns], masked[rows, columns] = backs, False
        distances = np.broadcast_to(distances, (config.heads, *distances.shape))
        hidden = self._embed(word_ids)
        for layer in range(config.layers):
            name = f"layers.{layer}."
            normalized = self._norm(hidden, name + "attention_norm")
            query = self._heads(normalized @ weights[name + "attention.query.weight"].T)
            both = (normalized @ weights[name + "attention.key_value.weight"].T).reshape(
                count, 2, config.heads, -1
            )
            key_values[layer][:, :, first:end] = both.transpose(1, 2, 0, 3)
            key, value = key_values[layer][:, :, attended]
            scores = (query + weights[name + "attention.content_bias"]) @ key.transpose(0, 2, 1)
            by_distance = (query + weights[name + "attention.position_bias"]) @ self._positions[layer]
            scores += np.take_along_axis(by_distance, distances, axis=2)
            scores /= math.sqrt(config.width // config.heads)
            scores[:, masked] = -np.inf
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
        centered = rows - rows.mean(axis=1, keepdims=True)
        centered /= np.sqrt((centered * centered).mean(axis=1, keepdims=True) + 1e-5)
        return np.asarray(centered * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"])

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
        result = _log_softmax_at(hidden @ self._head.T + self._head_bias, index)
        for cluster, (first, end) in enumerate(rarer):
            (at,) = ((targets >= first) & (targets < end)).nonzero()
            if len(at):
                narrow = hidden[at] @ self._weights[f"words.write.{cluster}.weight"].T
                tail = narrow @ self._weights[f"words.tables.{cluster + 1}"].T
                result[at] += _log_softmax_at(
                    tail + self._weights[f"words.biases.{cluster + 1}"], targets[at] - first
                )
        return result


def _log_softmax_at(scores: Matrix, index: NDArray[np.int64]) -> Matrix:
    """The log-softmax of each row at one index."""
    maximum = scores.max(axis=1)
    total = np.log(np.exp(scores - maximum[:, None]).sum(axis=1)) + maximum
    return np.asarray(scores[np.arange(len(scores)), index] - total)


def sinusoids(count: int, width: int) -> Matrix:
    """The sinusoidal encodings of the distances 0 ... count-1."""
    distance = np.arange(count, dtype=np.float32)[:, None]
    angles = distance * (10000.0 ** (-np.arange(0.0, width, 2.0) / width)).astype(np.float32)
    return np.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width])
