"""From an image file to pixels, whatever its format.

Orientation tags (EXIF) are applied. Transparent images are laid on white. Pictures in colour are read with 8 bits a
channel (palette, CMYK and the like become RGB), grey ones with 8 or 16. TIFF files may have any number of bands, of any
type of number (`gevit.data.tiff`): integers are read as fractions of the largest one of their type, floats as they
are, if they are finite. Of several frames the first is read. The shorter side is scaled to the wanted size (bilinear,
averaging where it shrinks), and the middle of the longer one is kept; a large JPEG is decoded at a half, a quarter or
an eighth of its size if that is still twice the wanted one.

Nothing is decoded before the header is known: a file of more than `MOST_PIXELS` pixels is refused, and so is one that
is truncated, that is not of the formats below, or that is no file but a pipe or a device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped, UInt
from torch import Tensor

from gevit.data.archive import Location, Stream, opened
from gevit.data.dataset import MOST_PIXELS
from gevit.data.tiff import bands_of, is_tiff, read_bands
from gevit.environment import needs

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".tif", ".tiff", ".bmp", ".gif", ".webp"})
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP")  # others of Pillow's run programs or fetch more files
GREY = frozenset({"1", "L", "LA", "La", "I"})
GREY_OR_COLOUR = (1, 3)  # they become each other; other numbers of channels are what they are
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)

Pixels = UInt[np.ndarray, "channels size size"] | Float32[np.ndarray, "channels size size"]


@dataclass(frozen=True)
class Header:
    """What an image file says of itself before it is decoded.

    Attributes:
        width: in pixels.
        height: in pixels.
        channels: 1 if it is grey, 3 if it is in colour, else its number of bands.
    """

    width: int
    height: int
    channels: int


def probe(path: Location | BytesIO) -> Header:
    """Read the header of an image file."""
    with opened(path) as file:
        bands = bands_of(file) if is_tiff(file) else None
        if bands:
            channels, height, width = bands
            return Header(width, height, channels)
        with _picture(file) as image:
            return Header(*image.size, channels=1 if _is_grey(image) else 3)


def decode(path: Location | BytesIO, size: int, channels: int) -> Pixels:
    """Decode an image file to square planes of this size, of 8 or 16 bits, or floats.

    Args:
        path: the file, or its content.
        size: the side of the planes.
        channels: 1 (grey), 3 (colour), or the number of bands that the file must have.
    """
    with opened(path) as file:
        if is_tiff(file) and (channels not in GREY_OR_COLOUR or bands_of(file)):
            return _fitted_bands(read_bands(file), size, channels)
        if channels not in GREY_OR_COLOUR:
            raise ValueError(f"it is a picture in grey or colour, expected {channels} bands")
        with _picture(file) as image:
            return _fitted_picture(image, size, channels)


class UnreadableImage(OSError):  # noqa: N818 - a file, not a fault of the program
    """A file that cannot be read as an image; `reason` says why, without the name of the file."""

    def __init__(self, path: Location | BytesIO, reason: str) -> None:
        super().__init__(f"cannot read {path} as a picture: {reason}")
        self.reason = reason


def read_image(path: Location | BytesIO, size: int, channels: int) -> Float[Tensor, "channels size size"]:
    """An image file as floats, in [0, 1] but for files that hold floats; arguments as in `decode`.

    Raises:
        UnreadableImage: whatever is wrong with the file.
    """
    try:
        with without_bomb_warnings():
            return as_floats(decode(path, size, channels))
    except ImportError:
        raise
    except Exception as error:  # decoders raise whatever they like at a damaged file
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadableImage(path, reason) from error


def as_floats(pixels: Pixels) -> Float[Tensor, "channels size size"]:
    """Pixels as `decode` gives them, as float32: integers as fractions of the largest, floats as they are."""
    full = np.iinfo(pixels.dtype).max if pixels.dtype.kind == "u" else 1
    return torch.from_numpy(pixels.astype(np.float32)) / full


def _fitted_picture(image: Image, size: int, channels: int) -> Pixels:
    from PIL import Image as PillowImage
    from PIL import ImageOps

    image.draft(None, (2 * size, 2 * size))
    ImageOps.exif_transpose(image, in_place=True)
    deep = image.mode == "I" or image.mode.startswith("I;16")
    flat = PillowImage.fromarray(_fractions(image)) if deep else _flat(image, "RGB" if channels == 3 else "L")
    pixels = np.asarray(ImageOps.fit(flat, (size, size), PillowImage.Resampling.BILINEAR))
    if deep:
        pixels = (pixels * 65535).round().astype(np.uint16)
    planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    return np.array(np.broadcast_to(planes, (channels, size, size)), order="C")


def _fitted_bands(bands: Shaped[np.ndarray, "bands height width"], size: int, channels: int) -> Pixels:
    with needs("pillow"):
        from PIL import Image, ImageOps
    kind = bands.dtype
    if kind.kind not in "uif":
        raise ValueError(f"its pixels must be integers or floats, they are {kind}")
    if not {len(bands), channels} <= set(GREY_OR_COLOUR) and len(bands) != channels:
        raise ValueError(f"it has {len(bands)} bands, expected {channels}")
    with np.errstate(over="ignore"):
        planes = [Image.fromarray(band.astype(np.float32)) for band in bands]
    fitted = np.stack([np.asarray(ImageOps.fit(plane, (size, size), Image.Resampling.BILINEAR)) for plane in planes])
    if not np.isfinite(fitted).all():
        raise ValueError("its pixels must be finite numbers of 32 bits, some are NaN, infinite or larger")
    if channels < len(bands):
        fitted = np.tensordot(LUMA, fitted, 1)[None]
    fitted = np.array(np.broadcast_to(fitted, (channels, size, size)), order="C")
    if kind in (np.uint8, np.uint16):
        return fitted.round().astype(kind.newbyteorder("="))
    return fitted / np.float32(np.iinfo(kind).max) if kind.kind in "ui" else fitted


@contextmanager
def without_bomb_warnings() -> Iterator[None]:
    """Keep Pillow from warning of large images, which are refused here anyway; for all threads, so not for each."""
    with needs("pillow"):
        from PIL import Image
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


@contextmanager
def _picture(file: Stream) -> Iterator[Image]:
    """The image with its header read, and refused if that says too much."""
    with needs("pillow"):
        from PIL import Image, UnidentifiedImageError
    try:
        recognised = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError(f"it is no image of a known format ({', '.join(FORMATS)}), or damaged") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"it has more than {MOST_PIXELS:,} pixels; scale it down first") from error
    with recognised as image:
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
    """Pixels of a grey image of 16 bits, in [0, 1]."""
    pixels = np.asarray(image, dtype=np.float32)
    if not (pixels.min() >= 0 and pixels.max() <= 65535):
        raise ValueError(f"its pixels must be in [0, 65535], found {pixels.min():g} to {pixels.max():g}")
    return pixels / np.float32(65535)
