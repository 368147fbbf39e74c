"""A contact sheet of a data set: what the network will see, before pixels are normalised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gevit.data.dataset import MOST_PIXELS, DataSet
from gevit.environment import needs
from gevit.files import write_aside

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

MOST_ROWS = 20
TILE, GAP, TEXT = 64, 6, 16


def contact_sheet(dataset: DataSet, split: str = "train", count: int = 8) -> Image:
    """A row of `count` images for each class; with more than 20 classes a grid of `count` x `count`, with captions.

    >>> from gevit.data import open_dataset
    >>> sheet = contact_sheet(open_dataset("digits"), "test", count=4)
    """
    with needs("pillow"):
        from PIL import Image, ImageDraw
    labels = dataset.split(split).labels
    by_class = len(dataset.classes) <= MOST_ROWS
    if by_class:
        rows = [(labels == label).nonzero().flatten()[:count] for label in range(len(dataset.classes))]
    else:
        rows = list(torch.linspace(0, len(labels) - 1, min(count**2, len(labels))).round().long().split(count))

    font = _font()
    title = f"{dataset.name}, {split}: {len(labels):,} images"
    tile = dataset.image_size * max(1, round(TILE / dataset.image_size))
    left = GAP + (max(int(font.getlength(name)) for name in dataset.classes) + GAP if by_class else 0)
    top = TEXT + 3 * GAP
    pitch = tile + GAP + (0 if by_class else TEXT + GAP)
    columns = max(len(row) for row in rows)
    width, height = max(left + columns * (tile + GAP), int(font.getlength(title)) + 2 * GAP), top + len(rows) * pitch
    if width * height > MOST_PIXELS:
        raise ValueError(
            f"the sheet would have {width:,} x {height:,} pixels, more than {MOST_PIXELS:,}; "
            f"show fewer images (--rows, now {count}) or smaller ones (--image-size, now {dataset.image_size})"
        )
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, GAP), title, "black", font)
    for row, indices in enumerate(rows):
        y = top + row * pitch
        if by_class:
            draw.text((GAP, y + tile // 2), dataset.classes[row], "black", font, anchor="lm")
        colours = as_colours(dataset.split(split).images(indices), dataset.mean, dataset.std)
        images = F.interpolate(colours, (tile, tile), mode="nearest")
        for column, (index, image) in enumerate(zip(indices.tolist(), images, strict=True)):
            x = left + column * (tile + GAP)
            sheet.paste(Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy()), (x, y))
            if not by_class:
                draw.text((x, y + tile), _fitting(dataset.classes[int(labels[index])], tile, font), "black", font)
    return sheet


def check_sheet(path: Path) -> None:
    """Find out before the images are read whether a contact sheet can have this suffix."""
    with needs("pillow"):
        from PIL import Image
    Image.init()
    if Image.EXTENSION.get(path.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"a contact sheet is a picture, such as sheet.png or sheet.jpg, got {path.name!r}")


def save_sheet(sheet: Image, path: Path) -> None:
    """Write a contact sheet; its format follows from the suffix."""
    with write_aside(path) as aside:
        sheet.save(aside)


def as_colours(
    images: Float[Tensor, "n channels height width"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "n 3 height width"]:
    """Images as colours to look at, in [0, 1]: of more bands the first three, of two the first.

    Bands, floats and what is too dark to see are stretched: two spreads below the mean are black, two above it white.
    """
    channels = len(mean)
    usual = max(m + 2 * s for m, s in zip(mean, std, strict=True))
    if channels not in (1, 3) or not 0.2 < usual < 2:
        middle, spread = (images.new_tensor(values)[:, None, None] for values in (mean, std))
        images = (images - middle) / spread / 4 + 0.5
    return images[:, : 3 if channels >= 3 else 1].clamp(0, 1).expand(-1, 3, -1, -1)


def _font() -> FreeTypeFont | ImageFont:
    """That of matplotlib, which has the letters of most alphabets; without matplotlib the one of Pillow."""
    from PIL import ImageFont

    try:
        import matplotlib
    except ImportError:
        return ImageFont.load_default(TEXT)
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")), TEXT)


def _fitting(text: str, width: int, font: FreeTypeFont | ImageFont) -> str:
    """As much of the text as fits into this width: its start and its end, where names that are alike differ."""
    short = text
    for kept in range(len(text) - 1, -1, -1):
        if font.getlength(short) <= width:
            break
        short = f"{text[: kept // 2]}…{text[len(text) - (kept + 1) // 2 :]}"
    return short
