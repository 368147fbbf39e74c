"""From an image file to pixels, whatever its format.

Orientation tags (EXIF) are applied. Transparent images are laid on white. Colour is read with 8 bits a channel
(palette, CMYK, 16 bits and the like become RGB), grey with 8 or 16; floating-point images must be in [0, 1] and are
kept with 16 bits. Of several frames or pages the first is read. The shorter side is scaled to the wanted size
(bilinear, averaging where it shrinks), and the middle of the longer one is kept; a large JPEG is decoded at a half, a
quarter or an eighth of its size if that is still twice the wanted one.

Nothing is decoded before the header is known: a file of more than `MOST_PIXELS` pixels is refused, and so is one that
is truncated, that is not of the formats below, or that is no file but a pipe or a device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, UInt

from gevit.data.dataset import MOST_PIXELS
from gevit.environment import needs
from gevit.files import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"})
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP")  # others of Pillow's run programs or fetch more files
GREY = frozenset({"1", "L", "LA", "La", "I", "F"})


@dataclass(frozen=True)
class Header:
    """What an image file says of itself before it is decoded."""

    width: int
    height: int
    grey: bool


def probe(path: Path) -> Header:
    """Read the header of an image file."""
    with _opened(path) as image:
        return Header(*image.size, grey=_is_grey(image))


def decode(path: Path, size: int, channels: int) -> UInt[np.ndarray, "channels size size"]:
    """Decode an image file to `channels` (1 or 3) square planes of this size, of 8 or 16 bits."""
    with _opened(path) as image:
        from PIL import Image, ImageOps

        image.draft(None, (2 * size, 2 * size))
        ImageOps.exif_transpose(image, in_place=True)
        deep = image.mode in ("I", "F") or image.mode.startswith("I;16")
        flat = Image.fromarray(_fractions(image)) if deep else _flat(image, "RGB" if channels == 3 else "L")
        pixels = np.asarray(ImageOps.fit(flat, (size, size), Image.Resampling.BILINEAR))
    if deep:
        pixels = (pixels * 65535).round().astype(np.uint16)
    planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    return np.array(np.broadcast_to(planes, (channels, size, size)), order="C")


@contextmanager
def without_bomb_warnings() -> Iterator[None]:
    """Keep Pillow from warning of large images, which are refused here anyway; for all threads, so not for each."""
    with needs("pillow"):
        from PIL import Image
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """The image with its header read, and refused if that says too much."""
    with needs("pillow"):
        from PIL import Image, UnidentifiedImageError
    with open_regular(path) as file:
        try:
            opened = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError as error:
            raise ValueError(f"it is no image of a known format ({', '.join(FORMATS)}), or damaged") from error
        except Image.DecompressionBombError as error:
            raise ValueError(f"it has more than {MOST_PIXELS:,} pixels; scale it down first") from error
        with opened as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(
                    f"it has {image.width:,} x {image.height:,} pixels, more than {MOST_PIXELS:,}; scale it down first"
                )
            yield image


def _is_grey(image: Image) -> bool:
    if image.mode == "P":
        palette = np.array(image.getpalette("RGB")).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    return image.mode in GREY or image.mode.startswith("I;16")


def _flat(image: Image, mode: str) -> Image:
    """The image in this mode, laid on white if it is transparent; Pillow would copy it even if nothing changes."""
    from PIL import Image as PillowImage

    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        image = PillowImage.alpha_composite(PillowImage.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def _fractions(image: Image) -> Float32[np.ndarray, "h w"]:
    """Pixels of a 16-bit or floating-point image, in [0, 1]."""
    highest = 1 if image.mode == "F" else 65535
    pixels = np.asarray(image, dtype=np.float32)
    if not (pixels.min() >= 0 and pixels.max() <= highest):  # a NaN fails too
        raise ValueError(
            f"pixels of mode {image.mode} must be in [0, {highest}], found {pixels.min():g} to {pixels.max():g}"
        )
    return pixels / np.float32(highest)
