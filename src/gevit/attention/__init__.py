"""The one hot operation, group attention: one function, several backends that agree to rounding.

For pixel i, output element h, query elements h~ and keys (j, h^) in the neighbourhood of i,

    score[h, h~, h^, j] = scale * < q[h~, i],  k[h^, i + j] + rho_P(h^-1 (x_j - x_i), element[h, h~, h^]) >
    out[h, i] = sum over h~ of  sum over (h^, j) of  softmax_(h^, j)(score[h, h~]) * v[h^, i + j]

where rho_P is `Positions`: its space part meets the first channels of the query, its element part the rest.
Neighbours outside the image are masked. Attention dropout drops each coefficient (h, h~, h^, j) independently.

Backends:
    reference: the equation, literally; the oracle for the others.
    factored:  plain PyTorch on any device; exact, |H| times fewer exponentials, bounded memory.
    native:    a CPU kernel; the same factorisation in one pass.
    triton:    fused GPU kernels, for CUDA and ROCm (and for CPU tensors under TRITON_INTERPRET=1).
    auto:      native or triton where they serve, otherwise factored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gevit._checks import check_choice, check_rate
from gevit.attention.dropout import Dropout
from gevit.attention.reference import coefficients, neighbors_of
from gevit.attention.torch_op import Call, Projections, compute
from gevit.encoding import Positions, full_precision

__all__ = ["BACKENDS", "Projections", "attend", "attend_projected", "attention_of_pixel"]

BACKENDS = ("auto", "reference", "factored", "native", "triton")

_Shape = Sequence[Any]  # numbers or, in a graph, symbols


def attend(
    query: Float[Tensor, "batch channels heads queries height width"],
    key: Float[Tensor, "batch channels heads keys height width"],
    value: Float[Tensor, "batch channels heads keys height width"],
    positions: Positions,
    *,
    scale: float,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "batch channels heads outputs height width"]:
    """Attend from every pixel and output element to its neighbourhood on the group; see the module's equation.

    Args:
        query: one vector for each pixel and query element.
        key: one vector for each pixel and key element.
        value: as `key`.
        positions: rho_P for this neighbourhood.
        scale: what scores are multiplied with before the softmax.
        dropout: the probability with which a coefficient is dropped; the others are scaled up. `torch.manual_seed`
            decides which, and every backend drops the same.
        backend: `"auto"`, `"reference"`, `"factored"`, `"native"` or `"triton"`.
    """
    check_choice("backend", backend, BACKENDS)
    check_rate("dropout", dropout)
    _check_kinds(query, key, value, positions)
    _check_shapes(query.shape, key.shape, value.shape, positions)
    positions.check_indices()
    with full_precision(query.device):
        return compute(Call(query, key, value, None, positions, query.shape[2], scale, Dropout.draw(dropout), backend))


def attend_projected(
    x: Float[Tensor, "batch channels elements height width"],
    projections: Projections,
    positions: Positions,
    *,
    heads: int,
    scale: float,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "batch out outputs height width"]:
    """A whole layer of self-attention: `attend` for all heads, between linear maps of the channels.

    Half precision is computed in single: a softmax needs its digits.

    Args:
        x: the signal (lifting: an image, with one element).
        projections: the linear maps.
        positions: rho_P for this neighbourhood and image size.
        heads: number of heads; projected channel c * heads + n is channel c of head n.
        scale: as in `attend`.
        dropout: as in `attend`.
        backend: as in `attend`.
    """
    check_choice("backend", backend, BACKENDS)
    check_rate("dropout", dropout)
    _check_maps(x, projections, positions, heads)
    projected = (x.shape[0], projections.weight.shape[1] // heads, heads, *x.shape[2:])
    _check_shapes(projected, projected, projected, positions)
    dtype = torch.promote_types(x.dtype, torch.float32)

    def single(tensor: Tensor) -> Tensor:
        return tensor if tensor.dtype == dtype else tensor.to(dtype)  # a graph would hold even a cast to the same

    projections = Projections(*map(single, projections))
    positions = positions._replace(space=single(positions.space), element=single(positions.element))
    with full_precision(x.device):
        call = Call(single(x), None, None, projections, positions, heads, scale, Dropout.draw(dropout), backend)
        out = compute(call)
    return out if out.dtype == x.dtype else out.to(x.dtype)


def attention_of_pixel(
    query: Float[Tensor, "batch channels heads queries height width"],
    key: Float[Tensor, "batch channels heads keys height width"],
    positions: Positions,
    pixel: tuple[int, int],
    *,
    scale: float,
) -> Float[Tensor, "batch heads outputs asking keys side side"]:
    """Where one pixel looks: the coefficients of `attend` from it to each neighbour, for every (h, h~, h^).

    For each h and h~ they sum to 1 over the keys; those of neighbours outside the image are 0. With
    `positions.own_query` there is one query, h~ = h.

    Args:
        query: as in `attend`.
        key: as in `attend`.
        positions: as in `attend`.
        pixel: its row and column.
        scale: as in `attend`.
    """
    _check_kinds(query, key, key, positions)
    _check_shapes(query.shape, key.shape, key.shape, positions)
    positions.check_indices()
    row, column = pixel
    height, width = query.shape[-2:]
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f"the pixel must be within {height} rows and {width} columns, got {pixel}")
    side = math.isqrt(positions.offset_index.shape[1])
    pixels = query.new_ones(1, 1, 1, 1, height, width, dtype=torch.bool)
    around, inside = (neighbors_of(x, pixel, side) for x in (key, pixels))
    asking = query[..., row : row + 1, column : column + 1]
    with full_precision(query.device):
        found = coefficients(asking, around, inside, positions, scale)
    maps: Tensor = found[:, :, 0, 0].unflatten(-1, (side, side))
    return maps


def _check_kinds(query: Tensor, key: Tensor, value: Tensor, positions: Positions) -> None:
    """Check dtypes and devices."""
    floating = {"query": query, "key": key, "value": value, "space": positions.space, "element": positions.element}
    for name, x in floating.items():
        if not x.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {x.dtype}")
    if any(x.dtype != query.dtype or x.device != query.device for x in floating.values()):
        kinds = ", ".join(f"{x.dtype} on {x.device}" for x in floating.values())
        raise ValueError(f"query, key, value, space and element must have one dtype and device, got {kinds}")
    _check_tables(positions, query.device)


def _check_tables(positions: Positions, device: torch.device) -> None:
    for name, x in (("offset_index", positions.offset_index), ("element_index", positions.element_index)):
        if x.dtype not in {torch.int32, torch.int64} or x.device != device:
            raise ValueError(f"{name} must be int32 or int64 on {device}, got {x.dtype} on {x.device}")


def _check_maps(x: Tensor, maps: Projections, positions: Positions, heads: int) -> None:
    """Check what a layer is made of, which may have less precision than it is computed in."""
    for name, tensor in {"x": x, **maps._asdict(), "space": positions.space, "element": positions.element}.items():
        if not tensor.is_floating_point() or tensor.device != x.device:
            raise TypeError(
                f"{name} must be a floating-point tensor on {x.device}, got {tensor.dtype} on {tensor.device}"
            )
    _check_tables(positions, x.device)
    _expect("x", x.shape, "batch", "channels", "elements", "height", "width")
    projected = _expect("weight", maps.weight.shape, 3, "projected", x.shape[1])[1]
    _expect("bias", maps.bias.shape, 3, projected)
    out = _expect("out_weight", maps.out_weight.shape, "out", projected)[0]
    _expect("out_bias", maps.out_bias.shape, out)
    if heads < 1 or projected % heads:
        raise ValueError(f"heads must divide the {projected} projected channels, got {heads}")


def _check_shapes(query: _Shape, key: _Shape, value: _Shape, positions: Positions) -> None:
    """Check that shapes fit together: the kernel reads as much memory as they say."""
    space, element, offset_index, element_index = (x.shape for x in positions[:4])
    _expect("query", query, "batch", "channels", "heads", "queries", "height", "width")
    batch, channels, heads, queries, height, width = query
    keys = _expect("key", key, batch, channels, heads, "keys", height, width)[3]
    _expect("value", value, batch, channels, heads, keys, height, width)
    own = positions.own_query
    outputs, neighbors = _expect("offset_index", offset_index, queries if own else "outputs", "neighbors")
    _expect("element_index", element_index, outputs, 1 if own else queries, keys)
    has_elements = 0 not in element
    _expect("space", space, "offsets", "space channels" if has_elements else channels)
    _expect("element", element, "elements", channels - space[1] if has_elements else "element channels")
    if 0 in (queries, keys, outputs, height, width):
        raise ValueError(
            "attention needs a pixel and an element of each kind, "
            f"got query {list(query)}, key {list(key)}, offset_index {list(offset_index)}"
        )
    # A compiler has symbols for sizes that change, and cannot take their roots.
    is_square = torch.compiler.is_compiling() or math.isqrt(neighbors) ** 2 == neighbors
    if not is_square or neighbors % 2 == 0:
        raise ValueError(f"offset_index must have the square of an odd number of neighbours, got {neighbors}")


def _expect(name: str, shape: _Shape, *axes: Any) -> _Shape:
    """Check a shape: `axes` has a size or, where any will do, a name for each axis."""
    fits = [isinstance(axis, str) or axis == size for axis, size in zip(axes, shape, strict=False)]
    if len(shape) != len(axes) or not all(fits):
        expected = ", ".join(str(axis) for axis in axes)
        raise ValueError(f"{name} does not fit the other inputs: expected [{expected}], got {list(shape)}")
    return shape
