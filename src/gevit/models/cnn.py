"""Convolutional baselines: the seven layers of Cohen & Welling (2016), plain and on the group.

Six layers of 3x3 filters with batch norm and ReLU, a max-pool after the second, and a seventh of 4x4 filters to the
classes. Nothing is padded, so that 28x28 becomes one pixel.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gevit.group_conv import GroupConv
from gevit.groups import Cyclic, Group
from gevit.layers import MaxPool
from gevit.models.base import EquivariantModel
from gevit.models.presets import Preset

# The side that the seven layers leave one pixel of.
_SIDE = 28
_DROPOUT = 0.3


class Border(nn.Module):
    """Puts zeros around images smaller than `side`, as many on either side, which keeps the symmetry."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels rows columns"]:
        """Pad height and width to at least `side`."""
        top, left = (max(0, self.side - length + 1) // 2 for length in x.shape[-2:])
        return nn.functional.pad(x, (left, left, top, top))


class GroupCNN(EquivariantModel):
    """The seven layers on a group, for images of any size: the maps of the classes are pooled.

    Args:
        group: the group the network is equivariant to, besides translations.
        preset: channels, classes and dropout of the image.
        width: channels of the six layers.
        convolution: the class of the convolutions.
    """

    def __init__(self, group: Group, preset: Preset, width: int, convolution: type[GroupConv] = GroupConv) -> None:
        def layer(convolution: GroupConv, dropout: float = _DROPOUT) -> nn.Sequential:
            return nn.Sequential(convolution, nn.BatchNorm3d(width), nn.ReLU(), nn.Dropout(dropout))

        lifting = layer(convolution(group, preset.in_channels, width, lifting=True))
        super().__init__(group, preset, nn.Sequential(Border(_SIDE), *lifting))
        self.body["layer2"] = layer(convolution(group, width, width), dropout=0.0)
        self.body["pool"] = MaxPool()
        for index in range(3, 7):
            self.body[f"layer{index}"] = layer(convolution(group, width, width))
        self.body["classes"] = convolution(group, width, preset.num_classes, size=4)


def z2_cnn(preset: Preset) -> GroupCNN:
    """The plain network, equivariant to translations alone.

    >>> from gevit.models import PRESETS
    >>> sum(p.numel() for p in z2_cnn(PRESETS["rotmnist"]).parameters())
    21620
    """
    return GroupCNN(Cyclic(1), preset, width=20)


def p4_cnn(preset: Preset) -> GroupCNN:
    """The network on the four rotations, with the 19 channels that give it the paper's 75 thousand parameters.

    >>> from gevit.models import PRESETS
    >>> sum(p.numel() for p in p4_cnn(PRESETS["rotmnist"]).parameters())
    77539
    """
    return GroupCNN(Cyclic(4), preset, width=19)
