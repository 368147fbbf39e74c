"""The group equivariant vision transformer."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_count, check_image
from gevit.groups import Group
from gevit.layers import (
    Block,
    GroupAttention,
    InvariantPooling,
    LiftingAttention,
    MaxPool,
    Norm,
)
from gevit.linear import Pointwise
from gevit.models.presets import Preset


class GroupTransformer(nn.Module):
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
        super().__init__()
        self.group = group
        self.preset = preset
        check_count("num_classes", preset.num_classes)
        self.input_dropout = nn.Dropout(preset.input_dropout)
        self.lifting = nn.Sequential(
            LiftingAttention(
                group,
                preset.in_channels,
                preset.width,
                heads,
                neighborhood,
                preset.attention_dropout,
                backend,
            ),
            Norm(preset.width),
            nn.SiLU(),
        )
        self.body = nn.ModuleDict()
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
        self.pooling = InvariantPooling(pooling)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of a batch of images, of any size that the crops allow."""
        # Maps are dropped as the network goes on: only the last one is needed.
        features = collections.deque(self._maps(x), maxlen=1).pop()[1]
        logits: Tensor = self.pooling(features)
        return logits

    def forward_features(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> dict[str, Float[Tensor, "batch _ order _ _"]]:
        """Every intermediate feature map by name, from `"lifting"` to `"classes"`; each one is equivariant."""
        return dict(self._maps(x))

    def _maps(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        check_image(x, self.preset.in_channels)
        self._check_size(*x.shape[-2:])
        x = self.lifting(self.input_dropout(x))
        yield "lifting", x
        for name, layer in self.body.items():
            x = layer(x)
            yield name, x

    def _check_size(self, height: int, width: int) -> None:
        if min(height, width) < self.smallest_image:
            raise ValueError(
                f"images must be at least {self.smallest_image}x{self.smallest_image} for the crops and pools of "
                f"this network, got {height}x{width}"
            )

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
