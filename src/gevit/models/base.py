"""What every model of the registry is."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_count, check_image
from gevit.groups import Group
from gevit.layers import InvariantPooling
from gevit.models.info import ModelInfo
from gevit.models.presets import Preset


class EquivariantModel(nn.Module):
    """A classifier of images: a lifting to the group, a body of named layers on the group, invariant pooling.

    Subclasses fill the body; its last layer, `"classes"`, gives one channel for each class. A model that knows no
    rotations or reflections lives on `Cyclic(1)`, the group of one element.

    Args:
        group: the group of the feature maps.
        preset: the data set's part of the architecture: channels, classes, dropout of the image.
        lifting: takes images to signals on the group.
        pooling: `"max_mean"` or `"sum_max"`.

    Attributes:
        info: what is known of a trained model, None for one with random weights.
    """

    info: ModelInfo | None = None

    def __init__(self, group: Group, preset: Preset, lifting: nn.Module, pooling: str = "max_mean") -> None:
        super().__init__()
        self.group = group
        self.preset = preset
        check_count("num_classes", preset.num_classes)
        self.input_dropout = nn.Dropout(preset.input_dropout)
        self.lifting = lifting
        self.body = nn.ModuleDict()
        self.pooling = InvariantPooling(pooling)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of a batch of images, of any size from `smallest_image` on."""
        # Maps are dropped as the network goes on: only the last one is needed.
        features = collections.deque(self._maps(x), maxlen=1).pop()[1]
        logits: Tensor = self.pooling(features)
        return logits

    def forward_features(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> dict[str, Float[Tensor, "batch _ order _ _"]]:
        """Every intermediate feature map by name, from `"lifting"` to `"classes"`."""
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
                f"images must be at least {self.smallest_image}x{self.smallest_image} for this network, "
                f"got {height}x{width}"
            )

    @property
    def smallest_image(self) -> int:
        """The smallest height and width that the network takes."""
        return 1


def info_of(model: nn.Module) -> ModelInfo:
    """What is known of a model that `load` gave, alone or in an `Orbit`."""
    info = getattr(model, "info", None)
    if not isinstance(info, ModelInfo):
        raise ValueError("only a model that was read with gevit.load knows its classes and its normalisation")
    return info
