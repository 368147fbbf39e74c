"""Any folder of images as a data set.

The folder has either a folder of images for each class, or the folders `train`, `valid` (also `val`, `validation`) and
`test`, each with the same class folders. Class folders alone are split automatically: 80% train, 10% valid, 10% test of
every class. If there is no `valid`, a tenth of every class of train is cut off. Class folders may be nested. Hidden
files, files that are no images by their suffix, and what archivers and file servers leave behind are passed over.

Every file is decoded once when the set is opened, so that a corrupt one is found then; what fits into a memory budget
is kept, the rest is decoded again when it is asked for.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt
from torch import Tensor

from gevit.data.dataset import MOST_PIXELS, SPLITS, DataSet, Split, check_image_size, stratified_split
from gevit.data.decode import SUFFIXES, Header, decode, probe, without_bomb_warnings
from gevit.data.storage import checksum
from gevit.rendering.words import printable

SPLIT_NAMES = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
JUNK = frozenset({"__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found"})
MEMORY_BUDGET = 2**30
LARGEST_DEFAULT_SIZE, DEFAULT_SIZE = 96, 64
SHOWN = 5
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Checked:
    """A file that can be decoded: its checksum, and its pixels if they are kept."""

    sha256: str
    pixels: UInt[np.ndarray, "c h w"] | None


class FolderSplit(Split):
    """Image files with their labels; pixels that are not kept in memory are decoded when asked for."""

    def __init__(
        self,
        files: Sequence[Path],
        labels: Int[Tensor, " n"],
        size: int,
        channels: int,
        checked: Sequence[Checked],
    ) -> None:
        self.files, self.labels = files, labels
        self._size, self._channels = size, channels
        self._checked = checked

    def _read(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        images = torch.empty(len(indices), self._channels, self._size, self._size)
        for image, index in zip(images, indices.tolist(), strict=True):
            pixels = self._checked[index].pixels
            if pixels is None:
                pixels = decode(self.files[index], self._size, self._channels)
            image[:] = torch.from_numpy(pixels).float() / np.iinfo(pixels.dtype).max
        return images

    def fingerprint(self) -> bytes:
        """Of the content of every file: decoders of different versions may differ in the last bits of a pixel."""
        return hashlib.sha256("".join(checked.sha256 for checked in self._checked).encode()).digest()


def open_folder(path: Path, image_size: int | None, channels: int | None, skip_corrupt: bool, seed: int) -> DataSet:
    """Open a folder of images.

    Args:
        path: the folder.
        image_size: side of the images; if not given, that of the files if they are square, all alike and not larger
            than 96, else 64.
        channels: 1 or 3; if not given, 1 if all files are grey.
        skip_corrupt: leave out files that cannot be decoded, with a warning.
        seed: of the automatic split.
    """
    if channels not in (None, 1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels}")
    if image_size is not None:
        check_image_size(image_size)
    layout = list_images(path)
    files = [file for classes in layout.values() for members in classes.values() for file in members]

    headers, corrupt = _attempt(probe, files, "reading headers")
    image_size = image_size or _common_size(headers.values())
    channels = channels or (1 if all(header.grey for header in headers.values()) else 3)
    checked, undecodable = _attempt(_Checker(headers, image_size, channels), list(headers), "checking images")
    corrupt |= undecodable
    if corrupt:
        _report_corrupt(path, corrupt, len(files), skip_corrupt)

    names = tuple(sorted(next(iter(layout.values()))))
    members = [
        (split, label, file)
        for split, classes in layout.items()
        for label, name in enumerate(names)
        for file in classes[name]
        if file in checked
    ]
    labels = torch.tensor([label for _, label, _ in members], dtype=torch.int64)
    by_split = {
        split: torch.tensor([i for i, member in enumerate(members) if member[0] == split], dtype=torch.int64)
        for split in layout
    }
    sound = {file: checked[file] for _, _, file in members}
    whole = FolderSplit(list(sound), labels, image_size, channels, list(sound.values()))
    parts, drawn, how = _parts(by_split, labels, names, seed)
    train, valid, test = (whole.subset(part) for part in parts)
    mean, std = _statistics(train)
    # The name alone: the digest of a set must not change with the place from which its folder is looked at.
    name = path.resolve().name
    note = f"images of the folder {name}, {len(train):,} train, {len(valid):,} validation, {len(test):,} test, {how}"
    if corrupt:
        note += f"; {len(corrupt):,} corrupt files left out"
    return DataSet(name, names, channels, image_size, mean, std, train, valid, test, note, drawn)


def list_images(path: Path) -> dict[str, dict[str, list[Path]]]:
    """Image files by split and class; the one split of a folder without splits is called `all`."""
    folders = _folders(path)
    splits: dict[str, Path] = {}
    for folder in folders:
        split = SPLIT_NAMES.get(folder.name.lower())
        if split and split in splits:
            raise ValueError(f"{path} has both {splits[split].name} and {folder.name}; expected one {split} folder")
        if split:
            splits[split] = folder
    if not splits:
        return {"all": _classes(path, folders)}
    if not {"train", "test"} <= set(splits):
        raise ValueError(
            f"{path} has the split folders {', '.join(sorted(f.name for f in splits.values()))}; expected train and "
            "test, and valid if there is one (or class folders alone, which are split automatically)"
        )
    layout = {split: _classes(splits[split], _folders(splits[split])) for split in SPLITS if split in splits}
    for split, classes in layout.items():
        for name in sorted(set(layout["train"]) ^ set(classes)):
            where = splits[split] if name in layout["train"] else splits["train"]
            raise ValueError(f"class {name!r} has no folder in {where}; every split needs the same classes")
    return layout


def image_files(folder: Path) -> list[Path]:
    """The image files anywhere below a folder, by their suffixes, in order; hidden ones are left out."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(map(_is_passed_over, file.relative_to(folder).parts))
    )


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not _is_passed_over(folder.name))


def _classes(path: Path, folders: Sequence[Path]) -> dict[str, list[Path]]:
    for folder in folders:
        try:
            folder.name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the name of the class folder {printable(folder)} is not UTF-8, so no file can name it; rename it"
            ) from error
    classes = {folder.name: image_files(folder) for folder in folders}
    if len(classes) < 2:
        loose = sum(file.suffix.lower() in SUFFIXES for file in path.iterdir())
        raise ValueError(
            f"{path} has {len(classes)} class folders"
            + (f" and {loose} images outside of any" if loose else "")
            + "; expected a folder of images for each of two or more classes"
        )
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise ValueError(
            f"no images in the class folder {', '.join(str(path / name) for name in empty[:5])} ({len(empty)} of "
            f"{len(classes)} classes are empty); expected files ending in {', '.join(sorted(SUFFIXES))}"
        )
    return classes


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name in JUNK


class _Checker:
    """Decodes files, and keeps the pixels until the memory budget is used up.

    Threads decode at the same time, but never more than `MOST_PIXELS` pixels in all: a thread waits for its share.
    """

    def __init__(self, headers: Mapping[Path, Header], size: int, channels: int) -> None:
        self._headers, self._size, self._channels = headers, size, channels
        self._kept, self._decoding = 0, 0
        self._change = Condition()

    def __call__(self, file: Path) -> Checked:
        pixels, digest = self._decode(file), checksum(file)
        with self._change:
            self._kept += pixels.nbytes
            return Checked(digest, pixels if self._kept <= MEMORY_BUDGET else None)

    def _decode(self, file: Path) -> UInt[np.ndarray, "c h w"]:
        header = self._headers[file]
        share = max(header.width * header.height, self._size**2)
        with self._change:
            self._change.wait_for(lambda: self._decoding + share <= MOST_PIXELS)
            self._decoding += share
        try:
            return decode(file, self._size, self._channels)
        finally:
            with self._change:
                self._decoding -= share
                self._change.notify_all()


def _attempt(
    task: Callable[[Path], Answer], files: Sequence[Path], what: str
) -> tuple[dict[Path, Answer], dict[Path, Exception]]:
    """What `task` answers for each file and what it raises, with a progress bar if there are many."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    answers: dict[Path, Answer] = {}
    errors: dict[Path, Exception] = {}
    with without_bomb_warnings(), ThreadPoolExecutor() as threads:
        futures = {file: threads.submit(task, file) for file in files}
        quiet = len(files) <= 200 or not console.is_terminal
        for file, future in track(futures.items(), what, console=console, transient=True, disable=quiet):
            try:
                answers[file] = future.result()
            except ImportError:
                raise
            except Exception as error:  # decoders raise all sorts of errors for corrupt files
                errors[file] = error
    return answers, errors


def _report_corrupt(path: Path, corrupt: dict[Path, Exception], total: int, skip: bool) -> None:
    shown = "; ".join(f"{printable(file.relative_to(path))} ({error})" for file, error in list(corrupt.items())[:SHOWN])
    more = f"; and {len(corrupt) - SHOWN} more" if len(corrupt) > SHOWN else ""
    message = f"{len(corrupt)} of {total} images in {path} cannot be decoded: {shown}{more}"
    if not skip:
        raise ValueError(f"{message}. Repair or remove them, or leave them out with skip_corrupt=True (--skip-corrupt)")
    warnings.warn(f"{message}; left out", stacklevel=4)


def _common_size(headers: Iterable[Header]) -> int:
    sizes = {(header.width, header.height) for header in headers}
    if len(sizes) == 1:
        width, height = sizes.pop()
        if width == height <= LARGEST_DEFAULT_SIZE:
            return width
    return DEFAULT_SIZE


def _parts(
    members: dict[str, Int[Tensor, " _"]], labels: Int[Tensor, " n"], names: tuple[str, ...], seed: int
) -> tuple[tuple[Int[Tensor, " _"], ...], tuple[str, ...], str]:
    """Indices of train, valid and test, which of them were drawn at random, and how they came about."""
    for split, indices in members.items():
        needed = {"all": 3, "train": 1 if "valid" in members else 2}.get(split, 1)
        for label, count in enumerate(labels[indices].bincount(minlength=len(names)).tolist()):
            if count < needed:
                where = "" if split == "all" else f" in {split}"
                raise ValueError(f"class {names[label]!r} has {count} sound images{where}, needed at least {needed}")
    if "all" in members:
        return stratified_split(labels, (0.1, 0.1), seed), SPLITS, f"split 80/10/10 by class with seed {seed}"
    if "valid" in members:
        return (members["train"], members["valid"], members["test"]), (), "split by its folders"
    train, valid = (members["train"][part] for part in stratified_split(labels[members["train"]], (0.1,), seed))
    how = f"a tenth of each class of train cut off for validation with seed {seed}"
    return (train, valid, members["test"]), ("train", "valid"), how


def _statistics(train: Split, most: int = 2000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and spread of every channel, over up to `most` images spread evenly over the split."""
    total = squares = torch.zeros(1, dtype=torch.float64)
    indices = torch.linspace(0, len(train) - 1, min(most, len(train))).round().long()
    for batch in indices.split(64):
        images = train.images(batch).double()
        total = total + images.mean((2, 3)).sum(0)
        squares = squares + images.square().mean((2, 3)).sum(0)
    mean = total / len(indices)
    std = (squares / len(indices) - mean.square()).clamp(min=1e-6).sqrt()
    # Rounded, since processors differ in the last digits, and the digest of a set must not.
    return tuple(mean.round(decimals=8).tolist()), tuple(std.round(decimals=8).tolist())
