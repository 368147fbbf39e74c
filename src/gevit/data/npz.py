"""One .npz file for the three splits of a set of grey images: x_train, y_train, x_valid, y_valid, x_test, y_test."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt

from gevit.data.dataset import SPLITS, MemorySplit
from gevit.files import write_aside


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


def _split(images: Shaped[np.ndarray, "*shape"], labels: Shaped[np.ndarray, "*n"], name: str) -> MemorySplit:
    if images.dtype not in (np.uint8, np.uint16) or images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise ValueError(f"x_{name} must be uint8 or uint16 [n, size, size], got {images.dtype} {images.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(f"y_{name} must be {len(images)} integers, got {labels.dtype} {labels.shape}")
    return MemorySplit(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
