"""Self-attention that commutes with a group: from images to signals on it, and from signals to signals."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import (
    check_choice,
    check_count,
    check_dtype,
    check_group,
    check_image,
    check_neighborhood,
    check_rate,
    check_signal,
)
from gevit.attention import BACKENDS, Projections, attend, attend_projected, attention_of_pixel
from gevit.encoding import ENCODINGS, PositionalEncoding, Positions
from gevit.groups import Group
from gevit.linear import Pointwise

INITIALISATIONS = ("paper", "convolution")

# How attention starts that starts like a convolution: the fall of a score per square pixel, what the wanted element is
# worth, and the share of the usual content scores.
SHARPNESS, PREFERENCE, CONTENT = 3.0, 2.0, 0.3


class _Attention(nn.Module):
    """What lifting and group attention share: projections, heads and the call of `attend`.

    As in the paper's code, every head is `out_channels // 2` wide and scores are divided by sqrt(in_channels).
    """

    positions: PositionalEncoding

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        heads: int,
        neighborhood: int | None,
        dropout: float,
        backend: str,
    ) -> None:
        super().__init__()
        self.group = check_group(group)
        self.in_channels = check_count("in_channels", in_channels)
        self.out_channels = check_count("out_channels", out_channels)
        self.heads = check_count("heads", heads)
        self.neighborhood = check_neighborhood(neighborhood)
        self.dropout = check_rate("dropout", dropout)
        self.backend = check_choice("backend", backend, BACKENDS)
        if out_channels % 2:
            raise ValueError(
                f"out_channels must be even (a head has half as many), got {out_channels}; "
                f"use {out_channels - 1} or {out_channels + 1}"
            )
        self.head_channels = out_channels // 2
        self.query = Pointwise(in_channels, self.head_channels * heads)
        self.key = Pointwise(in_channels, self.head_channels * heads)
        self.value = Pointwise(in_channels, self.head_channels * heads)
        self.out = Pointwise(self.head_channels * heads, out_channels)

    def _attend(self, x: Float[Tensor, "batch channels element height width"]) -> Tensor:
        maps = (self.query, self.key, self.value)
        check_dtype(x, next(self.parameters(), x))  # the copies in nn.DataParallel have none
        if not all(map(_is_plain, (*maps, self.out))):
            (query, key, value), positions = self._called(x, *maps)
            dropout = self.dropout if self.training else 0.0
            mixed = attend(query, key, value, positions, scale=self._scale, dropout=dropout, backend=self.backend)
            return self.out(mixed.flatten(1, 2).to(x.dtype))  # type: ignore[no-any-return]
        weights, biases = torch.stack([m.weight for m in maps]), torch.stack([m.bias for m in maps])
        return attend_projected(
            x,
            Projections(weights, biases, self.out.weight, self.out.bias),
            self.positions(*x.shape[-2:]),
            heads=self.heads,
            scale=self._scale,
            dropout=self.dropout if self.training else 0.0,
            backend=self.backend,
        )

    def _attention_of_pixel(self, x: Tensor, pixel: tuple[int, int]) -> Tensor:
        (query, key), positions = self._called(x, self.query, self.key)
        return attention_of_pixel(query, key, positions, pixel, scale=self._scale)

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.in_channels)

    def _called(self, x: Tensor, *projections: nn.Module) -> tuple[list[Tensor], Positions]:
        """The heads that projections give when they are called, and the positions, at least in single precision."""
        positions = self.positions(*x.shape[-2:])
        dtype = torch.promote_types(positions.space.dtype, torch.float32)
        heads = [m(x).unflatten(1, (self.head_channels, self.heads)).to(dtype) for m in projections]
        return heads, positions._replace(space=positions.space.to(dtype), element=positions.element.to(dtype))

    def _initialise(self, initialisation: str) -> None:
        """Start as in the paper, which every layer does on its own, or like a convolution."""
        check_choice("initialisation", initialisation, INITIALISATIONS)
        if initialisation == "convolution" and self.neighborhood is not None:
            self._start_like_a_convolution(self.neighborhood // 2)

    @torch.no_grad()
    def _start_like_a_convolution(self, radius: int) -> None:
        """Start each head k at an offset t_k of the 3x3 pixels around the centre and at an element e_k:

            score = -SHARPNESS |offset - t_k|^2 + PREFERENCE [element = e_k] + weak content,

        within the parameters of rho_P and the bias of the query. Expanded, the square is a sum of products of (r^2, r),
        which rho_P is fitted to, with (-1, 2 t_k), which the query's bias holds; t_k^2 is the same for all keys. The
        fit is exact for quarter turns and flips up to 5x5. Of more coordinates, it is closest around the centre, where
        the scores are that matter. Lifting has no elements, and its heads start at offsets alone.
        """
        part, element = self.positions.coordinate_channels, self.positions.element
        if part < 2:
            raise ValueError(
                f"initialisation='convolution' needs out_channels of at least {8 if element is None else 12} (two "
                f"channels of a head for each coordinate), got {self.out_channels}"
            )
        root = math.sqrt(self.in_channels)  # scores are divided by it
        size = SHARPNESS * radius**2 * root / 2
        for function, name in ((self.positions.row, "_rows"), (self.positions.column, "_columns")):
            coordinates = self.positions.get_buffer(name)
            importance = (1 + radius * coordinates.abs()) ** -2
            function.fit(coordinates, size * torch.stack([coordinates**2, coordinates], dim=1), importance)
        codes = torch.empty(1, 0)
        if element is not None:
            precise = torch.promote_types(element.dtype, torch.float32)  # torch orthogonalises nothing in 16 bits
            codes = F.normalize(nn.init.orthogonal_(torch.empty_like(element, dtype=precise)), dim=1)
            element.copy_(PREFERENCE * root * codes)

        self.query.weight.mul_(CONTENT)
        taps = torch.cartesian_prod(torch.arange(len(codes)), *2 * [torch.arange(-1, 2)])
        chosen = taps[torch.randperm(len(taps))[torch.arange(self.heads) % len(taps)]]
        rows, columns = (chosen[:, 1:] / max(radius, 1)).T
        assert self.query.bias is not None
        bias = self.query.bias.view(self.head_channels, self.heads)
        for first, target in ((0, rows), (part, columns)):
            bias[first], bias[first + 1] = -2, 4 * target
        if element is not None:
            bias[2 * part :] = codes[chosen[:, 0]].T

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return (
            f"{self.group}, {self.in_channels} -> {self.out_channels}, heads={self.heads}, "
            f"neighborhood={self.neighborhood}, dropout={self.dropout}, backend={self.backend!r}"
        )


def _is_plain(projection: nn.Module) -> bool:
    """Whether it is an ordinary linear map, neither wrapped nor hooked, so that its weights say everything."""
    hooks = (
        *(projection._forward_hooks, projection._forward_pre_hooks),
        *(projection._backward_hooks, projection._backward_pre_hooks),
    )
    return (
        type(projection) is Pointwise
        and projection.bias is not None
        and not any(hooks)
        and "forward" not in projection.__dict__
    )


class LiftingAttention(_Attention):
    """Self-attention that takes images to signals on the group: offsets are seen as h^-1 (x_j - x_i).

    Args:
        group: the group H of the output's elements h.
        in_channels: channels of the image.
        out_channels: channels of the signal; a multiple of 4 (rows and columns share a head of half as many).
        heads: number of heads.
        neighborhood: odd side of the square around a pixel that it attends to; None for the whole image.
        dropout: rate of attention dropout.
        backend: see `gevit.attention`.
        initialisation: `"paper"`, or `"convolution"`: each head starts by looking at one offset, as a filter tap does;
            global attention, which has no pixel grid of its own, always starts as in the paper.

    >>> import torch
    >>> from gevit.groups import Dihedral
    >>> LiftingAttention(Dihedral(4), 3, 8)(torch.randn(1, 3, 7, 9)).shape
    torch.Size([1, 8, 8, 7, 9])
    """

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        heads: int = 9,
        neighborhood: int | None = 5,
        dropout: float = 0.0,
        backend: str = "auto",
        initialisation: str = "paper",
    ) -> None:
        super().__init__(group, in_channels, out_channels, heads, neighborhood, dropout, backend)
        if self.head_channels % 2:
            below, above = 4 * (out_channels // 4), 4 * (out_channels // 4) + 4
            raise ValueError(
                f"out_channels of a lifting layer must be a multiple of 4 (rows and columns share half of it), "
                f"got {out_channels}; use {f'{below} or {above}' if below else above}"
            )
        self.positions = PositionalEncoding(group, neighborhood, self.head_channels // 2)
        self._initialise(initialisation)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch out order height width"]:
        """Lift images to the group."""
        check_image(x, self.in_channels)
        return self._attend(x.unsqueeze(2))

    def attention_of_pixel(
        self, x: Float[Tensor, "batch channels height width"], pixel: tuple[int, int]
    ) -> Float[Tensor, "batch heads order 1 1 side side"]:
        """Where a pixel (row, column) looks, for each head and element h; see `gevit.attention.attention_of_pixel`."""
        check_image(x, self.in_channels)
        return self._attention_of_pixel(x.unsqueeze(2), pixel)


class GroupAttention(_Attention):
    """Self-attention on the group, with a positional encoding of offsets and elements.

    Args:
        group: the group H of the signal.
        in_channels: channels of the input signal.
        out_channels: channels of the output signal; even, at least 6.
        heads: number of heads.
        neighborhood: odd side of the square around a pixel that it attends to; None for the whole image.
        encoding: `"ge"` (the paper), `"gsa"` (GSA-Nets, not equivariant) or `"relative"` (|H| times fewer terms).
        dropout: rate of attention dropout.
        backend: see `gevit.attention`.
        initialisation: `"paper"`, or `"convolution"`: each head starts by looking at one offset and one element, as a
            filter tap does; global attention, which has no pixel grid of its own, always starts as in the paper.
    """

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        heads: int = 9,
        neighborhood: int | None = 5,
        encoding: str = "ge",
        dropout: float = 0.0,
        backend: str = "auto",
        initialisation: str = "paper",
    ) -> None:
        super().__init__(group, in_channels, out_channels, heads, neighborhood, dropout, backend)
        self.encoding = check_choice("encoding", encoding, ENCODINGS)
        part = self.head_channels // 3
        if not part:
            raise ValueError(
                f"out_channels must be at least 6 (row, column and element share half of it), got {out_channels}"
            )
        self.positions = PositionalEncoding(group, neighborhood, part, self.head_channels - 2 * part, encoding)
        self._initialise(initialisation)

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch out order height width"]:
        """Attend on the group."""
        check_signal(x, self.in_channels, self.group)
        return self._attend(x)

    def attention_of_pixel(
        self, x: Float[Tensor, "batch channels order height width"], pixel: tuple[int, int]
    ) -> Float[Tensor, "batch heads order queries order side side"]:
        """Where a pixel (row, column) looks, by head and (h, h~, h^); see `gevit.attention.attention_of_pixel`."""
        check_signal(x, self.in_channels, self.group)
        return self._attention_of_pixel(x, pixel)
