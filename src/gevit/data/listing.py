"""Which image files a folder holds, by split and class.

The folder has either a folder of images for each class, or the folders `train`, `valid` (also `val`, `validation`) and
`test`, each with the same class folders; `valid` may be left out. Class folders may be nested. Hidden files and files
that are no images by their suffix are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gevit.data.dataset import SPLITS
from gevit.data.decode import SUFFIXES

SPLIT_NAMES = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}


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


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _classes(path: Path, folders: Sequence[Path]) -> dict[str, list[Path]]:
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


def image_files(folder: Path) -> list[Path]:
    """The image files anywhere below a folder, by their suffixes, in order; hidden ones are left out."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
