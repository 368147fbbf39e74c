"""The group equivariant vision transformer."""

from __future__ import annotations

from torch import nn

from gevit.group_conv import GroupConv
from gevit.groups import Group
from gevit.layers import Block, Downsample, GroupAttention, LiftingAttention, MaxPool, PreNormBlock
from gevit.linear import Norm, Pointwise
from gevit.models.base import EquivariantModel
from gevit.models.presets import Preset


class GroupTransformer(EquivariantModel):
    """Lifting (by attention, or by a stem of convolutions), stages of blocks, a map to the classes, invariant pooling.

    Args:
        group: the group the network is equivariant to, besides translations.
        preset: the architecture.
        neighborhood: odd side of the square around a pixel that it attends to; None for the whole image.
        encoding: `"ge"`, `"gsa"` or `"relative"`.
        pooling: `"max_mean"` or `"sum_max"`.
        backend: see `gevit.attention`.
    """

    lifting: nn.Sequential

    def __init__(
        self,
        group: Group,
        preset: Preset,
        neighborhood: int | None = 5,
        encoding: str = "ge",
        pooling: str = "max_mean",
        backend: str = "auto",
    ) -> None:
        dropout = preset.attention_dropout
        if preset.stem:
            lifting = _convolution(group, preset.in_channels, preset.stem[0], 5, lifting=True)
        else:
            attention = LiftingAttention(
                group, preset.in_channels, preset.width, preset.heads, neighborhood, dropout, backend
            )
            lifting = nn.Sequential(attention, Norm(preset.width), nn.SiLU())
        super().__init__(group, preset, lifting, pooling)
        self._add_stem()

        width, crops = preset.width, iter(preset.crops)
        initialisation = "convolution" if preset.stem else "paper"
        for stage, (blocks, widen) in enumerate(zip(preset.blocks, preset.widen, strict=True), start=1):
            for block in range(1, blocks + 1):
                wider, crop = width * (widen if block == 1 else 1), next(crops)
                layer = GroupAttention(
                    group, width, wider, preset.heads, neighborhood, encoding, dropout, backend, initialisation
                )
                width = wider
                self.body[f"stage{stage}_block{block}"] = (
                    PreNormBlock(layer, preset.value_dropout)
                    if preset.stem
                    else Block(layer, crop, preset.value_dropout)
                )
                if preset.norm_after_block:
                    self.body[f"stage{stage}_norm{block}"] = Norm(width)
                    self.body[f"stage{stage}_act{block}"] = nn.SiLU()
            if stage < len(preset.blocks) or preset.pool_last:
                self.body[f"stage{stage}_pool"] = MaxPool()
                if preset.pool_dropout:
                    self.body[f"stage{stage}_dropout"] = nn.Dropout(preset.pool_dropout)
        if preset.stem:
            self.body["norm"] = nn.BatchNorm3d(width)
        self.body["classes"] = Pointwise(width, preset.num_classes, bias=False)

    def _add_stem(self) -> None:
        """Down-sampling after each convolution of the stem, the first of which is the lifting."""
        widths = self.preset.stem
        for index, width in enumerate(widths, start=1):
            self.body[f"stem_pool{index}"] = Downsample()
            if index < len(widths):
                self.body[f"stem_conv{index + 1}"] = _convolution(self.group, width, widths[index], 3)

    @property
    def smallest_image(self) -> int:
        """The smallest height and width that the crops leave a pixel of."""
        side = 1
        for layer in reversed(list(self.body.values())):
            if isinstance(layer, MaxPool):
                side = 2 * side if side > 1 else 1
            elif isinstance(layer, Block):
                side += 2 * layer.crop
        return side


def _convolution(group: Group, width: int, wider: int, size: int, lifting: bool = False) -> nn.Sequential:
    convolution = GroupConv(group, width, wider, size, padding=size // 2, lifting=lifting)
    return nn.Sequential(convolution, nn.BatchNorm3d(wider), nn.SiLU())
