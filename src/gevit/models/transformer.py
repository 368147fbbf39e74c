"""The group equivariant vision transformer."""

from __future__ import annotations

from torch import nn

from gevit.groups import Group
from gevit.layers import Block, GroupAttention, LiftingAttention, MaxPool
from gevit.linear import Norm, Pointwise
from gevit.models.base import EquivariantModel
from gevit.models.presets import Preset


class GroupTransformer(EquivariantModel):
    """Lifting, stages of blocks with a max-pool between them, a linear map to the classes, invariant pooling.

    Args:
        group: the group the network is equivariant to, besides translations.
        preset: the architecture.
        neighborhood: odd side of the square around a pixel that it attends to; None for the whole image.
        encoding: `"ge"`, `"gsa"` or `"relative"`.
        pooling: `"max_mean"` or `"sum_max"`.
        heads: number of attention heads.
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
        heads: int = 9,
        backend: str = "auto",
    ) -> None:
        lifting = LiftingAttention(
            group, preset.in_channels, preset.width, heads, neighborhood, preset.attention_dropout, backend
        )
        super().__init__(group, preset, nn.Sequential(lifting, Norm(preset.width), nn.SiLU()), pooling)
        width, crops = preset.width, iter(preset.crops)
        for stage, (blocks, widen) in enumerate(zip(preset.blocks, preset.widen, strict=True), start=1):
            for block in range(1, blocks + 1):
                wider = width * (widen if block == 1 else 1)
                attention = GroupAttention(
                    group, width, wider, heads, neighborhood, encoding, preset.attention_dropout, backend
                )
                width = wider
                self.body[f"stage{stage}_block{block}"] = Block(attention, next(crops), preset.value_dropout)
                if preset.norm_after_block:
                    self.body[f"stage{stage}_norm{block}"] = Norm(width)
                    self.body[f"stage{stage}_act{block}"] = nn.SiLU()
            if stage < len(preset.blocks) or preset.pool_last:
                self.body[f"stage{stage}_pool"] = MaxPool()
                if preset.pool_dropout:
                    self.body[f"stage{stage}_dropout"] = nn.Dropout(preset.pool_dropout)
        self.body["classes"] = Pointwise(width, preset.num_classes, bias=False)

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
