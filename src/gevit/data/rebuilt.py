"""`rotmnist-rebuilt`: MNIST digits turned by uniform angles, in the sizes of rotMNIST (10,000/2,000/50,000).

It is not the official file, and results on it are never called "rotMNIST". The recipe, with one generator
`numpy.random.default_rng(2007)`: the 60,000 training and then the 10,000 test images of MNIST are permuted, the first
62,000 are taken, each is turned counter-clockwise by an angle uniform in [0, 360) degrees with bicubic interpolation,
and they are cut into train, valid and test in this order. `src_index` and `angle_deg` say which, and how far.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from gevit.data.dataset import DataSet
from gevit.data.digits import digit_set
from gevit.data.download import Source, obtained
from gevit.data.npz import read_splits, write_splits
from gevit.data.rotation import rotate_digits

FILE = "rotmnist_rebuilt.npz"
SEED = 2007
TRAIN, VALID, TEST = 10_000, 2_000, 50_000
BY_HAND = "gevit data prepare rotmnist-rebuilt --file FOLDER_OF_THE_FOUR_FILES"
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
# Checksums of the files as they are served (.gz), and unpacked.
MNIST = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
}


def read(folder: Path) -> DataSet:
    """Read the prepared file."""
    train, valid, test = read_splits(folder / FILE)
    note = (
        f"MNIST digits, each turned by a uniform angle, split {len(train):,}/{len(valid):,}/{len(test):,}; "
        "a rebuilt set, not the official rotMNIST"
    )
    return digit_set("rotmnist-rebuilt", train, valid, test, note)


def prepare(root: Path, file: Path | None = None) -> None:
    """Build the file from the four files of MNIST: downloaded, or those in the folder `file` (idx, also .gz)."""
    content = {name: _content(name, root, file) for name in MNIST}
    images = np.concatenate([content[f"{part}-images-idx3-ubyte"][16:] for part in ("train", "t10k")])
    labels = np.concatenate([content[f"{part}-labels-idx1-ubyte"][8:] for part in ("train", "t10k")])
    random = np.random.default_rng(SEED)
    source = random.permutation(len(labels))[: TRAIN + VALID + TEST]
    degrees = random.uniform(0, 360, len(source))
    write_splits(
        root / FILE,
        rotate_digits(images.reshape(-1, 28, 28)[source], degrees),
        labels[source].astype(np.int64),
        (TRAIN, VALID),
        src_index=source.astype(np.int32),
        angle_deg=degrees.astype(np.float32),
    )


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
