"""The `triton` backend: fused kernels for CUDA and ROCm; under `TRITON_INTERPRET=1`, for CPU tensors too.

This module prepares their arguments. It imports the kernels, and triton with them, when they are first used.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gevit.attention.dropout import Dropout, noise_of_offsets, noise_of_pairs
from gevit.encoding import Positions

# Whatever it reads, it computes in float32.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Channels of a vector that a thread holds, and outputs and keys at a time: more would not fit its registers.
THREAD_CHANNELS, THREAD_OUTPUTS, THREAD_KEYS = 8, 2, 2
# Places of a tile at most. With all 64 threads of a ROCm warp along places, addresses of channels are the same for all
# threads, and take more scalar registers than there are.
MOST_PLACES = 32
# Programs that keep a GPU busy.
PROGRAMS = 2**11
# Numbers of the largest tensor of one launch: they bound the memory, and 32 bits count them.
LAUNCH_NUMBERS = 2**27


# Numbers that the gradients need of each softmax.
STATISTICS = 5

Part = tuple[slice, slice, slice]  # of images, channels (all) and heads


class Tile(NamedTuple):
    """What a program works on at a time."""

    places: int
    outputs: int
    keys: int


# That of the interpreter, which pays for each step whatever its size.
INTERPRETED_TILE = Tile(2**12, 2**4, 2**4)


def reason(query: Tensor) -> str:
    """Why the kernels cannot serve tensors like this query; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; pip install 'gevit[gpu]'"
    if query.dtype not in DTYPES:
        return f"it serves float32, float16 and bfloat16, got {query.dtype}"
    if query.device.type != "cuda" and not (query.device.type == "cpu" and _kernels().INTERPRETED):
        return f"it serves CUDA and ROCm (and the CPU if TRITON_INTERPRET=1 is set), got a tensor on {query.device}"
    return ""


@functools.cache
def _kernels() -> ModuleType:
    from gevit.attention import triton_kernels

    return triton_kernels


def forward(query: Tensor, key: Tensor, value: Tensor, positions: Positions, scale: float, dropout: Dropout) -> Tensor:
    """Group attention, without a graph."""
    batch, channels, heads, _, height, width = query.shape
    out = query.new_empty(batch, channels, heads, len(positions.offset_index), height, width)
    for part in _parts(query, positions):
        problem = _Problem(query, key, value, positions, scale, dropout, part)
        out[part] = problem.forward()
    return out


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
    vectors, tables = (query, key, value), (positions.space, positions.element)
    d_query, d_key, d_value = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in vectors)
    d_space, d_element = (torch.zeros_like(x, dtype=torch.float32) for x in tables)
    for part in _parts(query, positions):
        problem = _Problem(query, key, value, positions, scale, dropout, part)
        found = problem.backward(grad[part])
        d_query[part], d_key[part], d_value[part] = found[:3]
        d_space += found[3]
        d_element += found[4]
    return d_query, d_key, d_value, d_space.to(tables[0].dtype), d_element.to(tables[1].dtype)


def _parts(query: Tensor, positions: Positions) -> Iterator[Part]:
    """Some images, or some heads of one image, at a time."""
    batch, channels, heads, queries, height, width = query.shape
    outputs, met, keys = positions.element_index.shape
    of_place = max(channels * max(outputs, queries, keys), STATISTICS * outputs * met, queries * len(positions.element))
    planes = max(1, LAUNCH_NUMBERS // (height * width * of_place))
    images, some = max(1, planes // heads), min(planes, heads)
    for image in range(0, batch, images):
        for head in range(0, heads, some):
            yield slice(image, image + images), slice(None), slice(head, head + some)


class _Problem:
    """One launch of each kernel: how the work is divided among programs, and the arguments that they share."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Positions,
        scale: float,
        dropout: Dropout,
        part: Part,
    ) -> None:
        first_plane = (dropout.first_image + part[0].start) * query.shape[2] + part[2].start
        query, key, value = (x[part].contiguous() for x in (query, key, value))
        kernels = _kernels()
        batch, channels, heads, queries, height, width = query.shape
        outputs, neighbors = positions.offset_index.shape
        _, met, keys = positions.element_index.shape
        side = math.isqrt(neighbors)
        self.sizes = kernels.Sizes(
            places=batch * heads * height * width,
            heads=heads,
            height=height,
            width=width,
            side=side,
            outputs=outputs,
            met=met,
            queries=queries,
            keys=keys,
            elements=len(positions.element),
        )
        self.positions, self.device, self.padded = positions, query.device, power_of_two(channels)
        if kernels.INTERPRETED:
            tile = INTERPRETED_TILE
        else:
            tile = tile_of(channels, torch.cuda.get_device_properties(self.device).warp_size)
        places = min(tile.places, power_of_two(self.sizes.places))
        output_block = 1 if positions.own_query else block_of(tile.outputs, outputs)
        key_block = block_of(tile.keys, keys)
        self.tiles = -(-self.sizes.places // places)
        self.output_blocks, self.key_blocks = outputs // output_block, keys // key_block
        self.arguments: dict[str, Any] = {
            "query": query,
            "key": key,
            "value": value,
            "space": self._pad(positions.space, 0)[positions.offset_index],
            "element": self._pad(positions.element, positions.space.shape[1]),
            "element_index": positions.element_index.int().contiguous(),
            "scores": self._empty(queries, self.sizes.elements, self.sizes.places),
            "scale": scale,
            "sizes": self.sizes,
            "CHANNELS": channels,
            "HAS_ELEMENTS": positions.element.numel() > 0,
            "OWN": positions.own_query,
            "DROPPED": dropout.rate > 0,
            "OUTPUTS": output_block,
            "KEYS": key_block,
            "C": self.padded,
            "PLACES": places,
        }
        self.arguments |= self._noise(dropout, first_plane)
        if positions.element.numel():
            self._launch("element_scores", self.tiles * queries)

    def _pad(self, table: Tensor, first: int) -> Tensor:
        """Vectors whose channels begin at the first, with zeros around them."""
        return F.pad(table.float(), (first, self.padded - first - table.shape[1]))

    def _noise(self, dropout: Dropout, first_plane: int) -> dict[str, Any]:
        """The random numbers of dropout that are not those of a place; see `dropout.py`."""
        low, high = dropout.seeds(dropout.seed.device)
        pairs, offsets = (  # h~ * outputs + h, and j
            torch.arange(count if dropout.rate else 0, device=self.device)
            for count in (self.sizes.met * self.sizes.outputs, self.sizes.side**2)
        )
        half_keys = torch.arange((self.sizes.keys + 1) // 2, device=self.device)
        return {
            "low": int(low.int()),
            "high": int(high.int()),
            "first_plane": first_plane,
            "lowest": (dropout.threshold << 16) - 2**31,
            "enlarged": dropout.scale,
            "pair_noise": noise_of_pairs(pairs[:, None], half_keys),
            "offset_noise": torch.stack(noise_of_offsets(offsets), 1),
        }

    def forward(self) -> Tensor:
        query: Tensor = self.arguments["query"]
        out = query.new_empty(*query.shape[:3], self.sizes.outputs, *query.shape[4:])
        self._launch("forward", self.tiles * self.output_blocks, out=out)
        return out

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        offset_index, element_index = self.positions[2:4]
        d_query, d_key, d_value = (torch.empty_like(self.arguments[name]) for name in ("query", "key", "value"))
        statistics = self._empty(STATISTICS, self.sizes.outputs, self.sizes.met, self.sizes.places)
        known = {"grad": grad.contiguous(), "statistics": statistics}
        self._launch("statistics", self.tiles * self.output_blocks, **known)
        self._launch("query_gradient", self.tiles * self.sizes.queries, **known, d_query=d_query)
        self._launch("key_gradient", self.tiles * self.key_blocks, **known, d_key=d_key, d_value=d_value)
        d_space = self._table_gradient("space", self.output_blocks * offset_index.shape[1], offset_index, known)
        blocks = self.output_blocks * self.sizes.met * self.key_blocks
        d_element = self._table_gradient("element", blocks, element_index, known)
        return d_query, d_key, d_value, d_space, d_element

    def _table_gradient(self, name: str, programs: int, index: Tensor, known: dict[str, Any]) -> Tensor:
        """The gradient of a table of vectors: sums over places by as many programs, in so many parts as keep a GPU
        busy, for each entry of the index into the table; then sums over the entries that name the same vector.
        """
        table: Tensor = getattr(self.positions, name)
        if not table.numel():
            return table
        tiles = -(-self.tiles // min(self.tiles, -(-PROGRAMS // programs)))
        parts = -(-self.tiles // tiles)
        rows = self._empty(parts, *index.shape, self.padded)
        self._launch(f"{name}_gradient", programs * parts, **known, **{f"d_{name}": rows}, tiles=tiles)
        entries, order = index.flatten().sort(stable=True)
        starts = torch.searchsorted(entries, torch.arange(len(table) + 1, device=self.device))
        out = self._empty(len(table), self.padded)
        self._launch("sum_rows", len(table), rows=rows.sum(0), order=order, starts=starts, out=out)
        first = 0 if name == "space" else self.positions.space.shape[1]
        return out[:, first : first + table.shape[1]]

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def _launch(self, name: str, programs: int, **others: Any) -> None:
        """Run a kernel with those of the shared arguments, and of others, that it takes."""
        kernel = getattr(_kernels(), name)
        arguments = {**self.arguments, **others}
        taken = {name: arguments[name] for name in kernel.arg_names}
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            kernel[(programs,)](**taken, num_warps=1, enable_fp_fusion=True)


def tile_of(channels: int, threads: int) -> Tile:
    """The tile of a program of one warp, of so many threads.

    Threads lie along the places, and what is left of them along the channels.
    """
    places = threads * THREAD_CHANNELS // max(THREAD_CHANNELS, power_of_two(channels))
    return Tile(min(max(1, places), MOST_PLACES), THREAD_OUTPUTS, THREAD_KEYS)


def block_of(wanted: int, elements: int) -> int:
    """As many elements at a time as are wanted or fewer: a power of two, and the same for all blocks."""
    return math.gcd(power_of_two(wanted), elements)


def power_of_two(number: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << (number - 1).bit_length()
