"""Convolutional baselines: the seven layers of Cohen & Welling (2016), plain, on the group, and with attention.

Six layers of 3x3 filters with batch norm and ReLU, a max-pool after the second, and a seventh of 4x4 filters to the
classes. Nothing is padded, so that 28x28 becomes one pixel. Romero et al. (2020) replace the group convolutions by
attentive ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gevit.group_conv import FilterBank, GroupConv, random_filters
from gevit.groups import Cyclic, Group
from gevit.layers import MaxPool
from gevit.linear import Dropout
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
        return F.pad(x, (left, left, top, top))


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
            return nn.Sequential(convolution, nn.BatchNorm3d(width), nn.ReLU(), Dropout(dropout))

        lifting = layer(convolution(group, preset.in_channels, width, lifting=True))
        super().__init__(group, preset, nn.Sequential(Border(_SIDE), *lifting))
        self.body["layer2"] = layer(convolution(group, width, width), dropout=0.0)
        self.body["pool"] = MaxPool()
        for index in range(3, 7):
            self.body[f"layer{index}"] = layer(convolution(group, width, width))
        self._convolution = convolution
        self._end_body(width)

    def _classifier(self, num_classes: int) -> nn.Module:
        return self._convolution(self.group, self.num_features, num_classes, size=4)


Responses = Float[Tensor, "batch out order channels elements height width"]


class ChannelAttention(nn.Module):
    """Which channels matter: a small network, one for each output, of their means and of their maxima over space."""

    def __init__(self, group: Group, in_channels: int, out_channels: int, lifting: bool) -> None:
        super().__init__()
        hidden, elements = max(1, in_channels // 2), 1 if lifting else group.order
        self.bank = FilterBank(group, 1, lifting)
        self.squeeze = random_filters(out_channels, hidden, in_channels, elements, 1, 1, fan_in=in_channels)
        self.excite = random_filters(out_channels, in_channels, hidden, elements, 1, 1, fan_in=hidden)

    def forward(self, responses: Responses) -> Float[Tensor, "batch out order channels elements 1 1"]:
        """Weights in [0, 1]."""
        squeeze, excite = (self.bank(filters).flatten(-3) for filters in (self.squeeze, self.excite))
        summaries = torch.stack([responses.mean((-2, -1)), responses.amax((-2, -1))])
        hidden = torch.einsum("omche,sbohce->sbohme", squeeze, summaries).relu()
        return torch.einsum("ocmhe,sbohme->bohce", excite, hidden).sigmoid()[..., None, None]


class SpatialAttention(nn.Module):
    """Which positions matter: a convolution, one for each output, of mean and maximum over the channels."""

    def __init__(self, group: Group, out_channels: int, lifting: bool, size: int = 7) -> None:
        super().__init__()
        self.padding = size // 2
        self.bank = FilterBank(group, size, lifting)
        self.weight = random_filters(out_channels, 2, 1 if lifting else group.order, size, size, fan_in=2 * size**2)

    def forward(self, responses: Responses) -> Float[Tensor, "batch out order 1 elements height width"]:
        """Weights in [0, 1]."""
        summaries = torch.stack([responses.mean(3), responses.amax(3)], dim=2)
        filters = self.bank(self.weight).flatten(0, 3).unsqueeze(1)
        maps = F.conv2d(summaries.flatten(1, 4), filters, padding=self.padding, groups=len(filters))
        return maps.view(summaries.shape).sum(2).sigmoid().unsqueeze(3)


class AttentiveConv(GroupConv):
    """The attentive group convolution of Romero et al. (2020); its arguments are those of `GroupConv`.

    A convolution sums what every input channel c at every element h^ responds to the filters of output channel o at
    element h. Here each response is weighed before the sum: by an attention over the channels and one over positions.
    Both are learned functions of the responses that see elements only as h^-1 h^ and positions only as h^-1 y, so the
    weights move with the signal and the sum stays equivariant. The responses are held all at once: |H|^2 maps for each
    pair of channels.

    >>> convolution = AttentiveConv(Cyclic(4), 3, 5, lifting=True)
    >>> convolution(torch.randn(1, 3, 9, 12)).shape
    torch.Size([1, 5, 4, 7, 10])
    """

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        size: int = 3,
        padding: int = 0,
        lifting: bool = False,
    ) -> None:
        super().__init__(group, in_channels, out_channels, size, padding, lifting)
        self.channels = ChannelAttention(group, in_channels, out_channels, lifting)
        self.positions = SpatialAttention(group, out_channels, lifting)

    def _convolve(
        self,
        x: Float[Tensor, "batch channels elements height width"],
        bank: Float[Tensor, "out channels order elements size size"],
    ) -> Float[Tensor, "batch out order rows columns"]:
        responses = self._responses(x, bank)
        attention: Tensor = self.channels(responses)
        attention = attention * self.positions(attention * responses)
        # As the authors have it, attention says what to leave out: gradients pass where it is small.
        return (responses * (1 - attention)).sum((3, 4))

    def _responses(self, x: Tensor, bank: Tensor) -> Responses:
        inputs, outputs = x.shape[1:3], (self.out_channels, self.group.order)
        filters = bank.permute(1, 3, 0, 2, 4, 5).flatten(0, 3).unsqueeze(1)
        maps = F.conv2d(x.flatten(1, 2), filters, padding=self.padding, groups=inputs.numel())
        return maps.view(x.shape[0], *inputs, *outputs, *maps.shape[-2:]).permute(0, 3, 4, 1, 2, 5, 6)


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


def alpha_p4_cnn(preset: Preset) -> GroupCNN:
    """The seven layers on the four rotations, with attentive convolutions.

    >>> from gevit.models import PRESETS
    >>> sum(p.numel() for p in alpha_p4_cnn(PRESETS["rotmnist"]).parameters())
    73130
    """
    return GroupCNN(Cyclic(4), preset, width=10, convolution=AttentiveConv)
