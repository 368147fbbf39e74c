"""Exact group attention as a small graph of standard operators, for exporters: no gradients, no dropout.

Every operator of a graph is traced, translated and planned, so a graph has as few as may be. Scores are summed and
normalised as the equation has them, for as many output elements at a time as memory allows. Tables say which pixels are
neighbours of which. A local neighbourhood looks the same from every pixel: the scores of its positions are a product of
the queries with one matrix. The batch stays an axis of its own, of any length.

Axes: b = image, n = head, p = pixel, v = h, q = h~, m = h^, j = neighbour, w = (j, m), c = channel; s = the queries of
an output, o = the outputs of a query (with own_query there is one); g = what has neighbours in common: each pixel or,
where all pixels see all others, the image as a whole.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gevit.encoding import Positions

# Scores of an image that exist at a time, unless those of one output element are more.
IMAGE_NUMBERS = 2**24


def forward(
    query: Float[Tensor, "b c n q y x"],
    key: Float[Tensor, "b c n m y x"],
    value: Float[Tensor, "b c n m y x"],
    positions: Positions,
    scale: float,
) -> Float[Tensor, "b c n v y x"]:
    """Group attention."""
    heads, queries, height, width = query.shape[2:]
    (outputs, offsets), keys, own = positions.offset_index.shape, key.shape[3], positions.own_query
    pixels = height * width
    neighbors, groups = (offsets, pixels) if offsets <= pixels else (pixels, 1)
    around = _Around.of(height, width, math.isqrt(offsets), groups == 1)

    def constant(table: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(table)
        return tensor if query.is_cpu else tensor.to(query.device)

    def with_neighbors(x: Tensor, vectors: Tensor) -> Tensor:
        """The matrix product of what a pixel has, `b n p rows k`, with what its neighbours have, `b n g k columns`."""
        if groups == pixels:
            return x @ vectors
        together = x.flatten(2, 3).unsqueeze(2) @ vectors
        apart: Tensor = together.unflatten(3, (pixels, x.shape[3])).squeeze(2)
        return apart

    q = (scale * query).permute(0, 2, 3, 4, 5, 1).flatten(3, 4)  # b n q p c
    k, v = (x.permute(0, 2, 4, 5, 3, 1).flatten(2, 3) for x in (key, value))  # b n p m c
    if groups == pixels:
        seen = constant(around.seen.reshape(-1))
        k, v = (x.index_select(2, seen).unflatten(2, (pixels, neighbors)).flatten(3, 4) for x in (k, v))
    else:
        k, v = (x.flatten(2, 3).unsqueeze(2) for x in (k, v))  # b n g w c
    content = with_neighbors(q.transpose(2, 3), k.mT).transpose(2, 3)
    if around.outside.any():
        content = content + constant(np.repeat(around.outside, keys, axis=1))
    content = content.unsqueeze(4)  # b n q p o w

    rho, offset = (_local_rho(positions), None) if groups == pixels else (None, constant(around.offset))
    at_once = max(1, IMAGE_NUMBERS // (heads * pixels * (1 if own else queries) * keys * neighbors))
    mixed = []
    for first in range(0, outputs, at_once):
        some = min(at_once, outputs - first)
        asking, meeting = (x.narrow(2, first, some) if own else x for x in (q, content))
        if offset is None:
            assert rho is not None
            vectors = rho.narrow(0 if own else 2, first, some)
            positional = (asking @ vectors.flatten(2)).unflatten(4, vectors.shape[2:])
        else:
            indices = [index.narrow(0, first, some) for index in (positions.offset_index, positions.element_index)]
            positional = _everywhere(asking, positions, indices[0], indices[1], offset)
        weight = (meeting + positional).softmax(5)
        mixed.append(with_neighbors(weight.squeeze(4).transpose(2, 3) if own else weight.sum(2), v))
    out: Tensor = torch.cat(mixed, 3).unflatten(2, (height, width))
    return out.permute(0, 5, 1, 4, 2, 3)


def _local_rho(positions: Positions) -> Float[Tensor, "q c o w"]:
    """The vector of rho_P of every (h, h~, h^, j), which all pixels have in common."""
    element_index, neighbors = positions.element_index, positions.offset_index.shape[1]
    queries, keys = element_index.shape[1:]
    space = positions.space[positions.offset_index].unsqueeze(2).unsqueeze(1)
    rho = space = space.expand(-1, queries, -1, keys, -1)  # v s j m c
    if positions.element.numel():
        element = positions.element[element_index].unsqueeze(2).expand(-1, -1, neighbors, -1, -1)
        rho = torch.cat([space, element], 4)
    return rho.permute((0, 4, 1, 2, 3) if positions.own_query else (1, 4, 0, 2, 3)).flatten(3)


def _everywhere(
    query: Float[Tensor, "b n q p c"],
    positions: Positions,
    offset_index: Int[Tensor, "v offsets"],
    element_index: Int[Tensor, "v s m"],
    offset: Int[Tensor, "p j"],
) -> Float[Tensor, "b n q p o w"]:
    """Scores of the positions, where every pixel sees other offsets: dot products with all vectors, to be looked up."""
    own, split, (pixels, neighbors) = positions.own_query, positions.space.shape[1], offset.shape
    dots = query[..., :split] @ positions.space.mT  # b n q p u
    seen = offset_index[:, offset]  # v p j
    first = torch.arange(pixels * (query.shape[2] if own else 1), device=query.device) * dots.shape[4]
    if own:
        index = first.view(-1, pixels, 1) + seen
        space = dots.flatten(2).index_select(2, index.flatten()).unflatten(2, (-1, pixels, 1, neighbors, 1))
    else:
        index = first.view(pixels, 1, 1) + seen.transpose(0, 1)
        space = dots.flatten(3).index_select(3, index.flatten()).unflatten(3, (pixels, -1, neighbors, 1))
    if positions.element.numel():
        vectors = positions.element[element_index].permute((0, 3, 1, 2) if own else (1, 3, 0, 2))  # q c o m
        element = (query[..., split:] @ vectors.flatten(2)).unflatten(4, vectors.shape[2:])
        space = space + element.unsqueeze(5)
    scores: Tensor = space.flatten(5)
    return scores


class _Around(NamedTuple):
    """The neighbours of each pixel."""

    seen: Int[np.ndarray, "g j"]  # which pixels they are
    offset: Int[np.ndarray, "#p j"]  # of each, as one number; the same for all pixels, or not
    outside: Float[np.ndarray, "p j"]  # -inf where there is no such neighbour, elsewhere 0

    @staticmethod
    def of(height: int, width: int, side: int, everywhere: bool) -> _Around:
        """Those within a square around the pixel, or all pixels."""
        axes = (_Around.along(height, side, everywhere), _Around.along(width, side, everywhere))
        tables = (
            (stride * row[:, None, :, None] + column[None, :, None, :]).reshape(len(row) * len(column), -1)
            for row, column, stride in zip(*axes, (width, side, 1), strict=True)
        )
        return _Around(*tables)

    @staticmethod
    def along(size: int, side: int, everywhere: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same in one dimension."""
        place, radius = np.arange(size)[:, None], side // 2
        if everywhere:
            seen, offset = place.T, place.T - place + radius
        else:
            seen, offset = place + np.arange(side) - radius, np.arange(side)[None]
        inside = (seen >= 0) & (seen < size) & (offset >= 0) & (offset < side)
        return seen.clip(0, size - 1), offset.clip(0, side - 1), np.where(inside, np.float32(0), -np.float32(np.inf))
