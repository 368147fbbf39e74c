"""The group convolution, for any group: a filter is seen by each element h as (L_h psi)(y, h^) = psi(h^-1 y, h^-1 h^).

Quarter turns and flips move the pixels of a filter exactly. Other angles interpolate it bilinearly, with zeros from
outside its square, so that equivariance to them is approximate; the quarter turns of such a group stay exact.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_count, check_dtype, check_group, check_image, check_signal
from gevit.groups import Group
from gevit.linear import halving_window
from gevit.tables import TabulatedModule


class FilterBank(TabulatedModule):
    """Every filter as each element of the group sees it.

    Args:
        group: the group.
        size: side of the square filters.
        lifting: whether filters are on images, which have no group axis but one of length 1 here.

    >>> from gevit.groups import Cyclic
    >>> FilterBank(Cyclic(4), 2, lifting=True)(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))[1, 0]
    tensor([[2., 4.],
            [1., 3.]])
    """

    moves: Tensor
    relative: Tensor

    def __init__(self, group: Group, size: int, lifting: bool = False) -> None:
        super().__init__()
        pixels = torch.eye(size**2, dtype=torch.float64, device="cpu").view(-1, size, size)
        moves = torch.stack([group.act_on_image(pixels, h) for h in range(group.order)])
        relative = group.product[group.inverse]  # [h, h^] is h^-1 h^
        if lifting:
            relative = relative[:, :1] * 0
        self.add_table("moves", moves.flatten(2))
        self.add_table("relative", relative)

    def forward(
        self, filters: Float[Tensor, "*channels elements size size"]
    ) -> Float[Tensor, "*channels order elements size size"]:
        """The filters as each element of the group sees them."""
        permuted = filters[..., self.relative, :, :]
        moved = torch.einsum("...heq,hqp->...hep", permuted.flatten(-2), self.moves.to(filters.dtype))
        return moved.view(permuted.shape)


class GroupConv(nn.Module):
    """(f * psi)(x, h) = sum over y and h^ of f(y, h^) psi(h^-1 (y - x), h^-1 h^), without bias, on a padded image.

    Args:
        group: the group H of the output, and of the input unless it is an image.
        in_channels: channels of the input.
        out_channels: channels of the output signal.
        size: side of the square filters; an even side is as exact as an odd one.
        padding: zeros put around the input on each side.
        lifting: whether the input is an image, which is then lifted to the group.
        halve: whether height and width are halved, rounded up, as by `gevit.layers.Downsample` after the convolution
            but in one step: with blurred filters, and zeros outside.

    >>> from gevit.groups import Dihedral
    >>> lift, mix = GroupConv(Dihedral(4), 3, 5, lifting=True), GroupConv(Dihedral(4), 5, 6, padding=1)
    >>> mix(lift(torch.randn(1, 3, 9, 12))).shape
    torch.Size([1, 6, 8, 7, 10])
    """

    def __init__(
        self,
        group: Group,
        in_channels: int,
        out_channels: int,
        size: int = 3,
        padding: int = 0,
        lifting: bool = False,
        halve: bool = False,
    ) -> None:
        super().__init__()
        self.group = check_group(group)
        self.in_channels = check_count("in_channels", in_channels)
        self.out_channels = check_count("out_channels", out_channels)
        self.size = check_count("size", size)
        if padding < 0:
            raise ValueError(f"padding must be at least 0, got {padding}")
        self.padding = padding
        self.lifting = lifting
        self.halve = halve
        self.elements = 1 if lifting else group.order
        fan_in = in_channels * self.elements * size**2
        self.weight = random_filters(out_channels, in_channels, self.elements, size, size, fan_in=fan_in)
        self.bank = FilterBank(group, size, lifting)

    def forward(
        self, x: Float[Tensor, "batch channels *elements height width"]
    ) -> Float[Tensor, "batch out order rows columns"]:
        """Convolve an image (lifting) or a signal on the group."""
        if self.lifting:
            check_image(x, self.in_channels)
            x = x.unsqueeze(2)
        else:
            check_signal(x, self.in_channels, self.group)
        if min(x.shape[-2:]) + 2 * self.padding < self.size:
            raise ValueError(
                f"a {x.shape[-2]}x{x.shape[-1]} map is too small for a {self.size}x{self.size} filter; "
                "use larger images, or padding"
            )
        check_dtype(x, self.weight)
        return self._convolve(x, self.bank(self.weight))

    def _convolve(
        self,
        x: Float[Tensor, "batch channels elements height width"],
        bank: Float[Tensor, "out channels order elements size size"],
    ) -> Float[Tensor, "batch out order rows columns"]:
        filters = bank.transpose(1, 2).flatten(2, 3).flatten(0, 1)
        if self.halve:
            # Convolving and then blurring is convolving with blurred filters.
            window = halving_window(x, *(side + 2 * self.padding - self.size + 1 for side in x.shape[-2:]))
            filters = F.conv2d(
                filters.flatten(0, 1)[:, None], window[None, None], padding=[side - 1 for side in window.shape]
            ).unflatten(0, filters.shape[:2])[:, :, 0]
        maps = F.conv2d(x.flatten(1, 2), filters, stride=1 + self.halve, padding=self.padding + self.halve)
        return maps.view(x.shape[0], self.out_channels, self.group.order, *maps.shape[-2:])

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return (
            f"{self.group}, {self.in_channels} -> {self.out_channels}, size={self.size}, padding={self.padding}, "
            f"lifting={self.lifting}, halve={self.halve}"
        )


class ResidualConv(nn.Module):
    """x + convolution(act(norm(x))), with a batch norm, which scales a channel alike at all elements and pixels."""

    def __init__(self, group: Group, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.BatchNorm3d(width), nn.SiLU(), GroupConv(group, width, width, padding=1))

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch channels order height width"]:
        """Add what the convolution sees."""
        y: Tensor = x + self.branch(x)
        return y


def random_filters(*shape: int, fan_in: int) -> nn.Parameter:
    """Filters that start normal, with std sqrt(2 / fan_in), as the linear maps do."""
    return nn.Parameter(torch.randn(shape) * math.sqrt(2 / fan_in))
