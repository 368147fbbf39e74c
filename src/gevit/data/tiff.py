"""TIFF files as scientists write them: any number of bands, integers of any width, floats.

The bands may be samples of one page, first or last, or pages of equal size. Pages that are times or depths are no
bands: of those the first is read. Where a file names no axes, the shorter one of first and last is that of the bands.

What is a picture in the usual sense (8 bits, grey or colour, perhaps transparent; grey of 16 bits) is left to Pillow.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Shaped

from gevit.data.archive import Stream
from gevit.data.dataset import MOST_PIXELS
from gevit.environment import needs

if TYPE_CHECKING:
    from tifffile import TiffPageSeries

STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
ORIENTATION = 274
MOST_VALUES = 3 * MOST_PIXELS  # as many as a colour picture may have
# How rows and columns must be moved, by the tag: whether they change places, then which of them are reversed.
TURNS = {2: (0, 1, -1), 3: (0, -1, -1), 4: (0, -1, 1), 5: (1, 1, 1), 6: (1, 1, -1), 7: (1, -1, -1), 8: (1, -1, 1)}


def is_tiff(file: Stream) -> bool:
    """Whether the file says so; it is left at its start."""
    start = file.read(4)
    file.seek(0)
    return start in STARTS


def bands_of(file: Stream) -> tuple[int, int, int] | None:
    """The number of bands, height and width; None if it is a picture for Pillow. The file is left at its start."""
    with _series(file) as series:
        return None if series is None or _is_picture(series) else _shape(series)


def read_bands(file: Stream) -> Shaped[np.ndarray, "bands height width"]:
    """The bands, as they are stored."""
    with _series(file) as series:
        if series is None:
            raise ValueError("it is no TIFF file, or damaged")
        _shape(series)  # refuses what is too large
        stored = series.asarray(maxworkers=1)
        tags = series.keyframe.tags
        orientation = tags[ORIENTATION].value if ORIENTATION in tags else 1
    order = [axis for axis in _axes(series) if axis is not None]
    others = [axis for axis in range(stored.ndim) if axis not in order]
    bands = stored.transpose(*others, *order)[(0,) * len(others)]
    bands = bands if bands.ndim == 3 else bands[None]
    swap, rows, columns = TURNS.get(orientation, (0, 1, 1))
    bands = bands.swapaxes(1, 2) if swap else bands
    return np.ascontiguousarray(bands[:, ::rows, ::columns])


@contextmanager
def _series(file: Stream) -> Iterator[TiffPageSeries | None]:
    """The first images of the file that belong together; None if it cannot be parsed."""
    with needs("tifffile"):
        import tifffile
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what is wrong with a file is raised, and said once
    try:
        tiff = tifffile.TiffFile(file, name="image")  # it would ask the file, which need not have one
        series = tiff.series[0] if len(tiff.pages) else None
    except Exception:  # all sorts, for damaged files
        series = None
    yield series
    file.seek(0)


def _axes(series: TiffPageSeries) -> tuple[int | None, int, int]:
    """Which axes are bands (None if there is one alone), rows and columns."""
    y, x = series.axes.index("Y"), series.axes.index("X")
    if series.axes in ("QYX", "IYX") and series.shape[2] < series.shape[0]:
        return 2, 0, 1  # rows, columns and bands, stored as if the rows were pages
    long = [axis for axis, name in enumerate(series.axes) if name not in "YXZT" and series.shape[axis] > 1]
    named = [axis for axis in long if series.axes[axis] in "SC"]
    return (named[-1] if named else long[0] if long else None), y, x


def _shape(series: TiffPageSeries) -> tuple[int, int, int]:
    bands, height, width = (1 if axis is None else series.shape[axis] for axis in _axes(series))
    if math.prod(series.shape) > MOST_VALUES:
        raise ValueError(
            f"it has {' x '.join(f'{length:,}' for length in series.shape)} values, more than {MOST_VALUES:,}; "
            "scale it down first"
        )
    return bands, height, width


def _is_picture(series: TiffPageSeries) -> bool:
    page, bands = series.keyframe, _axes(series)[0]
    if page.samplesperpixel == 1:
        return bands is None and page.dtype in (np.bool_, np.uint8, np.uint16)
    alpha = sum(int(sample) in (1, 2) for sample in page.extrasamples)
    is_colour = page.samplesperpixel - alpha in (1, 3) or int(page.photometric) == 5  # CMYK
    return page.dtype == np.uint8 and int(page.planarconfig) == 1 and is_colour
