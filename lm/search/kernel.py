"""The hot loop: CTC prefix beam search, frame by frame, with the language model and hotwords inside it.

The search follows Graves and Jaitly (2014) and Hannun et al. (2014): each live prefix carries the probability of
all its alignments that end in blank and of all that end in its last label. A new prefix has one parent only, so
merging needs no table: an extension either meets a live child or is new.
"""

import math

import numpy as np

from lm.numba_cache import Array, compiled, real
from lm.search.extension_scores import Search, character_step, look_ahead, word_step
from lm.search.prefix_tree import settle_old
from lm.search.state import COUNT, FRAME, FREE, LOG_SCALE, NO_LABEL, SETTLED_BLANK, USED, SearchState

SETTLE_EVERY_FRAMES = 100
TINY, HUGE = 2.0**-200, 2.0**200
NOT_COMPUTED = -1.0
BAD_FRAME = -1


@compiled
def kth_largest(values: Array, count: int, k: int) -> float:
    """Hoare's quickselect, on `values[:count]`, which it reorders."""
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
    return real(values[target])


@compiled
def advance(frames: Array, first: int, search: Search, state: SearchState) -> int:
    """Decode frames from `first` on and return the number of the next one: less than all when the tree is full.
    BAD_FRAME - n means that frame n gives no label any probability."""
    nodes, children, beams = state.nodes, state.children, state.beams
    free, counters, scale = state.free, state.counters, state.scale
    context_words, context_backoffs = state.context_words, state.context_backoffs
    weights, lexicon, hotwords = search.weights, search.lexicon, search.hotwords
    width, labels, space = weights.width, weights.labels, weights.space
    floor, spread = weights.token_floor, weights.spread_factor
    only_blank = math.log1p(-math.exp(floor)) if floor < 0.0 else -1e-9
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
        if row[labels] >= only_blank:
            # No other label can reach the floor: every prefix stays and now ends in blank.
            scale[LOG_SCALE] += row[labels]
            if counters[SETTLED_BLANK] == 0:
                for beam in range(counters[COUNT]):
                    beams[beam].blank += beams[beam].label
                    beams[beam].label = 0.0
                counters[SETTLED_BLANK] = 1
            counters[FRAME] += 1
            if counters[FRAME] % SETTLE_EVERY_FRAMES == 0 and counters[COUNT] > 1:
                settle_old(state, space)
            continue
        if counters[FREE] + len(nodes) - counters[USED] < width:
            return index
        # The labels to try, the likeliest first.
        chosen = 0
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
                at = chosen
                while at > 0 and row[order[at - 1]] < row[label]:
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = label
                chosen += 1
            else:
                prob[label] = 0.0
        frame = counters[FRAME]
        count = counters[COUNT]

        # 1. Every prefix as it is: one more blank, or its last label again.
        best, least = 0.0, np.inf
        for beam in range(count):
            here = beams[beam]
            last = nodes[here.node].label
            total = here.blank + here.label
            stay_blank[beam] = total * blank
            if last == NO_LABEL:
                stay_label[beam] = 0.0
                if space >= 0:  # a space before the first word changes nothing
                    stay_blank[beam] += total * prob[space]
            elif last == space:  # and neither does a second one
                stay_label[beam] = total * prob[space]
            else:
                stay_label[beam] = here.label * prob[last]
                if here.label >= here.blank and row[last] > nodes[here.node].peak and prob[last] > 0.0:
                    nodes[here.node].peak = row[last]
            staying = stay_blank[beam] + stay_label[beam]
            best = max(best, staying)
            least = min(least, staying)
        threshold = best * spread
        if count == width:
            threshold = max(threshold, least)

        # 2. Every prefix with one more label.
        fresh = 0
        for beam in range(count):
            place = beams[beam].node
            last = nodes[place].label
            total = beams[beam].blank + beams[beam].label
            for rank in range(chosen):
                label = order[rank]
                if label == space and last in (space, NO_LABEL):
                    continue
                mass = (beams[beam].blank if label == last else total) * prob[label]
                child = children[place, label]
                if child >= 0 and nodes[child].beam >= 0:
                    mass *= nodes[child].factor
                    other = nodes[child].beam
                    # The label is emitted here if that is likelier than all that is known of it so far.
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
                    if nodes[place].end_factor < 0.0:
                        charged = look_ahead(weights, lexicon, nodes[place].lexicon)
                        if mass * weights.max_space_factor * math.exp(-charged) < threshold:
                            continue
                        # Computed once for each prefix and kept in its node.
                        match, nats, value, length = word_step(
                            search, state, place, context_words[place], context_backoffs[place], False
                        )
                        nodes[place].end_nats = nats
                        nodes[place].end_factor = math.exp(nats)
                        nodes[place].end_match = match
                        nodes[place].word_language = value if weights.has_lm else np.nan
                        nodes[place].context_length = length
                    mass *= nodes[place].end_factor
                else:
                    _, _, nats = character_step(weights, lexicon, hotwords, nodes[place], label)
                    if nats != 0.0:
                        mass *= math.exp(nats)
                if mass >= threshold and mass > 0.0:
                    new_parent[fresh] = place
                    new_label[fresh] = label
                    new_mass[fresh] = mass
                    fresh += 1
                    if mass > best:
                        best = mass
                        threshold = max(threshold, best * spread)

        # 3. The best of them are kept.
        threshold = best * spread
        ranks = 0
        for beam in range(count):
            staying = stay_blank[beam] + stay_label[beam]
            if staying >= threshold:
                ranked[ranks] = staying
                ranks += 1
        for new in range(fresh):
            if new_mass[new] >= threshold:
                ranked[ranks] = new_mass[new]
                ranks += 1
        ties = width
        if ranks > width:
            threshold = kth_largest(ranked, ranks, width)
            for rank in range(ranks):
                if ranked[rank] > threshold:
                    ties -= 1
        # Scaling by powers of two is exact: how the frames are split into pushes cannot change the result.
        shift = 1.0
        if best < TINY or best > HUGE:
            exponent = math.frexp(best)[1]
            shift = math.ldexp(1.0, -exponent)
            scale[LOG_SCALE] += exponent * math.log(2.0)
        kept = 0
        for beam in range(count):
            staying = stay_blank[beam] + stay_label[beam]
            place = beams[beam].node
            survives = staying > threshold
            if staying == threshold and ties > 0:
                ties -= 1
                survives = True
            if survives and staying > 0.0:
                beams[kept].node = place
                beams[kept].blank = stay_blank[beam] * shift
                beams[kept].label = stay_label[beam] * shift
                nodes[place].beam = kept
                kept += 1
            else:
                nodes[place].beam = -1
        for new in range(fresh):
            if new_mass[new] < threshold:
                continue
            if new_mass[new] == threshold:
                if ties == 0:
                    continue
                ties -= 1
            parent, label = new_parent[new], new_label[new]
            place = children[parent, label]
            if place < 0:
                if counters[FREE] > 0:
                    counters[FREE] -= 1
                    place = free[counters[FREE]]
                else:
                    place = np.int32(counters[USED])
                    counters[USED] += 1
                children[parent, label] = place
                nodes[place].parent = parent
                nodes[place].label = label
                nodes[place].depth = nodes[parent].depth + 1
                nodes[place].end_factor = NOT_COMPUTED
                nodes[place].mark = 0
                for below in range(labels):
                    children[place, below] = -1
                if label == space:
                    match, nats = nodes[parent].end_match, nodes[parent].end_nats
                    context_words[place] = context_words[parent]
                    context_backoffs[place] = context_backoffs[parent]
                    nodes[place].context_length = nodes[parent].context_length
                    nodes[place].lexicon = 0
                    nodes[place].word_start = place
                    nodes[place].word_language = nodes[parent].word_language
                    nodes[place].language = nodes[parent].language
                    if weights.has_lm:
                        nodes[place].language += nodes[parent].word_language
                else:
                    lexicon_node, match, nats = character_step(
                        weights, lexicon, hotwords, nodes[parent], label
                    )
                    nodes[place].lexicon = lexicon_node
                    nodes[place].word_start = nodes[parent].word_start
                    nodes[place].language = nodes[parent].language
                nodes[place].hotword = match
                nodes[place].bias = nodes[parent].bias + nats
                nodes[place].factor = math.exp(nats)
            nodes[place].frame = frame
            nodes[place].peak = row[label]
            nodes[place].beam = kept
            beams[kept].node = place
            beams[kept].blank = 0.0
            beams[kept].label = new_mass[new] * shift
            kept += 1
        counters[COUNT] = kept
        counters[SETTLED_BLANK] = 0
        counters[FRAME] += 1
        if counters[FRAME] % SETTLE_EVERY_FRAMES == 0 and kept > 1:
            settle_old(state, space)
    return frames.shape[0]
