"""How many words of the best prefix the other live prefixes agree on, for stable interim results."""

import numpy as np

from lm.numba_cache import compiled
from lm.search.state import COUNT, ROOT, SearchState


@compiled
def agreed_words(state: SearchState, space: int, share: float) -> int:
    """The number of leading words of the best prefix whose prefixes hold at least this share of the beam's probability.

    A prefix agrees with a word if it contains all of its characters, whether or not a space follows.
    """
    nodes, beams, count = state.nodes, state.beams, state.counters[COUNT]
    best = 0
    total = 0.0
    for beam in range(count):
        total += beams[beam].blank + beams[beam].label
        if beams[beam].blank + beams[beam].label > beams[best].blank + beams[best].label:
            best = beam
    first = nodes[state.counters[ROOT]].depth
    length = nodes[beams[best].node].depth - first
    path = np.empty(length + 1, np.int32)
    node_id = beams[best].node
    for at in range(length, -1, -1):
        path[at] = node_id
        node_id = nodes[node_id].parent
    agreeing = np.zeros(
        length + 1
    )  # the probability of the prefixes that diverge from the best one at this depth
    for beam in range(count):
        node_id = beams[beam].node
        while nodes[node_id].depth - first > length:
            node_id = nodes[node_id].parent
        while path[nodes[node_id].depth - first] != node_id:
            node_id = nodes[node_id].parent
        agreeing[nodes[node_id].depth - first] += beams[beam].blank + beams[beam].label
    for at in range(length - 1, -1, -1):
        agreeing[at] += agreeing[at + 1]
    words = 0
    for at in range(1, length + 1):
        ends = nodes[path[at]].label != space and (at == length or nodes[path[at + 1]].label == space)
        if ends:
            if agreeing[at] < share * total:
                break
            words += 1
    return words
