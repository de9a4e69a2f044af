"""The prefix tree outside the hot loop: what is settled, which nodes can be freed, which words a path spells."""

import numpy as np

from lm.numba_cache import Array, compiled, whole
from lm.search.confidence import word_confidence
from lm.search.state import COUNT, FRAME, FREE, ROOT, STAMP, USED, SearchState

MAX_UNSETTLED_FRAMES = 500
"""Prefixes that have differed for longer than this (10 s) are settled in favour of the best: the tree stays small in
speech without pauses."""
KEPT_UNSETTLED_FRAMES = 250

CONFIDENCE_INPUTS = 5
confidence_of = compiled(word_confidence)


@compiled
def common_ancestor(state: SearchState) -> int:
    """The deepest node that every live prefix passes through."""
    nodes, beams, counters = state.nodes, state.beams, state.counters
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
def best_beam(state: SearchState) -> int:
    beams = state.beams
    best = 0
    for beam in range(1, state.counters[COUNT]):
        if beams[beam].blank + beams[beam].label > beams[best].blank + beams[best].label:
            best = beam
    return best


@compiled
def settle_old(state: SearchState, space: int) -> None:
    """Where live prefixes have differed for too long, keep those that share the best one's older part."""
    nodes, beams, counters = state.nodes, state.beams, state.counters
    ancestor = common_ancestor(state)
    frame = counters[FRAME]
    if nodes[ancestor].frame >= frame - MAX_UNSETTLED_FRAMES:
        return
    place = beams[best_beam(state)].node
    while nodes[place].frame > frame - KEPT_UNSETTLED_FRAMES and nodes[place].depth > nodes[ancestor].depth:
        place = nodes[place].parent
    shared = place
    while nodes[place].depth > nodes[ancestor].depth:  # between words, if there is such a place
        if nodes[place].label == space:
            shared = place
            break
        place = nodes[place].parent
    if shared == ancestor:
        return
    kept = 0
    for beam in range(counters[COUNT]):
        place = beams[beam].node
        while nodes[place].depth > nodes[shared].depth:
            place = nodes[place].parent
        node = beams[beam].node
        if place == shared:
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
def sweep(state: SearchState, root: int) -> None:
    """Make `root`, an ancestor of every live prefix, the new root; free all nodes that no live prefix needs."""
    nodes, children, beams, counters = state.nodes, state.children, state.beams, state.counters
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
            state.free[available] = place
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
    alphabet: Array,
    spans: Array,
    confidences: Array,
) -> int:
    """Write the words between `root` and `place` and return how many there are.

    `spelling` gets their characters, spaces between them; `spans` a row [first frame, end frame] for each, the
    first not before `not_before`; `confidences` a row [confidence, mean peak, least peak, characters, KenLM's log10].
    `last_language` is that log10 for a last word without a space after it, NaN if it has not been computed.
    """
    length = nodes[place].depth - nodes[root].depth
    path = np.empty(length + 1, np.int32)
    for at in range(length - 1, -1, -1):
        path[at] = place
        place = nodes[place].parent
    words, characters = 0, 0
    total, least = 0.0, 0.0
    for at in range(length + 1):
        ended = at == length or nodes[path[at]].label == space
        if ended:
            if characters > 0:
                language = last_language if at == length else nodes[path[at]].word_language
                mean = total / characters
                spans[words, 0] = max(spans[words, 0], not_before)
                spans[words, 1] = max(spans[words, 1], spans[words, 0] + 1)
                not_before = spans[words, 1]
                confidences[words, 0] = confidence_of(mean, least, characters, language)
                confidences[words, 1], confidences[words, 2] = mean, least
                confidences[words, 3], confidences[words, 4] = characters, language
                words += 1
                characters = 0
            if at < length:
                spelling[at] = 32
            continue
        node = nodes[path[at]]
        spelling[at] = alphabet[node.label]
        if characters == 0:
            total, least = 0.0, 0.0
            spans[words, 0], spans[words, 1] = node.frame, node.frame + 1
        spans[words, 0] = min(spans[words, 0], node.frame)
        spans[words, 1] = max(spans[words, 1], node.frame + 1)
        total += node.peak
        least = min(least, node.peak)
        characters += 1
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
