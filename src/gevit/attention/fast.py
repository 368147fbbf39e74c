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
    seed = draw_seed(dropout)
    out: Tensor = torch.ops.gevit.attend(query, key, value, *positions, seed, scale, dropout, backend)
    return out


def draw_seed(dropout: float) -> Tensor:
    """What the mask of one call is made from, drawn from torch's generator where there is dropout."""
    return torch.randint(2**62, (1,)) if dropout else torch.zeros(1, dtype=torch.long)


_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor space, Tensor element, Tensor offset_index, "
    "Tensor element_index, bool own_query, Tensor seed, float scale, float dropout, str backend"
)
torch.library.define("gevit::attend", f"({_INPUTS}) -> Tensor")
torch.library.define("gevit::attend_backward", f"(Tensor grad, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")


@torch.library.impl("gevit::attend", "default")
def _attend(
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
    positions = Positions(space, element, offset_index, element_index, own_query)
    out: Tensor = _backend(backend, query, key, value, space, element).forward(
        query, key, value, positions, scale, dropout, int(seed)
    )
    return out


def _attend_shape(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    batch, channels, heads, _, height, width = query.shape
    offset_index = rest[2]
    return query.new_empty(batch, channels, heads, offset_index.shape[0], height, width)


@torch.library.impl("gevit::attend_backward", "default")
def _attend_backward(
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
    positions = Positions(space, element, offset_index, element_index, own_query)
    chosen = _backend(backend, query, key, value, space, element)
    grads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = chosen.backward(
        grad, query, key, value, positions, scale, dropout, int(seed)
    )
    return grads


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
    grads = torch.ops.gevit.attend_backward(grad, *tensors, own_query, seed, scale, dropout, backend)
    return (*grads, *[None] * 7)


torch.library.register_fake("gevit::attend", _attend_shape)
torch.library.register_fake("gevit::attend_backward", _attend_backward_shape)
torch.library.register_autograd("gevit::attend", _gradient, setup_context=_save)


def _backend(name: str, *tensors: Tensor) -> ModuleType:
    """The backend that serves these tensors: the asked one or, for `"auto"`, the fastest."""
    query = tensors[0]
    if any(x.dtype != query.dtype or x.device != query.device for x in tensors):
        kinds = ", ".join(f"{x.dtype} on {x.device}" for x in tensors)
        raise ValueError(f"query, key, value, space and element must have one dtype and device, got {kinds}")
    serves = native.serves(query)
    if name == "native" and not serves:
        raise ValueError(
            "the native backend serves float32 and float64 on the CPU, "
            f"got {query.dtype} on {query.device}; use backend='auto'"
        )
    if name == "native" and not native.is_available(query.dtype):
        raise ValueError(f"the native backend is not built: {native.REASON}; use backend='auto'")
    if name == "factored" or not serves or not native.is_available(query.dtype):
        return factored
    return native
