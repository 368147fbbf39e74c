"""A model as a backbone: the feature maps of its stages, for a head of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gevit.group_conv import GroupConv
from gevit.layers import Downsample, MaxPool
from gevit.models.base import EquivariantModel, in_evaluation_mode


class MapInfo(NamedTuple):
    """What is known of the map of a stage before it is computed.

    Attributes:
        name: the layer that gives it, as in `forward_features`.
        channels: its channels.
        order: the elements of the model's group, |H|.
        reduction: how many pixels of the image are one of the map (up to a border, where layers crop).
    """

    name: str
    channels: int
    order: int
    reduction: int


class FeatureInfo(list[MapInfo]):
    """The stages in the order of their maps; `channels()`, `reduction()` and `module_name()` are spelled as in timm."""

    def channels(self) -> list[int]:
        """The channels of each map."""
        return [stage.channels for stage in self]

    def orders(self) -> list[int]:
        """The order of the group of each map."""
        return [stage.order for stage in self]

    def reduction(self) -> list[int]:
        """The reduction of each map."""
        return [stage.reduction for stage in self]

    def module_name(self) -> list[str]:
        """The layer of each map."""
        return [stage.name for stage in self]


class FeatureMaps(nn.Module):
    """Gives the last map at each resolution of a model, from the finest on, as signals on the group.

    Each is equivariant. The maximum over its group axis, `map.amax(2)`, is an image that rotates with the input and has
    no group axis: what a decoder or a detector takes.

    Args:
        model: a model; its classifier, if it has one, is not used.
        out_indices: which of the maps, in which order; negative ones count from the end. All of them if not given.

    >>> from gevit.models import build_model
    >>> features = FeatureMaps(build_model("r4_sa", preset="tiny"), out_indices=(-2, -1))
    >>> features.feature_info.channels(), features.feature_info.reduction()
    ([16, 32], [4, 8])
    >>> [tuple(x.shape) for x in features.eval()(torch.randn(1, 3, 64, 48))]
    [(1, 16, 4, 16, 12), (1, 32, 4, 8, 6)]
    """

    def __init__(self, model: EquivariantModel, out_indices: Sequence[int] | None = None) -> None:
        super().__init__()
        self.model = model
        self.group = model.group
        self.training = model.training
        stages = _stages(model)
        chosen = range(len(stages)) if out_indices is None else out_indices
        if not isinstance(chosen, Sequence):
            raise TypeError(f"out_indices must be several, such as (-1,) for the last map, got {out_indices!r}")
        for index in chosen:
            if not -len(stages) <= index < len(stages):
                raise ValueError(
                    f"out_indices must be from 0 to {len(stages) - 1} for the {len(stages)} maps of this model "
                    f"({', '.join(stage.name for stage in stages)}), got {index}"
                )
        self.feature_info = FeatureInfo(stages[index] for index in chosen)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> list[Float[Tensor, "batch _ _ _ _"]]:
        """The maps; layers after the last of them are not run."""
        names = self.feature_info.module_name()
        maps: dict[str, Tensor] = {}
        for name, signal in self.model.iterate_features(x):
            if name in names:
                maps[name] = signal
            if len(maps) == len(set(names)):
                break
        return [maps[name] for name in names]


def _stages(model: EquivariantModel) -> list[MapInfo]:
    """The last map at each resolution; how many channels it has is seen on a small image."""
    parameter = next(model.lifting.parameters())
    image = parameter.new_zeros(1, model.preset.in_channels, *2 * [model.smallest_image])
    layers = {"lifting": model.lifting, **model.body}
    reduction = 1
    found: dict[int, MapInfo] = {}
    with torch.no_grad(), in_evaluation_mode(model):
        for name, signal in model.iterate_features(image):
            reduction *= _stride(layers[name])
            if name != "classes":
                found[reduction] = MapInfo(name, signal.shape[1], signal.shape[2], reduction)
    return list(found.values())


def halves(layer: nn.Module) -> bool:
    """Whether a layer, by itself and not by one inside of it, halves the height and width of a signal."""
    return isinstance(layer, Downsample | MaxPool) or (isinstance(layer, GroupConv) and layer.halve)


def _stride(layer: nn.Module) -> int:
    """By how much a layer reduces height and width."""
    strides = 1
    for part in layer.modules():
        if halves(part):
            strides *= 2
        elif isinstance(part, nn.Conv2d):
            strides *= part.stride[0]
    return strides
