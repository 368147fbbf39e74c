"""A drawn digit, made like those of MNIST, which the models of digits know."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

BOX = 20 / 28  # of the side of the image: MNIST scales each digit to 20 of its 28 pixels
FAINT = 0.1


def like_mnist(drawing: Float[Tensor, "1 side side"]) -> Float[Tensor, "1 side side"]:
    """The digit scaled to a box of 20 pixels in 28, with its centre of mass in the middle.

    >>> drawing = torch.zeros(1, 28, 28)
    >>> drawing[:, :3, :2] = 1
    >>> found = like_mnist(drawing)[0].nonzero()
    >>> found.amin(0).tolist(), found.amax(0).tolist()
    ([4, 8], [23, 20])
    """
    rows, columns = (drawing[0] > FAINT).any(1).nonzero(), (drawing[0] > FAINT).any(0).nonzero()
    if not len(rows):
        return drawing
    side = drawing.shape[-1]
    digit = drawing[:, int(rows.min()) : int(rows.max()) + 1, int(columns.min()) : int(columns.max()) + 1]
    scale = BOX * side / max(digit.shape[-2:])
    size = [max(1, round(scale * length)) for length in digit.shape[-2:]]
    digit = F.interpolate(digit[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)
    places = [int((side / 2 - _centre(digit[0].sum(1 - axis))).round().clamp(0, side - size[axis])) for axis in (0, 1)]
    image = torch.zeros_like(drawing)
    image[:, places[0] : places[0] + size[0], places[1] : places[1] + size[1]] = digit
    return image


def _centre(weights: Float[Tensor, " n"]) -> Tensor:
    return (weights * (torch.arange(len(weights)) + 0.5)).sum() / weights.sum()
