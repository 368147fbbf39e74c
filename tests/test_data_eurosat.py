"""`eurosat` by name: tiny archives with the layout of the official one."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gevit.cli import main
from gevit.data import eurosat, open_dataset
from gevit.data.catalog import prepare, verify
from gevit.data.storage import Source


def write_eurosat(path: Path, numbers: Iterable[int], folder: str = "EuroSAT_RGB/") -> Path:
    """Images of these numbers in every class: plain ones, whose colour tells class and number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for number in numbers:
            for label, name in enumerate(eurosat.CLASSES):
                content = io.BytesIO()
                Image.new("RGB", (64, 64), (25 * label, 3 * number, 128)).save(content, "JPEG", quality=100)
                archive.writestr(f"{folder}{name}/{name}_{number}.jpg", content.getvalue())
    return path


def members(root: Path) -> dict[str, set[tuple[int, int]]]:
    """Class and number of the images in every split."""
    dataset = open_dataset("eurosat", root)
    found = {}
    for name in ("train", "valid", "test"):
        split = dataset.split(name)
        colours = split.images(torch.arange(len(split)))[:, :2].mean((2, 3)).numpy() * 255
        found[name] = set(zip(split.labels.tolist(), np.rint(colours[:, 1] / 3).astype(int).tolist(), strict=True))
        assert np.abs(colours[:, 0] - 25 * split.labels.numpy()).max() < 4
    return found


@pytest.mark.parametrize("place", ["eurosat/EuroSAT_RGB.zip", "EuroSAT_RGB.zip"])
def test_a_sample_is_read_and_said_to_be_one(place: str, tmp_path: Path) -> None:
    write_eurosat(tmp_path / place, range(1, 13))
    dataset = open_dataset("eurosat", tmp_path)
    assert dataset.classes == eurosat.CLASSES == tuple(sorted(eurosat.CLASSES))
    assert (dataset.channels, dataset.image_size, dataset.drawn) == (3, 64, ())
    assert not dataset.whole
    assert dataset.label == "eurosat sample"
    assert "120 of its 27,000 images" in dataset.note
    assert sum(len(dataset.split(name)) for name in ("train", "valid", "test")) == 120


def test_the_split_of_an_image_does_not_depend_on_the_others(tmp_path: Path) -> None:
    write_eurosat(tmp_path / "all" / "EuroSAT_RGB.zip", range(1, 25))
    write_eurosat(tmp_path / "some" / "EuroSAT_RGB.zip", range(24, 0, -3), folder="2750/")
    everything, some = members(tmp_path / "all"), members(tmp_path / "some")
    assert sum(map(len, some.values())) == 80
    for name in ("train", "valid", "test"):
        assert some[name] <= everything[name]


def test_the_split_is_kept_for_ever() -> None:
    """Weights were trained on it: another one would show them their test images."""
    names = [f"{name}_{number}.jpg" for name in eurosat.CLASSES for number in range(1, 2001)]
    splits = [eurosat.split_of(name) for name in names]
    assert hashlib.sha256(" ".join(splits).encode()).hexdigest() == (
        "708b995dc6ee758323e287fda7f2ded96c345e7e85321cf3769a850bb3239b2f"
    )
    for label in range(10):
        part = splits[2000 * label : 2000 * (label + 1)]
        for name, share in (("train", 0.8), ("valid", 0.1), ("test", 0.1)):
            assert abs(part.count(name) / 2000 - share) < 0.03


def test_all_images_are_the_whole_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eurosat, "OFFICIAL_SIZE", 120)
    write_eurosat(tmp_path / "EuroSAT_RGB.zip", range(1, 13))
    dataset = open_dataset("eurosat", tmp_path)
    assert dataset.whole
    assert dataset.label == "eurosat"


def test_prepare_takes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, file = tmp_path / "root", write_eurosat(tmp_path / "mine.zip", range(1, 13))
    assert main(["data", "prepare", "eurosat", "--file", str(file), "--data-root", str(root)]) == 0
    assert "a sample: 120 of its 27,000 images" in capsys.readouterr().out
    assert [finding.status for finding in verify("eurosat", root)] == ["ok"]
    assert main(["data", "list", "--json", "--data-root", str(root)]) == 0
    present = {entry["name"]: entry["present"] for entry in json.loads(capsys.readouterr().out)["datasets"]}
    assert present["eurosat"]
    assert file.exists()


def test_prepare_downloads_the_official_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = write_eurosat(tmp_path / "site" / "EuroSAT_RGB.zip", range(1, 13))
    md5 = hashlib.md5(official.read_bytes()).hexdigest()
    assert eurosat.SOURCE.urls[0].startswith("https://zenodo.org/records/7711810/")

    def served(source: Source, folder: Path) -> Path:
        assert source.md5 == eurosat.PUBLISHED["EuroSAT_RGB.zip"]
        return official

    monkeypatch.setattr("gevit.data.storage._download", served)
    prepare("eurosat", tmp_path / "root")
    stored = tmp_path / "root" / "eurosat" / "EuroSAT_RGB.zip"
    assert hashlib.md5(stored.read_bytes()).hexdigest() == md5


def test_what_is_not_eurosat_is_not_stored(tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        for name in ("Forest", "Tundra"):
            archive.writestr(f"EuroSAT_RGB/{name}/{name}_1.jpg", b"")
    with pytest.raises(ValueError, match="is not EuroSAT: expected folders of the classes AnnualCrop.*found Forest, T"):
        prepare("eurosat", tmp_path / "root", other)
    with pytest.raises(FileNotFoundError, match="no file .*nothing.zip; expected EuroSAT_RGB.zip"):
        prepare("eurosat", tmp_path / "root", tmp_path / "nothing.zip")
    assert not (tmp_path / "root").exists()
    with pytest.raises(FileNotFoundError, match="no EuroSAT_RGB.zip; get it with: gevit data prepare eurosat"):
        open_dataset("eurosat", tmp_path / "root")
