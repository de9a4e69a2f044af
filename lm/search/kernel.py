"""The compiled loop of the CTC prefix beam search, frame by frame, with n-gram and hotwords.

The search follows Graves and Jaitly (2014) and Hannun et al. (2014): each live prefix has the probability of all its
alignments that end in blank and of all that end in its last label. A prefix has exactly one parent, so merging needs no
table: an extension is either a live child or new.
"""

import math

import numpy as np

from lm.numba_cache import Array, as_float, compiled
from lm.search.extension_scores import Search, look_ahead_score, score_character, score_word_end
from lm.search.prefix_tree import commit_old
from lm.search.state import ALL_BLANK, COUNT, FRAME, FREE, LOG_SCALE, NO_LABEL, USED, SearchState

COMMIT_INTERVAL_FRAMES = 100
TINY, HUGE = 2.0**-200, 2.0**200
NOT_COMPUTED = -1.0
BAD_FRAME = -1


@compiled
def kth_largest(values: Array, count: int, k: int) -> float:
    """The k-th largest of `values[:count]` by Hoare's quickselect. Reorders the values."""
    low, high = 0, count - 1
    target = k - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        left, right = low, high
        while left <= right:
            while values[left] > pivot:
                left += 1
            while values[right] < pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if target <= right:
            high = right
        elif target >= left:
            low = left
        else:
            break
    return as_float(values[target])


@compiled
def advance(frames: Array, first: int, search: Search, state: SearchState) -> int:
    """Decode the frames from `first` on and return the index of the next frame: less than their number if the tree is
    full, BAD_FRAME - n if frame n is -inf for every label."""
    nodes, children, beams = state.nodes, state.children, state.beams
    free, counters, scale = state.free, state.counters, state.scale
    context_words, context_backoffs = state.context_words, state.context_backoffs
    weights, lexicon, hotwords = search.weights, search.lexicon, search.hotwords
    width, labels, space = weights.width, weights.labels, weights.space
    floor, spread = weights.token_floor, weights.spread_factor
    blank_only_threshold = math.log1p(-math.exp(floor)) if floor < 0.0 else -1e-9
    prob = np.zeros(labels + 1, np.float64)
    order = np.empty(labels + 1, np.int32)
    stay_blank = np.empty(width, np.float64)
    stay_label = np.empty(width, np.float64)
    max_new = width * labels
    new_parent = np.empty(max_new, np.int32)
    new_label = np.empty(max_new, np.int32)
    new_mass = np.empty(max_new, np.float64)
    ranked = np.empty(width + max_new, np.float64)

    for index in range(first, frames.shape[0]):
        row = frames[index]
        if row[labels] >= blank_only_threshold:
            # No other label can reach the floor: every prefix survives and now ends in blank.
            scale[LOG_SCALE] += row[labels]
            if counters[ALL_BLANK] == 0:
                for beam in range(counters[COUNT]):
                    beams[beam].blank += beams[beam].label
                    beams[beam].label = 0.0
                counters[ALL_BLANK] = 1
            counters[FRAME] += 1
            if counters[FRAME] % COMMIT_INTERVAL_FRAMES == 0 and counters[COUNT] > 1:
                commit_old(state, space)
            continue
        if counters[FREE] + len(nodes) - counters[USED] < width:
            return index
        # The labels to try, most probable first.
        candidates = 0
        likeliest = labels
        for label in range(labels):
            if row[label] > row[likeliest]:
                likeliest = label
        if row[likeliest] == -np.inf:
            return BAD_FRAME - index
        blank = (
            math.exp(row[labels]) * weights.blank_factor
            if row[labels] >= floor or likeliest == labels
            else 0.0
        )
        for label in range(labels):
            if row[label] >= floor or label == likeliest:
                prob[label] = math.exp(row[label])
                at = candidates
                while at > 0 and row[order[at - 1]] < row[label]:
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = label
                candidates += 1
            else:
                prob[label] = 0.0
        frame = counters[FRAME]
        count = counters[COUNT]

        # 1. Keep every prefix: another blank, or its last label again.
        best, worst = 0.0, np.inf
        for beam in range(count):
            entry = beams[beam]
            last = nodes[entry.node].label
            total = entry.blank + entry.label
            stay_blank[beam] = total * blank
            if last == NO_LABEL:
                stay_label[beam] = 0.0
                if space >= 0:  # a space before the first word changes nothing
                    stay_blank[beam] += total * prob[space]
            elif last == space:  # and neither does a second one
                stay_label[beam] = total * prob[space]
            else:
                stay_label[beam] = entry.label * prob[last]
                if entry.label >= entry.blank and row[last] > nodes[entry.node].peak and prob[last] > 0.0:
                    nodes[entry.node].peak = row[last]
            staying = stay_blank[beam] + stay_label[beam]
            best = max(best, staying)
            worst = min(worst, staying)
        threshold = best * spread
        if count == width:
            threshold = max(threshold, worst)

        # 2. Extend every prefix by one label.
        new_count = 0
        for beam in range(count):
            node_id = beams[beam].node
            last = nodes[node_id].label
            total = beams[beam].blank + beams[beam].label
            for rank in range(candidates):
                label = order[rank]
                if label == space and last in (space, NO_LABEL):
                    continue
                mass = (beams[beam].blank if label == last else total) * prob[label]
                child = children[node_id, label]
                if child >= 0 and nodes[child].beam >= 0:
                    mass *= nodes[child].factor
                    other = nodes[child].beam
                    # The label is emitted in this frame if that is more probable than all earlier alignments.
                    if mass > stay_blank[other] + stay_label[other]:
                        nodes[child].frame = frame
                        nodes[child].peak = max(nodes[child].peak, row[label])
                    stay_label[other] += mass
                    best = max(best, stay_blank[other] + stay_label[other])
                    continue
                if label != space and mass * weights.max_character_factor < threshold:
                    continue
                if child >= 0:
                    mass *= nodes[child].factor
                elif label == space:
                    if nodes[node_id].end_factor < 0.0:
                        look_ahead_nats = look_ahead_score(weights, lexicon, nodes[node_id].lexicon)
                        if mass * weights.max_space_factor * math.exp(-look_ahead_nats) < threshold:
                            continue
                        # Computed once per prefix and stored in its node.
                        match, nats, value, length = score_word_end(
                            search, state, node_id, context_words[node_id], context_backoffs[node_id], False
                        )
                        nodes[node_id].end_nats = nats
                        nodes[node_id].end_factor = math.exp(nats)
                        nodes[node_id].end_match = match
                        nodes[node_id].word_lm_score = value if weights.has_lm else np.nan
                        nodes[node_id].context_length = length
                    mass *= nodes[node_id].end_factor
                else:
                    _, _, nats = score_character(weights, lexicon, hotwords, nodes[node_id], label)
                    if nats != 0.0:
                        mass *= math.exp(nats)
                if mass >= threshold and mass > 0.0:
                    new_parent[new_count] = node_id
                    new_label[new_count] = label
                    new_mass[new_count] = mass
                    new_count += 1
                    if mass > best:
                        best = mass
                        threshold = max(threshold, best * spread)

        # 3. Keep the best.
        threshold = best * spread
        ranked_count = 0
        for beam in range(count):
            staying = stay_blank[beam] + stay_label[beam]
            if staying >= threshold:
                ranked[ranked_count] = staying
                ranked_count += 1
        for new in range(new_count):
            if new_mass[new] >= threshold:
                ranked[ranked_count] = new_mass[new]
                ranked_count += 1
        ties_left = width
        if ranked_count > width:
            threshold = kth_largest(ranked, ranked_count, width)
            for rank in range(ranked_count):
                if ranked[rank] > threshold:
                    ties_left -= 1
        # Scaling by a power of two is exact, so the result does not depend on how frames are split into pushes.
        rescale = 1.0
        if best < TINY or best > HUGE:
            exponent = math.frexp(best)[1]
            rescale = math.ldexp(1.0, -exponent)
            scale[LOG_SCALE] += exponent * math.log(2.0)
        kept = 0
        for beam in range(count):
            staying = stay_blank[beam] + stay_label[beam]
            node_id = beams[beam].node
            survives = staying > threshold
            if staying == threshold and ties_left > 0:
                ties_left -= 1
                survives = True
            if survives and staying > 0.0:
                beams[kept].node = node_id
                beams[kept].blank = stay_blank[beam] * rescale
                beams[kept].label = stay_label[beam] * rescale
                nodes[node_id].beam = kept
                kept += 1
            else:
                nodes[node_id].beam = -1
        for new in range(new_count):
            if new_mass[new] < threshold:
                continue
            if new_mass[new] == threshold:
                if ties_left == 0:
                    continue
                ties_left -= 1
            parent, label = new_parent[new], new_label[new]
            node_id = children[parent, label]
            if node_id < 0:
                if counters[FREE] > 0:
                    counters[FREE] -= 1
                    node_id = free[counters[FREE]]
                else:
                    node_id = np.int32(counters[USED])
                    counters[USED] += 1
                children[parent, label] = node_id
                nodes[node_id].parent = parent
                nodes[node_id].label = label
                nodes[node_id].depth = nodes[parent].depth + 1
                nodes[node_id].end_factor = NOT_COMPUTED
                nodes[node_id].mark = 0
                for below in range(labels):
                    children[node_id, below] = -1
                if label == space:
                    match, nats = nodes[parent].end_match, nodes[parent].end_nats
                    context_words[node_id] = context_words[parent]
                    context_backoffs[node_id] = context_backoffs[parent]
                    nodes[node_id].context_length = nodes[parent].context_length
                    nodes[node_id].lexicon = 0
                    nodes[node_id].word_start = node_id
                    nodes[node_id].word_lm_score = nodes[parent].word_lm_score
                    nodes[node_id].lm_score = nodes[parent].lm_score
                    if weights.has_lm:
                        nodes[node_id].lm_score += nodes[parent].word_lm_score
                else:
                    lexicon_node, match, nats = score_character(
                        weights, lexicon, hotwords, nodes[parent], label
                    )
                    nodes[node_id].lexicon = lexicon_node
                    nodes[node_id].word_start = nodes[parent].word_start
                    nodes[node_id].lm_score = nodes[parent].lm_score
                nodes[node_id].hotword = match
                nodes[node_id].bias = nodes[parent].bias + nats
                nodes[node_id].factor = math.exp(nats)
            nodes[node_id].frame = frame
            nodes[node_id].peak = row[label]
            nodes[node_id].beam = kept
            beams[kept].node = node_id
            beams[kept].blank = 0.0
            beams[kept].label = new_mass[new] * rescale
            kept += 1
        counters[COUNT] = kept
        counters[ALL_BLANK] = 0
        counters[FRAME] += 1
        if counters[FRAME] % COMMIT_INTERVAL_FRAMES == 0 and kept > 1:
            commit_old(state, space)
    return frames.shape[0]
