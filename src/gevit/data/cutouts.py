"""`redcells` and `galaxies`: objects cut out of larger pictures, in archives with a split of their own.

`redcells` are red blood cells cut from the smears of Chula RBC-12 (Naruenatthanaset et al. 2021), 80x80 pixels, of
twelve shapes, unbalanced; no smear is in two splits. `galaxies` are galaxies of the Sloan Digital Sky Survey with the
labels of Galaxy Zoo 1 (Lintott et al. 2011), 96x96 pixels: elliptical, edge-on, and spirals that wind clockwise and
anticlockwise, which are mirror images of each other. There is no official archive of either: `gevit data prepare
NAME --file` takes one whose layout is `SPLIT/CLASS/*.jpg`.
"""

from __future__ import annotations

import dataclasses
import shutil
from functools import partial
from pathlib import Path

from gevit.data.dataset import DataSet
from gevit.data.folder import open_folder
from gevit.data.storage import check_there
from gevit.files import write_aside

# Pixels that a network sees: what tells classes apart is there, at a third to a half of the cost.
SIDE = 64
CLASSES = {
    "redcells": (
        "burr",
        "elliptocyte",
        "hypochromia",
        "macrocyte",
        "microcyte",
        "normal",
        "ovalocyte",
        "schistocyte",
        "spherocyte",
        "stomatocyte",
        "target",
        "teardrop",
    ),
    "galaxies": ("edge_on", "elliptical", "spiral_anticlockwise", "spiral_clockwise"),
}
SOURCES = {"redcells": "Chula RBC-12", "galaxies": "Galaxy Zoo 1"}


def _read_archive(name: str, path: Path) -> DataSet:
    data = open_folder(path, SIDE, 3, skip_corrupt=False, seed=0)
    if data.classes != CLASSES[name]:
        wanted, found = (", ".join(classes[:12]) for classes in (CLASSES[name], data.classes))
        raise ValueError(f"{path} is not {name}: expected the classes {wanted}, found {found}")
    note = f"{SOURCES[name]}, cut out and scaled to {SIDE}x{SIDE}; {data.note}"
    return dataclasses.replace(data, name=name, note=note)


def _read(name: str, folder: Path) -> DataSet:
    return _read_archive(name, folder / f"{name}.zip")


def _prepare(name: str, root: Path, file: Path | None = None) -> None:
    if file is None:
        raise ValueError(
            f"there is no place to download {name} from; make an archive {name}.zip of SPLIT/CLASS/*.jpg and give it: "
            f"gevit data prepare {name} --file {name}.zip"
        )
    if file.is_dir():
        raise ValueError(f"{file} is a folder; make an archive of it, such as {name}.zip, and give that with --file")
    _read_archive(name, check_there(file, f"{name}.zip"))  # what is something else is not stored
    with write_aside(root / name / f"{name}.zip") as aside:
        shutil.copyfile(file, aside)


read_redcells, read_galaxies = partial(_read, "redcells"), partial(_read, "galaxies")
prepare_redcells, prepare_galaxies = partial(_prepare, "redcells"), partial(_prepare, "galaxies")
