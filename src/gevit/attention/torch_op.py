"""Attention as one PyTorch operator, `gevit::attend`: projections, attention by a backend, and the map of the heads.

Queries, keys and values are many times larger than the signal they are made of (9 heads of half its width each). So
they are made for a few images at a time, and made again in the backward pass instead of being kept: a layer works in
the memory of its input. `native` makes them itself, of one head and image at a time. As an operator it is opaque to
`torch.compile` and `torch.export`, which see its shapes alone: a graph of a few large operators would have all tiles of
`factored` in memory at once. Only `torch.export` with `backend='factored'` sees inside: it traces `graph`, a few
standard operators (`factored` itself where there is dropout), so that the program runs where gevit is not installed.

First derivatives come from the backends. Higher ones are those of the equation, in plain PyTorch, with its memory.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gevit._checks import is_traced
from gevit.attention import factored, graph, native, triton_backend
from gevit.attention.dropout import Dropout
from gevit.attention.reference import attend_reference
from gevit.encoding import Positions, full_precision

# Numbers that the queries, keys and values of one chunk of images may hold together.
CHUNK_NUMBERS = 2**22


class Projections(NamedTuple):
    """The linear maps of a layer: of its input to query, key and value, and of all heads to its output."""

    weight: Float[Tensor, "3 projected channels"]
    bias: Float[Tensor, "3 projected"]
    out_weight: Float[Tensor, "out projected"]
    out_bias: Float[Tensor, " out"]


class Call(NamedTuple):
    """One call of attention.

    With projections, `query` is the signal `[batch, channels, elements, height, width]` that queries, keys and values
    are made of; without them all three are `[batch, channels, heads, elements, height, width]`, and so is the result.
    """

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    projections: Projections | None
    positions: Positions
    heads: int
    scale: float
    dropout: Dropout
    backend: str

    def chunks(self) -> list[slice]:
        """Even slices of the batch, of two images or more: an odd number of heads then falls evenly to two threads."""
        batch = self.query.shape[0]
        if self.projections is None or torch.compiler.is_compiling():
            return [slice(0, batch)]
        numbers = 3 * self.projections.weight.shape[1] * self.query.shape[2:].numel()
        count = -(-batch // max(2, CHUNK_NUMBERS // numbers))
        return [slice(batch * i // count, batch * (i + 1) // count) for i in range(count)]

    def layer_of(self, images: slice) -> tuple[Tensor, Projections, Positions, int, float, Dropout]:
        """What `native` is asked for, which has the projections in its pass."""
        assert self.projections is not None
        dropout = self.dropout._replace(first_image=images.start)
        return self.query[images].contiguous(), self.projections, self.positions, self.heads, self.scale, dropout

    def attention_of(self, images: slice) -> tuple[Tensor, Tensor, Tensor, Positions, float, Dropout]:
        """What a backend is asked for: queries, keys and values of some images, and the rest."""
        if self.projections is None:
            query, key, value = (x[images] for x in _present((self.query, self.key, self.value)))
        else:
            signal = self.query[images]
            weight = torch.cat([self.projections.weight, self.projections.bias[:, :, None]], 2).flatten(0, 1)
            projected = weight.expand(signal.shape[0], -1, -1) @ _with_ones(signal)
            channels = self.projections.weight.shape[1] // self.heads
            query, key, value = projected.view(signal.shape[0], 3, channels, self.heads, *signal.shape[2:]).unbind(1)
        return query, key, value, self.positions, self.scale, self.dropout._replace(first_image=images.start)

    def mixed_shape(self, images: slice) -> tuple[int, ...]:
        """The shape of what attention gives for some images."""
        x, maps = self.query, self.projections
        channels = x.shape[1] if maps is None else maps.weight.shape[1] // self.heads
        outputs = self.positions.offset_index.shape[0]
        return (images.stop - images.start, channels, self.heads, outputs, *x.shape[-2:])

    def merge(self, mixed: Float[Tensor, "batch channels heads outputs height width"]) -> Tensor:
        """The map of all heads to the output."""
        if self.projections is None:
            return mixed
        columns = _affine(self.projections.out_weight, self.projections.out_bias, _columns(mixed))
        out: Tensor = columns.unflatten(2, mixed.shape[3:])
        return out

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the operator: tensors, the differentiable ones first, then numbers."""
        inputs = (self.query, self.key, self.value, *(self.projections or [None] * 4), *self.positions[:4])
        options = (self.positions.own_query, self.heads, self.scale, self.dropout.rate, self.backend)
        return (*inputs, self.dropout.seed, *options)


DIFFERENTIABLE = 9
TENSORS = 12


def read_call(*arguments: Any) -> Call:
    """The call that has these `arguments()`."""
    query, key, value, *maps = arguments[:7]
    space, element, offset_index, element_index = arguments[7:11]
    seed, own_query, heads, scale, rate, backend = arguments[11:]
    positions = Positions(space, element, offset_index, element_index, own_query)
    projections = None if maps[0] is None else Projections(*maps)
    return Call(query, key, value, projections, positions, heads, scale, Dropout(rate, seed), backend)


def compute(call: Call) -> Tensor:
    """The result of a call, which can be differentiated any number of times."""
    if call.backend == "reference":
        return _equation(call)
    if torch.compiler.is_exporting() and call.backend == "factored":
        return _whole(call, factored.forward if call.dropout.rate else _exported)
    arguments = call.arguments()
    inputs = _present(arguments[:DIFFERENTIABLE])
    # A trace is made with gradients and checked without them: it keeps nothing, and a backward pass recomputes.
    needs_gradient = not is_traced() and torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    # A graph holds the operator, which has the same gradient; torch.func needs the function around it.
    in_a_graph = torch.compiler.is_compiling() or is_traced()
    attend: Any = torch.ops.gevit.attend if in_a_graph else _Attend.apply
    out: Tensor = attend(*arguments, needs_gradient)[0]
    return out


def _whole(call: Call, attention: Callable[..., Tensor]) -> Tensor:
    """All images at once."""
    return call.merge(attention(*call.attention_of(slice(0, call.query.shape[0]))))


def _equation(call: Call) -> Tensor:
    return _whole(call, attend_reference)


def _exported(query: Tensor, key: Tensor, value: Tensor, positions: Positions, scale: float, _: Dropout) -> Tensor:
    return graph.forward(query, key, value, positions, scale)


_ARGUMENTS = (
    "Tensor query, Tensor? key, Tensor? value, Tensor? weight, Tensor? bias, Tensor? out_weight, Tensor? out_bias, "
    "Tensor space, Tensor element, Tensor offset_index, Tensor element_index, Tensor seed, "
    "bool own_query, int heads, float scale, float dropout, str backend"
)
# The second result is kept for the backward pass: all heads, before the map to the output.
torch.library.define("gevit::attend", f"({_ARGUMENTS}, bool keep) -> (Tensor, Tensor)")
# The results of the backward pass are gradients of the differentiable arguments, empty for those that are None.
_GRADIENTS = ", ".join(["Tensor"] * DIFFERENTIABLE)
torch.library.define("gevit::attend_backward", f"(Tensor grad, Tensor kept, {_ARGUMENTS}) -> ({_GRADIENTS})")


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    call, keep = read_call(*arguments[:-1]), arguments[-1]
    backend = _backend(call)
    if call.projections is None:
        return backend.forward(*call.attention_of(slice(0, len(call.query)))), call.query.new_empty(0)
    out, kept = _forward_shape(*arguments)
    for images in call.chunks():
        if backend is native:
            mixed = kept[images] if keep else call.query.new_empty(call.mixed_shape(images))
            native.forward_layer(*call.layer_of(images), mixed, out[images])
        else:
            mixed = backend.forward(*call.attention_of(images))
            out[images] = call.merge(mixed)
            if keep:
                kept[images] = mixed
    return out, kept


def _forward_shape(*arguments: Any) -> tuple[Tensor, Tensor]:
    call, keep = read_call(*arguments[:-1]), arguments[-1]
    x, mixed = call.query, call.mixed_shape(slice(0, call.query.shape[0]))
    if call.projections is None:
        return x.new_empty(mixed), x.new_empty(0)
    out = x.new_empty(mixed[0], call.projections.out_weight.shape[0], *mixed[3:])
    return out, x.new_empty(mixed if keep else 0)


def _backward(grad: Tensor, kept: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    with full_precision(grad.device):  # of whoever calls backward() under autocast, too
        return _gradients(grad, kept, read_call(*arguments))


def _gradients(grad: Tensor, kept: Tensor, call: Call) -> tuple[Tensor, ...]:
    backend, nothing = _backend(call), grad.new_empty(0)
    if call.projections is None:
        *d_sources, d_space, d_element = backend.backward(grad, *call.attention_of(slice(0, len(grad))))
        return (*d_sources, *[nothing for _ in Projections._fields], d_space, d_element)
    d_signal = torch.empty_like(call.query, memory_format=torch.contiguous_format)
    weight, bias, out_weight, _ = call.projections
    sums = [torch.zeros_like(x) for x in (weight, bias, out_weight, call.positions.space, call.positions.element)]
    differentiate = _differentiate_native if backend is native else _differentiate_around
    for images in call.chunks():
        parts = differentiate(grad[images].contiguous(), kept[images], call, images, d_signal[images])
        for total, part in zip(sums, parts, strict=True):
            total += part
    d_weight, d_bias, d_out_weight, *d_positions = sums
    return d_signal, nothing, nothing, d_weight, d_bias, d_out_weight, grad.sum((0, 2, 3, 4)), *d_positions


# For some images, gradients of weight, bias, out_weight, space and element; that of the signal goes to `d_signal`.
# Where nothing was kept, `kept` is empty.


def _differentiate_native(grad: Tensor, kept: Tensor, call: Call, images: slice, d_signal: Tensor) -> list[Tensor]:
    layer = call.layer_of(images)
    if not len(kept):
        kept = grad.new_empty(call.mixed_shape(images))
        native.forward_layer(*layer, kept, torch.empty_like(grad))
    return native.backward_layer(grad, kept, *layer, d_signal)


def _differentiate_around(grad: Tensor, kept: Tensor, call: Call, images: slice, d_signal: Tensor) -> list[Tensor]:
    maps, backend, attention = call.projections, _backend(call), call.attention_of(images)
    assert maps is not None
    mixed = kept if len(kept) else backend.forward(*attention)
    upstream = grad.flatten(2)
    d_mixed = maps.out_weight.T.expand(len(upstream), -1, -1) @ upstream
    *d_projected, d_space, d_element = backend.backward(d_mixed.view_as(mixed), *attention)
    d_columns = _columns(torch.stack(d_projected, 1).flatten(0, 1)).unflatten(0, (-1, 3)).flatten(1, 2)
    d_signal.copy_((maps.weight.flatten(0, 1).T.expand(len(grad), -1, -1) @ d_columns).view_as(d_signal))
    d_maps = _sum_of_products(d_columns, _with_ones(call.query[images])).unflatten(0, (3, -1))
    return [d_maps[..., :-1], d_maps[..., -1], _sum_of_products(upstream, _columns(mixed)), d_space, d_element]


def _backward_shape(grad: Tensor, kept: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(grad.new_empty(0 if x is None else x.shape) for x in arguments[:DIFFERENTIABLE])


class _Differentiable(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            "the fast backends of attention have no forward-mode derivatives (jvp, jacfwd, hessian); "
            "use backend='reference', or reverse mode"
        )


class _Attend(_Differentiable):
    """The operator with its gradient."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        results: tuple[Tensor, Tensor] = torch.ops.gevit.attend(*arguments)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        kept = output[1]
        ctx.mark_non_differentiable(kept)
        ctx.set_materialize_grads(False)  # zeros of the size of all heads, which nobody would read
        ctx.save_for_backward(kept, *inputs[:TENSORS])
        ctx.options = inputs[TENSORS:-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        kept, *tensors = ctx.saved_tensors
        others = [None] * (TENSORS - DIFFERENTIABLE + len(ctx.options) + 1)  # tables, options and `keep` have none
        if grad is None:
            return (*[None] * DIFFERENTIABLE, *others)
        grads = _AttendBackward.apply(grad, kept, *tensors, *ctx.options)  # type: ignore[no-untyped-call]
        found = [None if x is None else g for x, g in zip(tensors[:DIFFERENTIABLE], grads, strict=True)]
        return (*found, *others)


class _AttendBackward(_Differentiable):
    """The gradient with its own gradient, which is that of the equation."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        grads: tuple[Tensor, ...] = torch.ops.gevit.attend_backward(*arguments)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        grad, _, *arguments = inputs
        ctx.save_for_backward(grad, *arguments[:TENSORS])
        ctx.options = arguments[TENSORS:]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad, *tensors = ctx.saved_tensors
        differentiable, tables = tensors[:DIFFERENTIABLE], tensors[DIFFERENTIABLE:]

        def equation(*inputs: Tensor) -> Tensor:
            return _equation(read_call(*_in_place_of(differentiable, inputs), *tables, *ctx.options))

        def gradients(grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = torch.func.vjp(equation, *inputs)[1](grad)
            return found

        wanted = tuple(u for u, x in zip(upstream, differentiable, strict=True) if x is not None)
        with full_precision(grad.device):  # of whoever calls backward() under autocast, too
            d_grad, *grads = torch.func.vjp(gradients, grad, *_present(differentiable))[1](wanted)
        return (d_grad, None, *_in_place_of(differentiable, grads), *[None] * (len(tables) + len(ctx.options)))


torch.library.impl("gevit::attend", "default", _forward)
torch.library.impl("gevit::attend_backward", "default", _backward)
torch.library.register_fake("gevit::attend", _forward_shape)
torch.library.register_fake("gevit::attend_backward", _backward_shape)
torch.library.register_autograd("gevit::attend", _Attend.backward, setup_context=_Attend.setup_context)


def _present(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _in_place_of(tensors: Sequence[Tensor | None], others: Sequence[Tensor]) -> list[Tensor | None]:
    """The others where there is a tensor, None where there is none."""
    rest = iter(others)
    return [None if x is None else next(rest) for x in tensors]


def _backend(call: Call) -> ModuleType:
    """The backend that serves these tensors: the asked one or, for `"auto"`, the fastest."""
    dtype, device = call.query.dtype, call.query.device
    if call.backend == "factored":
        return factored
    if call.backend == "triton" or (call.backend == "auto" and device.type == "cuda"):
        problem = triton_backend.reason(call.query)
        if call.backend == "triton" and problem:
            raise ValueError(f"the triton backend cannot be used: {problem}; or use backend='auto'")
        if problem:
            _warn_once(f"gevit runs without its GPU kernels, many times slower: {problem}")
        return factored if problem else triton_backend
    serves = native.serves(call.query)
    if call.backend == "native" and not serves:
        raise ValueError(
            f"the native backend serves float32 and float64 on the CPU, got {dtype} on {device}; use backend='auto'"
        )
    if call.backend == "native" and not native.is_available(dtype):
        raise ValueError(f"the native backend cannot be used: {native.reason(dtype)}; or use backend='auto'")
    return native if serves and native.is_available(dtype) else factored


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _columns(x: Float[Tensor, "batch channels heads elements height width"]) -> Float[Tensor, "batch rows columns"]:
    return x.flatten(1, 2).flatten(2)


def _with_ones(
    signal: Float[Tensor, "batch channels elements height width"],
) -> Float[Tensor, "batch channels+1 pixels"]:
    """The signal, and a channel of ones: the bias of a linear map is what it multiplies this channel with."""
    return F.pad(signal.flatten(2), (0, 0, 0, 1), value=1.0)


def _affine(
    weight: Float[Tensor, "out channels"], bias: Float[Tensor, " out"], columns: Float[Tensor, "batch channels pixels"]
) -> Float[Tensor, "batch out pixels"]:
    return torch.baddbmm(bias[:, None], weight.expand(columns.shape[0], -1, -1), columns)


def _sum_of_products(a: Float[Tensor, "batch m pixels"], b: Float[Tensor, "batch n pixels"]) -> Float[Tensor, "m n"]:
    """Sum over images and pixels of a b^T."""
    return (a @ b.transpose(1, 2)).sum(0)
