"""The group equivariant vision transformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from torch import Tensor, nn

from gevit._checks import check_rate
from gevit.group_conv import GroupConv, ResidualConv
from gevit.groups import Group, named_group
from gevit.layers import (
    Block,
    Downsample,
    GroupAttention,
    LiftingAttention,
    MaxPool,
    PreNormBlock,
    Restriction,
    StochasticDepth,
)
from gevit.linear import Dropout, Norm, Pointwise
from gevit.models.base import EquivariantModel
from gevit.models.presets import Preset, Stage

Neighborhood = int | None
T = TypeVar("T")


class GroupTransformer(EquivariantModel):
    """Lifting (by attention, or by a convolution), stages of layers, a map to the classes, invariant pooling.

    Args:
        group: the group of the first feature maps, and of all unless restricted.
        preset: the architecture.
        neighborhood: odd side of the square around a pixel that it attends to, None for the whole image; or one for
            each stage.
        encoding: `"ge"`, `"gsa"` or `"relative"`, or one for each stage.
        pooling: `"max_mean"` or `"sum_max"`.
        backend: see `gevit.attention`.
        restrict: a subgroup, such as `"c4"`, that the feature maps live on from the last stage on, or with a number,
            such as `"c4@2"`, from that stage on (1 is the first). The network is then equivariant to the subgroup
            alone: early layers share weights among more orientations than late ones tell apart.
        initialisation: how attention starts, `"paper"` or `"convolution"` (see `GroupAttention`); None for what the
            architecture is made for: the paper's as in the paper, the others like a convolution.
        truncate: whether max-pools drop the last row and column of odd sides, as the authors' code does.

    Attributes:
        group: the group the network is equivariant to, besides translations.
    """

    lifting: nn.Sequential

    def __init__(
        self,
        group: Group,
        preset: Preset,
        neighborhood: Neighborhood | Sequence[Neighborhood] = 5,
        encoding: str | Sequence[str] = "ge",
        pooling: str = "max_mean",
        backend: str = "auto",
        restrict: str | None = None,
        initialisation: str | None = None,
        truncate: bool = False,
    ) -> None:
        initialisation = initialisation or ("convolution" if preset.stem else "paper")
        stages = len(preset.stages)
        neighborhoods: list[Neighborhood] = _for_each_stage("neighborhood", neighborhood, stages)
        encodings: list[str] = _for_each_stage("encoding", encoding, stages)
        subgroup, restricted_stage = _restriction(restrict, group, stages)
        if preset.stem:
            lifting = _convolution(group, preset.in_channels, preset.stem, 5, lifting=True)
        else:
            attention = LiftingAttention(
                group,
                preset.in_channels,
                preset.stages[0].width,
                preset.heads,
                neighborhoods[0],
                preset.attention_dropout,
                backend,
                initialisation,
            )
            lifting = nn.Sequential(attention, Norm(attention.out_channels), nn.SiLU())
        super().__init__(subgroup, preset, lifting, pooling)
        self._seen = Restriction(group, subgroup)
        width = preset.stem or preset.stages[0].width
        for number, stage in enumerate(preset.stages, start=1):
            if number == restricted_stage:
                restriction = Restriction(group, subgroup)
                self.body["restriction"] = nn.Sequential(restriction, Pointwise(restriction.index * width, width))
                group = subgroup
            options = (neighborhoods[number - 1], encodings[number - 1], backend, initialisation)
            for name, layer in self._stage(group, stage, width, *options):
                self.body[f"stage{number}_{name}"] = layer
            width = stage.width
            if number < stages or preset.pool_last:
                self.body[f"stage{number}_pool"] = Downsample() if preset.stem else MaxPool(truncate)
                if preset.pool_dropout:
                    self.body[f"stage{number}_dropout"] = Dropout(preset.pool_dropout)
        if preset.stem:
            self.body["norm"] = nn.BatchNorm3d(width)
        self._end_body(width)
        self.set_drop_path(preset.drop_path)

    def _stage(
        self,
        group: Group,
        stage: Stage,
        width: int,
        neighborhood: Neighborhood,
        encoding: str,
        backend: str,
        initialisation: str,
    ) -> Iterator[tuple[str, nn.Module]]:
        """The layers of a stage, by name."""
        preset = self.preset
        for number in range(1, stage.convolutions + 1):
            yield (
                f"conv{number}",
                (_convolution(group, width, stage.width, 3) if number == 1 else ResidualConv(group, width)),
            )
            width = stage.width
        crops = stage.crops or (0,) * stage.blocks
        for number, crop in enumerate(crops, start=1):
            attention = GroupAttention(
                group,
                width,
                stage.width,
                preset.heads,
                neighborhood,
                encoding,
                preset.attention_dropout,
                backend,
                initialisation,
            )
            width = stage.width
            yield (
                f"block{number}",
                (
                    PreNormBlock(attention, preset.value_dropout)
                    if preset.stem
                    else Block(attention, crop, preset.value_dropout)
                ),
            )
            if preset.norm_after_block:
                yield f"norm{number}", Norm(width)
                yield f"act{number}", nn.SiLU()

    def set_drop_path(self, rate: float) -> None:
        """Set the rate of stochastic depth of the last pre-norm block, which falls linearly to 0 at the first."""
        check_rate("the rate of stochastic depth", rate)
        paths = [layer for layer in self.modules() if isinstance(layer, StochasticDepth)]
        for number, path in enumerate(paths):
            path.rate = rate * number / max(1, len(paths) - 1)

    def iterate_features(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Every map as a signal on `group`, also those before a restriction to it."""
        for name, signal in super().iterate_features(x):
            yield name, self._seen(signal) if signal.shape[2] != self.group.order else signal

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
    """A convolution with norm and activation; one that lifts halves height and width."""
    convolution = GroupConv(group, width, wider, size, padding=size // 2, lifting=lifting, halve=lifting)
    return nn.Sequential(convolution, nn.BatchNorm3d(wider), nn.SiLU())


def _for_each_stage(what: str, value: T | Sequence[T], stages: int) -> list[T]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * stages
    if len(value) != stages:
        raise ValueError(f"{what} must be one value, or one for each of the {stages} stages; got {value!r}")
    return list(value)


def _restriction(restrict: str | None, group: Group, stages: int) -> tuple[Group, int | None]:
    """The subgroup, and the stage from which on feature maps live on it."""
    if restrict is None:
        return group, None
    if not isinstance(restrict, str):
        raise TypeError(f"restrict is the name of a subgroup, such as 'c4', got {restrict!r}")
    name, at, number = restrict.partition("@")
    if at and not (number.isdecimal() and 1 <= int(number) <= stages):
        raise ValueError(f"restrict={restrict!r}: the stage after @ must be from 1 to {stages}")
    return named_group(name), int(number) if at else stages
