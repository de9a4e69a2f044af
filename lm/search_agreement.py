"""How far the live readings agree with the best one. A kernel that calls no other: numba's own cache is enough."""

import numpy as np

from lm.compiled import Array, compiled


@compiled
def agreed_words(nodes: Array, root: int, beams: Array, count: int, space: int, share: float) -> int:
    """How many words after `root` of the best reading have at least this share of all probability behind them.

    A word counts with its last letter; whether it has ended does not matter.
    """
    best = 0
    total = 0.0
    for beam in range(count):
        total += beams[beam].blank + beams[beam].label
        if beams[beam].blank + beams[beam].label > beams[best].blank + beams[best].label:
            best = beam
    first = nodes[root].depth
    length = nodes[beams[best].node].depth - first
    path = np.empty(length + 1, np.int32)
    place = beams[best].node
    for at in range(length, -1, -1):
        path[at] = place
        place = nodes[place].parent
    behind = np.zeros(length + 1)  # of the readings that leave the best one here
    for beam in range(count):
        place = beams[beam].node
        while nodes[place].depth - first > length:
            place = nodes[place].parent
        while path[nodes[place].depth - first] != place:
            place = nodes[place].parent
        behind[nodes[place].depth - first] += beams[beam].blank + beams[beam].label
    for at in range(length - 1, -1, -1):
        behind[at] += behind[at + 1]
    words = 0
    for at in range(1, length + 1):
        ends = nodes[path[at]].label != space and (at == length or nodes[path[at + 1]].label == space)
        if ends:
            if behind[at] < share * total:
                break
            words += 1
    return words
