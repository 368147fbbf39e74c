"""Turning digits by any angle, as the rotated sets do."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, UInt8

from gevit.data.extras import needs


def turn(images: UInt8[np.ndarray, "n h w"], degrees: Float64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n h w"]:
    """Turn every image counter-clockwise about its centre by its angle, with bicubic interpolation (Pillow's).

    What comes from outside is black, the background of the digits.

    >>> turn(np.array([[[1, 2], [3, 4]]], dtype=np.uint8), np.array([90.0]))
    array([[[2, 4],
            [1, 3]]], dtype=uint8)
    """
    with needs("pillow"):
        from PIL import Image
    turned = np.empty_like(images)
    for image, angle, target in zip(images, degrees, turned, strict=True):
        target[:] = Image.fromarray(image).rotate(angle, resample=Image.Resampling.BICUBIC)
    return turned
