"""The kernels of the `triton` backend: forward, and gradients. Importing this module needs triton.

A program works on a tile of places, one to a thread, and on a block of outputs; it loops over what is left of
(h~, h^, j). What it holds are registers of its threads, and only sums over places need other threads.

Nothing is scattered. Sums over keys are made by a program that owns the query; gradients of keys and values by one that
owns the key and visits the queries around it; those of the tables of vectors by programs that each own some rows of a
table of partial sums, which `sum_rows` adds up in a fixed order. So every result is the same, bit for bit, each time.

Tables of vectors come padded with zeros to C channels: `space` [output, offset, c], as each output sees the offsets,
and `element` [row, c], in the last of the CHANNELS. Other inputs are as in `gevit.attention`.
"""

# mypy: ignore-errors
# ruff: noqa: N803
# Triton reads these functions as source of its own language, whose annotations and types are not Python's.

import triton
import triton.language as tl

from gevit.attention.triton_pieces import (
    INTERPRETED,
    Sizes,
    block_at,
    gradient_of,
    heaviest_of,
    kept,
    noise_of,
    noise_of_pairs,
    number_of,
    plain,
    reach,
    read,
    read_block,
    read_element_scores,
    read_rows,
    read_statistics,
    score_of,
    space_at,
    statistics_at,
    tile_of_places,
    vectors_at,
    weight_of,
    within,
)

__all__ = [
    "INTERPRETED",
    "Sizes",
    "element_gradient",
    "element_scores",
    "forward",
    "key_gradient",
    "query_gradient",
    "space_gradient",
    "statistics",
    "sum_rows",
]


def kernel(function):
    """A kernel that triton does not compile anew for every other value of what changes from call to call."""
    return triton.jit(plain(function), do_not_specialize=["low", "high", "first_plane", "tiles"])


@kernel
def element_scores(
    query, element, scores, scale, sizes,
    CHANNELS: tl.constexpr, C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """<q[h~], rho_P(element)> for all rows of the table: [query, row, place]."""
    tile, query_element = tl.program_id(0) // sizes.queries, tl.program_id(0) % sizes.queries
    place, plane, _, _, present = tile_of_places(tile, sizes, PLACES)
    at_query = vectors_at(place, plane, query_element, sizes.queries, sizes, CHANNELS, C)
    q = scale * read(query, at_query, CHANNELS)
    for row in range(sizes.elements):
        e = tl.load(element + row * C + tl.arange(0, C))
        at = (query_element * sizes.elements + row) * sizes.places + place
        tl.store(scores + at, tl.sum(q * e[:, None], 0), mask=present)


@kernel
def forward(
    query, key, value, space, element_index, scores, out,
    scale, sizes, low, high, first_plane, lowest, enlarged, pair_noise, offset_noise,
    CHANNELS: tl.constexpr, HAS_ELEMENTS: tl.constexpr, OWN: tl.constexpr, DROPPED: tl.constexpr,
    OUTPUTS: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """A block of outputs, with softmaxes in one pass: what was summed fades when a larger score comes."""
    blocks = sizes.outputs // OUTPUTS
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    h = block * OUTPUTS + tl.arange(0, OUTPUTS)
    place, plane, row, column, present = tile_of_places(tile, sizes, PLACES)
    at_space = space_at(h, sizes, C)
    down, across = reach(sizes)
    if DROPPED:
        a, b = noise_of(low, high, first_plane + plane, row * sizes.width + column)
    mixed = tl.zeros([OUTPUTS, C, PLACES], tl.float32)
    for met in range(sizes.met):
        query_element = block if OWN else met
        at_query = vectors_at(place, plane, query_element, sizes.queries, sizes, CHANNELS, C)
        q = scale * read(query, at_query, CHANNELS)
        largest = tl.full([OUTPUTS, PLACES], float("-inf"), tl.float32)
        lost_largest = tl.zeros([OUTPUTS, PLACES], tl.float32)
        total = tl.zeros([OUTPUTS, PLACES], tl.float32)
        part = tl.zeros([OUTPUTS, C, PLACES], tl.float32)
        for first in range(0, sizes.keys, KEYS):
            m = first + tl.arange(0, KEYS)
            at_key = block_at(place, plane, m, sizes.keys, sizes, CHANNELS, C)
            e = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
            if HAS_ELEMENTS:
                rows = read_rows(element_index, h, met, m, sizes)
                e = read_element_scores(scores, rows, query_element, place, sizes)
            if DROPPED:
                c = noise_of_pairs(pair_noise, h, met, m, sizes)
            for y in range(-down, down + 1):
                row_inside, move, number = within(row, y, sizes.height), y * sizes.width, number_of(y, sizes)
                for x in range(-across, across + 1):
                    inside = row_inside & within(column, x, sizes.width)
                    at = at_key + tl.where(inside, move + x, 0)[None, None, :]
                    s = tl.load(space + (at_space + (number + x) * C))
                    score, lost = score_of(q, read_block(key, at, CHANNELS), s, e)
                    heaviest, lost_heaviest, _ = heaviest_of(score, lost)
                    rise = (heaviest - largest) + (lost_heaviest - lost_largest)
                    ahead = inside[None, :] & (rise > 0)
                    fade = tl.where(ahead, tl.exp(-tl.abs(rise)), 1.0)
                    largest = tl.where(ahead, heaviest, largest)
                    lost_largest = tl.where(ahead, lost_heaviest, lost_largest)
                    weight = weight_of(largest, lost_largest, score, lost, inside)
                    total = fade * total + tl.sum(weight, 1)
                    if DROPPED:
                        weight *= kept(offset_noise, a, b, c, m, number + x, lowest, enlarged)
                    v = read_block(value, at, CHANNELS)
                    part = fade[:, None, :] * part + tl.sum(weight[:, :, None, :] * v[None, :, :, :], 1)
        mixed += part / total[:, None, :]
    there = (tl.arange(0, C)[None, :, None] < CHANNELS) & present[None, None, :]
    tl.store(out + block_at(place, plane, h, sizes.outputs, sizes, CHANNELS, C), mixed, mask=there)


@kernel
def statistics(
    query, key, value, space, element_index, scores, grad, statistics,
    scale, sizes, low, high, first_plane, lowest, enlarged, pair_noise, offset_noise,
    CHANNELS: tl.constexpr, HAS_ELEMENTS: tl.constexpr, OWN: tl.constexpr, DROPPED: tl.constexpr,
    OUTPUTS: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """What gradients need to know of each softmax: [5, output, query, place].

    These are its largest score, in two numbers; one over its sum; and, with g the gradient of a coefficient, g of the
    heaviest one and the mean of g above that. A softmax does not feel what is added to all scores, so gradients may be
    counted from that of the heaviest coefficient: where it has all the weight, nothing is left to cancel.
    """
    blocks = sizes.outputs // OUTPUTS
    tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    h = block * OUTPUTS + tl.arange(0, OUTPUTS)
    place, plane, row, column, present = tile_of_places(tile, sizes, PLACES)
    at_space = space_at(h, sizes, C)
    down, across = reach(sizes)
    upstream = read_block(grad, block_at(place, plane, h, sizes.outputs, sizes, CHANNELS, C), CHANNELS)
    if DROPPED:
        a, b = noise_of(low, high, first_plane + plane, row * sizes.width + column)
    for met in range(sizes.met):
        query_element = block if OWN else met
        at_query = vectors_at(place, plane, query_element, sizes.queries, sizes, CHANNELS, C)
        q = scale * read(query, at_query, CHANNELS)
        largest = tl.full([OUTPUTS, PLACES], float("-inf"), tl.float32)
        lost_largest = tl.zeros([OUTPUTS, PLACES], tl.float32)
        total = tl.zeros([OUTPUTS, PLACES], tl.float32)
        base = tl.zeros([OUTPUTS, PLACES], tl.float32)
        above = tl.zeros([OUTPUTS, PLACES], tl.float32)
        for first in range(0, sizes.keys, KEYS):
            m = first + tl.arange(0, KEYS)
            at_key = block_at(place, plane, m, sizes.keys, sizes, CHANNELS, C)
            e = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
            if HAS_ELEMENTS:
                rows = read_rows(element_index, h, met, m, sizes)
                e = read_element_scores(scores, rows, query_element, place, sizes)
            if DROPPED:
                c = noise_of_pairs(pair_noise, h, met, m, sizes)
            for y in range(-down, down + 1):
                row_inside, move, number = within(row, y, sizes.height), y * sizes.width, number_of(y, sizes)
                for x in range(-across, across + 1):
                    inside = row_inside & within(column, x, sizes.width)
                    at = at_key + tl.where(inside, move + x, 0)[None, None, :]
                    s = tl.load(space + (at_space + (number + x) * C))
                    score, lost = score_of(q, read_block(key, at, CHANNELS), s, e)
                    g = tl.sum(upstream[:, None, :, :] * read_block(value, at, CHANNELS)[None, :, :, :], 2)
                    if DROPPED:
                        g *= kept(offset_noise, a, b, c, m, number + x, lowest, enlarged)
                    heaviest, lost_heaviest, is_heaviest = heaviest_of(score, lost)
                    rise = (heaviest - largest) + (lost_heaviest - lost_largest)
                    ahead = inside[None, :] & (rise > 0)
                    fade = tl.where(ahead, tl.exp(-tl.abs(rise)), 1.0)
                    largest = tl.where(ahead, heaviest, largest)
                    lost_largest = tl.where(ahead, lost_heaviest, lost_largest)
                    weight = weight_of(largest, lost_largest, score, lost, inside)
                    new_base = tl.where(ahead, tl.max(tl.where(is_heaviest, g, float("-inf")), 1), base)
                    above = fade * (above + (base - new_base) * total)
                    above += tl.sum(weight * (g - new_base[:, None, :]), 1)
                    total = fade * total + tl.sum(weight, 1)
                    base = new_base
        at = statistics + statistics_at(h, met, place, sizes)
        stride = sizes.outputs * sizes.met * sizes.places
        tl.store(at, largest, mask=present[None, :])
        tl.store(at + stride, lost_largest, mask=present[None, :])
        tl.store(at + 2 * stride, 1 / total, mask=present[None, :])
        tl.store(at + 3 * stride, base, mask=present[None, :])
        tl.store(at + 4 * stride, above / total, mask=present[None, :])


@kernel
def query_gradient(
    query, key, value, space, element, element_index, scores, grad, statistics, d_query,
    scale, sizes, low, high, first_plane, lowest, enlarged, pair_noise, offset_noise,
    CHANNELS: tl.constexpr, HAS_ELEMENTS: tl.constexpr, OWN: tl.constexpr, DROPPED: tl.constexpr,
    OUTPUTS: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Gradients of one query of each place."""
    tile, query_element = tl.program_id(0) // sizes.queries, tl.program_id(0) % sizes.queries
    place, plane, row, column, present = tile_of_places(tile, sizes, PLACES)
    down, across = reach(sizes)
    at_query = vectors_at(place, plane, query_element, sizes.queries, sizes, CHANNELS, C)
    q = scale * read(query, at_query, CHANNELS)
    channel = tl.arange(0, C)
    d_q = tl.zeros([C, PLACES], tl.float32)
    if DROPPED:
        a, b = noise_of(low, high, first_plane + plane, row * sizes.width + column)
    met = 0 if OWN else query_element
    for turn in range(1 if OWN else sizes.outputs // OUTPUTS):
        h = (query_element if OWN else turn) * OUTPUTS + tl.arange(0, OUTPUTS)
        at_space = space_at(h, sizes, C)
        upstream = read_block(grad, block_at(place, plane, h, sizes.outputs, sizes, CHANNELS, C), CHANNELS)
        known = read_statistics(statistics, statistics_at(h, met, place, sizes), sizes)
        for first in range(0, sizes.keys, KEYS):
            m = first + tl.arange(0, KEYS)
            at_key = block_at(place, plane, m, sizes.keys, sizes, CHANNELS, C)
            e = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
            if HAS_ELEMENTS:
                rows = read_rows(element_index, h, met, m, sizes)
                e = read_element_scores(scores, rows, query_element, place, sizes)
            if DROPPED:
                c = noise_of_pairs(pair_noise, h, met, m, sizes)
            d_e = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
            for y in range(-down, down + 1):
                row_inside, move, number = within(row, y, sizes.height), y * sizes.width, number_of(y, sizes)
                for x in range(-across, across + 1):
                    inside = row_inside & within(column, x, sizes.width)
                    at = at_key + tl.where(inside, move + x, 0)[None, None, :]
                    k = read_block(key, at, CHANNELS)
                    s = tl.load(space + (at_space + (number + x) * C))
                    score, lost = score_of(q, k, s, e)
                    g = tl.sum(upstream[:, None, :, :] * read_block(value, at, CHANNELS)[None, :, :, :], 2)
                    if DROPPED:
                        g *= kept(offset_noise, a, b, c, m, number + x, lowest, enlarged)
                    _, d_score = gradient_of(known, score, lost, g, inside)
                    d_q += tl.sum(tl.sum(d_score, 0)[:, None, :] * k, 0)
                    d_q += tl.sum(tl.sum(d_score, 1)[:, None, :] * s[:, :, None], 0)
                    d_e += d_score
            if HAS_ELEMENTS:
                seen = tl.load(element + (rows * C)[:, :, None] + channel[None, None, :])
                d_q += tl.sum(tl.sum(d_e[:, :, None, :] * seen[:, :, :, None], 1), 0)
    tl.store(d_query + at_query, scale * d_q, mask=(channel[:, None] < CHANNELS) & present[None, :])


@kernel
def key_gradient(
    query, key, value, space, element_index, scores, grad, statistics, d_key, d_value,
    scale, sizes, low, high, first_plane, lowest, enlarged, pair_noise, offset_noise,
    CHANNELS: tl.constexpr, HAS_ELEMENTS: tl.constexpr, OWN: tl.constexpr, DROPPED: tl.constexpr,
    OUTPUTS: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Gradients of one key and value of each place, from the queries that see it."""
    blocks = sizes.keys // KEYS
    tile, m = tl.program_id(0) // blocks, tl.program_id(0) % blocks * KEYS + tl.arange(0, KEYS)
    place, plane, row, column, present = tile_of_places(tile, sizes, PLACES)
    down, across = reach(sizes)
    at_key = block_at(place, plane, m, sizes.keys, sizes, CHANNELS, C)
    k = read_block(key, at_key, CHANNELS)
    v = read_block(value, at_key, CHANNELS)
    d_k = tl.zeros([KEYS, C, PLACES], tl.float32)
    d_v = tl.zeros([KEYS, C, PLACES], tl.float32)
    for y in range(-down, down + 1):
        row_inside, move, number = within(row, -y, sizes.height), y * sizes.width, number_of(y, sizes)
        for x in range(-across, across + 1):
            inside = row_inside & within(column, -x, sizes.width)
            asking = place - tl.where(inside, move + x, 0)  # the place that sees this key at this offset
            if DROPPED:
                a, b = noise_of(low, high, first_plane + plane, asking - plane * (sizes.height * sizes.width))
            for block in range(sizes.outputs // OUTPUTS):
                h = block * OUTPUTS + tl.arange(0, OUTPUTS)
                s = tl.load(space + (space_at(h, sizes, C) + (number + x) * C))
                upstream = read_block(grad, block_at(asking, plane, h, sizes.outputs, sizes, CHANNELS, C), CHANNELS)
                d_weight = tl.sum(upstream[:, None, :, :] * v[None, :, :, :], 2)
                weights = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
                for met in range(sizes.met):
                    query_element = block if OWN else met
                    at_query = vectors_at(asking, plane, query_element, sizes.queries, sizes, CHANNELS, C)
                    q = scale * read(query, at_query, CHANNELS)
                    e = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
                    if HAS_ELEMENTS:
                        rows = read_rows(element_index, h, met, m, sizes)
                        e = read_element_scores(scores, rows, query_element, asking, sizes)
                    score, lost = score_of(q, k, s, e)
                    known = read_statistics(statistics, statistics_at(h, met, asking, sizes), sizes)
                    if DROPPED:
                        c = noise_of_pairs(pair_noise, h, met, m, sizes)
                        keep = kept(offset_noise, a, b, c, m, number + x, lowest, enlarged)
                        weight, d_score = gradient_of(known, score, lost, keep * d_weight, inside)
                        weights += keep * weight
                    else:
                        weight, d_score = gradient_of(known, score, lost, d_weight, inside)
                        weights += weight
                    d_k += tl.sum(d_score, 0)[:, None, :] * q[None, :, :]
                d_v += tl.sum(weights[:, :, None, :] * upstream[:, None, :, :], 0)
    there = (tl.arange(0, C)[None, :, None] < CHANNELS) & present[None, None, :]
    tl.store(d_key + at_key, d_k, mask=there)
    tl.store(d_value + at_key, d_v, mask=there)


@kernel
def space_gradient(
    query, key, value, space, element_index, scores, grad, statistics, d_space,
    tiles, scale, sizes, low, high, first_plane, lowest, enlarged, pair_noise, offset_noise,
    CHANNELS: tl.constexpr, HAS_ELEMENTS: tl.constexpr, OWN: tl.constexpr, DROPPED: tl.constexpr,
    OUTPUTS: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """What some tiles add to the gradient of rho_P at one offset, as a block of outputs sees it.

    d_space is [part, output, offset, c]; each part has so many tiles.
    """
    blocks, offsets = sizes.outputs // OUTPUTS, sizes.side * sizes.side
    number, group = tl.program_id(0) % offsets, tl.program_id(0) // offsets
    block, part = group % blocks, group // blocks
    y, x = number // sizes.side - sizes.side // 2, number % sizes.side - sizes.side // 2
    h = block * OUTPUTS + tl.arange(0, OUTPUTS)
    s = tl.load(space + space_at(h, sizes, C) + number * C)
    d_s = tl.zeros([OUTPUTS, C, PLACES], tl.float32)
    for tile in range(part * tiles, tl.minimum((part + 1) * tiles, tl.cdiv(sizes.places, PLACES))):
        place, plane, row, column, present = tile_of_places(tile, sizes, PLACES)
        inside = within(row, y, sizes.height) & within(column, x, sizes.width)
        seen = place + tl.where(inside, y * sizes.width + x, 0)
        upstream = read_block(grad, block_at(place, plane, h, sizes.outputs, sizes, CHANNELS, C), CHANNELS)
        if DROPPED:
            a, b = noise_of(low, high, first_plane + plane, row * sizes.width + column)
        for met in range(sizes.met):
            query_element = block if OWN else met
            at_query = vectors_at(place, plane, query_element, sizes.queries, sizes, CHANNELS, C)
            q = scale * read(query, at_query, CHANNELS)
            known = read_statistics(statistics, statistics_at(h, met, place, sizes), sizes)
            d_scores = tl.zeros([OUTPUTS, PLACES], tl.float32)
            for first in range(0, sizes.keys, KEYS):
                m = first + tl.arange(0, KEYS)
                e = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
                if HAS_ELEMENTS:
                    rows = read_rows(element_index, h, met, m, sizes)
                    e = read_element_scores(scores, rows, query_element, place, sizes)
                at = block_at(seen, plane, m, sizes.keys, sizes, CHANNELS, C)
                score, lost = score_of(q, read_block(key, at, CHANNELS), s, e)
                g = tl.sum(upstream[:, None, :, :] * read_block(value, at, CHANNELS)[None, :, :, :], 2)
                if DROPPED:
                    c = noise_of_pairs(pair_noise, h, met, m, sizes)
                    g *= kept(offset_noise, a, b, c, m, number, lowest, enlarged)
                d_scores += tl.sum(gradient_of(known, score, lost, g, inside)[1], 1)
            d_s += tl.where(present[None, :], d_scores, 0.0)[:, None, :] * q[None, :, :]
    entry = (part * sizes.outputs + h) * offsets + number
    tl.store(d_space + (entry * C)[:, None] + tl.arange(0, C)[None, :], tl.sum(d_s, 2))


@kernel
def element_gradient(
    query, key, value, space, element_index, scores, grad, statistics, d_element,
    tiles, scale, sizes, low, high, first_plane, lowest, enlarged, pair_noise, offset_noise,
    CHANNELS: tl.constexpr, OWN: tl.constexpr, DROPPED: tl.constexpr,
    OUTPUTS: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """What some tiles add to the gradients of rho_P at the elements that a block of outputs and keys see.

    d_element is [part, output, query, key, c]; each part has so many tiles.
    """
    output_blocks, key_blocks = sizes.outputs // OUTPUTS, sizes.keys // KEYS
    m = tl.program_id(0) % key_blocks * KEYS + tl.arange(0, KEYS)
    rest = tl.program_id(0) // key_blocks
    met, block, part = rest % sizes.met, rest // sizes.met % output_blocks, rest // sizes.met // output_blocks
    query_element = block if OWN else met
    h = block * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = read_rows(element_index, h, met, m, sizes)
    at_space = space_at(h, sizes, C)
    down, across = reach(sizes)
    d_seen = tl.zeros([OUTPUTS, KEYS, C, PLACES], tl.float32)
    if DROPPED:
        c = noise_of_pairs(pair_noise, h, met, m, sizes)
    for tile in range(part * tiles, tl.minimum((part + 1) * tiles, tl.cdiv(sizes.places, PLACES))):
        place, plane, row, column, present = tile_of_places(tile, sizes, PLACES)
        at_query = vectors_at(place, plane, query_element, sizes.queries, sizes, CHANNELS, C)
        q = scale * read(query, at_query, CHANNELS)
        upstream = read_block(grad, block_at(place, plane, h, sizes.outputs, sizes, CHANNELS, C), CHANNELS)
        known = read_statistics(statistics, statistics_at(h, met, place, sizes), sizes)
        e = read_element_scores(scores, rows, query_element, place, sizes)
        at_key = block_at(place, plane, m, sizes.keys, sizes, CHANNELS, C)
        if DROPPED:
            a, b = noise_of(low, high, first_plane + plane, row * sizes.width + column)
        d_e = tl.zeros([OUTPUTS, KEYS, PLACES], tl.float32)
        for y in range(-down, down + 1):
            row_inside, move, number = within(row, y, sizes.height), y * sizes.width, number_of(y, sizes)
            for x in range(-across, across + 1):
                inside = row_inside & within(column, x, sizes.width)
                at = at_key + tl.where(inside, move + x, 0)[None, None, :]
                s = tl.load(space + (at_space + (number + x) * C))
                score, lost = score_of(q, read_block(key, at, CHANNELS), s, e)
                g = tl.sum(upstream[:, None, :, :] * read_block(value, at, CHANNELS)[None, :, :, :], 2)
                if DROPPED:
                    g *= kept(offset_noise, a, b, c, m, number + x, lowest, enlarged)
                d_e += gradient_of(known, score, lost, g, inside)[1]
        d_seen += tl.where(present[None, None, :], d_e, 0.0)[:, :, None, :] * q[None, None, :, :]
    entry = (((part * sizes.outputs + h) * sizes.met + met) * sizes.keys)[:, None] + m[None, :]
    tl.store(d_element + (entry * C)[:, :, None] + tl.arange(0, C)[None, None, :], tl.sum(d_seen, 3))


@kernel
def sum_rows(rows, order, starts, out, C: tl.constexpr):
    """Add up rows that belong together, in a fixed order: program n has rows[order[starts[n] : starts[n + 1]]]."""
    n = tl.program_id(0)
    total = tl.zeros([C], tl.float32)
    for entry in range(tl.load(starts + n), tl.load(starts + n + 1)):
        total += tl.load(rows + tl.load(order + entry) * C + tl.arange(0, C))
    tl.store(out + n * C + tl.arange(0, C), total)
