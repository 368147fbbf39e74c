"""Equivariant layers: lifting, group attention, block, pooling.

Images are `[batch, channels, height, width]`. Lifting takes an image to a signal on the group H, one map for each of
its |H| elements, `[batch, channels, |H|, height, width]`; the layers after it take signals to signals, and pooling
over group and space gives what no rotation or reflection of H changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import (
    check_choice,
    check_count,
    check_image,
    check_neighborhood,
    check_rate,
    check_signal,
)
from gevit.attention import BACKENDS, Projections, attend_projected, attention_of_pixel
from gevit.encoding import ENCODINGS, PositionalEncoding
from gevit.groups import Group
from gevit.linear import Dropout, Norm, Pointwise, halving_window

INITIALISATIONS = ("paper", "convolution")
POOLINGS = ("max_mean", "sum_max")

# How attention starts that starts like a convolution: the fall of a score per square pixel, what the wanted element is
# worth, and the share of the usual content scores.
SHARPNESS, PREFERENCE, CONTENT = 3.0, 2.0, 0.3
# The share of the usual size that the branches of a pre-norm block start with.
BRANCH = 0.5


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
        self.group = group
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
        weights, biases = torch.stack([m.weight for m in maps]), torch.stack([m.bias for m in maps])
        return attend_projected(
            x,
            Projections(weights, biases, self.out.weight, self.out.bias),
            self.positions(*x.shape[-2:]),
            heads=self.heads,
            scale=1 / math.sqrt(self.in_channels),
            dropout=self.dropout if self.training else 0.0,
            backend=self.backend,
        )

    def _attention_of_pixel(self, x: Tensor, pixel: tuple[int, int]) -> Tensor:
        query, key = (m(x).unflatten(1, (self.head_channels, self.heads)) for m in (self.query, self.key))
        scale = 1 / math.sqrt(self.in_channels)
        return attention_of_pixel(query, key, self.positions(*x.shape[-2:]), pixel, scale=scale)

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
        fit is exact for quarter turns and flips up to 15x15, and approximate for finer rotations. Lifting has no
        elements, and its heads start at offsets alone.
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
            function.fit(coordinates, size * torch.stack([coordinates**2, coordinates], dim=1))
        codes = torch.empty(1, 0)
        if element is not None:
            codes = F.normalize(nn.init.orthogonal_(torch.empty_like(element)), dim=1)
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
            raise ValueError(
                f"out_channels of a lifting layer must be a multiple of 4 (rows and columns share half of it), "
                f"got {out_channels}; use {max(4, 4 * (out_channels // 4))} or {4 * (out_channels // 4) + 4}"
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


class Crop(nn.Module):
    """Removes `border` pixels on each side."""

    def __init__(self, border: int) -> None:
        super().__init__()
        self.border = border

    def forward(self, x: Tensor) -> Tensor:
        """Crop the last two axes."""
        if not self.border:
            return x
        if min(x.shape[-2:]) <= 2 * self.border:
            raise ValueError(
                f"a {x.shape[-2]}x{x.shape[-1]} map is too small to crop {self.border} on each side; use larger images"
            )
        return x[..., self.border : -self.border, self.border : -self.border]


class Block(nn.Module):
    """A transformer block: x + dropout(act(norm(attention(act(norm(x)))))), then y + norm(lin(act(norm(lin(y))))).

    The attention branch and the shortcut are cropped by `crop` pixels; the shortcut is a linear map where the
    widths differ.
    """

    def __init__(self, attention: GroupAttention, crop: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        width, hidden = attention.out_channels, attention.out_channels // 2
        self.crop = crop
        self.attention = nn.Sequential(
            Norm(attention.in_channels),
            nn.SiLU(),
            attention,
            Norm(width),
            Crop(crop),  # here, not last: what follows works on each pixel alone
            nn.SiLU(),
            Dropout(check_rate("dropout", dropout)),
        )
        same = attention.in_channels == width
        self.shortcut = nn.Sequential(nn.Identity() if same else Pointwise(attention.in_channels, width), Crop(crop))
        self.mlp = nn.Sequential(
            Pointwise(width, hidden), Norm(hidden), nn.SiLU(), Pointwise(hidden, width), Norm(width)
        )

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch out order rows columns"]:
        """Apply the block."""
        x = self.attention(x) + self.shortcut(x)
        y: Tensor = self.mlp(x) + x
        return y


class StochasticDepth(nn.Module):
    """Leaves a residual branch out in training, image by image at this rate, and scales it up where it stays."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = check_rate("rate", rate)

    def forward(
        self, branch: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch channels order height width"]:
        """Zero the branches of some images."""
        if not (self.training and self.rate):
            return branch
        kept = torch.rand(len(branch), device=branch.device) >= self.rate
        return branch * (kept / (1 - self.rate)).to(branch.dtype).view(-1, 1, 1, 1, 1)

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return f"rate={self.rate:.3g}"


class PreNormBlock(nn.Module):
    """A transformer block as is usual today: x + attention(norm(x)), then x + mlp(norm(x)), with batch norms.

    A batch norm scales every channel alike at all elements and pixels, so it commutes with the group.

    Nothing normalises what a branch adds, and before training the batch norms do nothing either. So both branches start
    small: their last maps are scaled by `BRANCH`, that of attention, which sums over query elements, by as much of
    their mean (`attention` is taken to be new). Signals then stay about 1 or less, and float32 exact to rounding.
    """

    def __init__(self, attention: GroupAttention, dropout: float = 0.0) -> None:
        super().__init__()
        width, hidden = attention.out_channels, 2 * attention.out_channels
        first, last = Pointwise(width, hidden), Pointwise(hidden, width)
        self.attention = nn.Sequential(nn.BatchNorm3d(width), attention, Dropout(check_rate("dropout", dropout)))
        self.mlp = nn.Sequential(nn.BatchNorm3d(width), first, nn.SiLU(), last, Dropout(dropout))
        self.path = StochasticDepth()
        queries = attention.positions.element_index.shape[1]
        with torch.no_grad():
            attention.out.weight.mul_(BRANCH / queries)
            last.weight.mul_(BRANCH)

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch channels order height width"]:
        """Apply the block."""
        x = x + self.path(self.attention(x))
        y: Tensor = x + self.path(self.mlp(x))
        return y


class Restriction(nn.Module):
    """A signal on a group H, seen as one on its subgroup K: f_r(x, k) = f(x, k r), nothing of it is lost.

    K moves the elements of H within its cosets K r. Each coset becomes a channel of its own, so there are |H| / |K|
    times the channels.

    Attributes:
        index: |H| / |K|.

    >>> from gevit.groups import Cyclic, Dihedral
    >>> Restriction(Dihedral(4), Cyclic(4))(torch.randn(1, 3, 8, 5, 5)).shape
    torch.Size([1, 6, 4, 5, 5])
    """

    cosets: Tensor

    def __init__(self, group: Group, subgroup: Group) -> None:
        super().__init__()
        members = group.elements_of(subgroup)
        cosets = group.product[members]  # [k, r] is k r
        smallest = cosets.amin(0)
        self.register_buffer("cosets", cosets[:, smallest.unique()].T, persistent=False)
        self.group, self.index = group, len(self.cosets)

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch more suborder height width"]:
        """Split the group axis into cosets."""
        check_signal(x, x.shape[1], self.group)
        cosets: Tensor = x[:, :, self.cosets]
        return cosets.flatten(1, 2)


class Downsample(nn.Module):
    """Halves height and width after a blur, and commutes exactly with quarter turns and flips.

    The sampled points must be the same seen from either end. An even side keeps the middles between its pixels, blurred
    by (1, 3, 3, 1) / 8, n / 2 of them; an odd side keeps every other pixel from the first to the last, blurred by
    (1, 2, 1) / 4, (n + 1) / 2 of them. Outside, the border pixel goes on. A side of 1 stays.
    """

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch channels order rows columns"]:
        """Blur and sample the last two axes."""
        planes = x.flatten(1, 2)
        window = halving_window(planes).expand(planes.shape[1], 1, -1, -1)
        planes = F.pad(planes, (1, 1, 1, 1), mode="replicate")
        halved: Tensor = F.conv2d(planes, window, stride=2, groups=planes.shape[1]).unflatten(1, x.shape[1:3])
        return halved


class Upsample(nn.Module):
    """Takes maps back to the height and width they had before a `Downsample`: what a decoder needs.

    Interpolates linearly between the points that `Downsample` kept. An even side has them in the middles between
    pixels, an odd one at every other pixel, so the two are stretched differently, and what is upsampled lies where it
    was: on top of the finer maps that a decoder adds.

    >>> Upsample()(torch.randn(1, 3, 8, 4, 3), (7, 6)).shape
    torch.Size([1, 3, 8, 7, 6])
    """

    def forward(
        self, x: Float[Tensor, "batch channels *order rows columns"], size: Sequence[int]
    ) -> Float[Tensor, "batch channels *order height width"]:
        """Interpolate the last two axes to `size`."""
        if [(side + 1) // 2 for side in size] != list(x.shape[-2:]):
            raise ValueError(
                f"a map of {x.shape[-2]}x{x.shape[-1]} is not what halving {size[0]}x{size[1]} gives: half of each "
                "side, rounded up"
            )
        planes = x.flatten(1, -3)
        for sides, stretched_side in (((size[0], x.shape[-1]), size[0]), (tuple(size), size[1])):
            planes = F.interpolate(planes, sides, mode="bilinear", align_corners=stretched_side % 2 == 1)
        out: Tensor = planes.unflatten(1, x.shape[1:-2])
        return out


class MaxPool(nn.Module):
    """Max-pooling that halves height and width and commutes exactly with quarter turns and flips.

    An even side is cut into pairs. An odd side cannot be; dropping its last pixel, as is usual, breaks the symmetry.
    Instead windows of 3 overlap by one, which is the same seen from either end and gives the usual size, (n - 1) / 2.
    With `truncate`, the last pixel is dropped, as the authors' code does.
    """

    def __init__(self, truncate: bool = False) -> None:
        super().__init__()
        self.truncate = truncate

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch channels order rows columns"]:
        """Pool the last two axes; a side of 1 stays."""
        sides = x.shape[-2:]
        window = [side if side == 1 else 2 if side % 2 == 0 or self.truncate else 3 for side in sides]
        stride = [min(side, 2) for side in sides]
        return F.max_pool3d(x, (1, *window), (1, *stride))


class InvariantPooling(nn.Module):
    """Pools a signal over group and space, to what no rotation, reflection or translation of the group changes.

    `"max_mean"` is the paper's: the maximum over the group, then the mean over space. `"sum_max"` is the authors'
    code: the sum over space, then the maximum over the group.
    """

    def __init__(self, pooling: str = "max_mean") -> None:
        super().__init__()
        self.pooling = check_choice("pooling", pooling, POOLINGS)

    def forward(self, x: Float[Tensor, "batch channels order height width"]) -> Float[Tensor, "batch channels"]:
        """Pool over all axes but batch and channels."""
        if self.pooling == "max_mean":
            return x.amax(2).mean((-2, -1))
        return x.sum((-2, -1)).amax(2)

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return repr(self.pooling)
