"""TIFF files of any number of bands and any type of number."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import gevit
from gevit.cli import main
from gevit.data import open_dataset
from gevit.data.decode import as_floats, decode, probe
from gevit.data.preview import contact_sheet
from gevit.data.rotation import rotate_each
from gevit.models.info import ModelInfo

RANDOM = np.random.default_rng(0)
CONTIGUOUS = {"photometric": "minisblack", "planarconfig": "contig"}
SEPARATE = {"photometric": "minisblack", "planarconfig": "separate"}


def some_bands(count: int, kind: Any = np.uint16, size: tuple[int, int] = (16, 16)) -> np.ndarray:
    values = RANDOM.random((count, *size))
    return (values * np.iinfo(kind).max).astype(kind) if np.dtype(kind).kind in "ui" else values.astype(kind)


def write_set(folder: Path, count: int, kind: Any = np.uint16, scale: float = 1) -> Path:
    """Two classes of five images."""
    for name in ("field", "water"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            bands = (some_bands(count, kind) * scale).astype(kind)
            tifffile.imwrite(folder / name / f"{number}.tif", bands, **SEPARATE)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("count", [2, 4, 5, 13])
@pytest.mark.parametrize(
    ("last", "options"),
    [
        (False, {}),  # a page for each band
        (False, SEPARATE),
        (True, {}),  # as if the rows were pages
        (True, CONTIGUOUS),
        (True, {**CONTIGUOUS, "compression": "lzw", "predictor": True}),
        (False, {"imagej": True, "metadata": {"axes": "CYX"}}),
        (False, {**SEPARATE, "tile": (16, 16), "compression": "zlib", "bigtiff": True, "byteorder": ">"}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*are stored as RGB:DeprecationWarning")  # of tifffile, for four bands
def test_bands_first_and_last(count: int, last: bool, options: dict[str, Any], tmp_path: Path) -> None:
    bands = some_bands(count, size=(20, 20))
    path = tmp_path / "image.tif"
    tifffile.imwrite(path, np.moveaxis(bands, 0, -1) if last else bands, **options)
    header = probe(path)
    assert (header.channels, header.height, header.width) == (count, 20, 20)
    np.testing.assert_array_equal(decode(path, 20, count), bands)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.int16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 3, 13])
def test_every_type_of_number(kind: Any, count: int, tmp_path: Path) -> None:
    bands = some_bands(count, kind)
    tifffile.imwrite(tmp_path / "image.tif", bands, **SEPARATE if count > 1 else {})  # type: ignore[arg-type]
    full = np.iinfo(kind).max if np.dtype(kind).kind in "ui" else 1
    pixels = as_floats(decode(tmp_path / "image.tif", 16, count)).double().numpy()
    np.testing.assert_allclose(pixels, bands.astype(np.float64) / full, rtol=1e-6)


def test_floats_are_taken_as_they_are(tmp_path: Path) -> None:
    values = np.array([[-20.5, 0.0], [288.25, 1e20]], dtype=np.float32)
    path = tmp_path / "kelvin.tif"
    tifffile.imwrite(path, values)
    np.testing.assert_array_equal(decode(path, 2, 1)[0], values)
    for wrong in (np.nan, np.inf, 1e300):
        tifffile.imwrite(path, np.where(values == 0, wrong, values.astype(np.float64)))
        with pytest.raises(ValueError, match="must be finite numbers of 32 bits"):
            decode(path, 2, 1)
    tifffile.imwrite(path, values.astype(np.complex64))
    with pytest.raises(ValueError, match="must be integers or floats, they are complex64"):
        decode(path, 2, 1)


def test_bands_are_scaled_and_cropped_like_pictures(tmp_path: Path) -> None:
    picture = some_bands(1, np.uint8, (30, 50))[0]
    Image.fromarray(picture).save(tmp_path / "picture.png")
    tifffile.imwrite(tmp_path / "bands.tif", np.stack([picture] * 5), **SEPARATE)  # type: ignore[arg-type]
    expected = decode(tmp_path / "picture.png", 12, 1).astype(int)
    assert np.abs(decode(tmp_path / "bands.tif", 12, 5) - expected).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_tags_of_bands(orientation: int, tmp_path: Path) -> None:
    stored = some_bands(1, np.uint8, (8, 8))[0]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "picture.png", exif=exif)
    tag = (274, "H", 1, orientation, True)
    tifffile.imwrite(tmp_path / "bands.tif", np.stack([stored] * 5), extratags=[tag], **SEPARATE)  # type: ignore[arg-type]
    expected = decode(tmp_path / "picture.png", 8, 1)[0]
    np.testing.assert_array_equal(decode(tmp_path / "bands.tif", 8, 5), np.stack([expected] * 5))


def test_times_and_depths_are_no_bands(tmp_path: Path) -> None:
    stack = some_bands(6).reshape(3, 2, 16, 16)
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, stack, imagej=True, metadata={"axes": "ZCYX"})
    np.testing.assert_array_equal(decode(path, 16, 2), stack[0])
    tifffile.imwrite(path, stack[:, 0], imagej=True, metadata={"axes": "TYX"})
    assert probe(path).channels == 1
    np.testing.assert_array_equal(decode(path, 16, 1)[0], stack[0, 0])


def test_pictures_stay_pictures(tmp_path: Path) -> None:
    for mode, channels in (("L", 1), ("LA", 1), ("RGB", 3), ("RGBA", 3), ("CMYK", 3), ("P", 3), ("1", 1)):
        path = tmp_path / f"{mode}.tif"
        Image.new("RGB", (8, 8), (200, 100, 50)).convert(mode).save(path)
        assert probe(path).channels == channels, mode
        assert decode(path, 8, channels).dtype == np.uint8
    assert decode(tmp_path / "RGBA.tif", 8, 4)[:, 0, 0].tolist() == [200, 100, 50, 255], "four bands, if one asks"
    with pytest.raises(ValueError, match="it has 3 bands, expected 4"):
        decode(tmp_path / "RGB.tif", 8, 4)


# Sets


@pytest.mark.parametrize(
    ("count", "kind", "scale"), [(13, np.uint16, 0.05), (4, np.float32, 1e-7), (2, np.float32, 1e4)]
)
def test_a_set_is_normalised_by_channel(count: int, kind: Any, scale: float, tmp_path: Path) -> None:
    dataset = open_dataset(str(write_set(tmp_path / "fields", count, kind, scale)))
    assert (dataset.channels, dataset.image_size, len(dataset.mean)) == (count, 16, count)
    images = dataset.normalize(dataset.train.images(torch.arange(len(dataset.train))))
    assert images.mean((0, 2, 3)).abs().max() < 1e-3
    assert (images.std((0, 2, 3)) - 1).abs().max() < 1e-2


def test_floats_of_any_size_can_be_rotated() -> None:
    images = 250 + 50 * torch.rand(2, 5, 12, 12)
    images[:, 0] = -images[:, 0]
    turned = rotate_each(images, torch.tensor([0.5, 2.0]))
    assert turned[:, 1:].min() > 200
    assert turned[:, 1:].max() <= images.max()
    assert turned[:, 0].max() <= 1
    assert turned[:, 0].min() >= images.min()
    fractions = torch.rand(2, 5, 12, 12)
    turned = rotate_each(fractions, torch.tensor([0.5, 2.0]))
    assert (float(turned.min()), float(turned.max())) == (0, 1), "overshoots are cut off"


def test_archives_of_bands(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "fields", 5)
    with zipfile.ZipFile(tmp_path / "fields.zip", "w") as archive:
        for file in folder.rglob("*.tif"):
            archive.write(file, file.relative_to(tmp_path))
    assert open_dataset(str(tmp_path / "fields.zip")).digest == open_dataset(str(folder)).digest


def test_all_images_need_the_same_bands(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "fields", 5)
    with pytest.raises(ValueError, match="channels must be 5, as the images have 5 bands, got 3"):
        open_dataset(str(folder), channels=3)
    Image.new("RGB", (16, 16)).save(folder / "water" / "photo.png")
    with pytest.raises(ValueError, match=r"numbers of bands: 5 in .*field/0.tif, 3 in .*photo.png; expected the same"):
        open_dataset(str(folder))
    (folder / "water" / "photo.png").unlink()
    tifffile.imwrite(folder / "water" / "9.tif", some_bands(4), **SEPARATE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"5 in .*field/0.tif, 4 in .*water/9.tif"):
        open_dataset(str(folder))


def test_broken_and_huge_files_are_named(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "fields", 5)
    sound = (folder / "field" / "0.tif").read_bytes()
    for number, content in enumerate((b"II*\0", sound[:200], sound[: len(sound) // 2], b"II*\0" + bytes(100))):
        (folder / "field" / f"bad{number}.tif").write_bytes(content)
    with pytest.raises(ValueError, match="4 of 14 images ") as raised:
        open_dataset(str(folder))
    assert all(f"bad{number}.tif (" in str(raised.value) for number in range(4))
    assert "\n" not in str(raised.value)
    (folder / "field" / "bad0.tif").write_bytes(sound)
    with tifffile.TiffFile(folder / "field" / "bad0.tif", mode="r+") as file:
        for tag in ("ImageWidth", "ImageLength"):
            file.pages[0].tags[tag].overwrite(30_000)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"bad0.tif \(it has 5 x 30,000 x 30,000 values, more than"):
        open_dataset(str(folder))


def test_a_sheet_of_bands_is_not_black(tmp_path: Path) -> None:
    dark = open_dataset(str(write_set(tmp_path / "fields", 5, np.uint16, 0.02)))
    sheet = np.asarray(contact_sheet(dark, count=2))
    assert 60 < sheet[-70:-6, -70:-6].mean() < 200
    two = open_dataset(str(write_set(tmp_path / "two", 2, np.float32, 500)))
    assert 60 < np.asarray(contact_sheet(two, count=2))[-70:-6, -70:-6].mean() < 200


def test_predict_takes_bands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_set(tmp_path / "fields", 5)
    data = open_dataset(str(folder))
    info = ModelInfo(
        name="z2_cnn",
        preset="rotmnist",
        in_channels=5,
        num_classes=2,
        classes=data.classes,
        image_size=28,
        mean=data.mean,
        std=data.std,
        data=data.name,
    )
    model = gevit.create_model("z2_cnn", in_channels=5, num_classes=2)
    gevit.save(model, info, tmp_path / "model.safetensors")
    Image.new("RGB", (16, 16)).save(folder / "photo.png")
    words = ["predict", "--checkpoint", str(tmp_path / "model.safetensors"), str(folder), "--json"]
    assert main(words) == 1
    answers = json.loads(capsys.readouterr().out)
    assert [answer.get("class") in data.classes for answer in answers] == [True] * 5 + [False] + [True] * 5
    assert "expected 5 bands" in answers[5]["error"]
