"""A small vision transformer with conditional positional encoding: CPVT of Chu et al. (2021), with average pooling.

Tokens are patches. What tells them apart is a depthwise 3x3 convolution after the first block, whose zeros at the
border show where a token is. It knows no rotations: its maps live on the group of one element.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gevit.groups import Cyclic
from gevit.linear import Dropout, Linear, Norm
from gevit.models.base import EquivariantModel
from gevit.models.presets import Preset

_PATCH = 4

Tokens = Float[Tensor, "batch channels 1 rows columns"]


class Patches(nn.Module):
    """Cuts an image into squares and maps each to a token; pixels beyond the last whole square are left out."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(in_channels, width, _PATCH, stride=_PATCH)

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Tokens:
        """Embed the patches."""
        tokens: Tensor = self.embed(x).unsqueeze(2)
        return tokens


class PositionGenerator(nn.Module):
    """The conditional positional encoding: x + a depthwise 3x3 convolution of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x: Tokens) -> Tokens:
        """Add positions."""
        positions: Tensor = self.convolution(x.squeeze(2))
        return x + positions.unsqueeze(2)


class SelfAttention(nn.Module):
    """Attention of every token to all, with several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = Linear(width, 3 * width)
        self.out = Linear(width, width)

    def forward(self, x: Float[Tensor, "batch tokens channels"]) -> Float[Tensor, "batch tokens channels"]:
        """Attend."""
        parts = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class EncoderBlock(nn.Module):
    """A transformer block: x + attention(norm(x)), then y + mlp(norm(y))."""

    def __init__(self, width: int, heads: int, attention_dropout: float, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width), SelfAttention(width, heads, attention_dropout), Dropout(dropout)
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), Linear(width, 2 * width), nn.GELU(), Linear(2 * width, width), Dropout(dropout)
        )

    def forward(self, x: Tokens) -> Tokens:
        """Apply the block."""
        tokens: Tensor = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens)
        tokens = tokens + self.mlp(tokens)
        return tokens.transpose(1, 2).reshape(x.shape)


class ConditionalTransformer(EquivariantModel):
    """Patches, blocks with the positional encoding after the first, a linear map to the classes, average pooling.

    Args:
        preset: channels, classes and dropout.
        width: channels of a token.
        blocks: number of blocks.
        heads: number of attention heads.
    """

    def __init__(self, preset: Preset, width: int, blocks: int, heads: int) -> None:
        super().__init__(Cyclic(1), preset, Patches(preset.in_channels, width))
        for block in range(1, blocks + 1):
            self.body[f"block{block}"] = EncoderBlock(width, heads, preset.attention_dropout, preset.value_dropout)
            if block == 1:
                self.body["positions"] = PositionGenerator(width)
        self.body["norm"] = Norm(width)
        self._end_body(width)

    @property
    def smallest_image(self) -> int:
        """One patch."""
        return _PATCH


def cpvt(preset: Preset) -> ConditionalTransformer:
    """The network at about the size of the group transformer for rotMNIST.

    >>> from gevit.models import PRESETS
    >>> sum(p.numel() for p in cpvt(PRESETS["rotmnist"]).parameters())
    43968
    """
    return ConditionalTransformer(preset, width=32, blocks=5, heads=4)
