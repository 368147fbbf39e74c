"""The keys or values around each pixel of a tile of `factored` attention, and products with them.

Products have pixels along their last axis, as all that is elementwise there. Where every pixel has neighbours of its own,
matrix products would be many and tiny, on vectors that have to be copied together first. So they are sums of
elementwise products: a neighbour is a shift, and nothing is copied. Where all pixels of a plane have the same
neighbours, they are matrix products.

Axes: e = h or h~, m = h^, j = neighbour, w = (j, m), c = channel, n = plane, p = pixel, of all planes or, beside n, of one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gevit.attention.layout import Layout, Tile, Workspace


class Shifted(NamedTuple):
    """Neighbours so many places further."""

    layout: Layout
    tile: Tile
    vectors: Float[Tensor, "m c planes places"]
    place: Workspace

    def dots(self, x: Float[Tensor, "e c p"], name: str) -> Float[Tensor, "e j m p"]:
        """Dot products with the vectors of each pixel."""
        x, side = self._by_plane(x), self.layout.side
        out = self.place.out(name, len(x), side, side, len(self.vectors), *x.shape[2:])
        first, *others = x[:, None, None, None].unbind(4)
        dots = torch.mul(first, self._around(0), out=out)
        for channel, other in enumerate(others, 1):
            dots.addcmul_(other, self._around(channel))
        return dots.flatten(4).flatten(1, 2)

    def mix(self, weights: Float[Tensor, "e j m p"]) -> Float[Tensor, "e c p"]:
        """The sum over neighbours of weight times vector."""
        weights = self._by_plane(weights).unflatten(1, (self.layout.side, self.layout.side))
        mixed = []
        for channel in range(self.vectors.shape[1]):
            products = torch.mul(weights, self._around(channel), out=self.place.out("products", *weights.shape))
            mixed.append(products.sum((1, 2, 3)).flatten(1))
        return torch.stack(mixed, 1)

    def add_products(
        self,
        total: Float[Tensor, "m c planes places"],
        weights: Float[Tensor, "e j m p"],
        x: Float[Tensor, "e c p"],
    ) -> None:
        """Add to the vectors of all neighbours their weight times those of each pixel, always in the same order."""
        rows = self._by_plane(x).unbind(0)
        parts = iter(self._by_plane(weights).transpose(0, 1).flatten(0, 1).unsqueeze(2).unbind(0))
        total = total[:, :, self.tile.planes]
        for neighbor in range(self.layout.side**2):
            row, column = divmod(neighbor, self.layout.side)
            first = self.tile.pixels.start + row * self.layout.width + column
            target = total.narrow(3, first, rows[0].shape[2])
            for vectors in rows:
                target.addcmul_(next(parts), vectors)

    def _around(self, channel: int) -> Float[Tensor, "row column m n p"]:
        """One channel of the vectors of all neighbours."""
        side, (planes, pixels) = self.layout.side, self.tile
        elements, channels, plane, place = self.vectors.stride()
        first = self.vectors.storage_offset() + channel * channels + planes.start * plane + pixels.start * place
        shape = (side, side, len(self.vectors), planes.stop - planes.start, pixels.stop - pixels.start)
        return self.vectors.as_strided(shape, (self.layout.width * place, place, elements, plane, place), first)

    def _by_plane(self, x: Float[Tensor, "*axes p"]) -> Float[Tensor, "*axes n q"]:
        found: Tensor = x.unflatten(-1, (self.tile.planes.stop - self.tile.planes.start, -1))
        return found


class Shared(NamedTuple):
    """Neighbours that are all pixels of a plane."""

    layout: Layout
    tile: Tile
    vectors: Float[Tensor, "m c planes j"]
    place: Workspace

    def dots(self, x: Float[Tensor, "e c p"], name: str) -> Float[Tensor, "e j m p"]:
        """Dot products with the vectors of each pixel."""
        return self._together(self._matrices() @ self._apart(x, "rows"), len(x), name).unflatten(1, (-1, self.layout.keys))

    def mix(self, weights: Float[Tensor, "e j m p"]) -> Float[Tensor, "e c p"]:
        """The sum over neighbours of weight times vector."""
        return self._together(self._matrices().mT @ self._apart(weights.flatten(1, 2), "weights by plane"), len(weights), "mixed")

    def add_products(
        self,
        total: Float[Tensor, "m c planes j"],
        weights: Float[Tensor, "e j m p"],
        x: Float[Tensor, "e c p"],
    ) -> None:
        """Add to the vectors of all neighbours their weight times those of each pixel."""
        products = self._apart(weights.flatten(1, 2), "weights by plane") @ self._apart(x, "rows").mT
        target = total[:, :, self.tile.planes]
        target += products.unflatten(1, (-1, self.layout.keys)).permute(2, 3, 0, 1)

    def _matrices(self) -> Float[Tensor, "n w c"]:
        return self.vectors[:, :, self.tile.planes].permute(2, 3, 0, 1).flatten(1, 2)

    def _apart(self, x: Float[Tensor, "e k p"], name: str) -> Float[Tensor, "n k ep"]:
        """A matrix for each plane."""
        planes: Tensor = x.unflatten(2, (self.tile.planes.stop - self.tile.planes.start, -1))
        return self.place.contiguous(name, planes.permute(2, 1, 0, 3)).flatten(2)

    def _together(self, x: Float[Tensor, "n k ep"], elements: int, name: str) -> Float[Tensor, "e k p"]:
        """Undo `_apart`."""
        planes: Tensor = x.unflatten(2, (elements, -1))
        return self.place.contiguous(name, planes.permute(2, 1, 0, 3)).flatten(2)


def near(layout: Layout, tile: Tile, vectors: Tensor, place: Workspace) -> Shifted | Shared:
    """The vectors around each pixel of a tile; `vectors` are `layout.padded`."""
    return (Shared if layout.sees_all else Shifted)(layout, tile, vectors, place)
