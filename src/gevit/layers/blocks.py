"""Transformer blocks: attention and a map of each pixel, both with a shortcut."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_rate
from gevit.layers.attention import GroupAttention
from gevit.linear import Dropout, Norm, Pointwise

# The share of the usual size that the branches of a pre-norm block start with.
BRANCH = 0.5


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
    small: their last maps are scaled by `BRANCH`, the last map of attention, which sums over query elements, also by
    one over their number. `attention` must be new: its weights are scaled in place. Signals then stay about 1 or less,
    and float32 exact to rounding.
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
