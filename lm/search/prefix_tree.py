"""Operations on the prefix tree outside the main loop: common prefix, commit, freeing nodes, reading words."""

import numpy as np

from lm.numba_cache import Array, as_int, compiled
from lm.search.confidence import word_confidence
from lm.search.state import COUNT, FRAME, FREE, ROOT, STAMP, USED, SearchState

MAX_UNCOMMITTED_FRAMES = 500
"""If live prefixes differ in frames older than this (10 s), the older part of the best one is committed. This bounds
the tree in speech without pauses."""
KEPT_UNCOMMITTED_FRAMES = 250

CONFIDENCE_INPUTS = 5
confidence_of = compiled(word_confidence)


@compiled
def common_ancestor(state: SearchState) -> int:
    """The deepest node that all live prefixes descend from."""
    nodes, beams, counters = state.nodes, state.beams, state.counters
    counters[STAMP] += 1
    stamp = counters[STAMP]
    node_id = beams[0].node
    ancestor = node_id
    while node_id >= 0:
        nodes[node_id].mark = stamp
        node_id = nodes[node_id].parent
    for beam in range(1, counters[COUNT]):
        node_id = beams[beam].node
        while nodes[node_id].mark != stamp:
            node_id = nodes[node_id].parent
        if nodes[node_id].depth < nodes[ancestor].depth:
            ancestor = node_id
    return as_int(ancestor)


@compiled
def best_beam(state: SearchState) -> int:
    beams = state.beams
    best = 0
    for beam in range(1, state.counters[COUNT]):
        if beams[beam].blank + beams[beam].label > beams[best].blank + beams[best].label:
            best = beam
    return best


@compiled
def commit_old(state: SearchState, space: int) -> None:
    """If live prefixes have differed for too long, drop those that do not share the older part of the best one."""
    nodes, beams, counters = state.nodes, state.beams, state.counters
    ancestor = common_ancestor(state)
    frame = counters[FRAME]
    if nodes[ancestor].frame >= frame - MAX_UNCOMMITTED_FRAMES:
        return
    node_id = beams[best_beam(state)].node
    while (
        nodes[node_id].frame > frame - KEPT_UNCOMMITTED_FRAMES
        and nodes[node_id].depth > nodes[ancestor].depth
    ):
        node_id = nodes[node_id].parent
    shared = node_id
    while nodes[node_id].depth > nodes[ancestor].depth:  # at a word boundary, if there is one
        if nodes[node_id].label == space:
            shared = node_id
            break
        node_id = nodes[node_id].parent
    if shared == ancestor:
        return
    kept = 0
    for beam in range(counters[COUNT]):
        node_id = beams[beam].node
        while nodes[node_id].depth > nodes[shared].depth:
            node_id = nodes[node_id].parent
        node = beams[beam].node
        if node_id == shared:
            beams[kept].node = node
            beams[kept].blank = beams[beam].blank
            beams[kept].label = beams[beam].label
            nodes[node].beam = kept
            kept += 1
        else:
            nodes[node].beam = -1
    counters[COUNT] = kept


@compiled
def word_boundary_at(nodes: Array, node_id: int, space: int) -> int:
    """The last word boundary at or above a node. The path before it consists of complete words."""
    while nodes[node_id].label != space and nodes[node_id].parent >= 0:
        node_id = nodes[node_id].parent
    return node_id


@compiled
def sweep(state: SearchState, root: int) -> None:
    """Make `root`, an ancestor of all live prefixes, the new root, and free all nodes that no live prefix needs."""
    nodes, children, beams, counters = state.nodes, state.children, state.beams, state.counters
    counters[STAMP] += 1
    stamp = counters[STAMP]
    nodes[root].mark = stamp
    for beam in range(counters[COUNT]):
        node_id = beams[beam].node
        while nodes[node_id].mark != stamp:
            nodes[node_id].mark = stamp
            node_id = nodes[node_id].parent
    nodes[root].parent = -1
    counters[ROOT] = root
    available = 0
    for node_id in range(counters[USED] - 1, -1, -1):
        if nodes[node_id].mark != stamp:
            state.free[available] = node_id
            available += 1
            continue
        for label in range(children.shape[1]):
            child = children[node_id, label]
            if child >= 0 and nodes[child].mark != stamp:
                children[node_id, label] = -1
    counters[FREE] = available


@compiled
def read_words(
    nodes: Array,
    root: int,
    node_id: int,
    space: int,
    not_before: int,
    last_word_lm_score: float,
    spelling: Array,
    alphabet: Array,
    spans: Array,
    confidences: Array,
) -> int:
    """Write the words between `root` and `node_id` to the arrays and return their number.

    `spelling` gets the characters with a space between words; `spans` a row [first frame, end frame] per word, none
    before `not_before`; `confidences` a row [confidence, mean peak, lowest peak, characters, KenLM's log10] per word.
    `last_word_lm_score` is the log10 of a last word without a space after it, NaN if it is not computed.
    """
    length = nodes[node_id].depth - nodes[root].depth
    path = np.empty(length + 1, np.int32)
    for at in range(length - 1, -1, -1):
        path[at] = node_id
        node_id = nodes[node_id].parent
    words, characters = 0, 0
    peak_sum, min_peak = 0.0, 0.0
    for at in range(length + 1):
        ended = at == length or nodes[path[at]].label == space
        if ended:
            if characters > 0:
                lm_score = last_word_lm_score if at == length else nodes[path[at]].word_lm_score
                mean_peak = peak_sum / characters
                spans[words, 0] = max(spans[words, 0], not_before)
                spans[words, 1] = max(spans[words, 1], spans[words, 0] + 1)
                not_before = spans[words, 1]
                confidences[words, 0] = confidence_of(mean_peak, min_peak, characters, lm_score)
                confidences[words, 1], confidences[words, 2] = mean_peak, min_peak
                confidences[words, 3], confidences[words, 4] = characters, lm_score
                words += 1
                characters = 0
            if at < length:
                spelling[at] = 32  # a space
            continue
        node = nodes[path[at]]
        spelling[at] = alphabet[node.label]
        if characters == 0:
            peak_sum, min_peak = 0.0, 0.0
            spans[words, 0], spans[words, 1] = node.frame, node.frame + 1
        spans[words, 0] = min(spans[words, 0], node.frame)
        spans[words, 1] = max(spans[words, 1], node.frame + 1)
        peak_sum += node.peak
        min_peak = min(min_peak, node.peak)
        characters += 1
    return words


@compiled
def words_between(nodes: Array, root: int, node_id: int, space: int) -> int:
    """The number of words that end between `root` and `node_id`."""
    words = 0
    while node_id != root:
        if nodes[node_id].label == space:
            words += 1
        node_id = nodes[node_id].parent
    return words
