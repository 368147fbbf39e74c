"""What changes the domain of a signal, exactly equivariant: to a subgroup, to other sizes, to one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_choice, check_signal
from gevit.groups import Group
from gevit.linear import halving_window
from gevit.tables import TabulatedModule

POOLINGS = ("max_mean", "sum_max")


class Restriction(TabulatedModule):
    """A signal on a group H, seen as one on its subgroup K: f_r(x, k) = f(x, k r), nothing of it is lost.

    K moves the elements of H within its cosets K r. Each coset becomes a channel of its own, so there are |H| / |K|
    times the channels.

    Attributes:
        index: |H| / |K|.

    >>> import torch
    >>> from gevit.groups import Cyclic, Dihedral
    >>> Restriction(Dihedral(4), Cyclic(4))(torch.randn(1, 3, 8, 5, 5)).shape
    torch.Size([1, 6, 4, 5, 5])
    """

    cosets: Tensor

    def __init__(self, group: Group, subgroup: Group) -> None:
        super().__init__()
        members = group.elements_of(subgroup)
        cosets = group.product[members]  # [k, r] is k r
        smallest = cosets.amin(0)
        chosen = cosets[:, smallest.unique()].T
        self.add_table("cosets", chosen)
        self.group, self.index = group, len(chosen)

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch more suborder height width"]:
        """Split the group axis into cosets."""
        check_signal(x, x.shape[1], self.group)
        cosets: Tensor = x[:, :, self.cosets]
        return cosets.flatten(1, 2)


class Downsample(nn.Module):
    """Halves height and width after a blur, and commutes exactly with quarter turns and flips.

    The sampled points must be the same seen from either end. An even side keeps the middles between its pixels, blurred
    by (1, 3, 3, 1) / 8, n / 2 of them; an odd side keeps every other pixel from the first to the last, blurred by
    (1, 2, 1) / 4, (n + 1) / 2 of them. Outside, the border pixel goes on. A side of 1 stays.
    """

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch channels order rows columns"]:
        """Blur and sample the last two axes."""
        planes = x.flatten(1, 2)
        window = halving_window(planes, *planes.shape[-2:]).expand(planes.shape[1], 1, -1, -1)
        planes = F.pad(planes, (1, 1, 1, 1), mode="replicate")
        halved: Tensor = F.conv2d(planes, window, stride=2, groups=planes.shape[1]).unflatten(1, x.shape[1:3])
        return halved


class Upsample(nn.Module):
    """Takes maps back to the height and width they had before a `Downsample`: what a decoder needs.

    Interpolates linearly between the points that `Downsample` kept. An even side has them in the middles between
    pixels, an odd one at every other pixel, so the two are stretched differently, and what is upsampled lies where it
    was: on top of the finer maps that a decoder adds.

    >>> import torch
    >>> Upsample()(torch.randn(1, 3, 8, 4, 3), (7, 6)).shape
    torch.Size([1, 3, 8, 7, 6])
    """

    def forward(
        self, x: Float[Tensor, "batch channels *order rows columns"], size: Sequence[int]
    ) -> Float[Tensor, "batch channels *order height width"]:
        """Interpolate the last two axes to `size`."""
        if [(side + 1) // 2 for side in size] != list(x.shape[-2:]):
            raise ValueError(
                f"a map of {x.shape[-2]}x{x.shape[-1]} is not what halving {size[0]}x{size[1]} gives: half of each "
                "side, rounded up"
            )
        planes = x.flatten(1, -3)
        for sides, stretched_side in (((size[0], x.shape[-1]), size[0]), (tuple(size), size[1])):
            planes = F.interpolate(planes, sides, mode="bilinear", align_corners=stretched_side % 2 == 1)
        out: Tensor = planes.unflatten(1, x.shape[1:-2])
        return out


class MaxPool(nn.Module):
    """Max-pooling that halves height and width and commutes exactly with quarter turns and flips.

    An even side is cut into pairs. An odd side cannot be; dropping its last pixel, as is usual, breaks the symmetry.
    Instead windows of 3 overlap by one, which is the same seen from either end and gives the usual size, (n - 1) / 2.
    With `truncate`, the last pixel is dropped, as the authors' code does.
    """

    def __init__(self, truncate: bool = False) -> None:
        super().__init__()
        self.truncate = truncate

    def forward(
        self, x: Float[Tensor, "batch channels order height width"]
    ) -> Float[Tensor, "batch channels order rows columns"]:
        """Pool the last two axes; a side of 1 stays."""
        sides = x.shape[-2:]
        window = [side if side == 1 else 2 if side % 2 == 0 or self.truncate else 3 for side in sides]
        stride = [min(side, 2) for side in sides]
        return F.max_pool3d(x, (1, *window), (1, *stride))


class InvariantPooling(nn.Module):
    """Pools a signal over group and space, to what no rotation, reflection or translation of the group changes.

    `"max_mean"` is the paper's: the maximum over the group, then the mean over space. `"sum_max"` is the authors'
    code: the sum over space, then the maximum over the group.
    """

    def __init__(self, pooling: str = "max_mean") -> None:
        super().__init__()
        self.pooling = check_choice("pooling", pooling, POOLINGS)

    def forward(self, x: Float[Tensor, "batch channels order height width"]) -> Float[Tensor, "batch channels"]:
        """Pool over all axes but batch and channels."""
        if self.pooling == "max_mean":
            return x.amax(2).mean((-2, -1))
        return x.sum((-2, -1)).amax(2)

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return repr(self.pooling)
