"""Equivariant layers: lifting, group attention, blocks, pooling.

Images are `[batch, channels, height, width]`. Lifting takes an image to a signal on the group H, one map for each of
its |H| elements, `[batch, channels, |H|, height, width]`; the layers after it take signals to signals, and pooling
over group and space gives what no rotation or reflection of H changes.
"""

from gevit.layers.attention import INITIALISATIONS, GroupAttention, LiftingAttention
from gevit.layers.blocks import Block, Crop, PreNormBlock, StochasticDepth
from gevit.layers.domain import POOLINGS, Downsample, InvariantPooling, MaxPool, Restriction, Upsample

__all__ = [
    "INITIALISATIONS",
    "POOLINGS",
    "Block",
    "Crop",
    "Downsample",
    "GroupAttention",
    "InvariantPooling",
    "LiftingAttention",
    "MaxPool",
    "PreNormBlock",
    "Restriction",
    "StochasticDepth",
    "Upsample",
]
