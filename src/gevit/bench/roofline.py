"""How fast attention could be on a GPU: what it has to compute and to move, against what the GPU is said to do.

These are bounds by calculation. Nothing here was measured; `gevit bench --device cuda` measures.

For one pixel and one head, with the letters of `costs.py` and the blocks of `triton_backend.py` (o outputs and m keys
at a time, which share what they load), the kernels of the `triton` backend do these multiply-adds, T K times each:

    forward    C/o content, C/m space, C values, C/m what was summed fades
    backward   statistics: content, space, C gradients of coefficients
               queries: these, C/o and C/m gradients of the query
               keys: content, space, C/o gradients of the key (those of the value are made once for all h~)
               offsets: as statistics;  elements: as statistics

They form every coefficient, which the factorisation that `costs.py` counts does not: they need no exception for large
scores and hold little. Exponentials, maxima and dropout are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from gevit.attention.triton_backend import STATISTICS, block_of, power_of_two, tile_of
from gevit.bench.costs import FLOAT, Attention


@dataclass(frozen=True)
class Gpu:
    """A GPU as its vendor describes it.

    Attributes:
        name: of the product.
        bandwidth: of its memory, in bytes a second.
        peak: float32 operations a second, without tensor cores; a multiply-add is two.
    """

    name: str
    bandwidth: float
    peak: float


GPUS = (
    Gpu("A100 SXM, 80 GB", 2039e9, 19.5e12),
    Gpu("RTX 4090", 1008e9, 82.6e12),
)


@dataclass(frozen=True)
class Work:
    """What one layer of attention has to do.

    Attributes:
        bytes: moved between the GPU and its memory, if everything is read once by each kernel that needs it.
        needed: operations that the equations need (`costs.py`).
        done: operations that the kernels of the `triton` backend do.
    """

    bytes: int
    needed: int
    done: int

    def seconds(self, gpu: Gpu, operations: int) -> float:
        """The least time: either memory or arithmetic is busy all along."""
        return max(self.bytes / gpu.bandwidth, operations / gpu.peak)


def forward_work(layer: Attention) -> Work:
    """The work of the forward pass, in float32."""
    vectors, pairs = _tensors(layer)
    # Reads queries twice (once for the scores of elements), keys, values, the scores; writes these and the result.
    moved = 5 * vectors + 2 * pairs
    shared_content, shared_space = _shares(layer)
    return Work(FLOAT * moved, 2 * layer.forward, _done(layer, shared_content + 2 * shared_space + 1))


def backward_work(layer: Attention) -> Work:
    """The work of the backward pass, in float32."""
    vectors, pairs = _tensors(layer)
    # Five kernels read queries, keys, values, the upstream gradient and the scores; one writes the statistics that the
    # others read; three gradients are written.
    softmaxes = STATISTICS * (pairs // layer.order if layer.own_query else pairs)
    moved = 5 * (4 * vectors + pairs) + 5 * softmaxes + 3 * vectors
    shared_content, shared_space = _shares(layer)
    passes = 5 * (shared_content + shared_space) + 4  # all but that over keys make gradients of coefficients
    gradients = 2 * shared_content + shared_space  # of queries and keys
    return Work(FLOAT * moved, 2 * layer.backward, _done(layer, passes + gradients))


def _tensors(layer: Attention) -> tuple[int, int]:
    """Numbers of one tensor of vectors, and of one with a number for each two elements."""
    places = layer.batch * layer.heads * layer.side**2
    return places * layer.order * layer.channels, places * layer.order**2


def _shares(layer: Attention) -> tuple[float, float]:
    """The share of a coefficient in the content scores of its block, and in the space scores."""
    tile = tile_of(layer.channels, 32)
    outputs = 1 if layer.own_query else block_of(tile.outputs, layer.order)
    return 1 / outputs, 1 / block_of(tile.keys, layer.order)


def _done(layer: Attention, times: float) -> int:
    coefficients = layer.batch * layer.heads * layer.order ** (2 if layer.own_query else 3) * layer.neighbors
    return round(2 * coefficients * times * power_of_two(layer.channels))
