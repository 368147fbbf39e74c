"""Exact group attention in plain PyTorch with bounded memory.

A score is content[h~, h^, j] + space[h, h~, j] + element[h, h~, h^], so its exponential is a product C S R of three
small ones, and no tensor of size |H|^3 n^2 is ever needed in full:

    Z[h, h~]    = sum over h^ of  R[h, h~, h^] (S C^T)[h, h~, h^]
    W[h, h^, j] = sum over h~ of  R[h, h~, h^] S[h, h~, j] C[h~, h^, j] / Z[h, h~]
    out[h]      = sum over (h^, j) of  W[h, h^, j] v[h^, j]

Work goes in chunks of pixels of one (image, head); the backward pass recomputes them. With p = C S R / Z and
g = dout v^T (0 where dropped), the gradient of a score is p (g - sum(p g)), which is summed over h, h^ and j to those
of the three parts.

Maxima are subtracted from each factor. Two kinds of chunks are computed from sums of scores instead: where the maxima
lie so far apart that Z underflows and has lost terms; and where scores are large, since softmaxes are then often
saturated, and the gradient of a score is a small difference of which the factors keep the rounding error alone.

Axes: p = pixel of the chunk, v = h, q = h~, m = h^, j = neighbour. With own_query, q is the output itself and v has
one entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gevit.attention.dropout import Dropout, Places
from gevit.encoding import Positions

# Numbers that the largest temporary of a chunk may hold: small enough to stay in the cache of a core.
CHUNK_NUMBERS = 2**18
# Below this, a normaliser made of shifted factors has lost terms that count.
UNDERFLOW = 1e-20
# Scores beyond this are not taken apart into factors.
LARGE = 1024


class Window(NamedTuple):
    """The neighbours of a chunk of pixels; an axis of one is shared by all pixels of the chunk."""

    pixels: slice
    neighbor: Int[Tensor, "#p j"]  # which pixel of the image
    offset: Int[Tensor, "#p j"]  # which offset of the neighbourhood
    inside: Bool[Tensor, "p j"]  # whether it is in the image and in the neighbourhood


def forward(query: Tensor, key: Tensor, value: Tensor, positions: Positions, scale: float, dropout: Dropout) -> Tensor:
    """Group attention."""
    batch, channels, heads, _, height, width = query.shape
    out = query.new_empty(batch, channels, heads, len(positions.offset_index), height * width)
    planes = [x.flatten(-2) for x in (query, key, value)]
    for image, head, window in _chunks(query, key, positions):
        q, k, v = (x[image, :, head] for x in planes)
        chunk = _Chunk.prepare(q, k, v, positions, window, scale)
        place = (dropout.first_image + image) * heads + head
        mixed = chunk.mix(p * keep for p, keep in chunk.coefficients(dropout, place))
        out[image, :, head, :, window.pixels] = (mixed.flatten(2) @ chunk.v.flatten(1, 2)).permute(2, 1, 0)
    return out.view(*out.shape[:-1], height, width)


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    scale: float,
    dropout: Dropout,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, space and element."""
    grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
    d_space, d_element = (torch.zeros_like(x) for x in (positions.space, positions.element))
    planes, grad_planes = [x.flatten(-2) for x in (query, key, value)], [x.flatten(-2) for x in grads]
    grad = grad.flatten(-2)
    for image, head, window in _chunks(query, key, positions):
        q, k, v = (x[image, :, head] for x in planes)
        chunk = _Chunk.prepare(q, k, v, positions, window, scale)
        place = (dropout.first_image + image) * query.shape[2] + head
        upstream = grad[image, :, head, :, window.pixels].permute(2, 1, 0)  # p v c
        found = chunk.gradients(upstream, chunk.coefficients(dropout, place))
        d_query, d_key, d_value = (x[image, :, head] for x in grad_planes)
        d_query[..., window.pixels] += scale * found[0].permute(2, 1, 0)
        for total, part in ((d_key, found[1]), (d_value, found[2])):
            # part: p|1 m j c, at the pixels window.neighbor
            total.index_add_(2, window.neighbor.flatten(), part.permute(3, 1, 0, 2).flatten(2))
        d_space += found[3]
        d_element += found[4]
    return grads[0], grads[1], grads[2], d_space, d_element


def _chunks(query: Tensor, key: Tensor, positions: Positions) -> Iterator[tuple[int, int, Window]]:
    batch, channels, heads, queries, height, width = query.shape
    outputs, offsets = positions.offset_index.shape
    area = height * width
    per_pixel = min(offsets, area) * key.shape[3] * max(channels, outputs, queries)
    step = max(1, CHUNK_NUMBERS // per_pixel)
    for first in range(0, area, step):
        window = _window(slice(first, min(first + step, area)), height, width, offsets, query.device)
        for image in range(batch):
            for head in range(heads):
                yield image, head, window


def _window(pixels: slice, height: int, width: int, offsets: int, device: torch.device) -> Window:
    """Neighbours are the offsets of the neighbourhood or, where those are more, all pixels of the image."""
    side = math.isqrt(offsets)
    radius = side // 2
    pixel = torch.arange(pixels.start, pixels.stop, device=device)[:, None]
    if offsets <= height * width:
        offset = torch.arange(offsets, device=device)[None]
        row, column = pixel // width + offset // side - radius, pixel % width + offset % side - radius
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return Window(pixels, (row * width + column).where(inside, 0), offset, inside)
    neighbor = torch.arange(height * width, device=device)[None]
    row, column = neighbor // width - pixel // width + radius, neighbor % width - pixel % width + radius
    inside = (row >= 0) & (row < side) & (column >= 0) & (column < side)
    return Window(pixels, neighbor, (row * side + column).where(inside, 0), inside)


@dataclass(frozen=True)
class _Chunk:
    """Some pixels of one image and head: their vectors, and the three parts of their scores."""

    q: Float[Tensor, "p q c"]  # scaled
    k: Float[Tensor, "#p m j c"]
    v: Float[Tensor, "#p m j c"]
    content: Float[Tensor, "p q m j"]
    space: Float[Tensor, "p q v j"]
    element: Float[Tensor, "p q v m"]
    positions: Positions
    window: Window
    offset_index: Int[Tensor, "#p #q v j"]
    element_index: Int[Tensor, "1 q v m"]

    @classmethod
    def prepare(
        cls,
        query: Float[Tensor, "c q pixels"],
        key: Float[Tensor, "c m pixels"],
        value: Float[Tensor, "c m pixels"],
        positions: Positions,
        window: Window,
        scale: float,
    ) -> _Chunk:
        q = scale * query[..., window.pixels].permute(2, 1, 0)
        k = key[..., window.neighbor].permute(2, 1, 3, 0)
        v = value[..., window.neighbor].permute(2, 1, 3, 0)
        content = (q @ k.flatten(1, 2).transpose(1, 2)).unflatten(-1, k.shape[1:3])
        content = content.masked_fill(~window.inside[:, None, None], -torch.inf)

        # Dot products with the distinct vectors, read in the order of each output element.
        offset_index = positions.offset_index[:, window.offset].transpose(0, 1)  # p|1 v j
        element_index = positions.element_index  # v q m
        if positions.own_query:
            offset_index = offset_index[:, :, None]
        else:
            offset_index, element_index = offset_index[:, None], element_index.transpose(0, 1)
        parts = positions.space.shape[1]
        space = _read(q[..., :parts] @ positions.space.T, offset_index)
        if positions.element.numel():
            element = _read(q[..., parts:] @ positions.element.T, element_index[None])
        else:
            element = space.new_zeros(*space.shape[:-1], k.shape[1])
        return cls(q, k, v, content, space, element, positions, window, offset_index, element_index[None])

    @cached_property
    def factors(self) -> tuple[Float[Tensor, "p q m j"], Float[Tensor, "p q v j"], Float[Tensor, "p q v m"]] | None:
        """C, S and R / Z; None where they cannot be trusted."""
        exp_content = (self.content - self.content.amax((-2, -1), keepdim=True)).exp()
        exp_space = (self.space - self.space.amax(-1, keepdim=True)).exp()
        exp_element = (self.element - self.element.amax(-1, keepdim=True)).exp()
        normalizer = (exp_element * (exp_space @ exp_content.transpose(-1, -2))).sum(-1, keepdim=True)
        inside = self.content.masked_fill(~self.window.inside[:, None, None], 0)
        largest = torch.stack(
            [torch.linalg.vector_norm(x, torch.inf) for x in (inside, self.space, self.element)]
        ).max()
        if (largest > LARGE) | (normalizer < UNDERFLOW).any():
            return None
        return exp_content, exp_space, exp_element / normalizer

    def coefficients(self, dropout: Dropout, head: int) -> Iterator[tuple[Tensor, Tensor | float]]:
        """For each query element h~, the softmax `[p, v, m, j]` and what dropout multiplies it with."""
        places = self._places(dropout, head) if dropout.rate else []
        keep: Tensor | float = 1.0
        for h in range(self.q.shape[1]):
            if self.factors is None:
                distance = _below_largest(
                    self.content[:, h, None], self.space[:, h, :, None], self.element[:, h, ..., None]
                )
                p = distance.flatten(-2).softmax(-1).view_as(distance)
            else:
                content, space, share = self.factors
                p = share[:, h, :, :, None] * space[:, h, :, None] * content[:, h, None]
            if places:
                keep = dropout.scale * places[h].kept().to(p)
            yield p, keep

    def _places(self, dropout: Dropout, head: int) -> list[Places]:
        """Where dropout finds the coefficients `[p, v, m, j]` of each query element."""
        outputs, queries, device = len(self.positions.offset_index), self.q.shape[1], self.q.device
        pixel = torch.arange(self.window.pixels.start, self.window.pixels.stop, device=device)[:, None, None, None]
        h, query = torch.arange(outputs, device=device), torch.arange(queries, device=device)
        pair = h[:, None] if self.positions.own_query else query[:, None] * outputs + h  # q v
        offset = self.window.offset[:, None, None]
        places = dropout.places(head, pixel, pair[..., None, None], offset, self.k.shape[1])
        return [places._replace(c=places.c[query]) for query in range(queries)]

    def mix(self, weights: Iterator[Float[Tensor, "p v m j"]]) -> Float[Tensor, "p v m j"]:
        """The weights of each output, summed over its queries."""
        if self.positions.own_query:
            return torch.cat(list(weights), 1)
        mixed = next(weights)
        for weight in weights:
            mixed += weight
        return mixed

    def gradients(
        self, upstream: Float[Tensor, "p v c"], coefficients: Iterator[tuple[Tensor, Tensor | float]]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of the (scaled) queries, of keys and values at their neighbours, of space and element."""
        d_weight = (upstream @ self.v.flatten(1, 2).transpose(1, 2)).unflatten(-1, self.v.shape[1:3])
        d_content, d_space, d_element = (torch.empty_like(x) for x in (self.content, self.space, self.element))
        weights: list[Tensor] = []
        for h, (p, keep) in enumerate(coefficients):
            weight = p * keep
            g = keep * (d_weight[:, h : h + 1] if self.positions.own_query else d_weight)
            if self.factors is None:
                # A softmax does not feel what is added to all scores, so gradients may be counted from that of the
                # heaviest coefficient: where it has all the weight, nothing is left to cancel.
                heaviest = p.flatten(-2).argmax(-1, keepdim=True)
                g = g - g.flatten(-2).gather(-1, heaviest)[..., None]
            d_score = p * (g - (p * g).sum((-2, -1), keepdim=True))
            d_content[:, h], d_space[:, h], d_element[:, h] = (
                d_score.sum(1),
                d_score.sum(2),
                d_score.sum(3),
            )
            if self.positions.own_query or not weights:
                weights.append(weight)
            else:
                weights[0] += weight
        mixed = torch.cat(weights, 1)  # p v m j

        d_key = _outer(d_content, self.q, self.k)
        d_value = _outer(mixed, upstream, self.v)
        d_query = d_content.flatten(2) @ self.k.flatten(1, 2)
        parts = self.positions.space.shape[1]
        read = [(d_space, self.offset_index, self.positions.space, slice(None, parts))]
        if self.positions.element.numel():
            read.append((d_element, self.element_index, self.positions.element, slice(parts, None)))
        d_vectors = [torch.zeros_like(self.positions.space), torch.zeros_like(self.positions.element)]
        for total, (d_read, index, vectors, channels) in zip(d_vectors, read, strict=False):
            d_dot = _unread(d_read, index, len(vectors))
            d_query[..., channels] += d_dot @ vectors
            total += d_dot.flatten(0, 1).T @ self.q[..., channels].flatten(0, 1)
        return d_query, d_key, d_value, d_vectors[0], d_vectors[1]


def _outer(
    weight: Float[Tensor, "p a m j"], vectors: Float[Tensor, "p a c"], like: Float[Tensor, "#p m j c"]
) -> Float[Tensor, "#p m j c"]:
    """Sum over a (and over pixels where neighbours are shared) of weight times vector."""
    if len(like) == 1:
        return torch.einsum("pamj,pac->mjc", weight, vectors)[None]
    return torch.einsum("pamj,pac->pmjc", weight, vectors)


def _below_largest(a: Tensor, b: Tensor, c: Tensor) -> Float[Tensor, "p v m j"]:
    """a + b + c less the largest over the last two axes, with the digits that large sums would lose to rounding."""

    def rounded_off(x: Tensor, y: Tensor, total: Tensor) -> Tensor:  # exactly (Knuth's two-sum)
        from_y = total - x
        return (x - (total - from_y)) + (y - from_y)

    ab = a + b
    abc = ab + c
    lost = (rounded_off(a, b, ab) + rounded_off(ab, c, abc)).masked_fill(abc == -torch.inf, 0)
    return abc - abc.amax((-2, -1), keepdim=True) + lost


def _read(values: Float[Tensor, "p q n"], index: Int[Tensor, "#p #q v k"]) -> Float[Tensor, "p q v k"]:
    """Look up `values` along their last axis, for every pixel and query."""
    flat = index.flatten(2).expand(*values.shape[:2], -1)
    return values.gather(2, flat).view(*values.shape[:2], *index.shape[2:])


def _unread(grad: Float[Tensor, "p q v k"], index: Int[Tensor, "#p #q v k"], size: int) -> Float[Tensor, "p q n"]:
    """The gradient of `_read`."""
    flat = index.flatten(2).expand(*grad.shape[:2], -1)
    return grad.new_zeros(*grad.shape[:2], size).scatter_add_(2, flat, grad.flatten(2))
