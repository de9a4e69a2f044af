"""The state of one utterance's search: the prefix tree, the live beams, the free list. No search here.

Everything is a flat array, so that the compiled loop works on it without the interpreter. Probabilities are plain
doubles, with the weights of the language model and the hotwords multiplied in, and are rescaled by powers of two as
they shrink: the loop takes no logarithm.
"""

from typing import NamedTuple

import numpy as np

from lm.numba_cache import Array

NODE = np.dtype(
    [
        (
            "bias",
            np.float64,
        ),  # nats added to the acoustic score: language model, bonuses, penalties, hotwords
        ("factor", np.float64),  # exp(this node's bias - its parent's)
        ("end_nats", np.float64),  # what a space after this node adds; valid once end_factor is
        ("end_factor", np.float64),  # its exponential; negative: not computed yet
        ("language", np.float64),  # KenLM's log10 total up to the last finished word
        ("word_language", np.float64),  # KenLM's log10 of the word that ends here, or that this space closes
        ("peak", np.float32),  # the label's best log-probability while it was being emitted
        ("parent", np.int32),
        ("label", np.int32),
        ("depth", np.int32),  # labels since the utterance began
        ("word_start", np.int32),  # the node where the word began: the space before it, or the root
        ("lexicon", np.int32),  # state in the word trie
        ("hotword", np.int32),  # state in the hotword automaton
        ("end_match", np.int32),  # and after a space
        ("frame", np.int32),  # when the label was emitted
        ("beam", np.int32),  # place among the live beams, or -1
        (
            "context_length",
            np.int32,
        ),  # words of language model context: at a word start, or after the word's end
        ("mark", np.int32),
    ],
    align=True,
)

BEAM = np.dtype([("blank", np.float64), ("label", np.float64), ("node", np.int32)], align=True)

# Places in `counters`.
COUNT, FREE, USED, ROOT, FRAME, SETTLED_BLANK, STAMP = range(7)
# Places in `scale`: what the doubles of the beams must be multiplied by, as a natural logarithm.
LOG_SCALE = 0

NO_LABEL = -1
SMALLEST_TREE = 256


ROOT_NODE = np.zeros((), NODE)
ROOT_NODE["parent"] = ROOT_NODE["frame"] = -1
ROOT_NODE["label"], ROOT_NODE["end_factor"] = NO_LABEL, -1.0


class SearchState(NamedTuple):
    """The arrays of one utterance, as the kernels take them."""

    nodes: Array
    children: Array  # [nodes, labels]: child by label or -1
    context_words: Array  # [nodes, order - 1], latest first: as context_length
    context_backoffs: Array
    beams: Array
    free: Array  # a stack of counters[FREE] nodes given back; nodes from counters[USED] on were never used
    counters: Array
    scale: Array

    @classmethod
    def start(cls, width: int, labels: int, contexts: int) -> "SearchState":
        # A node is initialized when it is taken: a short utterance touches little memory.
        places = max(SMALLEST_TREE, 4 * width)
        state = cls(
            nodes=np.empty(places, NODE),
            children=np.empty((places, labels), np.int32),
            context_words=np.empty((places, contexts), np.int32),
            context_backoffs=np.empty((places, contexts), np.float32),
            beams=np.empty(width, BEAM),
            free=np.empty(places, np.int32),
            counters=np.zeros(7, np.int64),
            scale=np.zeros(1, np.float64),
        )
        state.counters[COUNT] = state.counters[USED] = 1
        state.nodes[0] = ROOT_NODE
        state.children[0] = -1
        state.context_words[0] = 0
        state.context_backoffs[0] = 0.0
        state.beams[0] = (1.0, 0.0, 0)
        return state

    def grown(self) -> "SearchState":
        """The same state with room for twice as many nodes."""
        names = ("nodes", "children", "context_words", "context_backoffs", "free")
        arrays = {name: getattr(self, name) for name in names}
        return self._replace(
            **{name: np.concatenate((array, np.empty_like(array))) for name, array in arrays.items()}
        )

    @property
    def available(self) -> int:
        return int(self.counters[FREE]) + len(self.nodes) - int(self.counters[USED])

    @property
    def bytes(self) -> int:
        arrays = (self.nodes, self.children, self.context_words, self.context_backoffs, self.beams, self.free)
        return sum(array.nbytes for array in arrays)
