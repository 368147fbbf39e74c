"""Rotated MNIST, 10,000/2,000/50,000 digits: `rotmnist`, the official files, and `rotmnist-rebuilt`, made from MNIST.

`rotmnist` is the set of Larochelle et al. 2007. Its archive holds text: a row an image, 784 pixels in [0, 1] and the
label. The first 10,000 of the 12,000 rows of `train_valid` are for training, the others for validation. Sources differ
on whether the pixels run along the rows or the columns of the picture; a mirrored digit is no digit, so real digits
decide, and pictures are stored upright. Pixels that are all k/255 are stored as bytes, which loses nothing; others with
16 bits, right to 1/131070.

`rotmnist-rebuilt` has the same sizes, but is not the official file, and results on it are never called "rotMNIST". The
recipe, with one generator `numpy.random.default_rng(2007)`: the 60,000 training and then the 10,000 test images of
MNIST are permuted, the first 62,000 are taken, each is rotated counter-clockwise by an angle uniform in [0, 360)
degrees with bicubic interpolation, and they are cut into train, valid and test in this order. `src_index` and
`angle_deg` say which, and how far.

Either is kept as one .npz file with x_train, y_train, x_valid, y_valid, x_test and y_test.
"""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int, Shaped, UInt, UInt8

from gevit.data.dataset import SPLITS, DataSet, MemorySplit
from gevit.data.digits import digit_set, load_digits
from gevit.data.rotation import rotate_digits
from gevit.data.storage import Source, obtained
from gevit.files import write_aside

FILE, REBUILT_FILE = "rotmnist.npz", "rotmnist_rebuilt.npz"
TRAIN, VALID, TEST = 10_000, 2_000, 50_000
SOURCE = Source(
    "mnist_rotation_new.zip",
    "0f9a947ff3d30e95cd685462cbf3b847",
    (
        "http://www.iro.umontreal.ca/~lisa/icml2007data/mnist_rotation_new.zip",
        "https://www.dropbox.com/s/0fxwai3h84dczh0/mnist_rotation_new.zip?dl=1",
    ),
    "gevit data prepare rotmnist --file mnist_rotation_new.zip",
)
# What `rotmnist-rebuilt` is made of, with checksums of the files as they are served (.gz), and unpacked.
MNIST = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
BY_HAND = "gevit data prepare rotmnist-rebuilt --file FOLDER_OF_THE_FOUR_FILES"
SEED = 2007


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


def read_rebuilt(folder: Path) -> DataSet:
    """Read the prepared file."""
    train, valid, test = read_splits(folder / REBUILT_FILE)
    note = (
        f"MNIST digits, each rotated by a uniform angle, split {len(train):,}/{len(valid):,}/{len(test):,}; "
        "a rebuilt set, not the official rotMNIST"
    )
    return digit_set("rotmnist-rebuilt", train, valid, test, note)


def prepare_rebuilt(root: Path, file: Path | None = None) -> None:
    """Build the file from the four files of MNIST: downloaded, or those in the folder `file` (idx, also .gz)."""
    content = {name: _content(name, root, file) for name in MNIST}
    images = np.concatenate([content[f"{part}-images-idx3-ubyte"][16:] for part in ("train", "t10k")])
    labels = np.concatenate([content[f"{part}-labels-idx1-ubyte"][8:] for part in ("train", "t10k")])
    random = np.random.default_rng(SEED)
    source = random.permutation(len(labels))[: TRAIN + VALID + TEST]
    degrees = random.uniform(0, 360, len(source))
    write_splits(
        root / REBUILT_FILE,
        rotate_digits(images.reshape(-1, 28, 28)[source], degrees),
        labels[source].astype(np.int64),
        (TRAIN, VALID),
        src_index=source.astype(np.int32),
        angle_deg=degrees.astype(np.float32),
    )


def read_splits(path: Path) -> tuple[MemorySplit, MemorySplit, MemorySplit]:
    """Read train, valid and test: images `[n, size, size]` of 8 or 16 bits, and a label for each."""
    keys = [f"{letter}_{split}" for split in SPLITS for letter in "xy"]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = [key for key in keys if key not in arrays]
            if missing:
                raise ValueError(f"it has no {', '.join(missing)}; expected {', '.join(keys)}")
            content = {key: arrays[key] for key in keys}
        train, valid, test = (_split(content[f"x_{split}"], content[f"y_{split}"], split) for split in SPLITS)
    # What numpy raises for files that are cut off, altered, or no .npz at all.
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ValueError(f"cannot read {path}, it is damaged or not what was expected: {error}") from error
    return train, valid, test


def write_splits(
    path: Path,
    images: UInt[np.ndarray, "n h w"],
    labels: Int[np.ndarray, " n"],
    sizes: tuple[int, int],
    **more: Shaped[np.ndarray, " n"],
) -> None:
    """Write the first images as train, the next as valid (`sizes` says how many), the rest as test, and more arrays."""
    train, valid = sizes
    ends = (train, train + valid)
    pixels = {f"x_{split}": part for split, part in zip(SPLITS, np.split(images, ends), strict=True)}
    classes = {f"y_{split}": part for split, part in zip(SPLITS, np.split(labels.astype(np.uint8), ends), strict=True)}
    with write_aside(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **pixels, **classes, **more)  # type: ignore[arg-type]


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


def _content(name: str, root: Path, folder: Path | None) -> UInt8[np.ndarray, " bytes"]:
    """The bytes of an idx file of MNIST, unpacked, header and all."""
    packed_md5, md5 = MNIST[name]
    if folder is not None:
        found = [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]
        if not found:
            raise FileNotFoundError(f"no {name}.gz or {name} in {folder}; expected {', '.join(MNIST)}, also as .gz")
        return _unpacked(found[0], md5)
    source = Source(f"{name}.gz", packed_md5, tuple(f"{mirror}{name}.gz" for mirror in MIRRORS), BY_HAND)
    with obtained(source, root) as path:
        return _unpacked(path, md5)


def _unpacked(path: Path, md5: str) -> UInt8[np.ndarray, " bytes"]:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no complete gzip file: {error}") from error
    found = hashlib.md5(content).hexdigest()
    if found != md5:
        raise ValueError(f"{path} is not the file of MNIST: expected md5 {md5} (unpacked), found {found}")
    return np.frombuffer(content, dtype=np.uint8)


def _split(images: Shaped[np.ndarray, "*shape"], labels: Shaped[np.ndarray, "*n"], name: str) -> MemorySplit:
    if images.dtype not in (np.uint8, np.uint16) or images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise ValueError(f"x_{name} must be uint8 or uint16 [n, size, size], got {images.dtype} {images.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(f"y_{name} must be {len(images)} integers, got {labels.dtype} {labels.shape}")
    return MemorySplit(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
