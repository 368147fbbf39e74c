from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from gevit import cli
from gevit.data import file_split, open_dataset
from gevit.data.dataset import is_other_data
from gevit.data.decode import decode, probe, without_bomb_warnings

RED, BLUE = (200, 30, 10), (10, 60, 220)


def save(image: Image.Image, path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def fill(path: Path, count: int, size: tuple[int, int] = (12, 12), mode: str = "L", start: int = 0) -> None:
    """Pictures that differ: the number of a picture is its brightness."""
    for number in range(start, start + count):
        colour = number if mode == "L" else (number, 0, 255 - number)
        save(Image.new(mode, size, colour), path / f"{number:03}.png")


@pytest.fixture
def two_classes(tmp_path: Path) -> Path:
    fill(tmp_path / "cells", 20)
    fill(tmp_path / "empty", 40, start=100)
    return tmp_path


# Decoding


def halves(mode: str = "RGB") -> Image.Image:
    """Left half red, right half blue."""
    image = Image.new("RGB", (8, 8), RED)
    image.paste(BLUE, (4, 0, 8, 8))
    return image.convert(mode)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "gif", "webp", "jpg"])
def test_formats(suffix: str, tmp_path: Path) -> None:
    lossless = {"lossless": True} if suffix == "webp" else {"quality": 100} if suffix == "jpg" else {}
    path = save(halves(), tmp_path / f"picture.{suffix}", **lossless)
    pixels = decode(path, 8, 3)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (3, 8, 8)
    off = 8 if suffix in ("jpg", "gif") else 0  # chroma is averaged, colours are picked from a palette
    assert np.abs(pixels[:, 4, 0].astype(int) - RED).max() <= off
    assert np.abs(pixels[:, 4, 7].astype(int) - BLUE).max() <= off
    assert probe(path).channels == 3


def test_cmyk_jpeg(tmp_path: Path) -> None:
    pixels = decode(save(halves("CMYK"), tmp_path / "print.jpg", quality=100), 8, 3)
    assert np.abs(pixels[:, 4, 0].astype(int) - RED).max() < 20


def test_grey_and_colour_become_each_other(tmp_path: Path) -> None:
    grey = save(Image.new("L", (4, 4), 77), tmp_path / "grey.png")
    assert probe(grey).channels == 1
    assert decode(grey, 4, 1).tolist() == [[[77] * 4] * 4]
    assert decode(grey, 4, 3).tolist() == [[[77] * 4] * 4] * 3
    colour = save(Image.new("RGB", (4, 4), (100, 150, 200)), tmp_path / "colour.png")
    assert decode(colour, 4, 1)[0, 0, 0] == round(0.299 * 100 + 0.587 * 150 + 0.114 * 200)
    bits = save(Image.new("1", (4, 4), 1), tmp_path / "bits.png")
    assert probe(bits).channels == 1
    assert decode(bits, 4, 1)[0, 0, 0] == 255


def test_transparent_images_are_laid_on_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    clear.paste((200, 0, 0, 255), (0, 0, 2, 4))
    pixels = decode(save(clear, tmp_path / "clear.png"), 4, 3)
    assert pixels[:, 0, 0].tolist() == [200, 0, 0]
    assert pixels[:, 0, 3].tolist() == [255, 255, 255]
    half = decode(save(Image.new("LA", (4, 4), (100, 128)), tmp_path / "half.png"), 4, 1)
    assert abs(int(half[0, 0, 0]) - (100 * 128 + 255 * 127) / 255) <= 1
    assert probe(tmp_path / "half.png").channels == 1


def test_palettes(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, *RED])
    path = save(image, tmp_path / "palette.png")
    assert probe(path).channels == 3
    assert decode(path, 4, 3)[:, 0, 0].tolist() == list(RED)
    clear = save(image, tmp_path / "clear.png", transparency=1)
    assert decode(clear, 4, 3)[:, 0, 0].tolist() == [255, 255, 255]
    image.putpalette([0, 0, 0, 90, 90, 90])
    assert probe(save(image, tmp_path / "grey.png")).channels == 1


def test_sixteen_bits_are_kept(tmp_path: Path) -> None:
    values = np.array([[0, 1], [30_001, 65_535]], dtype=np.uint16)
    for name in ("deep.png", "deep.tif"):
        path = save(Image.fromarray(values), tmp_path / name)
        assert probe(path).channels == 1
        pixels = decode(path, 2, 1)
        assert pixels.dtype == np.uint16
        np.testing.assert_array_equal(pixels[0], values)
        np.testing.assert_array_equal(decode(path, 2, 3), np.stack([values] * 3))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_tags_are_applied(orientation: int, tmp_path: Path) -> None:
    upright = Image.fromarray(np.arange(0, 240, 15, dtype=np.uint8).reshape(4, 4))
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(stored, tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(decode(path, 4, 1)[0], np.asarray(upright))


def test_the_middle_is_kept_and_scaled(tmp_path: Path) -> None:
    wide = Image.new("L", (60, 20), 0)
    wide.paste(255, (20, 0, 40, 20))
    path = save(wide, tmp_path / "wide.png")
    assert (decode(path, 20, 1) == 255).all()
    assert (decode(path, 10, 1)[:, :, 1:-1] == 255).all()
    checks = Image.fromarray((np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8))
    shrunk = decode(save(checks, tmp_path / "checks.png"), 16, 1)
    assert np.abs(shrunk[0, 2:-2, 2:-2] - 127.5).max() < 3, "shrinking averages"


# Opening


def test_class_folders_are_split_automatically(two_classes: Path) -> None:
    (two_classes / "cells" / ".hidden.png").write_bytes(b"not an image")
    (two_classes / "cells" / "notes.txt").write_text("not an image")
    (two_classes / ".git").mkdir()
    dataset = open_dataset(str(two_classes))
    assert dataset.classes == ("cells", "empty")
    assert (dataset.channels, dataset.image_size) == (1, 12)
    assert dataset.name == two_classes.name
    assert "48 train, 6 validation, 6 test, split 80/10/10 by class with seed 0" in dataset.note
    seen: list[int] = []
    for name, counts in (("train", [16, 32]), ("valid", [2, 4]), ("test", [2, 4])):
        split = dataset.split(name)
        assert split.labels.bincount().tolist() == counts
        numbers = (split.images(torch.arange(len(split)))[:, 0, 0, 0] * 255).round().int()
        assert torch.equal((numbers >= 100).long(), split.labels)
        seen += numbers.tolist()
    assert sorted(seen) == [*range(20), *range(100, 140)]
    assert dataset.drawn == ("train", "valid", "test")
    again, other = open_dataset(str(two_classes)), open_dataset(str(two_classes), seed=1)
    everything = torch.arange(48)
    assert torch.equal(again.train.images(everything), dataset.train.images(everything))
    assert not torch.equal(other.train.images(everything), dataset.train.images(everything))


@pytest.mark.parametrize("valid", ["valid", "val", "Validation"])
def test_split_folders(valid: str, tmp_path: Path) -> None:
    for split, count in (("train", 5), (valid, 3), ("test", 2)):
        for name in ("a", "b"):
            fill(tmp_path / split / name / "nested", count, (50, 50), "RGB")
    dataset = open_dataset(str(tmp_path))
    assert (dataset.channels, dataset.image_size) == (3, 50)
    assert [len(dataset.split(split)) for split in ("train", "valid", "test")] == [10, 6, 4]
    assert dataset.note.endswith("split by its folders")
    assert dataset.drawn == ()


@pytest.mark.parametrize(("train", "test"), [("Training", "Testing"), ("TRAIN", "testing")])
def test_other_names_of_splits(train: str, test: str, tmp_path: Path) -> None:
    for split, count in ((train, 5), (test, 3)):
        for name in ("cat", "dog"):
            fill(tmp_path / split / name, count)
    dataset = open_dataset(str(tmp_path))
    assert dataset.classes == ("cat", "dog")
    assert (len(dataset.train) + len(dataset.valid), len(dataset.test)) == (10, 6)


@pytest.mark.parametrize("outer", [("train_images", "test_images"), ("cat", "dog")])
def test_folders_with_the_same_folders_inside_are_no_classes(outer: tuple[str, str], tmp_path: Path) -> None:
    for folder in outer:
        for name in ("one", "two"):
            fill(tmp_path / folder / name, 5)
    with pytest.raises(ValueError, match=r"same folders inside: one, two.*train, valid and test"):
        open_dataset(str(tmp_path))

    fill(tmp_path / outer[0] / "three", 1)
    assert open_dataset(str(tmp_path)).classes == tuple(sorted(outer)), "folders of a class may be nested"


def test_validation_is_cut_from_train(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("test", 3)):
        for name in ("a", "b"):
            fill(tmp_path / split / name, count)
    dataset = open_dataset(str(tmp_path))
    assert [len(dataset.split(split)) for split in ("train", "valid", "test")] == [36, 4, 6]
    assert "cut off for validation" in dataset.note
    assert dataset.drawn == ("train", "valid")
    assert dataset.valid.labels.bincount().tolist() == [2, 2]
    parts = [split.images(torch.arange(len(split)))[:, 0, 0, 0] for split in (dataset.train, dataset.valid)]
    numbers = (torch.cat(parts) * 255).round().int()
    assert sorted(numbers.tolist()) == sorted([*range(20)] * 2), "nothing of train is lost or doubled"


def test_the_digest_follows_the_images_and_not_the_place(two_classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = open_dataset(str(two_classes)).digest
    monkeypatch.chdir(two_classes.parent)
    assert open_dataset(two_classes.name).digest == digest
    (two_classes / "cells" / "000.png").rename(two_classes / "cells" / "999.png")
    assert open_dataset(two_classes.name).digest != digest, "in another order, other images are drawn"


def test_statistics_are_those_of_the_training_images(two_classes: Path) -> None:
    dataset = open_dataset(str(two_classes))
    images = dataset.train.images(torch.arange(len(dataset.train))).double()
    assert dataset.mean == pytest.approx([images.mean().item()])
    assert dataset.std == pytest.approx([images.std(correction=0).item()])


def test_size_and_channels(tmp_path: Path) -> None:
    fill(tmp_path / "a", 3, (30, 30))
    fill(tmp_path / "b", 3, (30, 20), "RGB")
    dataset = open_dataset(str(tmp_path))
    assert (dataset.channels, dataset.image_size) == (3, 64)
    dataset = open_dataset(str(tmp_path), image_size=16, channels=1)
    assert dataset.train.images(torch.tensor([0, 1])).shape == (2, 1, 16, 16)
    assert len(dataset.mean) == 1
    with pytest.raises(ValueError, match="channels must be 1 .grey. or 3 .colour. for these images, got 2"):
        open_dataset(str(tmp_path), channels=2)
    with pytest.raises(ValueError, match="image_size must be a positive integer, got 0"):
        open_dataset(str(tmp_path), image_size=0)


def test_the_note_says_what_images_are_scaled_to(tmp_path: Path) -> None:
    fill(tmp_path / "a", 3, (30, 30))
    fill(tmp_path / "b", 3, (30, 20))
    assert "scaled to 64x64, the files have up to 30x30" in open_dataset(str(tmp_path)).note
    fill(tmp_path / "b", 3, (30, 30))
    assert "scaled" not in open_dataset(str(tmp_path)).note
    assert "scaled to 20x20, the files have 30x30" in open_dataset(str(tmp_path), image_size=20).note


def test_large_images_are_not_the_default_size(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fill(tmp_path / name, 3, (97, 97))
    assert open_dataset(str(tmp_path)).image_size == 64


def test_deep_and_shallow_images_mix(tmp_path: Path) -> None:
    fill(tmp_path / "a", 3)
    for number in range(3):
        save(Image.fromarray(np.full((12, 12), 40_000 + number, np.uint16)), tmp_path / "b" / f"{number}.png")
    dataset = open_dataset(str(tmp_path))
    deep = torch.cat([s.images(s.labels.nonzero().flatten()) for s in (dataset.train, dataset.valid, dataset.test)])
    values = (deep[:, 0, 0, 0].double() * 65535).round()
    assert sorted(values.tolist()) == [40_000, 40_001, 40_002]


def test_what_exceeds_the_memory_budget_is_decoded_again(two_classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = torch.arange(48)
    kept = open_dataset(str(two_classes)).train.images(everything)
    monkeypatch.setattr(file_split, "MEMORY_BUDGET", 10 * 144)
    dataset = open_dataset(str(two_classes))
    decoded: list[Path] = []

    def counted(path: Path, size: int, channels: int) -> np.ndarray:
        decoded.append(path)
        return decode(path, size, channels)

    monkeypatch.setattr(file_split, "decode", counted)
    for split in (dataset.train, dataset.valid, dataset.test):
        images = split.images(torch.arange(len(split)))
        if split is dataset.train:
            assert torch.equal(images, kept)
    assert len(decoded) == 50


# Wrong folders


def corrupt(path: Path, count: int) -> None:
    fill(path, count, (40, 40), start=200)
    for file in sorted(path.glob("2*.png")):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])


def test_corrupt_files_are_named(two_classes: Path) -> None:
    corrupt(two_classes / "cells", 6)
    (two_classes / "cells" / "000.png").write_bytes(b"no image at all")
    with pytest.raises(ValueError, match="7 of 66 images in .* cannot be decoded: .*; and 2 more.*skip_corrupt=True"):
        open_dataset(str(two_classes))
    with pytest.raises(ValueError, match=r"cells/000.png \(it is no image .*cells/200.png \("):
        open_dataset(str(two_classes))


def test_corrupt_files_can_be_skipped(two_classes: Path) -> None:
    corrupt(two_classes / "cells", 2)
    with pytest.warns(UserWarning, match="2 of 62 images in .* cannot be decoded: .*left out") as caught:
        dataset = open_dataset(str(two_classes), skip_corrupt=True)
    assert len(caught) == 1
    assert len(dataset.train) + len(dataset.valid) + len(dataset.test) == 60
    assert dataset.note.endswith("2 corrupt files left out")


@pytest.mark.parametrize("command", [["train"], ["evaluate", "--data", "x"], ["data", "preview", "x"]])
def test_every_command_that_opens_folders_can_skip_corrupt_files(command: list[str]) -> None:
    """The error for corrupt files advises it."""
    assert cli._parser().parse_args([*command, "--skip-corrupt"]).skip_corrupt


def test_altered_bytes_are_noticed(two_classes: Path) -> None:
    path = two_classes / "cells" / "003.png"
    save(Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12), dtype=np.uint8)), path)
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match="1 of 60 images .*cells/003.png"):
        open_dataset(str(two_classes))


@pytest.mark.filterwarnings("ignore:.*cannot be decoded.*left out:UserWarning")
def test_a_class_may_not_be_corrupt_altogether(two_classes: Path) -> None:
    for file in (two_classes / "cells").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="class 'cells' has 0 sound images, needed at least 3"):
        open_dataset(str(two_classes), skip_corrupt=True)
    for file in (two_classes / "empty").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="class 'cells' has 0 sound images"):
        open_dataset(str(two_classes), skip_corrupt=True)


@pytest.mark.filterwarnings("ignore:.*cannot be decoded.*left out:UserWarning")
def test_a_split_may_not_be_corrupt_altogether(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("a", "b"):
            fill(tmp_path / split / name, 3)
    for file in (tmp_path / "test").rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="class 'a' has 0 sound images in test, needed at least 1"):
        open_dataset(str(tmp_path), skip_corrupt=True)


def test_folders_without_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 0 class folders; expected a folder of images for each"):
        open_dataset(str(tmp_path))
    fill(tmp_path, 2)
    with pytest.raises(ValueError, match="has 0 class folders and 2 images outside of any"):
        open_dataset(str(tmp_path))
    fill(tmp_path / "only", 5)
    with pytest.raises(ValueError, match="has 1 class folders"):
        open_dataset(str(tmp_path))
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match=r"no images in the class folder .*bare \(1 of 2 classes are empty\)"):
        open_dataset(str(tmp_path))
    fill(tmp_path / "bare", 2)
    with pytest.raises(ValueError, match="class 'bare' has 2 sound images, needed at least 3"):
        open_dataset(str(tmp_path))


def test_incomplete_splits(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        for name in ("a", "b"):
            fill(tmp_path / split / name, 3)
    with pytest.raises(ValueError, match="has the split folders train, valid; expected train and test"):
        open_dataset(str(tmp_path))
    fill(tmp_path / "test" / "a", 3)
    fill(tmp_path / "test" / "c", 3)
    with pytest.raises(ValueError, match=f"class 'b' has no folder in {tmp_path / 'test'}"):
        open_dataset(str(tmp_path))
    fill(tmp_path / "test" / "b", 3)
    with pytest.raises(ValueError, match=f"class 'c' has no folder in {tmp_path / 'train'}"):
        open_dataset(str(tmp_path))
    fill(tmp_path / "val" / "a", 3)
    with pytest.raises(ValueError, match="has both val and valid; expected one valid folder"):
        open_dataset(str(tmp_path))


# What would take too much, never end, or lead elsewhere


def declared(path: Path, width: int, height: int) -> Path:
    """A small PNG whose header declares this size."""
    save(Image.new("L", (1, 1)), path)
    content = bytearray(path.read_bytes())
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [(8_001, 8_000), (13_000, 13_000), (60_000, 60_000)])
def test_images_of_too_many_pixels_are_refused_by_their_header(size: tuple[int, int], two_classes: Path) -> None:
    path = declared(two_classes / "cells" / "huge.png", *size)
    with pytest.raises(ValueError, match=r"cells/huge.png \(it has .*64,000,000.*; scale it down"):
        open_dataset(str(two_classes))
    with without_bomb_warnings(), pytest.raises(ValueError, match="64,000,000"):
        decode(path, 8, 1)


def test_only_so_many_pixels_are_decoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        fill(tmp_path / name, 8, (30, 20))
    monkeypatch.setattr(file_split, "MOST_PIXELS", 2 * 600)
    at_once, most = 0, 0
    lock = threading.Lock()

    def counted(path: Path, size: int, channels: int) -> np.ndarray:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.005)  # for others to come, if they may
        with lock:
            at_once -= 1
        return decode(path, size, channels)

    monkeypatch.setattr(file_split, "decode", counted)
    open_dataset(str(tmp_path), image_size=8)
    assert most <= 2


def test_who_interrupts_does_not_wait_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        fill(tmp_path / name, 100, (4, 4))
    decoded: list[Path] = []

    def slow(path: Path, size: int, channels: int) -> np.ndarray:
        decoded.append(path)
        time.sleep(0.01)
        return decode(path, size, channels)

    def interrupted(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
        for number, item in enumerate(items):
            if what == "checking images" and number == 3:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(file_split, "decode", slow)
    monkeypatch.setattr(file_split, "progress_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_dataset(str(tmp_path), image_size=4)
    assert len(decoded) < 100


def test_sizes_that_no_memory_holds_are_refused(two_classes: Path) -> None:
    for name in ("digits", str(two_classes)):
        with pytest.raises(ValueError, match="image_size must be at most 8,000, got 100,000"):
            open_dataset(name, image_size=100_000)


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ramp = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8).repeat(4), (1024, 1)))
    path = save(ramp, tmp_path / "ramp.jpg", quality=95)
    loaded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def noted(self: ImageFile.ImageFile) -> Any:
        loaded.append(self.size)
        return load(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", noted)
    pixels = decode(path, 32, 1)[0].astype(int)
    assert set(loaded) == {(128, 128)}
    expected = decode(save(ramp, tmp_path / "ramp.png"), 32, 1)[0].astype(int)
    assert np.abs(pixels - expected).max() <= 2


def test_the_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 4), shade) for shade in (50, 200)]
    path = save(frames[0], tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert (decode(path, 4, 1) == 50).all()


def test_what_is_no_file_is_not_waited_for(two_classes: Path) -> None:
    os.mkfifo(two_classes / "cells" / "pipe.png")
    assert len(open_dataset(str(two_classes)).train) == 48
    with pytest.raises(ValueError, match="expected a file, it is a pipe"):
        decode(two_classes / "cells" / "pipe.png", 8, 1)


def test_formats_that_run_programs_are_not_opened(tmp_path: Path) -> None:
    path = save(halves(), tmp_path / "picture.eps")
    with pytest.raises(ValueError, match="no image of a known format"):
        probe(path)


def test_what_archivers_leave_behind_is_no_class(two_classes: Path) -> None:
    for junk in ("__MACOSX", "@eaDir", ".ipynb_checkpoints"):
        fill(two_classes / junk, 3)
        fill(two_classes / "cells" / junk, 3)
        fill(two_classes / junk / "cells", 3)
    (two_classes / "Thumbs.db").touch()
    dataset = open_dataset(str(two_classes))
    assert dataset.classes == ("cells", "empty")
    assert len(dataset.train) == 48


def test_a_class_that_is_not_utf8_is_refused_when_the_folder_is_opened(two_classes: Path) -> None:
    fill(Path(os.fsdecode(bytes(two_classes) + b"/caf\xe9")), 3)
    with pytest.raises(ValueError, match="class folder .*caf.* is not UTF-8.*rename it") as raised:
        open_dataset(str(two_classes))
    str(raised.value).encode()  # can be printed


# Other images


def test_the_digest_notices_other_pixels_and_other_labels(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        for number, name in enumerate(("a", "b")):
            fill(tmp_path / split / name, 3, start=100 * number)
    digest = open_dataset(str(tmp_path)).digest
    for split in ("train", "valid", "test"):
        path = tmp_path / split / "a" / "001.png"
        before = path.read_bytes()
        save(Image.new("L", (12, 12), 11), path)
        assert is_other_data(open_dataset(str(tmp_path)).digest, digest)
        path.write_bytes(before)
    one, two = (tmp_path / "train" / name for name in ("a/001.png", "b/101.png"))
    contents = [path.read_bytes() for path in (two, one)]
    for path, content in zip((one, two), contents, strict=True):
        path.write_bytes(content)
    assert is_other_data(open_dataset(str(tmp_path)).digest, digest), "two images exchanged their labels"
    for path, content in zip((two, one), contents, strict=True):
        path.write_bytes(content)
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    assert open_dataset(str(tmp_path.with_name("elsewhere"))).digest == digest


def test_images_are_called_by_their_files(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            fill(tmp_path / split / name, 2)
    test = open_dataset(str(tmp_path)).resized(10).test
    assert [test.name_of(k) for k in range(4)] == ["cat/000.png", "cat/001.png", "dog/000.png", "dog/001.png"]
    assert test.subset(torch.tensor([3, 0])).name_of(0) == "dog/001.png"
