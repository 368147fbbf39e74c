"""Finite groups of rotations and reflections (subgroups of O(2)): how they compose, and how they transform features.

A group H is a set of such transformations that is closed under composition; |H| is how many it has. An image has one
value per pixel and channel. A signal on the group has one per pixel, channel and element of H: |H| feature maps per
channel, `[batch, channels, |H|, height, width]`, each the response to one orientation. Transforming the input moves the
pixels of an image; of a signal it moves the pixels and permutes the group axis.

An element is an integer, `0` being the identity. Matrices act on `(row, column)` vectors of a grid whose rows
run downwards, so the standard rotation matrix rotates a picture counter-clockwise, as `torch.rot90` does. The
reflection that generates `Dihedral(n)` flips left and right.
"""

from __future__ import annotations

import math
import re

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

# PyTorch does not flip integers of several bytes without a sign, which microscopes write; with one they move alike.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Group:
    """A finite subgroup of O(2), given by its product table, inverse table and 2x2 matrices.

    Element `k < rotations` is the rotation r^k by `360 k / rotations` degrees; with reflections, element
    `rotations + k` is r^k s, the left-right mirror s followed by that rotation.

    Attributes:
        rotations: the number of rotations.
        reflections: whether it has reflections, too, as many.
        order: the number of elements.
        product: `product[a, b]` is the element a b (first b, then a).
        inverse: `inverse[a]` is the element a^-1.
        matrices: `matrices[a]` moves the point `(row, column)`; quarter turns and flips have exact entries.
    """

    order: int
    product: Int[Tensor, "order order"]
    inverse: Int[Tensor, order]
    matrices: Float[Tensor, "order 2 2"]

    def __init__(self, rotations: int, reflections: bool) -> None:
        if isinstance(rotations, bool) or not isinstance(rotations, int):
            raise TypeError(f"the number of rotations must be an integer, got {rotations!r}; use for example Cyclic(4)")
        if rotations < 1:
            raise ValueError(f"the number of rotations must be at least 1, got {rotations}")
        self.rotations = rotations
        self.reflections = reflections
        self.order = rotations * (2 if reflections else 1)

        with torch.inference_mode(False):  # a group outlives the mode that it is made in
            self._tabulate()
        # As numbers, which a compiler need not look up in tensors.
        self._moves = [[round(entry) for entry in matrix] for matrix in self.matrices.flatten(1).tolist()]
        self._is_exact = (self.matrices == self.matrices.round()).flatten(1).all(1).tolist()

    def _tabulate(self) -> None:
        # r^a s^i r^b s^j = r^(a ± b) s^(i + j), minus where s^i reflects.
        elements = torch.arange(self.order, device="cpu")  # tables are read here, wherever networks are
        turn, mirror = elements % self.rotations, elements // self.rotations
        sign = 1 - 2 * mirror
        turned = (turn[:, None] + sign[:, None] * turn) % self.rotations
        self.product = turned + self.rotations * ((mirror[:, None] + mirror) % 2)
        self.inverse = (-sign * turn) % self.rotations + self.rotations * mirror

        angle = 2 * math.pi * turn.double() / self.rotations
        cos, sin = _exact(angle.cos()), _exact(angle.sin())
        self.matrices = torch.stack([cos, -sin * sign, sin, cos * sign], dim=-1).reshape(-1, 2, 2)

    def is_exact(self, element: int) -> bool:
        """Whether the element moves grid points to grid points (quarter turns and flips)."""
        return bool(self._is_exact[self._check(element)])

    def name(self, element: int) -> str:
        """A readable name of the element: `identity`, `90°`, `flip`, `flip, 90°` (first flip, then turn)."""
        degrees = 360 * (self._check(element) % self.rotations) / self.rotations
        flipped = element >= self.rotations
        if degrees == 0:
            return "flip" if flipped else "identity"
        return f"{'flip, ' if flipped else ''}{degrees:.4g}°"

    def elements_of(self, subgroup: Group) -> Int[Tensor, " suborder"]:
        """The elements of a subgroup, in its own order, as elements of this group.

        >>> Dihedral(4).elements_of(Dihedral(2))
        tensor([0, 2, 4, 6])
        """
        same = torch.isclose(subgroup.matrices[:, None], self.matrices).all(-1).all(-1)
        if not same.any(1).all():
            kind = "rotations and reflections" if self.reflections else "rotations alone"
            raise ValueError(
                f"{subgroup} is not a subgroup of {self}; take {kind}, their number of angles dividing {self.rotations}"
            )
        return same.int().argmax(1)

    def act_on_image(self, image: Tensor, element: int) -> Tensor:
        """Move the pixels of an image (or of any tensor whose last two axes are rows and columns).

        (L_g f)(x) = f(g^-1 x). Quarter turns and flips are index moves, exact to the bit (a quarter turn swaps
        height and width); other elements interpolate bilinearly about the centre, with zeros from outside.

        >>> Cyclic(4).act_on_image(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 1)
        tensor([[2., 4.],
                [1., 3.]])
        """
        if image.ndim < 2:
            raise ValueError(f"an image needs at least 2 axes (rows, columns), got shape {tuple(image.shape)}")
        if not self.is_exact(element):
            return self._interpolate(image, element)
        if image.dtype in _SIGNED:
            return self.act_on_image(image.view(_SIGNED[image.dtype]), element).view(image.dtype)
        a, b, c, d = self._moves[element]
        # The source of output pixel (row, column) is g^-1 (row, column), and g^-1 is the transposed matrix.
        if a:
            return image.flip([axis for axis, sign in ((-2, a), (-1, d)) if sign < 0])
        return image.flip([axis for axis, sign in ((-2, c), (-1, b)) if sign < 0]).transpose(-1, -2)

    def act_on_signal(self, signal: Tensor, element: int) -> Tensor:
        """Move the pixels and the group axis of a signal `[..., |H|, height, width]` on the group.

        (L_g f)(x, h) = f(g^-1 x, g^-1 h).
        """
        if signal.ndim < 3 or signal.shape[-3] != self.order:
            raise ValueError(
                f"a signal on {self} has shape [..., {self.order}, height, width], got {tuple(signal.shape)}"
            )
        source = self.product[self.inverse[self._check(element)]]
        if signal.dtype in _SIGNED:
            return self.act_on_signal(signal.view(_SIGNED[signal.dtype]), element).view(signal.dtype)
        return self.act_on_image(signal.index_select(-3, source.to(signal.device)), element)

    def _interpolate(self, image: Tensor, element: int) -> Tensor:
        if not image.is_floating_point():
            raise TypeError(
                f"{self.name(element)} interpolates, which needs a floating-point image, got {image.dtype}; "
                "convert it with .float()"
            )
        if not image.numel():
            return image.clone()
        height, width = image.shape[-2:]
        rows, columns = (torch.arange(n, dtype=torch.float64, device="cpu") - (n - 1) / 2 for n in (height, width))
        points = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
        source = points @ self.matrices[element]  # row vectors: x^T g is (g^-1 x)^T
        # grid_sample wants (x, y) in units of half the image.
        grid = (source / torch.tensor([height / 2, width / 2], device="cpu")).flip(-1)
        # 16 bits are too few to say where a pixel is.
        planes = image.reshape(1, -1, height, width).to(torch.promote_types(image.dtype, torch.float32))
        moved = F.grid_sample(planes, grid[None].to(planes), padding_mode="zeros", align_corners=False)
        return moved.reshape(image.shape).to(image.dtype)

    def _check(self, element: int) -> int:
        if not 0 <= element < self.order:
            raise ValueError(f"{self} has elements 0 to {self.order - 1}, got {element}")
        return element

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rotations})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, bool]:
        return self.rotations, self.reflections


class Cyclic(Group):
    """The n rotations by multiples of 360/n degrees: the paper's R_n; `Cyclic(1)` leaves only translations.

    >>> Cyclic(4).product[1, 3].item()
    0
    """

    def __init__(self, n: int) -> None:
        super().__init__(n, reflections=False)


class Dihedral(Group):
    """The n rotations and n reflections that keep a regular n-gon: order 2n, the paper's E(2) setting.

    >>> Dihedral(4).order
    8
    """

    def __init__(self, n: int) -> None:
        super().__init__(n, reflections=True)


def named_group(name: str) -> Group:
    """The group of a short name, as in the names of models: `c4` or `r4` is `Cyclic(4)`, `d4` is `Dihedral(4)`.

    >>> named_group("d4")
    Dihedral(4)
    """
    found = re.fullmatch(r"([crd])([1-9][0-9]?)", name, re.IGNORECASE)
    if not found:
        raise ValueError(
            f"unknown group {name!r}; expected cN (or rN), N rotations, or dN, with reflections too: c4, d4, c8"
        )
    return (Dihedral if found[1].lower() == "d" else Cyclic)(int(found[2]))


def _exact(values: Tensor) -> Tensor:
    """Replace values within rounding of -1, 0 or 1 by those integers."""
    return torch.where((values - values.round()).abs() < 1e-12, values.round(), values)
