"""`eurosat`: satellite images of land use in Europe (Helber et al. 2019), in colour, 64x64 pixels.

The official archive is read as it is: `EuroSAT_RGB/CLASS/CLASS_NUMBER.jpg`, 2,000 to 3,000 images of each of ten
classes. There is no official split. Here the name of an image decides: a tenth is for validation, a tenth for test,
the same ones for ever and whichever other images are there, so an archive with a sample of the images is split as all
of them are.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import torch

from gevit.data.archive import Archive
from gevit.data.dataset import SPLITS, DataSet
from gevit.data.decode import SUFFIXES
from gevit.data.file_split import FileSplit, check_images, read_headers, report_corrupt
from gevit.data.folder import list_images
from gevit.data.storage import Source, check_there, obtained
from gevit.files import write_aside

FOLDER, FILE = "eurosat", "EuroSAT_RGB.zip"
PUBLISHED = {FILE: "f46e308c4d50d4bf32fedad2d3d62f3b"}
SOURCE = Source(
    FILE,
    PUBLISHED[FILE],
    ("https://zenodo.org/records/7711810/files/EuroSAT_RGB.zip?download=1",),
    "gevit data prepare eurosat --file EuroSAT_RGB.zip",
)
CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)
OFFICIAL_SIZE, SIDE = 27_000, 64
MEAN, STD = (0.3457, 0.3813, 0.4087), (0.2035, 0.1375, 0.1167)  # of the training images of a sample


def read(folder: Path) -> DataSet:
    """Open the archive."""
    return read_archive(folder / FILE)


def read_archive(path: Path) -> DataSet:
    """Open an archive of all images or of some."""
    root = Archive(path, SUFFIXES).root
    layout = list_images(root)
    classes = layout.get("all", {})
    if tuple(sorted(classes)) != CLASSES:
        found = ", ".join(sorted(classes or layout)[:10])
        raise ValueError(f"{path} is not EuroSAT: expected folders of the classes {', '.join(CLASSES)}, found {found}")
    labels = {file: label for label, name in enumerate(CLASSES) for file in classes[name]}
    headers, corrupt = read_headers(list(labels))
    checked, undecodable = check_images(headers, SIDE, 3)
    if corrupt or undecodable:
        report_corrupt(root, corrupt | undecodable, len(labels), skip=False)

    whole = FileSplit(checked, torch.tensor([labels[file] for file in checked]), SIDE, 3)
    drawn = [split_of(file.name) for file in checked]
    train, valid, test = (
        whole.subset(torch.tensor([i for i, split in enumerate(drawn) if split == name], dtype=torch.int64))
        for name in SPLITS
    )
    is_whole = len(whole) == OFFICIAL_SIZE
    note = "EuroSAT (RGB)" if is_whole else f"EuroSAT (RGB), a sample: {len(whole):,} of its {OFFICIAL_SIZE:,} images"
    note += f", {len(train):,} train, {len(valid):,} validation, {len(test):,} test, split by a hash of the file names"
    return DataSet("eurosat", CLASSES, 3, SIDE, MEAN, STD, train, valid, test, note, whole=is_whole)


def split_of(name: str) -> str:
    """The split of the image of this name, such as AnnualCrop_10.jpg.

    >>> [split_of(f"Forest_{number}.jpg") for number in (1, 2, 3)]
    ['train', 'train', 'valid']
    """
    place = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10
    return {0: "test", 1: "valid"}.get(place, "train")


def prepare(root: Path, file: Path | None = None) -> None:
    """Download the official archive, or take `file`: that one, or another one with some of its images."""
    if file is None:
        with obtained(SOURCE, root) as archive:
            _store(archive, root)
    else:
        read_archive(check_there(file, FILE))  # what is not EuroSAT is not stored
        _store(file, root)


def _store(archive: Path, root: Path) -> None:
    with write_aside(root / FOLDER / FILE) as aside:
        shutil.copyfile(archive, aside)
