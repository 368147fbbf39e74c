"""`cifar10`: the official binary version of CIFAR-10 (A. Krizhevsky, 2009).

A record is 3,073 bytes: the label, then 32x32 pixels of red, of green and of blue, row by row. A random tenth of every
class of the training images, always the same, is for validation.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from gevit.data.dataset import DataSet, MemorySplit, check_labels, stratified_split
from gevit.data.storage import Source, obtained

FOLDER = "cifar-10-batches-bin"
SOURCE = Source(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
    ),
    "gevit data prepare cifar10 --file cifar-10-binary.tar.gz",
)
RECORD = 1 + 3 * 32 * 32
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
SEED = 0
OFFICIAL_SIZES = (50_000, 10_000)


def read(folder: Path) -> DataSet:
    """Read the training batches that are there, and the test batch."""
    names = tuple((folder / "batches.meta.txt").read_text(encoding="utf-8").split())
    if len(names) != 10:
        raise ValueError(f"{folder / 'batches.meta.txt'} must name 10 classes, found {len(names)}")
    batches = sorted(folder.glob("data_batch_[1-5].bin"))
    pictures, classes = zip(*map(_records, batches), strict=True)
    images, labels = torch.cat(pictures), torch.cat(classes)
    train, valid = stratified_split(labels, (0.1,), SEED)
    test = MemorySplit(*_records(folder / "test_batch.bin"))
    note = (
        f"CIFAR-10, {len(labels):,} of its 50,000 training images ({', '.join(batch.name for batch in batches)}), "
        f"a random tenth of each class of them ({len(valid):,}) for validation, "
        f"and {len(test):,} of its 10,000 test images"
    )
    return DataSet(
        "cifar10",
        names,
        3,
        32,
        MEAN,
        STD,
        MemorySplit(images[train], labels[train]),
        MemorySplit(images[valid], labels[valid]),
        test,
        note,
        whole=(len(labels), len(test)) == OFFICIAL_SIZES,
    )


def prepare(root: Path, file: Path | None = None) -> None:
    """Download the archive, or take it from `file`, and unpack its batches."""
    with (
        obtained(SOURCE, root, file) as archive,
        tempfile.TemporaryDirectory(prefix=".unpack-", dir=_made(root)) as aside,
    ):
        try:
            with tarfile.open(archive) as content:
                content.extractall(aside, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise ValueError(f"{archive} is no complete tar archive: {error}") from error
        _made(root / FOLDER)
        for path in (Path(aside) / FOLDER).iterdir():
            os.replace(path, root / FOLDER / path.name)


def _records(path: Path) -> tuple[UInt8[Tensor, "n 3 32 32"], Int[Tensor, " n"]]:
    size = path.stat().st_size
    if size == 0 or size % RECORD:
        raise ValueError(
            f"{path} must be records of {RECORD:,} bytes, found {size:,} bytes ({size % RECORD:,} too many); "
            "it is truncated or not a CIFAR-10 batch"
        )
    records = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).reshape(-1, RECORD)
    labels = records[:, 0].long()
    check_labels(labels, 10, str(path))
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
