"""Objects cut out of larger pictures: archives with a split of their own."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gevit.data import open_dataset
from gevit.data.catalog import prepare
from gevit.data.cutouts import CLASSES


def archive(path: Path, classes: tuple[str, ...]) -> Path:
    """Two pictures of each class in each split, of two colours."""
    with zipfile.ZipFile(path, "w") as file:
        for split in ("train", "valid", "test"):
            for number, name in enumerate(classes):
                for copy in range(2):
                    with file.open(f"{path.stem}/{split}/{name}/{copy}.png", "w") as member:
                        Image.fromarray(np.full((96, 96, 3), 20 * number + copy, np.uint8)).save(member, "png")
    return path


@pytest.mark.parametrize("name", CLASSES)
def test_prepared_from_an_archive_and_opened(name: str, tmp_path: Path) -> None:
    prepare(name, tmp_path / "data", archive(tmp_path / f"{name}.zip", CLASSES[name]))
    data = open_dataset(name, tmp_path / "data")
    assert (data.name, data.classes, data.channels, data.image_size) == (name, CLASSES[name], 3, 64)
    assert [len(data.split(split)) for split in ("train", "valid", "test")] == 3 * [2 * len(CLASSES[name])]
    assert data.digest == open_dataset(name, tmp_path / "data").digest


def test_another_archive_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not galaxies: expected the classes edge_on"):
        prepare("galaxies", tmp_path / "data", archive(tmp_path / "other.zip", ("cats", "dogs")))
    assert not list((tmp_path / "data").rglob("*.zip"))


def test_a_folder_is_not_stored(tmp_path: Path) -> None:
    with zipfile.ZipFile(archive(tmp_path / "galaxies.zip", CLASSES["galaxies"])) as file:
        file.extractall(tmp_path)
    with pytest.raises(ValueError, match=r"galaxies is a folder; make an archive of it, such as galaxies\.zip"):
        prepare("galaxies", tmp_path / "data", tmp_path / "galaxies")
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file .*nope.zip; expected galaxies.zip"):
        prepare("galaxies", tmp_path / "data", tmp_path / "nope.zip")


def test_there_is_nothing_to_download(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--file"):
        prepare("redcells", tmp_path)
