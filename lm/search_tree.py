"""The tree of prefixes outside the hot loop: what is settled, what can be thrown away, what a path says."""

import numpy as np

from lm.compiled import Array, compiled, whole
from lm.confidence import word_confidence
from lm.search_state import COUNT, FRAME, FREE, ROOT, STAMP, USED

OPEN_FRAMES = 500
"""A question older than this (10 s) is settled for the best prefix: the tree stays small in unbroken speech."""
KEPT_OPEN_FRAMES = 250

EVIDENCE = 5
confidence_of = compiled(word_confidence)


@compiled
def common_ancestor(nodes: Array, beams: Array, counters: Array) -> int:
    """The deepest node that every live prefix passes through."""
    counters[STAMP] += 1
    stamp = counters[STAMP]
    place = beams[0].node
    ancestor = place
    while place >= 0:
        nodes[place].mark = stamp
        place = nodes[place].parent
    for beam in range(1, counters[COUNT]):
        place = beams[beam].node
        while nodes[place].mark != stamp:
            place = nodes[place].parent
        if nodes[place].depth < nodes[ancestor].depth:
            ancestor = place
    return whole(ancestor)


@compiled
def best_beam(beams: Array, counters: Array) -> int:
    best = 0
    for beam in range(1, counters[COUNT]):
        if beams[beam].blank + beams[beam].label > beams[best].blank + beams[best].label:
            best = beam
    return best


@compiled
def settle_old(nodes: Array, beams: Array, counters: Array, space: int) -> None:
    """Where live prefixes have disagreed for too long, keep those that share the best one's older part."""
    ancestor = common_ancestor(nodes, beams, counters)
    frame = counters[FRAME]
    if nodes[ancestor].frame >= frame - OPEN_FRAMES:
        return
    place = beams[best_beam(beams, counters)].node
    while nodes[place].frame > frame - KEPT_OPEN_FRAMES and nodes[place].depth > nodes[ancestor].depth:
        place = nodes[place].parent
    pillar = place
    while nodes[place].depth > nodes[ancestor].depth:  # between words, if there is such a place
        if nodes[place].label == space:
            pillar = place
            break
        place = nodes[place].parent
    if pillar == ancestor:
        return
    kept = 0
    for beam in range(counters[COUNT]):
        place = beams[beam].node
        while nodes[place].depth > nodes[pillar].depth:
            place = nodes[place].parent
        node = beams[beam].node
        if place == pillar:
            beams[kept].node = node
            beams[kept].blank = beams[beam].blank
            beams[kept].label = beams[beam].label
            nodes[node].beam = kept
            kept += 1
        else:
            nodes[node].beam = -1
    counters[COUNT] = kept


@compiled
def boundary_at(nodes: Array, place: int, space: int) -> int:
    """The last word start at or above a node: everything before it is whole words."""
    while nodes[place].label != space and nodes[place].parent >= 0:
        place = nodes[place].parent
    return place


@compiled
def sweep(nodes: Array, children: Array, beams: Array, free: Array, counters: Array, root: int) -> None:
    """Make `root`, an ancestor of every live prefix, the new root; give back all that no live prefix needs."""
    counters[STAMP] += 1
    stamp = counters[STAMP]
    nodes[root].mark = stamp
    for beam in range(counters[COUNT]):
        place = beams[beam].node
        while nodes[place].mark != stamp:
            nodes[place].mark = stamp
            place = nodes[place].parent
    nodes[root].parent = -1
    counters[ROOT] = root
    available = 0
    for place in range(counters[USED] - 1, -1, -1):
        if nodes[place].mark != stamp:
            free[available] = place
            available += 1
            continue
        for label in range(children.shape[1]):
            child = children[place, label]
            if child >= 0 and nodes[child].mark != stamp:
                children[place, label] = -1
    counters[FREE] = available


@compiled
def read_words(
    nodes: Array,
    root: int,
    place: int,
    space: int,
    not_before: int,
    last_language: float,
    spelling: Array,
    characters: Array,
    spans: Array,
    evidence: Array,
) -> int:
    """Write the words between `root` and `place` and say how many there are.

    `spelling` gets their characters, spaces between them; `spans` a row [first frame, end frame] for each, the
    first not before `not_before`; `evidence` a row [confidence, mean peak, least peak, letters, KenLM's log10].
    `last_language` is that log10 for a last word that no space has closed yet, NaN if nobody asked.
    """
    length = nodes[place].depth - nodes[root].depth
    path = np.empty(length + 1, np.int32)
    for at in range(length - 1, -1, -1):
        path[at] = place
        place = nodes[place].parent
    words, letters = 0, 0
    total, least = 0.0, 0.0
    for at in range(length + 1):
        ended = at == length or nodes[path[at]].label == space
        if ended:
            if letters > 0:
                language = last_language if at == length else nodes[path[at]].word_language
                mean = total / letters
                spans[words, 0] = max(spans[words, 0], not_before)
                spans[words, 1] = max(spans[words, 1], spans[words, 0] + 1)
                not_before = spans[words, 1]
                evidence[words, 0] = confidence_of(mean, least, letters, language)
                evidence[words, 1], evidence[words, 2] = mean, least
                evidence[words, 3], evidence[words, 4] = letters, language
                words += 1
                letters = 0
            if at < length:
                spelling[at] = 32
            continue
        node = nodes[path[at]]
        spelling[at] = characters[node.label]
        if letters == 0:
            total, least = 0.0, 0.0
            spans[words, 0], spans[words, 1] = node.frame, node.frame + 1
        spans[words, 0] = min(spans[words, 0], node.frame)
        spans[words, 1] = max(spans[words, 1], node.frame + 1)
        total += node.peak
        least = min(least, node.peak)
        letters += 1
    return words


@compiled
def words_between(nodes: Array, root: int, place: int, space: int) -> int:
    """How many words end between `root` and `place`."""
    words = 0
    while place != root:
        if nodes[place].label == space:
            words += 1
        place = nodes[place].parent
    return words
