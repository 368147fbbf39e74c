"""Exact group attention in plain PyTorch with bounded memory.

A score is content[h~, h^, j] + space[h, h~, j] + element[h, h~, h^], so its exponential is a product C S R of three
small ones, and no tensor of size |H|^3 n^2 is ever needed in full:

    Z[h, h~]    = sum over h^ of  R[h, h~, h^] (S C^T)[h, h~, h^]
    W[h, h^, j] = sum over h~ of  R[h, h~, h^] S[h, h~, j] C[h~, h^, j] / Z[h, h~]
    out[h]      = sum over (h^, j) of  W[h, h^, j] v[h^, j]

Work goes in chunks of rows of one (image, head); the backward pass recomputes them. Maxima are subtracted from each
factor; where they lie so far apart that a Z underflows, the chunk is computed from the full scores instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gevit.encoding import Positions

# Numbers that the largest temporary of a chunk may hold.
CHUNK_NUMBERS = 2**22
# Below this, a normaliser made of shifted factors has lost terms that count.
UNDERFLOW = 1e-20


class Chunk(NamedTuple):
    """Some rows of one image and head."""

    image: int
    head: int
    rows: slice
    seed: int


def forward(
    query: Tensor, key: Tensor, value: Tensor, positions: Positions, scale: float, dropout: float, seed: int
) -> Tensor:
    """Group attention, without a graph."""
    batch, channels, heads, _, height, width = query.shape
    out = query.new_empty(batch, channels, heads, len(positions.offset_index), height, width)
    with torch.no_grad():
        for chunk in _chunks(query, key, positions, seed):
            out[chunk.image, :, chunk.head, :, chunk.rows] = _attend(
                query, key, value, positions, scale, dropout, chunk
            )
    return out


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    scale: float,
    dropout: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, space and element: each chunk is run again, with a graph."""
    inputs = [query, key, value, positions.space, positions.element]
    grads = [torch.zeros_like(x) for x in inputs]
    for chunk in _chunks(query, key, positions, seed):
        at = (slice(chunk.image, chunk.image + 1), slice(None), slice(chunk.head, chunk.head + 1))
        windows = [at, at, at, slice(None), slice(None)]
        leaves = [x[window].detach().requires_grad_() for x, window in zip(inputs, windows, strict=True)]
        with torch.enable_grad():
            local = positions._replace(space=leaves[3], element=leaves[4])
            out = _attend(*leaves[:3], local, scale, dropout, chunk._replace(image=0, head=0))
        upstream = grad[chunk.image, :, chunk.head, :, chunk.rows]
        found = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
        for total, window, part in zip(grads, windows, found, strict=True):
            if part is not None:
                total[window] += part
    return grads[0], grads[1], grads[2], grads[3], grads[4]


def _chunks(query: Tensor, key: Tensor, positions: Positions, seed: int) -> Iterator[Chunk]:
    batch, channels, heads, queries, height, width = query.shape
    outputs, offsets = positions.offset_index.shape
    keys = key.shape[3]
    per_row = width * offsets * keys * max(channels, outputs * (1 if positions.own_query else queries))
    rows = max(1, CHUNK_NUMBERS // per_row)
    for image in range(batch):
        for head in range(heads):
            for first in range(0, height, rows):
                yield Chunk(image, head, slice(first, min(first + rows, height)), seed)
                seed += 1


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    scale: float,
    dropout: float,
    chunk: Chunk,
) -> Float[Tensor, "c v y x"]:
    """Attention at the pixels p of a chunk. Axes: v = h, q = h~ (per v with own_query), m = h^, j = neighbour."""
    side = round(positions.offset_index.shape[1] ** 0.5)
    rows, width = chunk.rows.stop - chunk.rows.start, query.shape[-1]
    q = query[chunk.image, :, chunk.head, :, chunk.rows].flatten(-2).permute(2, 1, 0)  # p q c
    k = _neighbors(key, side, chunk)  # p m c j
    v = _neighbors(value, side, chunk)
    space_channels = positions.space.shape[1]
    keys, offsets = k.shape[1], k.shape[-1]

    content = scale * torch.einsum("pqc,pmcj->pqmj", q, k)
    inside = _inside(query, side, chunk)
    content = content.masked_fill(~inside[:, None, None], -torch.inf)
    # space and element: p q v ., with own_query p v 1 . so that "q" is the output itself
    space = scale * q[..., :space_channels] @ positions.space.T
    element = scale * q[..., space_channels:] @ positions.element.T
    if positions.own_query:
        space = space.gather(2, positions.offset_index.expand(len(q), -1, -1)).unsqueeze(2)
        element = element.gather(2, positions.element_index[:, 0].expand(len(q), -1, -1)).unsqueeze(2)
    else:
        space = space[..., positions.offset_index]
        queries = torch.arange(q.shape[1], device=q.device)[:, None, None]
        if positions.element.numel():
            element = element[:, queries, positions.element_index.transpose(0, 1)]
        else:
            element = space.new_zeros(1).expand(*space.shape[:-1], keys)

    generator = torch.Generator(q.device).manual_seed(chunk.seed) if dropout else None
    weights = _weights(content, space, element, dropout, generator)
    mixed = torch.stack(weights, 1) if positions.own_query else sum(weights[1:], weights[0])
    out = mixed.reshape(len(q), -1, keys * offsets) @ v.permute(0, 1, 3, 2).flatten(1, 2)
    return out.permute(2, 1, 0).unflatten(-1, (rows, width))


def _weights(
    content: Float[Tensor, "p q m j"],
    space: Float[Tensor, "p q v j"],
    element: Float[Tensor, "p q v m"],
    dropout: float,
    generator: torch.Generator | None,
) -> list[Tensor]:
    """The attention weights of each query element h~, `[p, v, m, j]` (v squeezed out where it is one)."""
    exp_content = (content - _top(content, (-2, -1))).exp()
    exp_space = (space - _top(space, (-1,))).exp()
    exp_element = (element - _top(element, (-1,))).exp()
    normalizer = (exp_element * (exp_space @ exp_content.transpose(-1, -2))).sum(-1, keepdim=True)
    direct = bool((normalizer < UNDERFLOW).any())
    ratio = exp_element / normalizer if not direct else element
    weights = []
    for h in range(content.shape[1]):
        if direct:
            score = content[:, h, None] + space[:, h, :, None] + element[:, h, :, :, None]
            weight = score.flatten(-2).softmax(-1).view_as(score)
        else:
            weight = ratio[:, h, :, :, None] * exp_space[:, h, :, None] * exp_content[:, h, None]
        if dropout:
            keep = torch.rand(weight.shape, generator=generator, device=weight.device) >= dropout
            weight = weight * keep / (1 - dropout)
        weights.append(weight)
    return weights


def _top(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The maximum, as a constant: shifting a factor by it changes no result."""
    return x.detach().amax(axes, keepdim=True)


def _neighbors(x: Tensor, side: int, chunk: Chunk) -> Float[Tensor, "p m c j"]:
    """The neighbourhoods of a chunk's pixels."""
    radius = side // 2
    height = x.shape[-2]
    top, bottom = chunk.rows.start - radius, chunk.rows.stop + radius
    window = x[chunk.image, :, chunk.head, :, max(top, 0) : min(bottom, height)]
    padded = F.pad(window, (radius, radius, max(-top, 0), max(bottom - height, 0)))
    patches = padded.unfold(-2, side, 1).unfold(-2, side, 1)  # c m y x a b
    return patches.permute(2, 3, 1, 0, 4, 5).flatten(4, 5).flatten(0, 1)


def _inside(x: Tensor, side: int, chunk: Chunk) -> Float[Tensor, "p j"]:
    """Which neighbours of a chunk's pixels are in the image."""
    ones = torch.ones_like(x[:1, :1, :1, :1], dtype=torch.bool)
    return _neighbors(ones, side, chunk._replace(image=0, head=0))[:, 0, 0]
