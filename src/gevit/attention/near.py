"""The keys or values around each pixel of a tile of `factored` attention, and products with them.

Where every pixel has neighbours of its own, matrix products would be many and tiny, of vectors that have to be copied
together first and with results to be transposed. So products are elementwise, with pixels along the last axis: a
neighbour is a shift, and nothing is copied. Where all pixels of a plane have the same neighbours, matrix products are
large, and few.

Axes: e = h or h~, m = h^, j = neighbour, w = (j, m), c = channel, n = plane, p = pixel of all planes, i = of one plane.
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

    # One element at a time: what belongs to it fits the cache.

    def dots(self, x: Float[Tensor, "e c p"], name: str) -> Float[Tensor, "e j m p"]:
        """Dot products with the vectors of each pixel."""
        x, side, around = self._by_plane(x), self.layout.side, self._around()
        dots = self.place.empty(name, len(x), side, side, len(self.vectors), *x.shape[2:]).zero_()
        for element in range(len(x)):
            found = dots[element]
            for channel, vectors in zip(x[element], around, strict=True):
                found.addcmul_(channel, vectors)
        return dots.flatten(4).flatten(1, 2)

    def mix(self, weights: Float[Tensor, "e j m p"]) -> Float[Tensor, "e c p"]:
        """The sum over neighbours of weight times vector."""
        around, mixed = self._around(), []
        for element in self._by_plane(weights).unflatten(1, (self.layout.side, self.layout.side)):
            out = self.place.out("products of an element", *element.shape)
            mixed.append(torch.stack([torch.mul(element, vectors, out=out).sum((0, 1, 2)) for vectors in around]))
        return torch.stack(mixed).flatten(2)

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

    def _around(self) -> list[Float[Tensor, "row column m n i"]]:
        """The vectors of all neighbours, one channel at a time."""
        side, (planes, pixels) = self.layout.side, self.tile
        elements, channels, plane, place = self.vectors.stride()
        shape = (side, side, len(self.vectors), planes.stop - planes.start, pixels.stop - pixels.start)
        strides = (self.layout.width * place, place, elements, plane, place)
        first = self.vectors.storage_offset() + planes.start * plane + pixels.start * place
        return [self.vectors.as_strided(shape, strides, first + c * channels) for c in range(self.layout.channels)]

    def _by_plane(self, x: Float[Tensor, "*axes p"]) -> Float[Tensor, "*axes n i"]:
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
        dots: Tensor = self._together(self._matrices() @ self._apart(x, "rows"), len(x), name)
        return dots.view(len(x), -1, self.layout.keys, dots.shape[2])

    def mix(self, weights: Float[Tensor, "e j m p"]) -> Float[Tensor, "e c p"]:
        """The sum over neighbours of weight times vector."""
        rows = self._apart(weights.flatten(1, 2), "weights by plane")
        return self._together(self._matrices().mT @ rows, len(weights), "mixed")

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

    def _apart(self, x: Float[Tensor, "e k p"], name: str) -> Float[Tensor, "n k ei"]:
        """A matrix for each plane."""
        planes: Tensor = x.unflatten(2, (self.tile.planes.stop - self.tile.planes.start, -1))
        return self.place.contiguous(name, planes.permute(2, 1, 0, 3)).flatten(2)

    def _together(self, x: Float[Tensor, "n k ei"], elements: int, name: str) -> Float[Tensor, "e k p"]:
        """Undo `_apart`."""
        planes: Tensor = x.unflatten(2, (elements, -1))
        return self.place.contiguous(name, planes.permute(2, 1, 0, 3)).flatten(2)


def near(layout: Layout, tile: Tile, vectors: Tensor, place: Workspace) -> Shifted | Shared:
    """The vectors around each pixel of a tile; `vectors` are `layout.padded`."""
    return (Shared if layout.sees_all else Shifted)(layout, tile, vectors, place)
