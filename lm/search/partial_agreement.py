"""How far the live prefixes agree with the best one."""

import numpy as np

from lm.numba_cache import compiled
from lm.search.state import COUNT, ROOT, SearchState


@compiled
def agreed_words(state: SearchState, space: int, share: float) -> int:
    """How many words of the best prefix, from the root on, are in prefixes with this share of all probability.

    A word counts from its last character on; whether it has ended does not matter.
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
    place = beams[best].node
    for at in range(length, -1, -1):
        path[at] = place
        place = nodes[place].parent
    agreeing = np.zeros(length + 1)  # the probability of the prefixes that leave the best one here
    for beam in range(count):
        place = beams[beam].node
        while nodes[place].depth - first > length:
            place = nodes[place].parent
        while path[nodes[place].depth - first] != place:
            place = nodes[place].parent
        agreeing[nodes[place].depth - first] += beams[beam].blank + beams[beam].label
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
