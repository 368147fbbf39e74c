"""What happens to training images at random: rotations, mirrors, and changes of light and colour.

Every image of a batch draws its own numbers. They are drawn for the whole batch and then cut to the images that a
process has, so that an image meets the same ones however many processes share the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gevit.data.rotation import range_of, rotate_each

# The optical density (-log of the light that passes) of red, green and blue by a unit of each stain: haematoxylin,
# eosin and DAB, as measured by Ruifrok and Johnston (2001).
STAINS = ((0.65, 0.70, 0.29), (0.07, 0.99, 0.11), (0.27, 0.57, 0.78))
DARKEST = 1 / 256  # black has no logarithm

Images = Float[Tensor, "batch channels height width"]


@dataclass(frozen=True)
class Augmentation:
    """What is done, and how strongly; all of it keeps pixels in [0, 1], and floats outside of that in their range.

    Attributes:
        rotate: rotate half of the images by random angles; the others stay as sharp as they were.
        flip: mirror half of the images.
        brightness: multiply pixels by a factor in [1 - brightness, 1 + brightness].
        contrast: multiply their distances from the image's mean by a factor in [1 - contrast, 1 + contrast].
        stain: change how much there is of each stain: see `restain`.
    """

    rotate: bool = False
    flip: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    stain: float = 0.0

    def __call__(self, images: Images, share: slice, batch_size: int, generator: torch.Generator) -> Images:
        """Augment a share of a batch.

        Args:
            images: of the share.
            share: which images of the batch they are.
            batch_size: of the whole batch.
            generator: gives the random numbers.
        """
        mirrored, turned, angles = torch.rand((3, batch_size), generator=generator)[:, share]
        light = 2 * torch.rand((2, batch_size, 1, 1, 1), generator=generator)[:, share] - 1
        stains = 2 * torch.rand((2, batch_size, images.shape[1]), generator=generator)[:, share] - 1
        if self.stain:
            images = restain(images, 1 + self.stain * stains[0], self.stain * stains[1])
        if self.contrast:
            mean = images.mean((1, 2, 3), keepdim=True)
            images = (mean + (1 + self.contrast * light[0]) * (images - mean)).clamp(*range_of(images))
        if self.brightness:
            images = ((1 + self.brightness * light[1]) * images).clamp(*range_of(images))
        if self.flip:
            images = _where(mirrored < 0.5, images.flip(-1), images)
        if self.rotate:
            images = _where(turned < 0.5, rotate_each(images, 2 * math.pi * angles), images)
        return images


def restain(
    images: Images, factors: Float[Tensor, "batch channels"], shifts: Float[Tensor, "batch channels"]
) -> Images:
    """Images with other amounts of their stains: of each, `factor` times as much and `shift` more.

    Light that passes a stained slide falls exponentially with the amount of stain, so amounts add in the logarithm.
    With three channels these are haematoxylin, eosin and DAB (Tellez and others, 2018); with any other number, every
    channel counts as a stain of its own, and its pixels x become x^factor e^-shift.

    >>> image = torch.rand(1, 3, 4, 4).clamp(min=0.01)
    >>> torch.allclose(restain(image, torch.ones(1, 3), torch.zeros(1, 3)), image, atol=1e-5)
    True
    """
    low, high = images.aminmax()
    if low < 0 or high > 1:
        raise ValueError(
            f"amounts of stain follow from the share of the light that passes, pixels in [0, 1]; these images have "
            f"{low:.3g} to {high:.3g}: train without --stain"
        )
    mixing = torch.tensor(STAINS) if images.shape[1] == len(STAINS) else torch.eye(images.shape[1])
    density = -images.clamp(min=DARKEST).log()
    amounts = torch.einsum("bchw,cs->bshw", density, torch.linalg.inv(mixing))
    changed = amounts * factors[..., None, None] + shifts[..., None, None]
    return torch.einsum("bshw,sc->bchw", changed, mixing).neg().exp().clamp(0, 1)


def _where(chosen: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, 1, 1, 1), one, other)
