"""The named data sets: what they are, where their files lie, and how they are opened and prepared.

Light to import: the module that reads a set is imported when the set is opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.data.storage import data_root, recorded_files

if TYPE_CHECKING:
    from gevit.data.dataset import DataSet

# Larger files are only compared by size when they are opened; `gevit data verify` reads them all.
HASHED_AT_OPEN = 512 * 2**20


@dataclass(frozen=True)
class Entry:
    """A named data set.

    Attributes:
        name: its name.
        module: the module of `gevit.data` with its `read(folder)` and, unless embedded, `prepare(root, file)`.
        images: how many there are in the full set.
        classes: how many there are.
        shape: of an image.
        source: where it comes from.
        folders: where its files may lie under the root; the first is where they are put.
        files: names or patterns of the files that must be there.
        official: published md5 of files, by name.
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
    official: Mapping[str, str] = field(default_factory=dict)
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
        return f"gevit data prepare {self.name} --data-root {root}"

    def reader(self) -> Any:
        """Its module."""
        return importlib.import_module(f"gevit.data.{self.module}")

    def _places(self, root: Path) -> list[Path]:
        return [(Path(__file__).parent if self.embedded else root) / folder for folder in self.folders]

    def _matches(self, folder: Path) -> dict[str, list[Path]]:
        return {name: sorted(folder.glob(name)) for name in self.files}


PCAM_MD5 = {
    "camelyonpatch_level_2_split_train_x.h5": "01844da899645b4d6f84946d417ba453",
    "camelyonpatch_level_2_split_train_y.h5": "0781386bf6c2fb62d58ff18891466aca",
    "camelyonpatch_level_2_split_valid_x.h5": "81cf9680f1724c40673f10dc88e909b1",
    "camelyonpatch_level_2_split_valid_y.h5": "94d8aacc249253159ce2a2e78a86e658",
    "camelyonpatch_level_2_split_test_x.h5": "2614b2e6717d6356be141d9d6dbfcb7e",
    "camelyonpatch_level_2_split_test_y.h5": "11ed647efe9fe457a4eb45df1dba19ba",
}

CATALOG = {
    entry.name: entry
    for entry in (
        Entry(
            "digits",
            "digits",
            5_000,
            10,
            "1x28x28",
            "MNIST, turned; in gevit",
            files=("digits.npz",),
            official={"digits.npz": "11def57eb666ead6d8efa9a9ff9c2218"},
            embedded=True,
        ),
        Entry(
            "digits-upright",
            "upright",
            5_000,
            10,
            "1x28x28",
            "MNIST; in gevit",
            files=("digits.npz",),
            official={"digits.npz": "11def57eb666ead6d8efa9a9ff9c2218"},
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
            "rebuilt",
            62_000,
            10,
            "1x28x28",
            "MNIST, turned; unofficial",
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
            files=tuple(PCAM_MD5),
            official=PCAM_MD5,
        ),
    )
}


def list_datasets() -> list[str]:
    """Names of the data sets that `open_dataset` knows.

    >>> list_datasets()
    ['digits', 'digits-upright', 'rotmnist', 'rotmnist-rebuilt', 'cifar10', 'pcam']
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
    """Open a data set by name, or a folder of images by its path.

    Args:
        name: one of `list_datasets()`, or a path to a folder with a folder of images for each class, or with
            train, valid and test folders of such (see `gevit.data.folder`).
        root: where named sets are stored; the environment variable GEVIT_DATA or ~/.cache/gevit if not given.
        image_size: side that the images are scaled to; if not given, that of the named set, or of the folder's files.
        channels: 1 or 3 for the images of a folder; that of a named set is fixed.
        skip_corrupt: leave out files of a folder that cannot be decoded instead of raising.
        seed: of the automatic split of a folder; named sets are always split the same way.
    """
    entry = CATALOG.get(name)
    if entry is None:
        from gevit.data.folder import open_folder

        return open_folder(_folder(name), image_size, channels, skip_corrupt, seed)
    place = data_root(root)
    folder = entry.folder(place)
    _check_recorded(entry, place)
    dataset: DataSet = entry.reader().read(folder)
    if channels not in (None, dataset.channels):
        raise ValueError(
            f"{name} has channels {dataset.channels}, got {channels}; channels can be chosen for folders of images only"
        )
    return dataset if image_size is None else dataset.resized(image_size)


def _folder(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{path} is a file; expected a folder of images or one of {', '.join(CATALOG)}")
    from gevit._checks import check_choice

    if path.parent == Path():
        check_choice("data set", name, [*CATALOG, "a path to a folder of images"])
    raise FileNotFoundError(f"no folder {path}; expected a folder of images or one of {', '.join(CATALOG)}")


def _check_recorded(entry: Entry, root: Path) -> None:
    for path, record in recorded_files(root, entry.name).items():
        difference = record.difference(path, sizes_only=record.bytes > HASHED_AT_OPEN)
        if difference:
            raise ValueError(
                f"{path} is not the file that was recorded when {entry.name} was prepared: {difference}; "
                f"get it again with: {entry.command(root)}"
            )
