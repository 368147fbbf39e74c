"""Any folder or archive of images as a data set.

It has either a folder of images for each class, or the folders `train` (also `training`), `valid` (`val`, `validation`)
and `test` (`testing`), each with the same class folders. A lone folder around all of that, as archives often have, is
looked into. Class folders alone are split automatically: 80% train, 10% valid, 10% test of every class. If there is no
`valid`, a tenth of every class of train is cut off. Class folders may be nested. Hidden files, files that are no images
by their suffix, and what archivers and file servers leave behind are passed over.

The images of an archive are those of the folder that it unpacks to: same digest, same split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from gevit._checks import check_count
from gevit.data.archive import Archive, Location, name_of
from gevit.data.dataset import SPLITS, DataSet, Split, check_image_size, stratified_split
from gevit.data.decode import GREY_OR_COLOUR, SUFFIXES, Header
from gevit.data.file_split import FileSplit, check_images, read_headers, report_corrupt
from gevit.rendering.words import printable

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "test": "test",
    "testing": "test",
}
JUNK = frozenset({"__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found"})
LARGEST_DEFAULT_SIZE, DEFAULT_SIZE = 96, 64


def open_folder(path: Path, image_size: int | None, channels: int | None, skip_corrupt: bool, seed: int) -> DataSet:
    """Open a folder of images, or an archive of one.

    Args:
        path: the folder or archive.
        image_size: side of the images; if not given, that of the files if they are square, all alike and not larger
            than 96, else 64.
        channels: 1 or 3, or the number of bands of TIFF files; if not given, 1 if all files are grey, 3 if they are
            grey or in colour, else the number of bands that all of them have.
        skip_corrupt: leave out files that cannot be decoded, with a warning.
        seed: of the automatic split.
    """
    found = _read(path, image_size, channels, skip_corrupt)
    parts, drawn, how = _parts(found.by_split, found.images.labels, found.names, seed)
    train, valid, test = (found.images.subset(part) for part in parts)
    mean, std = _statistics(train)
    # The name alone: the digest of a set must not change with the place from which its folder is looked at.
    name, kind = name_of(path), "folder" if path.is_dir() else "archive"
    note = f"images of the {kind} {name}, {len(train):,} train, {len(valid):,} validation, {len(test):,} test, {how}"
    note += found.note
    return DataSet(name, found.names, found.channels, found.image_size, mean, std, train, valid, test, note, drawn)


def open_all(path: Path, classes: Sequence[str], image_size: int, channels: int, skip_corrupt: bool) -> Split:
    """All images of a folder or archive, of whichever split, labelled by their places in `classes`.

    It may have some of these classes only, and as few images of a class as it likes.
    """
    found = _read(path, image_size, channels, skip_corrupt, fewest_classes=1)
    if not len(found.images):
        raise ValueError(f"{path} has no sound images; expected at least one")
    unknown = [name for name in found.names if name not in classes]
    if unknown:
        raise ValueError(
            f"{path} has folders of classes that are not among {_some(classes)}: {_some(unknown)}; "
            "rename them, or take them away"
        )
    labels = torch.tensor([classes.index(name) for name in found.names])[found.images.labels]
    return found.images.labelled(labels)


@dataclass(frozen=True)
class _Found:
    """The images of a folder: their classes, the indices of those of each split, how they were read."""

    images: FileSplit
    names: tuple[str, ...]
    by_split: dict[str, Int[Tensor, " _"]]
    image_size: int
    channels: int
    note: str


def _read(
    path: Path, image_size: int | None, channels: int | None, skip_corrupt: bool, fewest_classes: int = 2
) -> _Found:
    if channels is not None:
        check_count("channels", channels)
    if image_size is not None:
        check_image_size(image_size)
    where = located(path)
    layout = list_images(where, fewest_classes)
    files = [file for classes in layout.values() for members in classes.values() for file in members]

    headers, corrupt = read_headers(files)
    image_size = image_size or _common_size(headers.values())
    channels = _common_channels(headers, channels)
    checked, undecodable = check_images(headers, image_size, channels)
    corrupt |= undecodable
    if corrupt:
        report_corrupt(where, corrupt, len(files), skip_corrupt)

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
    images = FileSplit({file: checked[file] for _, _, file in members}, labels, image_size, channels)
    note = _scaled(headers.values(), image_size)
    if corrupt:
        note += f"; {len(corrupt):,} corrupt files left out"
    return _Found(images, names, by_split, image_size, channels, note)


def located(path: Path) -> Location:
    """The folder itself, or the outermost folder in the archive."""
    return path if path.is_dir() else Archive(path, SUFFIXES).root


def list_images(path: Location, fewest_classes: int = 2) -> dict[str, dict[str, list[Location]]]:
    """Image files by split and class; the one split of a folder without splits is called `all`."""
    path = _unwrapped(path)
    folders = _folders(path)
    splits: dict[str, Location] = {}
    for folder in folders:
        split = SPLIT_NAMES.get(folder.name.lower())
        if split and split in splits:
            raise ValueError(f"{path} has both {splits[split].name} and {folder.name}; expected one {split} folder")
        if split:
            splits[split] = folder
    if not splits:
        _check_no_splits(path, folders)
        return {"all": _classes(path, folders, fewest_classes)}
    if not {"train", "test"} <= set(splits):
        raise ValueError(
            f"{path} has the split folders {', '.join(sorted(f.name for f in splits.values()))}; expected train and "
            "test, and valid if there is one (or class folders alone, which are split automatically)"
        )
    layout = {
        split: _classes(splits[split], _folders(splits[split]), fewest_classes) for split in SPLITS if split in splits
    }
    for split, classes in layout.items():
        for name in sorted(set(layout["train"]) ^ set(classes)):
            where = splits[split] if name in layout["train"] else splits["train"]
            raise ValueError(f"class {name!r} has no folder in {where}; every split needs the same classes")
    return layout


def image_files(folder: Location) -> list[Location]:
    """The image files anywhere below a folder, by their suffixes, in order; hidden ones are left out."""
    return list(_images_below(folder))


def _images_below(folder: Location) -> Iterator[Location]:
    for item in _seen_in(folder):
        if item.is_dir():
            if not item.is_symlink():  # which could lead around in circles
                yield from _images_below(item)
        elif _is_image(item):
            yield item


def _is_image(file: Location) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file()


def _seen_in(folder: Location) -> list[Location]:
    """What is in a folder and is not passed over, in order."""
    items: Iterable[Location] = folder.iterdir()
    return sorted(
        (item for item in items if not item.name.startswith(".") and item.name not in JUNK), key=lambda item: item.name
    )


def _folders(path: Location) -> list[Location]:
    return [item for item in _seen_in(path) if item.is_dir()]


def _loose(path: Location) -> int:
    """The number of images in a folder itself."""
    return sum(map(_is_image, _seen_in(path)))


def _unwrapped(path: Location) -> Location:
    """The folder of the classes or splits: this one, or a lone folder in it that has nothing but folders."""
    folders = _folders(path)
    if len(folders) != 1 or _loose(path) or folders[0].name.lower() in SPLIT_NAMES:
        return path
    return path if _loose(folders[0]) or not _folders(folders[0]) else _unwrapped(folders[0])


def _check_no_splits(path: Location, folders: Sequence[Location]) -> None:
    """Refuse folders that all have the same folders inside, and no images beside these: one of the two are splits."""
    inside = {tuple(inner.name for inner in _folders(folder)) for folder in folders}
    if len(folders) < 2 or len(inside) > 1 or len(next(iter(inside))) < 2 or any(map(_loose, folders)):
        return
    raise ValueError(
        f"the folders {_some(folder.name for folder in folders)} in {path} all have the same folders inside: "
        f"{_some(next(iter(inside)))}; if those inside are the classes, name the outer ones train, valid and test; "
        "if the outer ones are, put the images of each directly into it, "
        "or make the folders train, valid and test around them"
    )


def _some(names: Iterable[str]) -> str:
    first = list(names)
    return ", ".join(map(printable, first[:5])) + (", ..." if len(first) > 5 else "")


def _classes(path: Location, folders: Sequence[Location], fewest: int) -> dict[str, list[Location]]:
    for folder in folders:
        try:
            folder.name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the name of the class folder {printable(folder)} is not UTF-8, so no file can name it; rename it"
            ) from error
    classes = {folder.name: image_files(folder) for folder in folders}
    if len(classes) < fewest:
        loose = _loose(path)
        raise ValueError(
            f"{path} has {len(classes)} class folders"
            + (f" and {loose} images outside of any" if loose else "")
            + f"; expected a folder of images for each of {fewest} or more classes"
        )
    empty = [name for name, files in classes.items() if not files]
    if empty:
        shown = ", ".join(f"{path}/{name}" for name in empty[:5])
        raise ValueError(
            f"no images in the class folder {shown} ({len(empty)} of "
            f"{len(classes)} classes are empty); expected files ending in {', '.join(sorted(SUFFIXES))}"
        )
    return classes


def _common_size(headers: Iterable[Header]) -> int:
    sizes = {(header.width, header.height) for header in headers}
    if len(sizes) == 1:
        width, height = sizes.pop()
        if width == height <= LARGEST_DEFAULT_SIZE:
            return width
    return DEFAULT_SIZE


def _scaled(headers: Iterable[Header], image_size: int) -> str:
    """To which size images are brought, and from which; empty if they have it."""
    sizes = {(header.width, header.height) for header in headers}
    if sizes <= {(image_size, image_size)}:
        return ""
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    files = f"{'up to ' if len(sizes) > 1 else ''}{width}x{height}"
    return f"; scaled to {image_size}x{image_size}, the files have {files}"


def _common_channels(headers: Mapping[Location, Header], wanted: int | None) -> int:
    """The channels that all images can have: grey and colour become each other, bands are as they are."""
    first: dict[int, Location] = {}
    for file, header in headers.items():
        first.setdefault(header.channels, file)
    fixed = [count for count in first if count not in GREY_OR_COLOUR]
    if fixed and len(first) > 1:
        one, other = list(first.items())[:2]
        raise ValueError(
            f"the images have different numbers of bands: {one[0]} in {one[1]}, {other[0]} in {other[1]}; "
            "expected the same in all of them"
        )
    if not fixed and wanted not in (None, *GREY_OR_COLOUR) and not any(map(_is_tiff, headers)):
        raise ValueError(f"channels must be 1 (grey) or 3 (colour) for these images, got {wanted}")
    if fixed and wanted not in (None, fixed[0]):
        raise ValueError(f"channels must be {fixed[0]}, as the images have {fixed[0]} bands, got {wanted}")
    return wanted or max(first, default=1)


def _is_tiff(file: Location) -> bool:
    return file.suffix.lower() in (".tif", ".tiff")  # a picture in there can be taken as bands


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
    mean, squares = total / len(indices), squares / len(indices)
    # A channel that hardly varies is not blown up; floats may be of any magnitude, so that is told by their size.
    least = 1e-6 * squares.where(squares > 0, 1)
    std = (squares - mean.square()).clamp(min=least).sqrt()
    # Rounded, since processors differ in the last digits, and the digest of a set must not.
    return tuple(map(_rounded, mean.tolist())), tuple(map(_rounded, std.tolist()))


def _rounded(value: float) -> float:
    return float(f"{value:.8g}")
