"""What really goes wrong: full disks, damaged files, bad data. One line says it, and nothing is lost."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gevit
from gevit.data.storage import record_files
from gevit.training.checkpoint import checkpoint_paths
from tests.running import (
    ONE_THREAD,
    PATIENCE,
    TRAIN,
    At,
    Life,
    assert_same_run,
    last_checkpoint,
    run_to_end,
    run_to_error,
    write_digits,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_digits(folder / "data")
    return folder


@pytest.fixture(scope="module")
def straight(home: Path) -> Path:
    run_to_end([*TRAIN, "--out", "straight"], home)
    return home / "straight"


# A full disk


@dataclass(frozen=True)
class Fill:
    """Fill a disk to the last byte."""

    disk: Path

    def __call__(self) -> None:
        with (self.disk / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                return


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 4 MB; without the right to mount one, the test is run again where everybody has it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        if "GEVIT_IN_NAMESPACE" not in os.environ and shutil.which("unshare"):
            again = subprocess.run(
                ["unshare", "-rm", sys.executable, "-m", "pytest", "-q", request.node.nodeid],
                cwd=request.config.rootpath,
                env=os.environ | ONE_THREAD | {"GEVIT_IN_NAMESPACE": "1"},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert not again.returncode, again.stdout
            if "1 passed" in again.stdout:
                pytest.skip("passed in a namespace of its own, with `unshare -rm`")
        pytest.skip("a full disk needs the right to mount one, as root or by `unshare -rm`")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("function", "call", "saved"),
    [
        ("gevit.training.loop.save_checkpoint", 4, 3),
        ("gevit.training.log.EventFile.add", 2, 5),
        ("gevit.training.loop.Run._save_best", 1, 2),
    ],
)
def test_a_full_disk(home: Path, straight: Path, disk: Path, function: str, call: int, saved: int) -> None:
    run = disk / "run"
    said = run_to_error([*TRAIN, "--out", str(run)], home, At(function, call, Fill(disk)))
    assert said == (
        f"gevit train: error: the disk of {run} is full. Nothing is lost: free some space, then "
        f"`gevit train --out {run} --resume`"
    )
    assert last_checkpoint(run).facts["progress"]["step"] == saved
    assert not list(run.rglob(".*"))
    (disk / "filler").unlink()
    run_to_end(["train", "--out", str(run), "--resume"], home)
    assert_same_run(straight, run)


def test_a_disk_that_is_full_from_the_start(home: Path, disk: Path) -> None:
    Fill(disk)()
    said = run_to_error([*TRAIN, "--out", str(disk / "run")], home)
    assert "is full" in said
    assert "--resume" not in said  # there is no run yet


# Damaged checkpoints


@pytest.fixture(scope="module")
def stopped(home: Path) -> Path:
    """A run that was stopped after step 4: there are the checkpoints of steps 3 and 4."""
    stop = At("gevit.training.loop.learning_rate", 4, partial(signal.raise_signal, signal.SIGINT))
    life = Life([*TRAIN, "--out", "stopped"], home, stop)
    assert life.end() == 130, life.output
    return home / "stopped"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3 * len(content) // 4] ^= 0x10
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("unpickled",)


def put_a_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb()))


@pytest.mark.parametrize("damage", [cut, change_a_byte, put_a_pickle])
def test_a_damaged_checkpoint(home: Path, straight: Path, stopped: Path, damage: Callable[[Path], None]) -> None:
    run = home / damage.__name__
    shutil.copytree(stopped, run)
    newest = checkpoint_paths(run / "checkpoints")[0]
    damage(newest)
    said = run_to_end(["train", "--out", run.name, "--resume"], home)
    assert f"warning: {newest.relative_to(home)} is damaged" in said
    assert "resuming after step 3 of 6" in said
    assert not (home / "unpickled").exists()
    assert_same_run(straight, run)


def test_no_whole_checkpoint_at_all(home: Path, straight: Path, stopped: Path) -> None:
    run = home / "none-whole"
    shutil.copytree(stopped, run)
    for path, damage in zip(checkpoint_paths(run / "checkpoints"), (cut, empty), strict=True):
        damage(path)
    (run / "report.html").write_text("of before")
    said = run_to_end(["train", "--out", run.name, "--resume"], home)
    assert said.count("is damaged") == 2
    assert "warning: no checkpoint is whole; starting from the beginning" in said
    assert "kept in none-whole/before-restart-1" in said
    assert_same_run(straight, run)
    kept = run / "before-restart-1"
    assert (kept / "report.html").read_text() == "of before"
    assert (kept / "model.safetensors").read_bytes() == (stopped / "model.safetensors").read_bytes()
    assert {path.name for path in checkpoint_paths(kept / "checkpoints")} == {
        path.name for path in checkpoint_paths(stopped / "checkpoints")
    }


# Numbers that are none


def test_a_loss_that_is_not_finite(home: Path) -> None:
    said = run_to_error([*TRAIN, "--optimizer", "sgd", "--lr", "1e6", "--schedule", "constant", "--out", "wild"], home)
    stopped = re.search(r"at step (\d+) \(learning rate 1e\+06\); stopped before the weights were changed", said)
    assert stopped is not None, said
    saved = last_checkpoint(home / "wild")
    assert saved.facts["progress"]["step"] == int(stopped.group(1)) - 1
    assert all(tensor.isfinite().all() for tensor in saved.tensors.values())


# Bad names


def test_folders_whose_names_are_no_text(tmp_path: Path) -> None:
    write_digits(tmp_path / "data-\udcff")
    words = [*TRAIN, "--data-root", "data-\udcff"]
    said = run_to_error([*words, "--out", "run-\udcff"], tmp_path)
    assert "run-\\udcff, is not UTF-8, and safetensors opens no file in such a folder; name another with --out" in said
    run_to_end([*words, "--out", "run"], tmp_path)
    assert "data-\\udcff" in gevit.load(tmp_path / "run").describe().trained["command"]


# Bad data


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos of all kinds, in two classes."""
    random = np.random.default_rng(0)
    for name, light in (("day", 128), ("night", 0)):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number, (channels, suffix) in enumerate([(1, "png"), (3, "jpg"), (4, "png"), (3, "tif"), (1, "jpg")]):
            pixels = light + random.integers(0, 128, (30 + 7 * number, 50 - 5 * number, channels), dtype=np.uint8)
            Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels).save(folder / f"{number}.{suffix}")
        Image.fromarray(256 * (light + random.integers(0, 128, (40, 40), dtype=np.uint16))).save(folder / "deep.png")
        Image.fromarray((light + random.random((40, 40)) * 127).astype(np.float32) / 255).save(folder / "float.tiff")
    return tmp_path / "photos"


def on(data: Path, *more: str) -> list[str]:
    small = ("--model", "z2_cnn", "--image-size", "28", "--batch-size", "4", "--epochs", "1", "--accelerator", "cpu")
    return ["train", "--data", str(data), *small, "--out", str(data.parent / "run"), *more]


def test_photos_of_all_kinds_train_and_predict(photos: Path) -> None:
    run_to_end(on(photos), photos.parent)
    said = run_to_end(["predict", "--checkpoint", "run", "photos"], photos.parent)
    for path in photos.rglob("*.*"):
        assert path.name in said


def test_a_corrupt_image_is_named_and_skipped_only_if_asked(photos: Path) -> None:
    bad = photos / "day" / "1.jpg"
    cut(bad)
    said = run_to_error(on(photos), photos.parent)
    assert "day/1.jpg" in said
    assert "--skip-corrupt" in said
    assert not (photos.parent / "run").exists()  # so that the advice can be taken
    said = run_to_end(on(photos, "--skip-corrupt"), photos.parent)
    [warning] = [line for line in said.splitlines() if "day/1.jpg" in line]
    assert warning.startswith("gevit train: warning: ")  # no file and line of code


def no_pixels(photos: Path) -> str:
    pixels = np.full((40, 40), np.nan, dtype=np.float32)
    Image.fromarray(pixels).save(photos / "day" / "float.tiff")
    return "day/float.tiff (its pixels must be finite numbers of 32 bits, some are NaN"


def an_empty_class(photos: Path) -> str:
    (photos / "dusk").mkdir()
    return f"no images in the class folder {photos / 'dusk'}"


def a_missing_split(photos: Path) -> str:
    (photos / "train").mkdir()
    for name in ("day", "night"):
        (photos / name).rename(photos / "train" / name)
    return "expected train and test"


def a_class_missing_in_a_split(photos: Path) -> str:
    shutil.copytree(photos, photos.parent / "copy")
    a_missing_split(photos)
    (photos.parent / "copy").rename(photos / "test")
    shutil.rmtree(photos / "test" / "day")
    (photos / "test" / "dusk").mkdir()
    Image.new("L", (9, 9)).save(photos / "test" / "dusk" / "1.png")
    return "class 'day' has no folder in"


@pytest.mark.parametrize("fault", [no_pixels, an_empty_class, a_missing_split, a_class_missing_in_a_split])
def test_a_bad_folder(photos: Path, fault: Callable[[Path], str]) -> None:
    expected = fault(photos)
    assert expected in run_to_error(on(photos), photos.parent)
    assert not (photos.parent / "run").exists()


@pytest.mark.parametrize(("data", "out"), [(".", []), (".", ["--out", "run"]), ("../photos", ["--out", "../link/run"])])
def test_a_run_does_not_become_a_class_of_its_images(photos: Path, data: str, out: list[str]) -> None:
    (photos.parent / "link").symlink_to(photos)
    before = sorted(photos.rglob("*"))
    said = run_to_error(["train", "--data", data, "--model", "z2_cnn", *out], photos)
    assert "is inside of the images" in said
    assert "name a folder outside with --out" in said
    printed = set(photos.glob("printed-*.txt"))
    assert sorted(set(photos.rglob("*")) - printed) == before


def test_a_label_outside_the_range(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    records = np.zeros((20, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(20) % 10
    (folder / "test_batch.bin").write_bytes(records.tobytes())
    records[7, 0] = 77
    (folder / "data_batch_1.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    said = run_to_error(["train", "--data", "cifar10", "--data-root", "."], tmp_path)
    assert "image 7 of cifar-10-batches-bin/data_batch_1.bin has label 77, expected 0 to 9" in said


def test_a_data_file_cut_short(tmp_path: Path) -> None:
    write_digits(tmp_path / "data")
    cut(tmp_path / "data" / "rotmnist_rebuilt.npz")
    said = run_to_error([*TRAIN, "--out", "run"], tmp_path)
    assert "data/rotmnist_rebuilt.npz" in said
    assert "damaged" in said
    assert not (tmp_path / "run").exists()


def test_a_data_file_with_another_checksum(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_digits(root)
    record_files(root, "rotmnist-rebuilt", [root / "rotmnist_rebuilt.npz"])
    change_a_byte(root / "rotmnist_rebuilt.npz")
    said = run_to_error([*TRAIN, "--out", "run"], tmp_path)
    assert "data/rotmnist_rebuilt.npz is not the file that was recorded" in said
    assert "expected sha256" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", ["a class more", "an image less"])
def test_data_that_changed_since(tmp_path: Path, photos: Path, change: str) -> None:
    run_to_end(on(photos), tmp_path)
    if change == "a class more":
        shutil.copytree(photos / "day", photos / "dusk")
    else:
        sorted((photos / "day").iterdir())[0].unlink()
    said = run_to_error(on(photos, "--resume"), tmp_path)
    assert "do not fit: the images or labels are not those that the run started with" in said


def test_settings_that_cannot_be_run_do_not_claim_the_folder(tmp_path: Path) -> None:
    write_digits(tmp_path / "data")
    assert "batch_size is 99" in run_to_error([*TRAIN, "--batch-size", "99", "--out", "run"], tmp_path)
    assert not (tmp_path / "run").exists()
