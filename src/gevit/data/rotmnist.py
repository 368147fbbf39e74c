"""`rotmnist`: the official rotated MNIST of Larochelle et al. 2007, 10,000/2,000/50,000 digits.

The archive holds text: a row an image, 784 pixels in [0, 1] and the label. The first 10,000 of the 12,000 rows of
`train_valid` are for training, the others for validation. Sources differ on whether the pixels run along the rows or
the columns of the picture; a mirrored digit is no digit, so real digits decide, and pictures are stored upright. Pixels
that are all k/255 are stored as bytes, which loses nothing; others with 16 bits, right to 1/131070.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int, UInt

from gevit.data.dataset import DataSet
from gevit.data.digits import digit_set, load_digits
from gevit.data.download import Source, obtained
from gevit.data.npz import read_splits, write_splits
from gevit.data.rotation import rotate_digits

FILE = "rotmnist.npz"
SOURCE = Source(
    "mnist_rotation_new.zip",
    "0f9a947ff3d30e95cd685462cbf3b847",
    (
        "http://www.iro.umontreal.ca/~lisa/icml2007data/mnist_rotation_new.zip",
        "https://www.dropbox.com/s/0fxwai3h84dczh0/mnist_rotation_new.zip?dl=1",
    ),
    "gevit data prepare rotmnist --file mnist_rotation_new.zip",
)
TRAIN, VALID, TEST = 10_000, 2_000, 50_000


def read(folder: Path) -> DataSet:
    """Read the prepared file."""
    train, valid, test = read_splits(folder / FILE)
    note = (
        f"the official rotMNIST (mnist_rotation_new.zip), its rows in order: {len(train):,} train, "
        f"{len(valid):,} validation, {len(test):,} test"
    )
    return digit_set("rotmnist", train, valid, test, note)


def prepare(root: Path, file: Path | None = None) -> None:
    """Download the archive, or take it from `file`, and store its images as `rotmnist.npz`."""
    with obtained(SOURCE, root, file) as archive:
        images, labels = _read_rows(archive, "mnist_all_rotation_normalized_float_train_valid.amat", TRAIN + VALID)
        test_images, test_labels = _read_rows(archive, "mnist_all_rotation_normalized_float_test.amat", TEST)
    pixels = _compact(np.concatenate([images, test_images]))
    labels = np.concatenate([labels, test_labels])
    upright = pixels.transpose(0, 2, 1) if is_transposed(pixels, labels) else pixels
    write_splits(root / FILE, upright, labels, (TRAIN, VALID))


def is_transposed(images: UInt[np.ndarray, "n 28 28"], labels: Int[np.ndarray, " n"]) -> bool:
    """Whether turned digits are mirrored: whether their transposes are more like turned real digits than they are.

    No turn makes a mirrored 2 or 5 right, so the likeness at the best of 36 angles tells on average.
    """
    digits, classes = load_digits()
    angles = np.arange(0.0, 360.0, 10.0)
    advantage = 0.0
    for label in (2, 5):
        mean = digits[classes == label].float().mean(0).byte().numpy()
        templates = rotate_digits(mean.repeat(len(angles), axis=0), angles).reshape(len(angles), 784).astype(np.float32)
        templates -= templates.mean(1, keepdims=True)
        templates /= np.linalg.norm(templates, axis=1, keepdims=True)
        members = images[labels == label][:500].astype(np.float32)
        plain, mirrored = (
            (pictures.reshape(-1, 784) @ templates.T).max(1).sum() for pictures in (members, members.transpose(0, 2, 1))
        )
        advantage += float(mirrored - plain)
    return advantage > 0


def _read_rows(
    archive: Path, name: str, rows: int
) -> tuple[Float32[np.ndarray, "rows 28 28"], Int[np.ndarray, " rows"]]:
    try:
        with zipfile.ZipFile(archive) as content, content.open(name) as text:
            table = np.loadtxt(text, dtype=np.float32, ndmin=2)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"cannot read {name} in {archive}: {error}") from error
    if table.shape != (rows, 785):
        raise ValueError(f"{name} in {archive} must have {rows:,} rows of 784 pixels and a label, got {table.shape}")
    pixels, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # a NaN fails too
        raise ValueError(f"pixels of {name} must be in [0, 1], got {pixels.min()} to {pixels.max()}")
    wrong = np.flatnonzero(~np.isin(labels, np.arange(10)))
    if len(wrong):
        raise ValueError(f"labels of {name} must be 0 to 9, row {wrong[0]} has {labels[wrong[0]]}")
    return pixels, labels.astype(np.int64)


def _compact(pixels: Float32[np.ndarray, "n 28 28"]) -> UInt[np.ndarray, "n 28 28"]:
    levels = pixels * 255
    if np.abs(levels - levels.round()).max() < 0.01:
        return levels.round().astype(np.uint8)
    return (pixels * 65535).round().astype(np.uint16)
