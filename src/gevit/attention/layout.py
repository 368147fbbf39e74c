"""Where `factored` attention has things in memory, and the tiles of pixels that it computes at a time.

Signals become `[planes, rows, columns, elements, channels]`: the vectors of a pixel lie side by side, and those of
neighbours near. A plane is one head of one image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from gevit.encoding import Positions


class Places(NamedTuple):
    """The pixels p of some rows of some planes, and their neighbours j."""

    plane: Int[Tensor, " p"]  # counted from the first of them
    pixel: Int[Tensor, " p"]  # row * width + column
    offset: Int[
        Tensor,
        (
            j  # p
        ),
    ]  # of each neighbour; the same for all pixels, or not
    outside: Float[Tensor, "j p"]  # -inf where there is no such neighbour, elsewhere 0


class Tile(NamedTuple):
    """Some rows of some planes."""

    planes: slice
    rows: slice
    places: Places


@dataclass(frozen=True)
class Layout:
    """The sizes of a call of attention."""

    batch: int
    channels: int
    heads: int
    queries: int
    keys: int
    outputs: int
    side: int  # of the neighbourhood
    height: int
    width: int

    @staticmethod
    def of(query: Tensor, key: Tensor, positions: Positions) -> Layout:
        """The layout of a call."""
        batch, channels, heads, queries, height, width = query.shape
        outputs, offsets = positions.offset_index.shape
        return Layout(batch, channels, heads, queries, key.shape[3], outputs, math.isqrt(offsets), height, width)

    @property
    def planes(self) -> int:
        """Heads of all images."""
        return self.batch * self.heads

    @property
    def sees_all(self) -> bool:
        """Whether the neighbours are all pixels of the image: where those are fewer than the neighbourhood has."""
        return self.side**2 > self.height * self.width

    @property
    def border(self) -> int:
        """How far neighbours reach over the image."""
        return 0 if self.sees_all else self.side // 2

    def pixelwise(self, x: Float[Tensor, "b c n e y x"]) -> Float[Tensor, "planes y x e c"]:
        """Put the vectors of a pixel side by side."""
        return x.permute(0, 2, 4, 5, 3, 1).flatten(0, 1).contiguous()

    def restored(self, x: Float[Tensor, "planes y x e c"]) -> Float[Tensor, "b c n e y x"]:
        """Undo `pixelwise`."""
        images: Tensor = x.unflatten(0, (self.batch, self.heads))
        return images.permute(0, 5, 1, 4, 2, 3).contiguous()

    def padded(self, x: Float[Tensor, "b c n e y x"]) -> Float[Tensor, "planes rows columns e c"]:
        """`pixelwise`, with a border of zeros."""
        return F.pad(self.pixelwise(x), (0, 0, 0, 0, *4 * [self.border]))

    def unpadded(self, x: Float[Tensor, "planes rows columns e c"]) -> Float[Tensor, "b c n e y x"]:
        """Undo `padded`."""
        first = self.border
        return self.restored(x[:, first : first + self.height, first : first + self.width])

    def tiles(self, numbers: int, device: torch.device) -> Iterator[Tile]:
        """Tiles in which no temporary has more than so many numbers, but at least one row of one plane.

        A graph has one tile: which temporaries there are is its compiler's choice, and its batch may be any.
        """
        if torch.compiler.is_compiling():
            places = self._places(self.planes, 0, self.height, device)
            yield Tile(slice(0, self.planes), slice(0, self.height), places)
            return
        neighbors = min(self.side**2, self.height * self.width)
        largest = max(
            neighbors * (self.keys + self.keys % 2) * max(self.outputs, self.queries),  # dropout has them in pairs
            self.queries * self.side**2,
            0 if self.sees_all else self.side * self.keys * self.channels,
        )
        pixels = numbers // largest
        planes = max(1, pixels // (self.height * self.width))
        rows = min(max(1, pixels // self.width), self.height)
        known: dict[tuple[int, int, int], Places] = {}  # which most tiles have in common
        for plane in range(0, self.planes, planes):
            for row in range(0, self.height, rows):
                count, last = min(planes, self.planes - plane), min(row + rows, self.height)
                if (count, row, last) not in known:
                    known[count, row, last] = self._places(count, row, last, device)
                yield Tile(slice(plane, plane + count), slice(row, last), known[count, row, last])

    def _places(self, planes: int, first: int, last: int, device: torch.device) -> Places:
        radius = self.side // 2
        pixel = torch.arange(first * self.width, last * self.width, device=device)
        y, x = pixel // self.width, pixel % self.width
        if self.sees_all:
            neighbor = torch.arange(self.height * self.width, device=device)[:, None]
            row, column = neighbor // self.width - y + radius, neighbor % self.width - x + radius
            inside = (row >= 0) & (row < self.side) & (column >= 0) & (column < self.side)
            offset = (row * self.side + column).where(inside, 0).repeat(1, planes)
        else:
            offset = torch.arange(self.side**2, device=device)[:, None]
            row, column = y + offset // self.side - radius, x + offset % self.side - radius
            inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        outside = torch.zeros(inside.shape, device=device).masked_fill(~inside, -torch.inf)
        plane = torch.arange(planes, device=device).repeat_interleave(len(pixel))
        return Places(plane, pixel.repeat(planes), offset, outside.repeat(1, planes))

    @property
    def bands(self) -> int:
        """Rows of the neighbourhood, whose vectors are in memory one at a time."""
        return 1 if self.sees_all else self.side

    def neighbors(self, x: Float[Tensor, "planes rows columns m c"], tile: Tile, band: int) -> Float[Tensor, "g w c"]:
        """The vectors of the neighbours in a band: for each pixel or, where all pixels are, for each plane."""
        if self.sees_all:
            return x[tile.planes].flatten(1, 3)
        windows = x[tile.planes, tile.rows.start + band : tile.rows.stop + band].unfold(2, self.side, 1)
        return windows.permute(0, 1, 2, 5, 3, 4).flatten(0, 2).flatten(1, 2)

    def add_to_neighbors(
        self, total: Float[Tensor, "planes rows columns m c"], tile: Tile, band: int, x: Float[Tensor, "g w c"]
    ) -> None:
        """The gradient of `neighbors`: shifted sums, always in the same order."""
        if self.sees_all:
            target = total[tile.planes]
            target += x.view(target.shape)
            return
        rows = total[tile.planes, tile.rows.start + band : tile.rows.stop + band]
        windows = x.view(*rows.shape[:2], self.width, self.side, self.keys, self.channels)
        for column in range(self.side):
            rows[:, :, column : column + self.width] += windows[:, :, :, column]
