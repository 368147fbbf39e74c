"""`pcam`: PatchCamelyon (Veeling et al. 2018), patches of lymph nodes, with or without tumour in the centre.

The official HDF5 files are read lazily: labels when the set is opened, images when they are asked for. The digest of
the set covers all labels, the size of each file of images, and a sample of 1,000 of its images, evenly spread.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gevit.data.dataset import SPLITS, DataSet, Split
from gevit.data.storage import Source, checksum, obtained
from gevit.environment import needs
from gevit.files import write_aside

if TYPE_CHECKING:
    import h5py

FOLDER = "pcam"
RECORD = "https://zenodo.org/records/2546921/files"
BY_HAND = "gevit data prepare pcam --file FOLDER_OF_THE_SIX_FILES"
# Checksums (md5) of the files, unpacked and as they are served.
PUBLISHED = {
    "camelyonpatch_level_2_split_train_x.h5": "01844da899645b4d6f84946d417ba453",
    "camelyonpatch_level_2_split_train_y.h5": "0781386bf6c2fb62d58ff18891466aca",
    "camelyonpatch_level_2_split_valid_x.h5": "81cf9680f1724c40673f10dc88e909b1",
    "camelyonpatch_level_2_split_valid_y.h5": "94d8aacc249253159ce2a2e78a86e658",
    "camelyonpatch_level_2_split_test_x.h5": "2614b2e6717d6356be141d9d6dbfcb7e",
    "camelyonpatch_level_2_split_test_y.h5": "11ed647efe9fe457a4eb45df1dba19ba",
}
PACKED_MD5 = {
    "camelyonpatch_level_2_split_train_x.h5": "1571f514728f59376b705fc836ff4b63",
    "camelyonpatch_level_2_split_train_y.h5": "35c2d7259d906cfc8143347bb8e05be7",
    "camelyonpatch_level_2_split_valid_x.h5": "d5b63470df7cfa627aeec8b9dc0c066e",
    "camelyonpatch_level_2_split_valid_y.h5": "2b85f58b927af9964a4c15b8f7e8f179",
    "camelyonpatch_level_2_split_test_x.h5": "d8c2d60d490dbd479f8199bdfa0cf6ec",
    "camelyonpatch_level_2_split_test_y.h5": "60a7035772fbdb7f34eb86d4420cf66a",
}
OFFICIAL_SIZES = (262_144, 32_768, 32_768)
SAMPLE = 1_000
MEAN, STD = (0.701, 0.538, 0.692), (0.235, 0.277, 0.213)


class LazySplit(Split):
    """Images in an HDF5 file, `x` of shape [n, 96, 96, 3] as bytes; a batch reads its own rows alone.

    Every process opens the file for itself: an open HDF5 file does not survive a fork.
    """

    def __init__(self, path: Path, labels: Int[Tensor, " n"]) -> None:
        self.labels = labels
        self._path = path
        self._file: h5py.File | None = None
        self._owner = 0
        with _reading(path):
            images = self._images()
            if images.shape != (len(labels), 96, 96, 3) or images.dtype != np.uint8:
                raise ValueError(
                    f"x must be uint8 [{len(labels)}, 96, 96, 3], as there are {len(labels)} labels, "
                    f"got {images.dtype} {images.shape}"
                )

    def _read(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b 3 96 96"]:
        rows, back = np.unique(indices.numpy(), return_inverse=True)  # HDF5 reads rows in increasing order, each once
        with _reading(self._path):
            pixels = self._images()[rows]
        return torch.from_numpy(pixels[back]).permute(0, 3, 1, 2).float() / 255

    def _images(self) -> h5py.Dataset:
        if self._file is None or self._owner != os.getpid():
            self._file, self._owner = _open(self._path), os.getpid()
        return _dataset(self._file, "x")

    def fingerprint(self) -> bytes:
        """Of the size of the file, and the pixels of a sample."""
        digest = hashlib.sha256(str(self._path.stat().st_size).encode())
        for rows in torch.linspace(0, len(self) - 1, min(SAMPLE, len(self))).round().long().unique().split(64):
            with _reading(self._path):
                digest.update(self._images()[rows.numpy()].tobytes())
        return digest.digest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


def read(folder: Path) -> DataSet:
    """Open the six files."""
    train, valid, test = (
        LazySplit(folder / _name(split, "x"), _labels(folder / _name(split, "y"))) for split in SPLITS
    )
    sizes = (len(train), len(valid), len(test))
    note = f"PatchCamelyon, {len(train):,} train, {len(valid):,} validation and {len(test):,} test patches"
    whole = sizes == OFFICIAL_SIZES
    if not whole:
        note += " (a sample: the official files have 262,144, 32,768 and 32,768)"
    return DataSet("pcam", ("normal", "tumor"), 3, 96, MEAN, STD, train, valid, test, note, whole=whole)


def prepare(root: Path, file: Path | None = None) -> None:
    """Download the six files, or take them from the folder `file` (.h5 or .h5.gz), and unpack them.

    A download goes on where it stopped: files that are already there and right are kept.
    """
    if file is not None:
        _import(file, root)
        return
    for name, md5 in PUBLISHED.items():
        target = root / FOLDER / name
        if not target.is_file() or checksum(target, "md5") != md5:
            with obtained(_source(name), root) as packed:
                _unpack(packed, target)


def _import(folder: Path, root: Path) -> None:
    """Take all six files, or, if one is missing or cannot be read, none: those that were there before stay."""
    found = {name: _found(name, folder) for name in PUBLISHED}
    place = root / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=place) as aside:
        for name, file in found.items():
            if file.name == name:
                with write_aside(Path(aside, name)) as copy:
                    shutil.copyfile(file, copy)
            else:
                with obtained(_source(name), root, file) as packed:
                    _unpack(packed, Path(aside, name))
        try:
            read(Path(aside))
        except ValueError as error:
            raise ValueError(f"nothing of {folder} was taken: {error}") from error
        for name in found:
            Path(aside, name).replace(place / name)


def _found(name: str, folder: Path) -> Path:
    """The file in a folder, packed or not."""
    for file in (folder / f"{name}.gz", folder / name):
        if file.is_file():
            return file
    raise FileNotFoundError(f"no {name}.gz or {name} in {folder}; expected the six files of PatchCamelyon")


def _source(name: str) -> Source:
    return Source(f"{name}.gz", PACKED_MD5[name], (f"{RECORD}/{name}.gz?download=1",), BY_HAND)


def _unpack(packed: Path, target: Path) -> None:
    with write_aside(target) as aside:
        try:
            with gzip.open(packed) as content, aside.open("wb") as file:
                shutil.copyfileobj(content, file, 2**20)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{packed} is no complete gzip file: {error}") from error


def _name(split: str, letter: str) -> str:
    return f"camelyonpatch_level_2_split_{split}_{letter}.h5"


def _labels(path: Path) -> Int[Tensor, " n"]:
    with _reading(path), _open(path) as file:
        labels = np.asarray(_dataset(file, "y"))
        if labels.dtype.kind not in "iu" or labels.size != len(labels):
            raise ValueError(f"y must be an integer for each image, got {labels.dtype} {labels.shape}")
    return torch.from_numpy(labels.reshape(-1).astype(np.int64))


def _open(path: Path) -> h5py.File:
    with needs("h5py"):
        import h5py
    return h5py.File(path, "r")


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """The data set of this name, if its numbers are in this file: HDF5 would read those of any other file."""
    import h5py

    if name not in file.keys():  # noqa: SIM118 (`in file` would follow a link)
        raise ValueError(f"it has no data set {name}")
    if not isinstance(file.get(name, getlink=True), h5py.HardLink) or not isinstance(file[name], h5py.Dataset):
        raise ValueError(f"{name} must be a data set, not a link or a group")
    if file[name].external or file[name].is_virtual:
        raise ValueError(f"{name} must be stored in this file, its numbers are taken from others")
    return file[name]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what HDF5 says of a damaged file into an error that names the file."""
    try:
        yield
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"cannot read {path}, it is damaged or not what was expected: {error}") from error
