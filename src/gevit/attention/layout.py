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
    """The neighbours j of the pixels p of some rows of some planes."""

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

    def tiles(self, numbers: int, device: torch.device) -> Iterator[tuple[Places, list[Tile]]]:
        """Tiles in which no temporary has more than so many numbers, but at least one row of one plane; those with the
        same places together.

        A graph has one tile: which temporaries there are is its compiler's choice, and its batch may be any.
        """
        if torch.compiler.is_compiling():
            everything = Tile(slice(0, self.planes), slice(0, self.height))
            yield self._places(self.planes, 0, self.height, device), [everything]
            return
        neighbors = min(self.side**2, self.height * self.width)
        largest = max(
            neighbors * (self.keys + self.keys % 2) * max(self.outputs, self.queries),  # dropout has them in pairs
            self.queries * self.side**2,
            0 if self.sees_all else self.side**2 * self.keys * self.channels,
        )
        pixels = numbers // largest
        planes = max(1, pixels // (self.height * self.width))
        parts = -(-self.height // max(1, pixels // self.width))
        rows = -(-self.height // parts)
        for row in range(0, self.height, rows):
            last, whole = min(row + rows, self.height), self.planes // planes * planes
            for count, first, stop in ((planes, 0, whole), (self.planes - whole, whole, self.planes)):
                if first < stop:
                    tiles = [Tile(slice(n, n + count), slice(row, last)) for n in range(first, stop, count)]
                    yield self._places(count, row, last, device), tiles

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
        return Places(offset, outside.repeat(1, planes))

    def neighbors(
        self, x: Float[Tensor, "planes rows columns m c"], tile: Tile, name: str, place: Workspace
    ) -> Float[Tensor, "g w c"]:
        """The vectors of the neighbours: for each pixel or, where all pixels are, for each plane."""
        if self.sees_all:
            return x[tile.planes].flatten(1, 3)
        rows = x[tile.planes, tile.rows.start : tile.rows.stop + self.side - 1]
        windows = rows.unfold(1, self.side, 1).unfold(2, self.side, 1)
        return place.contiguous(name, windows.permute(0, 1, 2, 5, 6, 3, 4)).flatten(0, 2).flatten(1, 3)

    def add_to_neighbors(
        self, total: Float[Tensor, "planes rows columns m c"], tile: Tile, x: Float[Tensor, "g w c"], place: Workspace
    ) -> None:
        """The gradient of `neighbors`: shifted sums, always in the same order."""
        if self.sees_all:
            target = total[tile.planes]
            target += x.view(target.shape)
            return
        rows = total[tile.planes, tile.rows.start : tile.rows.stop + self.side - 1].flatten(3)
        height = tile.rows.stop - tile.rows.start
        windows = x.view(len(rows), height, self.width, self.side, self.side, rows.shape[-1])
        lines = place.empty("lines", len(rows), height, rows.shape[2], self.side, rows.shape[-1]).zero_()
        for column in range(self.side):
            lines[:, :, column : column + self.width] += windows[:, :, :, :, column]
        for row in range(self.side):
            rows[:, row : row + height] += lines[:, :, :, row]


class Workspace:
    """Memory of temporaries, used again and again: to get as much from the system takes longer than to compute in it.

    A graph has none. Its compiler decides where things are.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._memory: dict[str, Tensor] = {}

    def empty(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in place of the last one of this name."""
        if name not in self._memory or self._memory[name].shape != shape:
            self._memory[name] = self._like.new_empty(shape, dtype=dtype)
        return self._memory[name]

    def out(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor | None:
        """Where an operator shall write its result."""
        return None if torch.compiler.is_compiling() else self.empty(name, *shape, dtype=dtype)

    def contiguous(self, name: str, x: Tensor) -> Tensor:
        """The tensor, side by side in memory."""
        return x.contiguous() if torch.compiler.is_compiling() else self.empty(name, *x.shape).copy_(x)
