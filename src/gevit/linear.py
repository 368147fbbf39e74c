"""What layers are made of: linear maps with the paper's initialisation, dropout, and the paper's norm."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from gevit._checks import is_traced


class Linear(nn.Linear):
    """A linear map whose weights start normal with std sqrt(2 / fan_in) and whose biases start at zero."""

    def reset_parameters(self) -> None:
        """Draw new weights."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.in_features))
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Pointwise(Linear):
    """The same linear map of the channels at every pixel (and group element): a 1x1 convolution."""

    def forward(self, x: Float[Tensor, "batch channels *domain"]) -> Float[Tensor, "batch out *domain"]:
        """Map the channel axis."""
        weight, columns = self.weight.expand(x.shape[0], -1, -1), x.flatten(2)
        bias = self.weight.new_zeros(()) if self.bias is None else self.bias[:, None]
        out: Tensor = torch.baddbmm(bias, weight, columns).unflatten(2, x.shape[2:])
        return out


def halving_window(like: Tensor, height: int, width: int) -> Float[Tensor, "rows columns"]:
    """The blur whose every other response halves height and width of padded planes, the same seen from either end.

    An even side is blurred by (1, 3, 3, 1) / 8, which samples the middles between pixels, an odd side by (1, 2, 1) / 4.
    """
    rows, columns = (
        like.new_tensor([1, 3, 3, 1]) / 8 if side % 2 == 0 else like.new_tensor([1, 2, 1]) / 4
        for side in (height, width)
    )
    return torch.outer(rows, columns)


class Dropout(nn.Dropout):
    """Dropout in a sixth of the time on a CPU: PyTorch draws numbers one by one, this cuts each 64 random bits into
    four.

    There the rate is rounded to a multiple of 2^-16.
    """

    def forward(self, input: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
        """In training, zero numbers at the rate p and scale the others up."""
        if not (self.training and self.p):
            return input
        dropped = round(self.p * 2**16)
        in_a_graph = torch.compiler.is_compiling() or is_traced()
        if dropped in (0, 2**16) or input.device.type != "cpu" or in_a_graph:
            return super().forward(input)
        words = torch.randint(-(2**63), 2**63 - 1, (-(-input.numel() // 4),), device=input.device)
        numbers, least = words.view(torch.int16)[: input.numel()].view(input.shape), dropped - 2**15
        kept = numbers.clamp(least - 1, least) - (least - 1)  # numbers >= least, as 0 and 1: booleans are slow
        return input * (kept.to(input.dtype) * (2**16 / (2**16 - dropped)))


class _Gate(torch.autograd.Function):
    """The identity, whose gradient is zero where `closed`; values are not copied."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, closed: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (closed,) = ctx.saved_tensors
        return grad.masked_fill(closed, 0), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        (closed,) = ctx.saved_tensors
        return tangent.masked_fill(closed, 0)


class Norm(nn.GroupNorm):
    """One norm over channels, group and space: what the paper calls layer normalisation, with the authors' eps.

    The norm of a constant map jumps from the bias to a unit spread as soon as the map varies by more than
    sqrt(eps), with a slope of 1 / sqrt(eps), a million. An all-zero image makes every map of a new network constant,
    and such slopes, multiplied from layer to layer, overflow. So a constant map passes no gradient; values are
    untouched.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels, eps=1e-12)

    def forward(self, x: Float[Tensor, "batch channels *domain"]) -> Float[Tensor, "batch channels *domain"]:
        """Normalise each entry of the batch."""
        # A trace is made with gradients and checked without them: it holds values alone.
        in_a_graph = torch.compiler.is_compiling()
        differentiated = x.requires_grad or (not in_a_graph and forward_ad.unpack_dual(x).tangent is not None)
        if differentiated and not is_traced():
            maps, spread = x.detach().flatten(1), math.sqrt(self.eps)
            if in_a_graph or not _vary(maps, spread):
                constant = maps.amax(1) - maps.amin(1) <= spread
                closed = constant.view(-1, *[1] * (x.ndim - 1))
                # A compiler takes no functions with forward-mode derivatives, and makes no copy of its own.
                x = torch.where(closed, x.detach(), x) if in_a_graph else _Gate.apply(x, closed)  # type: ignore[no-untyped-call]
        return super().forward(x)


def _vary(maps: Float[Tensor, "batch numbers"], spread: float) -> bool:
    """Whether every map varies by more than this in the two or three places that are looked at: nearly always.

    A device would have to be waited for, and vmap hides numbers: there it cannot be told.
    """
    if maps.device.type != "cpu":
        return False
    try:
        places = maps[:, :: max(1, maps.shape[1] // 2)].tolist()
    except RuntimeError:
        return False
    return all(max(few) - min(few) > spread for few in places)
