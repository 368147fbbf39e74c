"""The fast backends as one PyTorch operator, `gevit::attend`, with its gradient.

As an operator, attention is opaque to `torch.compile` and `torch.export` (which see only its shapes), and its
backward pass recomputes instead of keeping coefficients.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gevit.attention import factored, native
from gevit.encoding import Positions

_BACKENDS: dict[str, ModuleType] = {"factored": factored, "native": native}


def attend_fast(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    scale: float,
    dropout: float,
    backend: str,
) -> Tensor:
    """Group attention by the named backend; `torch.manual_seed` decides what dropout drops."""
    seed = torch.randint(2**62, (1,)) if dropout else torch.zeros(1, dtype=torch.long)
    out: Tensor = attend_op(query, key, value, *positions, seed, scale, dropout, backend)
    return out


@torch.library.custom_op("gevit::attend", mutates_args=())
def attend_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    space: Tensor,
    element: Tensor,
    offset_index: Tensor,
    element_index: Tensor,
    own_query: bool,
    seed: Tensor,
    scale: float,
    dropout: float,
    backend: str,
) -> Tensor:
    """Group attention, forward."""
    positions = Positions(space, element, offset_index, element_index, own_query)
    out: Tensor = _BACKENDS[backend].forward(query, key, value, positions, scale, dropout, int(seed))
    return out


@attend_op.register_fake
def _attend_shape(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    batch, channels, heads, _, height, width = query.shape
    offset_index = rest[2]
    return query.new_empty(batch, channels, heads, offset_index.shape[0], height, width)


@torch.library.custom_op("gevit::attend_backward", mutates_args=())
def attend_backward_op(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    space: Tensor,
    element: Tensor,
    offset_index: Tensor,
    element_index: Tensor,
    own_query: bool,
    seed: Tensor,
    scale: float,
    dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of group attention with respect to query, key, value, space and element."""
    positions = Positions(space, element, offset_index, element_index, own_query)
    grads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _BACKENDS[backend].backward(
        grad, query, key, value, positions, scale, dropout, int(seed)
    )
    return grads


@attend_backward_op.register_fake
def _attend_backward_shape(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, space: Tensor, element: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(query, memory_format=torch.contiguous_format),
        torch.empty_like(key, memory_format=torch.contiguous_format),
        torch.empty_like(value, memory_format=torch.contiguous_format),
        torch.empty_like(space, memory_format=torch.contiguous_format),
        torch.empty_like(element, memory_format=torch.contiguous_format),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, own_query, seed, scale, dropout, backend = inputs
    ctx.save_for_backward(*tensors, seed)
    ctx.options = own_query, scale, dropout, backend


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, seed = ctx.saved_tensors
    own_query, scale, dropout, backend = ctx.options
    grads = attend_backward_op(grad, *tensors, own_query, seed, scale, dropout, backend)
    return (*grads, *[None] * 7)


attend_op.register_autograd(_gradient, setup_context=_save)
