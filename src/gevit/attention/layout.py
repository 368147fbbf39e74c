"""Where `factored` attention has things in memory, and the tiles of pixels that it computes at a time.

A signal becomes `[elements, channels, planes, pixels]`. A plane is one head of one image; its pixels lie row by row
along the last axis. So a neighbour lies so many places further, the same for every pixel. Past the end of a row this is
a pixel of another one; as a neighbour outside the image it has no weight.
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
    """The neighbours j of the pixels p of some planes."""

    offset: Int[Tensor, "j p_or_1"]  # of each neighbour; the same for all pixels, or not
    outside: Float[Tensor, "j p"]  # -inf where there is no such neighbour, elsewhere 0


class Tile(NamedTuple):
    """Some pixels of some planes."""

    planes: slice
    pixels: slice


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
        """How many planes there are: heads of all images."""
        return self.batch * self.heads

    @property
    def pixels(self) -> int:
        """How many pixels a plane has."""
        return self.height * self.width

    @property
    def sees_all(self) -> bool:
        """Whether the neighbours are all pixels of the image: where those are fewer than the neighbourhood has."""
        return self.side**2 > self.pixels

    @property
    def margin(self) -> int:
        """How far neighbours reach over the ends of a plane."""
        return 0 if self.sees_all else self.side // 2 * (self.width + 1)

    def planewise(self, x: Float[Tensor, "b c n e y x"]) -> Float[Tensor, "e c planes pixels"]:
        """Put pixels last."""
        return x.permute(3, 1, 0, 2, 4, 5).flatten(4).flatten(2, 3)

    def restored(self, x: Float[Tensor, "e c planes pixels"]) -> Float[Tensor, "b c n e y x"]:
        """Undo `planewise`."""
        signal: Tensor = x.unflatten(3, (self.height, self.width)).unflatten(2, (self.batch, self.heads))
        return signal.permute(2, 1, 3, 0, 4, 5).contiguous()

    def padded(self, x: Float[Tensor, "b c n e y x"]) -> Float[Tensor, "e c planes places"]:
        """`planewise`, with zeros before and after every plane."""
        return F.pad(self.planewise(x), (self.margin, self.margin))

    def unpadded(self, x: Float[Tensor, "e c planes places"]) -> Float[Tensor, "b c n e y x"]:
        """Undo `padded`."""
        return self.restored(x.narrow(3, self.margin, self.pixels))

    def tiles(self, numbers: int, device: torch.device) -> Iterator[tuple[Places, list[Tile]]]:
        """Tiles in which no temporary has more than so many numbers, but at least one pixel; those with the same places
        together.

        A graph has one tile: which temporaries there are is its compiler's choice, and its batch may be any.
        """
        if torch.compiler.is_compiling():
            everything = Tile(slice(0, self.planes), slice(0, self.pixels))
            yield self._places(self.planes, everything.pixels, device), [everything]
            return
        neighbors = min(self.side**2, self.pixels)
        largest = max(
            neighbors * (self.keys + self.keys % 2) * max(self.outputs, self.queries),  # dropout has them in pairs
            self.queries * self.side**2,
        )
        count = max(1, numbers // largest)
        planes, parts = max(1, count // self.pixels), -(-self.pixels // count)
        for part in range(parts):
            pixels = slice(self.pixels * part // parts, self.pixels * (part + 1) // parts)
            whole = self.planes // planes * planes
            for some, first, stop in ((planes, 0, whole), (self.planes - whole, whole, self.planes)):
                if first < stop:
                    tiles = [Tile(slice(n, n + some), pixels) for n in range(first, stop, some)]
                    yield self._places(some, pixels, device), tiles

    def _places(self, planes: int, pixels: slice, device: torch.device) -> Places:
        radius = self.side // 2
        pixel = torch.arange(pixels.start, pixels.stop, device=device)
        y, x = pixel // self.width, pixel % self.width
        if self.sees_all:
            neighbor = torch.arange(self.pixels, device=device)[:, None]
            row, column = neighbor // self.width - y + radius, neighbor % self.width - x + radius
            inside = (row >= 0) & (row < self.side) & (column >= 0) & (column < self.side)
            offset = (row * self.side + column).where(inside, 0).repeat(1, planes)
        else:
            offset = torch.arange(self.side**2, device=device)[:, None]
            row, column = y + offset // self.side - radius, x + offset % self.side - radius
            inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        outside = torch.zeros(inside.shape, device=device).masked_fill(~inside, -torch.inf)
        return Places(offset, outside.repeat(1, planes))


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

    def contiguous(self, name: str, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, side by side in memory."""
        dtype = dtype or x.dtype
        if torch.compiler.is_compiling():
            return x.to(dtype).contiguous()
        return self.empty(name, *x.shape, dtype=dtype).copy_(x)
