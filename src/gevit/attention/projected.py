"""A whole attention layer in the memory of its input: projections, attention, and the map of the heads to the output.

Queries, keys and values are many times larger than the signal they are made of (9 heads of half its width each). So
they are made for a few images at a time, and made again in the backward pass instead of being kept.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gevit.attention.fast import draw_seed
from gevit.encoding import Positions, full_precision

# Numbers that the queries, keys and values of one chunk of images may hold together.
CHUNK_NUMBERS = 2**20


def attend_projected(
    x: Float[Tensor, "batch channels elements height width"],
    maps: tuple[Float[Tensor, "3 projected channels"], Float[Tensor, "3 projected"]],
    out_map: tuple[Float[Tensor, "out projected"], Float[Tensor, "out"]],
    positions: Positions,
    heads: int,
    scale: float,
    dropout: float,
    backend: str,
) -> Float[Tensor, "batch out outputs height width"]:
    """Group attention of linear maps of x, by one of the fast backends.

    Args:
        x: the signal (lifting: an image, with one element).
        maps: weights and biases of query, key and value.
        out_map: weight and bias of the map from all heads to the output.
        positions: rho_P for this neighbourhood and image size.
        heads: number of heads.
        scale: what scores are multiplied with before the softmax.
        dropout: rate of attention dropout; `torch.manual_seed` decides what is dropped.
        backend: `"auto"`, `"factored"` or `"native"`.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)  # a softmax needs more than half precision
    tensors = [t.to(dtype) for t in (x, *maps, *out_map, positions.space, positions.element)]
    tables = (positions.offset_index, positions.element_index)
    seed = draw_seed(dropout)
    with full_precision(x.device):
        options = (positions.own_query, heads, scale, dropout, backend)
        out: Tensor = _Projected.apply(*tensors, *tables, seed, *options)  # type: ignore[no-untyped-call]
    return out.to(x.dtype)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        out_weight: Tensor,
        out_bias: Tensor,
        space: Tensor,
        element: Tensor,
        offset_index: Tensor,
        element_index: Tensor,
        seed: Tensor,
        own_query: bool,
        heads: int,
        scale: float,
        dropout: float,
        backend: str,
    ) -> Tensor:
        out = x.new_empty(len(x), len(out_weight), len(offset_index), *x.shape[3:])
        kept = []
        for index, images in enumerate(_chunks(x, weight)):
            mixed = torch.ops.gevit.attend(
                *_project(x[images], weight, bias, heads),
                *(space, element, offset_index, element_index, own_query),
                *(seed + index, scale, dropout, backend),
            )
            columns = mixed.flatten(1, 2).flatten(2)
            out[images] = _affine(out_weight, out_bias, columns).view_as(out[images])
            if any(ctx.needs_input_grad):
                kept.append(columns)
        ctx.save_for_backward(x, weight, bias, out_weight, space, element, offset_index, element_index, seed, *kept)
        ctx.options = own_query, heads, scale, dropout, backend
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, out_weight, space, element, offset_index, element_index, seed, *kept = ctx.saved_tensors
        own_query, heads, scale, dropout, backend = ctx.options
        d_x, d_weight, d_bias, d_out_weight, d_space, d_element = (
            torch.zeros_like(t) for t in (x, weight, bias, out_weight, space, element)
        )
        for index, (images, mixed) in enumerate(zip(_chunks(x, weight), kept, strict=True)):
            columns, upstream = x[images].flatten(2), grad[images].flatten(2)
            d_out_weight += _sum_of_products(upstream, mixed)
            d_mixed = out_weight.T.expand(len(upstream), -1, -1) @ upstream
            *d_projected, d_space_part, d_element_part = torch.ops.gevit.attend_backward(
                d_mixed.view(len(d_mixed), -1, heads, *grad.shape[2:]),
                *_project(x[images], weight, bias, heads),
                *(space, element, offset_index, element_index, own_query),
                *(seed + index, scale, dropout, backend),
            )
            for which, d in enumerate(d_projected):
                d = d.flatten(1, 2).flatten(2)
                d_x[images] += (weight[which].T.expand(len(d), -1, -1) @ d).view_as(x[images])
                d_weight[which] += _sum_of_products(d, columns)
                d_bias[which] += d.sum((0, 2))
            d_space += d_space_part
            d_element += d_element_part
        d_out_bias = grad.sum((0, 2, 3, 4))
        return (d_x, d_weight, d_bias, d_out_weight, d_out_bias, d_space, d_element, *[None] * 8)


def _chunks(x: Tensor, weight: Tensor) -> list[slice]:
    """Slices of the batch, of two images or more: an odd number of heads then shares out evenly to two threads."""
    numbers = 3 * weight.shape[1] * x.shape[2] * x.shape[3] * x.shape[4]
    step = max(2, CHUNK_NUMBERS // numbers)
    return [slice(first, first + step) for first in range(0, len(x), step)]


def _project(
    x: Float[Tensor, "batch channels elements height width"],
    weight: Float[Tensor, "3 projected channels"],
    bias: Float[Tensor, "3 projected"],
    heads: int,
) -> Iterator[Float[Tensor, "batch head_channels heads elements height width"]]:
    """Queries, keys and values."""
    for w, b in zip(weight, bias, strict=True):
        yield _affine(w, b, x.flatten(2)).view(len(x), -1, heads, *x.shape[2:])


def _affine(
    weight: Float[Tensor, "out channels"], bias: Float[Tensor, "out"], columns: Float[Tensor, "batch channels pixels"]
) -> Float[Tensor, "batch out pixels"]:
    return torch.baddbmm(bias[:, None], weight.expand(len(columns), -1, -1), columns)


def _sum_of_products(a: Float[Tensor, "batch m pixels"], b: Float[Tensor, "batch n pixels"]) -> Float[Tensor, "m n"]:
    """Sum over images and pixels of a b^T, in pieces of fixed length: threads would split one long sum between them."""
    total = a.new_zeros(a.shape[1], b.shape[1])
    for left, right in zip(a.split(512, 2), b.split(512, 2), strict=True):
        total += (left @ right.transpose(1, 2)).sum(0)
    return total
