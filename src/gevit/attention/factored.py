"""Exact group attention in plain PyTorch, on any device, with bounded memory.

A score is content[h~, h^, j] + space[h, h~, j] + element[h, h~, h^]. The three parts are small; their sum has |H| times
the numbers of the largest of them. It exists for one query element h~ at a time, and the weights of all h~ are summed
before they meet the values. Images and heads are computed together, in tiles of pixels that bound the memory; the
backward pass computes the tiles again. Nothing is decided by looking at numbers, so nothing waits for a device.

Dot products of the vectors at each pixel are batched matrix products. All that is elementwise has pixels along its last
axis, which is long where the others are short.

Scores may be of any size. Where large parts oppose each other, their rounded sums would lose the small differences that
decide a softmax. So each part is split into a multiple of a grain, one for all scores of a pixel, and a rest. Sums of
multiples are exact; the rests follow once the largest sum is subtracted. Gradients p (g - sum(p g)) of scores are small
differences, too, where one coefficient has nearly all the weight: what rounding leaves of the mean of g is subtracted
in a second round.

Axes: p = pixel of a tile, v = h, q = h~, m = h^, j = neighbour, w = (j, m), c = channel; g = group of r rows of (p, h)
with the same neighbours; s = step: one query element for all outputs or, with own_query, all, each for its own output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gevit.attention.dropout import Dropout, Places
from gevit.attention.layout import Layout, Tile
from gevit.encoding import Positions

# Numbers that a temporary of a tile may hold: on a CPU a few of these should fit its cache, other devices need many
# numbers to be busy.
TILE_NUMBERS = 2**19
DEVICE_TILE_NUMBERS = 2**24


def forward(query: Tensor, key: Tensor, value: Tensor, positions: Positions, scale: float, dropout: Dropout) -> Tensor:
    """Group attention."""
    layout = Layout.of(query, key, positions)
    q, k, v = layout.pixelwise(scale * query), layout.padded(key), layout.padded(value)
    out = q.new_empty(*q.shape[:3], layout.outputs, layout.channels)
    for tile in layout.tiles(_budget(query.device), query.device):
        weights = _Scores.prepare(layout, tile, q, k, positions, dropout).weights()
        mixed = _mix(layout, tile, weights, v)
        target = out[tile.planes, tile.rows]
        target.copy_(dropout.scale * mixed.view(target.shape))
    return layout.restored(out)


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
    layout = Layout.of(query, key, positions)
    q, k, v = layout.pixelwise(scale * query), layout.padded(key), layout.padded(value)
    upstream = layout.pixelwise(dropout.scale * grad)
    d_query, d_key, d_value = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    d_space, d_element = (torch.zeros_like(x) for x in (positions.space, positions.element))
    for tile in layout.tiles(_budget(query.device), query.device):
        scores = _Scores.prepare(layout, tile, q, k, positions, dropout)
        d_mixed = upstream[tile.planes, tile.rows].flatten(0, 2)
        found = scores.gradients(_dots(layout, tile, d_mixed, v))
        _add_products(layout, tile, d_value, found.weights, d_mixed)
        _add_products(layout, tile, d_key, found.content, scores.q)
        d_q = _mix(layout, tile, found.content, k)
        parts = positions.space.shape[1]
        reads = [(found.space, scores.space_index, positions.space, d_space, slice(None, parts))]
        if positions.element.numel():
            reads.append((found.element, scores.element_index, positions.element, d_element, slice(parts, None)))
        for d_read, index, vectors, d_vectors, channels in reads:
            d_dots = _unread(d_read, index, layout.queries, len(vectors))
            d_q[..., channels] += (vectors.T.expand(layout.queries, -1, -1) @ d_dots).permute(2, 0, 1)
            d_vectors += (d_dots @ scores.q.transpose(0, 1)[..., channels]).sum(0)
        target = d_query[tile.planes, tile.rows]
        target.copy_(scale * d_q.view(target.shape))
    return layout.restored(d_query), layout.unpadded(d_key), layout.unpadded(d_value), d_space, d_element


def _budget(device: torch.device) -> int:
    return TILE_NUMBERS if device.type == "cpu" else DEVICE_TILE_NUMBERS


class _Parts(NamedTuple):
    """The parts of scores, or something about them."""

    content: Float[
        Tensor,
        (
            s  # v j m p
        ),
    ]
    space: Float[Tensor, "s v j 1 p"]
    element: Float[Tensor, "s v 1 m p"]


class _Gradients(NamedTuple):
    """The weights of the neighbours, and the gradients of the parts of their scores."""

    weights: Float[Tensor, "v j m p"]
    content: Float[Tensor, "q j m p"]
    space: Float[Tensor, "s v j p"]
    element: Float[Tensor, "s v m p"]


@dataclass(frozen=True)
class _Scores:
    """The scores of a tile."""

    q: Float[Tensor, "p q c"]  # scaled
    multiples: _Parts
    rests: _Parts
    space_index: Int[Tensor, "s v j #p"]
    element_index: Int[Tensor, "s v m 1"]
    places: Places | None  # of all coefficients, where some are dropped

    @staticmethod
    def prepare(
        layout: Layout,
        tile: Tile,
        query: Float[Tensor, "planes y x q c"],
        key: Float[Tensor, "planes rows columns m c"],
        positions: Positions,
        dropout: Dropout,
    ) -> _Scores:
        q = query[tile.planes, tile.rows].flatten(0, 2)
        content = _dots(layout, tile, q, key)

        # Dot products with the distinct vectors, to be read in the order of each output element.
        by_query, split = q.permute(1, 2, 0), positions.space.shape[1]
        space = torch.bmm(positions.space.expand(layout.queries, -1, -1), by_query[:, :split])
        if positions.element.numel():
            element = torch.bmm(positions.element.expand(layout.queries, -1, -1), by_query[:, split:])
        else:
            element = space.new_zeros(layout.queries, 1, q.shape[0])
        queries = torch.arange(layout.queries, device=q.device)
        queries = queries.view((1, -1, 1, 1) if positions.own_query else (-1, 1, 1, 1))
        space_index = queries * space.shape[1] + positions.offset_index[:, tile.places.offset]
        elements = positions.element_index.transpose(0, 1)[..., None]
        element_index = queries * element.shape[1] + (elements if positions.element.numel() else 0 * elements)

        parts = [x.detach().flatten(0, -2) for x in (content, space, element)]
        largest = torch.stack([size for x in parts for size in (x.amax(0), -x.amin(0))]).amax(0).clamp_min(1)
        grain = 2 * torch.finfo(q.dtype).eps * largest.log2().ceil().exp2()
        multiples, rests = (
            _Parts(
                content.unsqueeze(0 if positions.own_query else 1),
                _read(space, space_index).unsqueeze(3),
                _read(element, element_index).unsqueeze(2),
            )
            for content, space, element in zip(*(_split(x, grain) for x in (content, space, element)), strict=True)
        )
        multiples.content.add_(tile.places.outside[:, None])
        places = None
        if dropout.rate:
            outputs = torch.arange(layout.outputs, device=q.device)[:, None, None, None]
            places = dropout.places(
                dropout.first_image * layout.heads + tile.planes.start + tile.places.plane,
                tile.places.pixel,
                outputs[None] if positions.own_query else queries[..., None] * layout.outputs + outputs,
                torch.arange((layout.keys + 1) // 2, device=q.device)[:, None],
                tile.places.offset[:, None],
            )
        return _Scores(q, multiples, rests, space_index, element_index, places)

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.multiples.space)

    def softmax(self, step: int) -> Float[Tensor, "v j m p"]:
        """The coefficients of a step, before dropout."""
        content, space, element = (part[step] for part in self.multiples)
        score = content + space
        largest = (score.amax(1, keepdim=True) + element).amax(2, keepdim=True)
        score += element - largest
        for part in self.rests:
            score += part[step]
        return score.flatten(1, 2).softmax(1).view(score.shape)

    def kept(self, step: int) -> Float[Tensor, "v j m p"] | None:
        """1 for the coefficients of a step that dropout keeps, 0 for the others; None where it keeps all."""
        if self.places is None:
            return None
        keys = self.multiples.content.shape[3]
        return self.places._replace(c=self.places.c[step]).kept(-2, keys, self.q.dtype)

    def weights(self) -> Float[Tensor, "v j m p"]:
        """What every output takes of each neighbour, through all its queries."""
        total: Tensor | None = None
        for step in range(self.steps):
            weight, kept = self.softmax(step), self.kept(step)
            if kept is not None:
                weight *= kept
            total = weight if total is None else total + weight
        assert total is not None
        return total

    def gradients(self, d_weights: Float[Tensor, "v j m p"]) -> _Gradients:
        """The weights again, and gradients of what they are made of."""
        weights = torch.zeros_like(d_weights)
        content, space, element = [], [], []
        for step in range(self.steps):
            p, kept = self.softmax(step), self.kept(step)
            if kept is None:
                weights += p
                g = d_weights.clone()
            else:
                weights.addcmul_(p, kept)
                g = kept.mul_(d_weights)
            g -= (p * g).sum((1, 2), keepdim=True)
            g *= p
            g.addcmul_(p, g.sum((1, 2), keepdim=True), value=-1)
            content.append(g.sum(0, keepdim=True) if self.multiples.content.shape[1] == 1 else g)
            space.append(g.sum(2))
            element.append(g.sum(1))
        return _Gradients(weights, torch.cat(content), torch.stack(space), torch.stack(element))


def _split(x: Float[Tensor, "*n p"], grain: Float[Tensor, " p"]) -> tuple[Tensor, Tensor]:
    """The nearest multiple of a power of two, and the rest, both exact."""
    multiple = (x.detach() / grain).round_().mul_(grain)  # whose slope is 0
    return multiple, x - multiple


def _dots(
    layout: Layout, tile: Tile, x: Float[Tensor, "p e c"], others: Float[Tensor, "planes rows columns m c"]
) -> Float[Tensor, "e j m p"]:
    """Dot products of the vectors of each pixel with those of its neighbours."""
    bands = []
    for band in range(layout.bands):
        neighbors = layout.neighbors(others, tile, band)
        dots = x.view(neighbors.shape[0], -1, layout.channels) @ neighbors.mT
        bands.append(dots.view(x.shape[0], -1).t().contiguous().view(x.shape[1], -1, layout.keys, x.shape[0]))
    return torch.cat(bands, 1)


def _mix(
    layout: Layout, tile: Tile, weights: Float[Tensor, "e j m p"], vectors: Float[Tensor, "planes rows columns m c"]
) -> Float[Tensor, "p e c"]:
    """The sum over neighbours of weight times vector."""
    mixed: Tensor | None = None
    for band, weight in enumerate(weights.chunk(layout.bands, 1)):
        neighbors = layout.neighbors(vectors, tile, band)
        rows = _by_pixel(weight, neighbors.shape[0])
        mixed = rows @ neighbors if mixed is None else torch.baddbmm(mixed, rows, neighbors)
    assert mixed is not None
    return mixed.view(-1, weights.shape[0], layout.channels)


def _add_products(
    layout: Layout,
    tile: Tile,
    total: Float[Tensor, "planes rows columns m c"],
    weights: Float[Tensor, "e j m p"],
    x: Float[Tensor, "p e c"],
) -> None:
    """Add to the vectors of all neighbours their weight times those of each pixel."""
    for band, weight in enumerate(weights.chunk(layout.bands, 1)):
        groups = x.shape[0] if not layout.sees_all else tile.planes.stop - tile.planes.start
        products = _by_pixel(weight, groups).mT @ x.view(groups, -1, layout.channels)
        layout.add_to_neighbors(total, tile, band, products)


def _by_pixel(x: Float[Tensor, "e j m p"], groups: int) -> Float[Tensor, "g r w"]:
    """Put pixels first, in groups that have neighbours in common."""
    return x.flatten(0, 2).t().contiguous().view(groups, -1, x.shape[1] * x.shape[2])


def _read(dots: Float[Tensor, "q u p"], index: Int[Tensor, "s v k #p"]) -> Float[Tensor, "s v k p"]:
    """Look up dot products by query * vectors + vector."""
    rows = dots.flatten(0, 1)
    if index.shape[-1] == 1:
        return rows.index_select(0, index.flatten()).view(*index.shape[:-1], -1)
    return rows.gather(0, index.flatten(0, 2)).view(index.shape)


def _unread(grad: Float[Tensor, "s v k p"], index: Int[Tensor, "s v k #p"], queries: int, vectors: int) -> Tensor:
    """The gradient of `_read`."""
    total = grad.new_zeros(queries * vectors, grad.shape[-1])
    if index.shape[-1] == 1:
        total.index_add_(0, index.flatten(), grad.flatten(0, 2))
    else:
        total.scatter_add_(0, index.flatten(0, 2), grad.flatten(0, 2))
    return total.view(queries, vectors, -1)
