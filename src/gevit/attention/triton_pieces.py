"""What the kernels of the `triton` backend are made of: places, vectors, scores and dropout.

A place is a pixel of one plane (image, head). A tile of places lies across the threads of a program, so that all the
rest of a tensor [outputs, channels, places] lies in the registers of each.

Softmaxes are of sums of scores, for any finite scores: a sum of three parts is kept together with what rounding took
from it (the digits that count are those of its distance to the largest), and the largest so far is subtracted.

Positions in memory are numbers of 32 bits; `triton_backend.py` calls with no more images at a time than these reach.

Axes: o = output h of a block, m = key element h^ of a block, c = channel (padded to a power of two, C), p = place.
"""

# mypy: ignore-errors
# ruff: noqa: N803
# Triton reads these functions as source of its own language, whose annotations and types are not Python's.

import inspect
from typing import NamedTuple

import triton
import triton.language as tl

# Whether kernels run on CPU tensors, step by step: triton decides it when it reads them.
INTERPRETED: bool = triton.knobs.runtime.interpret


def plain(function):
    """The function as it stands in the source, which triton reads, without what type checkers wrap around it."""
    return inspect.unwrap(function)


def piece(function):
    """A function for kernels to call. The interpreter can call it as it is, and is faster so."""
    return plain(function) if INTERPRETED else triton.jit(plain(function))


class Sizes(NamedTuple):
    """The sizes of a problem, as all kernels take them."""

    places: int  # images * heads * height * width
    heads: int
    height: int
    width: int
    side: int  # of the neighbourhood
    outputs: int
    met: int  # queries that each output meets: all of them, or its own
    queries: int
    keys: int
    elements: int  # rows of the table of element vectors


@piece
def tile_of_places(tile, sizes, PLACES: tl.constexpr):
    """The places of a tile: their number, their plane, row and column, and whether they are there.

    Those beyond the last are the last once more: they can be computed, and are not stored.
    """
    place = tile * PLACES + tl.arange(0, PLACES)
    present = place < sizes.places
    place = tl.minimum(place, sizes.places - 1)
    line = place // sizes.width
    return place, line // sizes.height, line % sizes.height, place % sizes.width, present


@piece
def vectors_at(place, plane, element, elements, sizes, CHANNELS: tl.constexpr, C: tl.constexpr):
    """Where the vectors [c, p] of an element lie in a tensor [image, channel, head, element, row, column]."""
    area = sizes.height * sizes.width
    image, head = plane // sizes.heads, plane % sizes.heads
    planes = (image * CHANNELS * sizes.heads + head) * elements + element
    stride = sizes.heads * elements * area
    return ((planes - plane) * area + place)[None, :] + tl.arange(0, C)[:, None] * stride


@piece
def block_at(place, plane, block, elements, sizes, CHANNELS: tl.constexpr, C: tl.constexpr):
    """Where the vectors [element, c, p] of a block of elements lie."""
    at = vectors_at(place, plane, 0, elements, sizes, CHANNELS, C)
    return at[None, :, :] + block[:, None, None] * (sizes.height * sizes.width)


@piece
def read(x, at, CHANNELS: tl.constexpr):
    """The vectors [c, p] that lie there; their padding is zero."""
    return tl.load(x + at, mask=tl.arange(0, at.shape[0])[:, None] < CHANNELS, other=0.0).to(tl.float32)


@piece
def read_block(x, at, CHANNELS: tl.constexpr):
    """The vectors [element, c, p] that lie there; their padding is zero."""
    return tl.load(x + at, mask=tl.arange(0, at.shape[1])[None, :, None] < CHANNELS, other=0.0).to(tl.float32)


@piece
def reach(sizes):
    """The largest offsets, in rows and in columns, that the neighbourhood and the image have."""
    return tl.minimum(sizes.side // 2, sizes.height - 1), tl.minimum(sizes.side // 2, sizes.width - 1)


@piece
def number_of(y, sizes):
    """The number in the neighbourhood of an offset in column 0; others follow column by column."""
    return (y + sizes.side // 2) * sizes.side + sizes.side // 2


@piece
def within(line, move, size):
    """Whether a row or column is in the image after a move."""
    moved = line + move
    return (moved >= 0) & (moved < size)


@piece
def space_at(h, sizes, C: tl.constexpr):
    """Where rho_P of the first offset lies, as each output sees it: [o, c]."""
    return (h * (sizes.side * sizes.side * C))[:, None] + tl.arange(0, C)[None, :]


@piece
def read_rows(element_index, h, met, m, sizes):
    """The rows of the table of elements [o, m] that outputs and one of their queries see at keys."""
    return tl.load(element_index + ((h * sizes.met + met) * sizes.keys)[:, None] + m[None, :])


@piece
def read_element_scores(scores, rows, query_element, place, sizes):
    """<q, rho_P(element)> [o, m, p], as the kernel `element_scores` left them."""
    at = (query_element * sizes.elements + rows)[:, :, None] * sizes.places + place[None, None, :]
    return tl.load(scores + at)


@piece
def score_of(q, k, s, element):
    """Scores [o, m, p], and what rounding took from them, exactly (Knuth's two-sum)."""
    content = tl.sum(q[None, :, :] * k, 1)[None, :, :]
    space = tl.sum(q[None, :, :] * s[:, :, None], 1)[:, None, :]
    both = content + space
    score = both + element
    space_added, element_added = both - content, score - both
    lost = (content - (both - space_added)) + (space - space_added)
    return score, lost + ((both - (score - element_added)) + (element - element_added))


@piece
def heaviest_of(score, lost):
    """The largest of some keys' scores, as two numbers [o, p], and which keys have it [o, m, p]."""
    largest = tl.max(score, 1)
    # What was rounded off has a say in which is the largest, and may itself be large.
    above = (score - largest[:, None, :]) + lost
    lost_largest = tl.max(above, 1)
    return largest, lost_largest, above == lost_largest[:, None, :]


@piece
def weight_of(largest, lost_largest, score, lost, inside):
    """Coefficients [o, m, p], relative to one of the largest score."""
    below = (score - largest[:, None, :]) + (lost - lost_largest[:, None, :])
    return tl.where(inside[None, None, :], tl.exp(tl.minimum(below, 0.0)), 0.0)


@piece
def _scramble(x):
    """Mix 32 bits well."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@piece
def noise_of(low, high, plane, pixel):
    """The random numbers a and b of each place, see `dropout.py`; low and high are those of the seed."""
    low, high, pixel = tl.cast(low, tl.uint32), tl.cast(high, tl.uint32), pixel.to(tl.uint32)
    key = _scramble(plane.to(tl.uint32) + high) ^ low
    a = _scramble(pixel + key)
    return a, _scramble((a ^ pixel) + _scramble(key + 0x78DDE6E4))


@piece
def noise_of_pairs(pair_noise, h, met, m, sizes):
    """The random numbers c [o, m] of outputs, one of their queries and keys."""
    pair = ((met * sizes.outputs + h) * ((sizes.keys + 1) // 2))[:, None] + m[None, :] // 2
    return tl.load(pair_noise + pair).to(tl.uint32)


@piece
def kept(offset_noise, a, b, c, m, number, lowest, enlarged):
    """What dropout multiplies coefficients [o, m, p] with: 0 where their bits are too low, or what enlarges others."""
    d = tl.load(offset_noise + 2 * number).to(tl.uint32)
    e = tl.load(offset_noise + 2 * number + 1).to(tl.uint32)
    bits = ((a[None, None, :] + c[:, :, None]) ^ d) * ((b + e) | 1)[None, None, :]
    bits = tl.where((m % 2 == 1)[None, :, None], bits ^ (bits << 16), bits)
    return tl.where(bits.to(tl.int32, bitcast=True) >= lowest, enlarged, 0.0)


@piece
def statistics_at(h, met, place, sizes):
    """Where the statistics of softmaxes lie: the first of them, [o, p]."""
    return (h * sizes.met + met)[:, None] * sizes.places + place[None, :]


@piece
def read_statistics(statistics, at, sizes):
    """Those that the kernel `statistics` left."""
    stride = sizes.outputs * sizes.met * sizes.places
    at = statistics + at
    return (
        tl.load(at),
        tl.load(at + stride),
        tl.load(at + 2 * stride),
        tl.load(at + 3 * stride),
        tl.load(at + 4 * stride),
    )


@piece
def gradient_of(known, score, lost, g, inside):
    """Coefficients [o, m, p] and the gradients of their scores, from statistics and the gradients g of coefficients."""
    largest, lost_largest, inverse, base, above = known
    weight = weight_of(largest, lost_largest, score, lost, inside) * inverse[:, None, :]
    return weight, weight * ((g - base[:, None, :]) - above[:, None, :])
