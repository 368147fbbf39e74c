"""Rotating images by any angle.

`rotate` and `rotate_each` rotate tensors, on any device, for augmentation and evaluation. `rotate_digits` rotates bytes
with Pillow: the sets `digits` and `rotmnist-rebuilt`, on which results were published, are made with it. It rounds and
fills the border in its own way, so their pixels would differ if tensors were rotated instead.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, UInt8
from torch import Tensor

from gevit.environment import needs


def rotate(images: Float[Tensor, "n channels side side"], angle: float) -> Float[Tensor, "n channels side side"]:
    """Images rotated by an angle in degrees, counter-clockwise: exact for quarter turns, else bicubic."""
    if angle % 90 == 0:
        return torch.rot90(images, int(angle // 90), (-2, -1))
    return rotate_each(images, torch.full((len(images),), math.radians(angle)))


def rotate_each(
    images: Float[Tensor, "batch channels height width"], angles: Float[Tensor, " batch"]
) -> Float[Tensor, "batch channels height width"]:
    """Each image, rotated about its centre by its angle in radians, counter-clockwise.

    Bicubic, which blurs less than bilinear: attention is sensitive to sharpness. Outside, the border pixel goes on.
    """
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    aspect = images.shape[-1] / images.shape[-2]
    matrices = torch.stack([cos, -sin / aspect, zero, sin * aspect, cos, zero], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    rotated = F.grid_sample(images, grid, mode="bicubic", padding_mode="border", align_corners=False)
    return rotated.clamp(*range_of(images))  # bicubic overshoots


def range_of(images: Float[Tensor, "batch channels height width"]) -> tuple[Tensor, Tensor]:
    """Between which pixels lie, of each channel of each image: [0, 1] or, where some lie outside of that, wider."""
    return images.amin((-2, -1), keepdim=True).clamp(max=0), images.amax((-2, -1), keepdim=True).clamp(min=1)


def rotate_digits(images: UInt8[np.ndarray, "n h w"], degrees: Float64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n h w"]:
    """Rotate every image counter-clockwise about its centre by its angle, with bicubic interpolation (Pillow's).

    What comes from outside is black, the background of the digits.

    >>> rotate_digits(np.array([[[1, 2], [3, 4]]], dtype=np.uint8), np.array([90.0]))
    array([[[2, 4],
            [1, 3]]], dtype=uint8)
    """
    with needs("pillow"):
        from PIL import Image
    rotated = np.empty_like(images)
    for image, angle, target in zip(images, degrees, rotated, strict=True):
        target[:] = Image.fromarray(image).rotate(angle, resample=Image.Resampling.BICUBIC)
    return rotated
