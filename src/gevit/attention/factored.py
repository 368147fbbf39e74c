"""Exact group attention in plain PyTorch, on any device, with bounded memory.

A score is content[h~, h^, j] + space[h, h~, j] + element[h, h~, h^]. The three parts are small; their sum has |H| times
the numbers of the largest of them. It exists for one query element h~ at a time, and the weights of all h~ are summed
before they meet the values. Images and heads are computed together, in tiles of pixels that bound the memory; the
backward pass computes the tiles again. Nothing is decided by looking at numbers, so nothing waits for a device.

Nearly everything is elementwise, with pixels along the last axis, which is long where the others are short. A call of
an operator takes as long as a pass over thousands of numbers, so calls are few, and on tiles that are not too small.

Scores may be of any size. Where large parts oppose each other, their rounded sums would lose the small differences that
decide a softmax. So each part is split into a multiple of a grain, one for all scores of a pixel, and a rest. Sums of
multiples are exact; the rests follow once the largest sum is subtracted, and then the largest of what they give is.
Gradients p (g - sum(p g)) of scores are small differences, too, where one coefficient has nearly all the weight: what
rounding leaves of the mean of g is subtracted in a second round.

Axes: p = pixel of a tile, v = h, q = h~, m = h^, j = neighbour, c = channel; s = step: one query element for all
outputs or, with own_query, all, each for its own output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gevit.attention.dropout import Dropout, Noise, noise_of_offsets, noise_of_pairs
from gevit.attention.layout import Layout, Places, Tile, Workspace
from gevit.attention.near import Shared, Shifted, near
from gevit.encoding import Positions

# Powers of 2 take a third of the time of those of e.
LOG2_E = math.log2(math.e)

# Numbers that a temporary of a tile may hold: on a CPU a few of these should fit its cache, other devices need many
# numbers to be busy.
TILE_NUMBERS = 2**20
DEVICE_TILE_NUMBERS = 2**24


def forward(query: Tensor, key: Tensor, value: Tensor, positions: Positions, scale: float, dropout: Dropout) -> Tensor:
    """Group attention."""
    layout, place = Layout.of(query, key, positions), Workspace(query)
    q, k, v = layout.planewise(scale * query), layout.padded(key), layout.padded(value)
    out = q.new_empty(layout.outputs, *q.shape[1:])
    noise = _noise_of_pixels(layout, dropout, query.device)
    for places, tiles in layout.tiles(_budget(query.device), query.device):
        tables = _Tables.of(layout, places, positions)
        for tile in tiles:
            scores = _Scores.prepare(tables, tile, q, near(layout, tile, k, place), positions, dropout, noise)
            mixed = near(layout, tile, v, place).mix(scores.weights())
            target = out[:, :, tile.planes, tile.pixels]
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
    layout, place = Layout.of(query, key, positions), Workspace(query)
    q, k, v = layout.planewise(scale * query), layout.padded(key), layout.padded(value)
    upstream = layout.planewise(dropout.scale * grad)
    d_query, d_key, d_value = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    d_space, d_element = (torch.zeros_like(x) for x in (positions.space, positions.element))
    noise = _noise_of_pixels(layout, dropout, query.device)
    parts = positions.space.shape[1]
    for places, tiles in layout.tiles(_budget(query.device), query.device):
        tables = _Tables.of(layout, places, positions)
        for tile in tiles:
            keys, values = near(layout, tile, k, place), near(layout, tile, v, place)
            d_mixed = _of_tile(upstream, tile)
            d_weights = values.dots(d_mixed, "d_weights")
            scores = _Scores.prepare(tables, tile, q, keys, positions, dropout, noise)
            found = scores.gradients(d_weights)
            values.add_products(d_value, found.weights, d_mixed)
            keys.add_products(d_key, found.content, scores.q)
            d_q = keys.mix(found.content)
            reads = [(found.space, tables.space_index, positions.space, d_space, slice(None, parts))]
            if positions.element.numel():
                reads.append((found.element, tables.element_index, positions.element, d_element, slice(parts, None)))
            for d_read, index, vectors, d_vectors, channels in reads:
                d_dots = _unread(d_read, index, layout.queries, len(vectors))
                d_q[:, channels] += vectors.T.expand(layout.queries, -1, -1) @ d_dots
                d_vectors += (d_dots @ scores.q[:, channels].mT).sum(0)
            target = d_query[:, :, tile.planes, tile.pixels]
            target.copy_(scale * d_q.view(target.shape))
    return layout.restored(d_query), layout.unpadded(d_key), layout.unpadded(d_value), d_space, d_element


def _budget(device: torch.device) -> int:
    return TILE_NUMBERS if device.type == "cpu" else DEVICE_TILE_NUMBERS


def _of_tile(x: Float[Tensor, "e c planes pixels"], tile: Tile) -> Float[Tensor, "e c p"]:
    return x[:, :, tile.planes, tile.pixels].flatten(2)


def _noise_of_pixels(layout: Layout, dropout: Dropout, device: torch.device) -> Int[Tensor, "ab planes pixels"] | None:
    """The random numbers a and b of all pixels, where dropout needs them."""
    if not dropout.rate:
        return None
    plane = torch.arange(layout.planes, device=device) + dropout.first_image * layout.heads
    return torch.stack(dropout.noise_of_pixels(plane[:, None], torch.arange(layout.pixels, device=device)))


@dataclass(frozen=True)
class _Tables:
    """What tiles with the same places have in common."""

    space_index: Int[Tensor, "s v j #p"]  # query * vectors + vector
    element_index: Int[Tensor, "s v m 1"]
    outside: Float[Tensor, "j 1 p"]  # -inf where there is no such neighbour, elsewhere 0
    noise_of_pairs: Int[Tensor, "s v 1 pairs 1"]
    noise_of_offsets: tuple[Int[Tensor, "j 1 #p"], Int[Tensor, "j 1 #p"]]

    @staticmethod
    def of(layout: Layout, places: Places, positions: Positions) -> _Tables:
        device = positions.offset_index.device
        queries = torch.arange(layout.queries, device=device)
        queries = queries.view((1, -1, 1, 1) if positions.own_query else (-1, 1, 1, 1))
        outputs = torch.arange(layout.outputs, device=device)[:, None, None, None]
        elements = positions.element_index.transpose(0, 1)[..., None]
        return _Tables(
            queries * len(positions.space) + positions.offset_index[:, places.offset],
            queries * max(len(positions.element), 1) + (elements if positions.element.numel() else 0 * elements),
            places.outside[:, None],
            noise_of_pairs(
                outputs[None] if positions.own_query else queries[..., None] * layout.outputs + outputs,
                torch.arange((layout.keys + 1) // 2, device=device)[:, None],
            ),
            noise_of_offsets(places.offset[:, None]),
        )


class _Parts(NamedTuple):
    """The parts of scores, or something about them."""

    content: Float[Tensor, "s v_or_1 j m p"]
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

    q: Float[Tensor, "q c p"]  # scaled
    multiples: _Parts
    rests: _Parts
    dropout: Dropout
    noise: Noise | None  # of all coefficients, where some are dropped
    place: Workspace

    @staticmethod
    def prepare(
        tables: _Tables,
        tile: Tile,
        query: Float[Tensor, "q c planes pixels"],
        keys: Shifted | Shared,
        positions: Positions,
        dropout: Dropout,
        noise_of_pixels: Int[Tensor, "ab planes pixels"] | None,
    ) -> _Scores:
        place = keys.place
        q = _of_tile(query, tile)
        content = keys.dots(q, "content")

        # Dot products with the distinct vectors, to be read in the order of each output element.
        queries, split = len(q), positions.space.shape[1]
        space = torch.bmm(positions.space.expand(queries, -1, -1), q[:, :split])
        if positions.element.numel():
            element = torch.bmm(positions.element.expand(queries, -1, -1), q[:, split:])
        else:
            element = space.new_zeros(queries, 1, q.shape[2])
        parts = {"content": content, "space": space, "element": element}
        flat = [x.detach().flatten(0, -2) for x in parts.values()]
        largest = torch.stack([size for x in flat for size in (x.amax(0), -x.amin(0))]).amax(0).clamp_min(1)
        grain = 2 * torch.finfo(q.dtype).eps * largest.log2().ceil().exp2()
        reads = tables.space_index.shape[:-1]
        multiples, rests = (
            _Parts(
                content.unsqueeze(0 if positions.own_query else 1),
                _read(space, tables.space_index, place.out(f"{kind} read of space", *reads, q.shape[2])).unsqueeze(3),
                _read(element, tables.element_index, None).unsqueeze(2),
            )
            for kind, content, space, element in zip(
                ("multiples", "rests"), *(_split(name, x, grain, place) for name, x in parts.items()), strict=True
            )
        )
        multiples.content.add_(tables.outside)
        noise = None
        if noise_of_pixels is not None:
            of_pixels = noise_of_pixels[:, tile.planes, tile.pixels].flatten(1)
            noise = Noise.of(of_pixels.unbind(), tables.noise_of_pairs, tables.noise_of_offsets)
        return _Scores(q, multiples, rests, dropout, noise, place)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.multiples.space)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the coefficients of a step: v j m p."""
        _, outputs, neighbors, _, pixels = self.multiples.space.shape
        return outputs, neighbors, self.multiples.content.shape[3], pixels

    def softmax(self, step: int) -> Float[Tensor, "v j m p"]:
        """The coefficients of a step, before dropout."""
        content, space, element = (part[step] for part in self.multiples)
        rest_of_content, rest_of_space, rest_of_element = (part[step] for part in self.rests)
        out = self.place.out("score", *self.shape)
        # Relative to the largest of each key element; the rest of the sum, and the normaliser, are a factor of it.
        score = torch.add(content, space, out=out)
        largest = score.amax(1, keepdim=True)
        score = torch.add(rest_of_content, score.sub_(largest), alpha=LOG2_E, out=out).add_(rest_of_space)
        largest_rest = score.amax(1, keepdim=True)
        power = torch.exp2(score.sub_(largest_rest), out=out)
        element = element + largest
        element = torch.add(rest_of_element, element - element.amax(2, keepdim=True), alpha=LOG2_E) + largest_rest
        factor = torch.exp2(element - element.amax(2, keepdim=True))
        total = (power.sum(1, keepdim=True) * factor).sum(2, keepdim=True)
        return torch.mul(power, factor / total, out=out)

    def kept(self, step: int) -> Float[Tensor, "v j m p"] | None:
        """1 for the coefficients of a step that dropout keeps, 0 for the others; None where it keeps all."""
        if self.noise is None:
            return None
        noise = self.noise._replace(c=self.noise.c[step])
        return self.dropout.kept(noise, -2, self.shape[2], self.q.dtype, self.place)

    def weights(self) -> Float[Tensor, "v j m p"]:
        """What every output takes of each neighbour, through all its queries."""
        total: Tensor | None = None
        for step in range(self.steps):
            weight, kept = self.softmax(step), self.kept(step)
            if kept is None:
                kept = self.q.new_ones(())
            if total is None:
                total = torch.mul(weight, kept, out=self.place.out("weights", *self.shape))
            else:
                total = total.addcmul_(weight, kept)
        assert total is not None
        return total

    def gradients(self, d_weights: Float[Tensor, "v j m p"]) -> _Gradients:
        """The weights again, and gradients of what they are made of."""
        outputs, neighbors, keys, pixels = self.shape
        weights = self.place.empty("weights", *self.shape).zero_()
        content = self.place.empty("d_content", *self.multiples.content.shape)
        space = self.place.empty("d_space", self.steps, outputs, neighbors, pixels)
        element = self.place.empty("d_element", self.steps, outputs, keys, pixels)
        for step in range(self.steps):
            p, kept = self.softmax(step), self.kept(step)
            if kept is None:
                weights += p
                g = self.place.empty("kept", *self.shape).copy_(d_weights)
            else:
                weights.addcmul_(p, kept)
                g = kept.mul_(d_weights)
            g -= torch.mul(p, g, out=self.place.out("products", *self.shape)).sum((1, 2), keepdim=True)
            g *= p
            g.addcmul_(p, g.sum((1, 2), keepdim=True), value=-1)
            if content.shape[1] == 1:
                torch.sum(g, 0, keepdim=True, out=content[step])
            else:
                content[step] = g
            torch.sum(g, 2, out=space[step])
            torch.sum(g, 1, out=element[step])
        return _Gradients(weights, content.flatten(0, 1), space, element)


def _split(
    name: str, x: Float[Tensor, "*n p"], grain: Float[Tensor, " p"], place: Workspace
) -> tuple[Float[Tensor, "*n p"], Float[Tensor, "*n p"]]:
    """The nearest multiple of a power of two, exactly, and LOG2_E times the rest, which x becomes."""
    out = place.out(f"multiples of {name}", *x.shape)
    multiple = torch.div(x.detach(), grain, out=out).round_().mul_(grain)  # whose slope is 0
    return multiple, x.sub_(multiple).mul_(LOG2_E)


def _read(dots: Float[Tensor, "q u p"], index: Int[Tensor, "s v k #p"], out: Tensor | None) -> Float[Tensor, "s v k p"]:
    """Look up dot products by query * vectors + vector."""
    rows = dots.flatten(0, 1)
    out = None if out is None else out.flatten(0, 2)
    if index.shape[-1] == 1:
        return torch.index_select(rows, 0, index.flatten(), out=out).view(*index.shape[:-1], -1)
    return torch.gather(rows, 0, index.flatten(0, 2), out=out).view(index.shape)


def _unread(grad: Float[Tensor, "s v k p"], index: Int[Tensor, "s v k #p"], queries: int, vectors: int) -> Tensor:
    """The gradient of `_read`."""
    total = grad.new_zeros(queries * vectors, grad.shape[-1])
    if index.shape[-1] == 1:
        total.index_add_(0, index.flatten(), grad.flatten(0, 2))
    else:
        total.scatter_add_(0, index.flatten(0, 2), grad.flatten(0, 2))
    return total.view(queries, vectors, -1)
