"""The named data sets: what they are and where their files lie; they are opened, prepared and verified here.

Light to import: the module that reads a set is imported when the set is opened.
"""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gevit.data.storage import checksum, data_root, expanded, record_files, recorded_files

if TYPE_CHECKING:
    from gevit.data.dataset import DataSet, Split

# Larger files are only compared by size when they are opened; `gevit data verify` reads them all.
HASHED_AT_OPEN = 512 * 2**20
BAD = ("changed", "missing", "unreadable")


@dataclass(frozen=True)
class Entry:
    """A named data set.

    Attributes:
        name: its name.
        module: the module of `gevit.data` with its `read(folder)`; unless embedded, `prepare(root, file)`; and, if
            checksums of its files were published, their md5 by name as `PUBLISHED`.
        images: how many there are in the full set.
        classes: how many there are.
        shape: of an image.
        source: where it comes from.
        folders: where its files may lie under the root; the first is where they are put.
        files: names or patterns of the files that must be there.
        variant: where a module has several sets, which it is: its functions are `read_VARIANT` and `prepare_VARIANT`.
        embedded: whether it comes with the package.
    """

    name: str
    module: str
    images: int
    classes: int
    shape: str
    source: str
    folders: tuple[str, ...] = ("",)
    files: tuple[str, ...] = ()
    variant: str = ""
    embedded: bool = False

    def found(self, root: Path) -> list[Path]:
        """Its files that are there, in the folder that has most of them."""
        fullest = max(
            (self._matches(folder) for folder in self._places(root)), key=lambda m: sum(map(bool, m.values()))
        )
        return sorted(path for paths in fullest.values() for path in paths)

    def is_present(self, root: Path) -> bool:
        """Whether all of its files are there."""
        return any(all(self._matches(folder).values()) for folder in self._places(root))

    def folder(self, root: Path) -> Path:
        """The folder that has all of its files; raises `FileNotFoundError` that says what is missing."""
        for folder in self._places(root):
            if all(self._matches(folder).values()):
                return folder
        found = self.found(root)
        place = found[0].parent if found else self._places(root)[0]
        missing = [name for name, paths in self._matches(place).items() if not paths]
        raise FileNotFoundError(
            f"{self.name} is not in {place}: no {', '.join(missing)}"
            + (f" (found {', '.join(path.name for path in found)})" if found else "")
            + f"; get it with: {self.command(root)}"
        )

    def command(self, root: Path) -> str:
        """The command that gets it."""
        return f"gevit data prepare {self.name} --data-root {shlex.quote(str(root))}"

    def read(self, folder: Path) -> DataSet:
        """Read it from the folder with its files."""
        dataset: DataSet = self._function("read")(folder)
        return dataset

    def prepare(self, root: Path, file: Path | None) -> None:
        """Download it to the root, or take it from `file`."""
        self._function("prepare")(root, file)

    @property
    def published(self) -> Mapping[str, str]:
        """The md5 of its files that were published, by name."""
        md5: Mapping[str, str] = getattr(self._module, "PUBLISHED", {})
        return md5

    @property
    def _module(self) -> ModuleType:
        return importlib.import_module(f"gevit.data.{self.module}")

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._module, f"{name}_{self.variant}" if self.variant else name)
        return function

    def _places(self, root: Path) -> list[Path]:
        return [(Path(__file__).parent if self.embedded else root) / folder for folder in self.folders]

    def _matches(self, folder: Path) -> dict[str, list[Path]]:
        return {name: sorted(path for path in folder.glob(name) if path.is_file()) for name in self.files}


CATALOG = {
    entry.name: entry
    for entry in (
        Entry(
            "digits",
            "digits",
            5_000,
            10,
            "1x28x28",
            "MNIST, rotated; in gevit",
            files=("digits.npz",),
            embedded=True,
        ),
        Entry(
            "digits-upright",
            "digits",
            5_000,
            10,
            "1x28x28",
            "MNIST; in gevit",
            variant="upright",
            files=("digits.npz",),
            embedded=True,
        ),
        Entry(
            "rotmnist",
            "rotmnist",
            62_000,
            10,
            "1x28x28",
            "Larochelle et al. 2007",
            files=("rotmnist.npz",),
        ),
        Entry(
            "rotmnist-rebuilt",
            "rotmnist",
            62_000,
            10,
            "1x28x28",
            "MNIST, rotated; unofficial",
            variant="rebuilt",
            files=("rotmnist_rebuilt.npz",),
        ),
        Entry(
            "cifar10",
            "cifar10",
            60_000,
            10,
            "3x32x32",
            "Krizhevsky 2009",
            folders=("cifar-10-batches-bin",),
            files=("data_batch_[1-5].bin", "test_batch.bin", "batches.meta.txt"),
        ),
        Entry(
            "pcam",
            "pcam",
            327_680,
            2,
            "3x96x96",
            "Veeling et al. 2018",
            folders=("pcam", ""),
            files=tuple(
                f"camelyonpatch_level_2_split_{split}_{x}.h5" for split in ("train", "valid", "test") for x in "xy"
            ),
        ),
        Entry(
            "eurosat",
            "eurosat",
            27_000,
            10,
            "3x64x64",
            "Helber et al. 2019",
            folders=("eurosat", ""),
            files=("EuroSAT_RGB.zip",),
        ),
        Entry(
            "redcells",
            "cutouts",
            11_545,
            12,
            "3x64x64",
            "cut from Chula RBC-12",
            variant="redcells",
            folders=("redcells", ""),
            files=("redcells.zip",),
        ),
        Entry(
            "galaxies",
            "cutouts",
            2_497,
            4,
            "3x64x64",
            "SDSS, Galaxy Zoo 1",
            variant="galaxies",
            folders=("galaxies", ""),
            files=("galaxies.zip",),
        ),
    )
}


def list_datasets() -> list[str]:
    """Names of the data sets that `open_dataset` knows.

    >>> list_datasets()
    ['digits', 'digits-upright', 'rotmnist', 'rotmnist-rebuilt', 'cifar10', 'pcam', 'eurosat', 'redcells', 'galaxies']
    """
    return list(CATALOG)


def open_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    skip_corrupt: bool = False,
    seed: int = 0,
) -> DataSet:
    """Open a data set by name, or a folder or archive of images by its path.

    Args:
        name: one of `list_datasets()`, or a path to a folder with a folder of images for each class, or with
            train, valid and test folders of such (see `gevit.data.folder`), or to a zip or tar archive of one.
        root: where named sets are stored; the environment variable GEVIT_DATA or ~/.cache/gevit if not given.
        image_size: side that the images are scaled to; if not given, that of the named set, or of the folder's files.
        channels: 1 or 3 for the pictures of a folder, else the number of bands of its TIFF files; if not given, that
            of the files. That of a named set is fixed.
        skip_corrupt: leave out files of a folder that cannot be decoded instead of raising.
        seed: of the automatic split of a folder; named sets are always split the same way.
    """
    entry = CATALOG.get(name)
    if entry is None:
        from gevit.data.folder import open_folder

        return open_folder(_existing(name), image_size, channels, skip_corrupt, seed)
    place = data_root(root)
    folder = entry.folder(place)
    _check_recorded(entry, place)
    dataset = entry.read(folder)
    if channels not in (None, dataset.channels):
        raise ValueError(
            f"{name} has channels {dataset.channels}, got {channels}; channels can be chosen for folders of images only"
        )
    return dataset if image_size is None else dataset.resized(image_size)


def open_all(
    name: str, classes: Sequence[str], image_size: int, channels: int, skip_corrupt: bool = False
) -> tuple[str, Split]:
    """The name and all images of a folder or archive, whichever splits it has, labelled by their places in `classes`.

    Args:
        name: a path; it may have some of the classes only, and few images of a class.
        classes: names of the classes.
        image_size: side that the images are scaled to.
        channels: 1 or 3 for pictures, else the number of bands.
        skip_corrupt: leave out files that cannot be decoded instead of raising.
    """
    from gevit.data import folder
    from gevit.data.archive import name_of

    if name in CATALOG:
        raise ValueError(f"{name} has the splits train, valid and test: choose one; all images are of folders only")
    path = _existing(name)
    return name_of(path), folder.open_all(path, classes, image_size, channels, skip_corrupt)


@dataclass(frozen=True)
class Finding:
    """What was found of one file.

    Attributes:
        dataset: name of the set.
        file: the file.
        status: `ok`, `changed`, `missing`, `unreadable`, or `unrecorded`: readable, with nothing to compare it to.
        detail: what was expected and found.
    """

    dataset: str
    file: str
    status: str
    detail: str = ""


def prepare(name: str, root: str | Path | None = None, file: Path | None = None) -> str:
    """Get a data set (download it, or take it from `file`), record its checksums, and say what is there.

    What is already there and right is left as it is, unless there is a `file`.
    """
    entry, place = CATALOG[name], data_root(root)
    if entry.embedded and file is not None:
        raise ValueError(f"{name} comes with gevit and is not taken from a file; leave out --file")
    if entry.embedded:
        return f"{name} comes with gevit: nothing to prepare"
    recorded = recorded_files(place, name)
    damaged = any(record.difference(path) for path, record in recorded.items())
    if file is not None or damaged or not entry.is_present(place):
        entry.prepare(place, file)
        recorded = {}
    if not recorded:
        entry.read(entry.folder(place))  # what cannot be read is not recorded as right
        record_files(place, name, entry.found(place))
    return f"{name} is in {place}: {open_dataset(name, place).note}"


def verify(name: str, root: str | Path | None = None) -> list[Finding]:
    """Compare every file of a data set with its recorded checksum, or with its published one."""
    entry, place = CATALOG[name], data_root(root)
    findings = [
        Finding(name, str(path), *_compared(record.difference(path)))
        for path, record in recorded_files(place, name).items()
    ]
    if findings:
        return findings
    if not entry.is_present(place):
        return [Finding(name, str(place), "missing", f"get it with: {entry.command(place)}")]
    return _unrecorded(entry, place)


def kept_datasets(root: str | Path | None = None) -> list[str]:
    """Names of the sets that have a file or a record of one."""
    place = data_root(root)
    return [name for name, entry in CATALOG.items() if entry.found(place) or recorded_files(place, name)]


def _existing(name: str) -> Path:
    path = expanded(name)
    if name and path.exists():  # an empty name, as of a variable that is not set, would be the current folder
        return path
    from gevit._checks import check_choice

    separators = {os.sep, os.altsep} - {None}
    if not separators & set(name) and not path.suffix:  # a name, then, and not that of a file
        check_choice("data set", name, [*CATALOG, "a path to a folder or archive of images"])
    raise FileNotFoundError(
        f"no folder or archive {path}; expected a folder of images, an archive of one, or one of {', '.join(CATALOG)}"
    )


def _check_recorded(entry: Entry, root: Path) -> None:
    for path, record in recorded_files(root, entry.name).items():
        difference = record.difference(path, sizes_only=record.bytes > HASHED_AT_OPEN)
        if difference:
            raise ValueError(
                f"{path} is not the file that was recorded when {entry.name} was prepared: {difference}; "
                f"get it again with: {entry.command(root)}"
            )


def _compared(difference: str | None) -> tuple[str, str]:
    if difference is None:
        return "ok", "as recorded"
    return ("missing", "") if difference == "missing" else ("changed", difference)


def _unrecorded(entry: Entry, root: Path) -> list[Finding]:
    findings = []
    for path in entry.found(root):
        official = entry.published.get(path.name)
        if official is None:
            findings.append(Finding(entry.name, str(path), "unrecorded", "no checksum was recorded"))
        elif checksum(path, "md5") == official:
            findings.append(Finding(entry.name, str(path), "ok", "as published"))
        else:
            findings.append(Finding(entry.name, str(path), "unrecorded", "not the published file"))
    try:
        entry.read(entry.folder(root))
    except (ValueError, OSError) as error:
        findings.append(Finding(entry.name, str(root), "unreadable", str(error)))
    return findings
