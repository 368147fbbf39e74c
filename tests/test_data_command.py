from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from gevit.cli import data as command
from gevit.data import open_dataset
from gevit.data.catalog import CATALOG
from gevit.data.preview import _fitting, _font, contact_sheet
from tests.running import Life


def gevit_data(*words: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def rebuilt(tmp_path: Path) -> Path:
    """A root with a small rotmnist-rebuilt."""
    arrays = {f"x_{split}": np.zeros((20, 28, 28), np.uint8) for split in ("train", "valid", "test")}
    labels = {f"y_{split}": np.arange(20) % 10 for split in ("train", "valid", "test")}
    np.savez(tmp_path / "rotmnist_rebuilt.npz", **arrays, **labels)  # type: ignore[arg-type]
    return tmp_path


def test_list(rebuilt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gevit_data("list", "--json", "--data-root", rebuilt) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["root"] == str(rebuilt)
    present = {entry["name"]: entry["present"] for entry in answer["datasets"]}
    wanted = {"digits": True, "digits-upright": True, "rotmnist": False, "rotmnist-rebuilt": True, "cifar10": False}
    assert wanted.items() <= present.items()
    assert gevit_data("list", "--data-root", rebuilt) == 0
    table = capsys.readouterr().out
    assert "327,680" in table
    assert "3x96x96" in table


def test_a_narrow_terminal_cuts_nothing_off_and_a_pipe_folds_nothing(rebuilt: Path) -> None:
    life = Life(("data", "list", "--data-root", str(rebuilt)), rebuilt, columns=50)
    assert life.end() == 0, life.output
    assert "…" not in life.output
    life = Life(("data", "list", "--data-root", str(rebuilt)), rebuilt)
    assert life.end() == 0, life.output
    for entry in CATALOG.values():
        [line] = [line for line in life.output.splitlines() if line.split()[:1] == [entry.name]]
        assert line.rstrip().endswith(entry.source)


def test_prepare_and_verify(rebuilt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gevit_data("prepare", "rotmnist-rebuilt", "--data-root", rebuilt) == 0
    assert f"rotmnist-rebuilt is in {rebuilt}" in capsys.readouterr().out
    assert gevit_data("verify", "--data-root", rebuilt) == 0
    path = rebuilt / "rotmnist_rebuilt.npz"
    assert f"rotmnist-rebuilt: {path}: ok (as recorded)" in capsys.readouterr().out.splitlines()

    path.write_bytes(path.read_bytes()[:-1])
    assert gevit_data("verify", "rotmnist-rebuilt", "--json", "--data-root", rebuilt) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["status"], finding["file"]) == ("changed", str(path))
    path.unlink()
    assert gevit_data("verify", "--data-root", rebuilt) == 1, "what was recorded is missed"
    assert gevit_data("verify", "pcam", "--data-root", rebuilt) == 1


def test_preview(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "sheet.png"
    assert gevit_data("preview", "digits", "--split", "test", "--rows", "4", "--out", out) == 0
    assert "5,000 MNIST digits" in capsys.readouterr().out
    assert os.listdir(out.parent) == ["sheet.png"]
    with pytest.raises(SystemExit, match="2"):
        gevit_data("preview", "digits", "--rows", "0", "--out", out)
    assert "argument --rows: expected a positive integer, got '0'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="unknown split 'exam'"):
        gevit_data("preview", "digits", "--split", "exam", "--out", out)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sheet.psd", "a contact sheet is a picture, such as sheet.png or sheet.jpg, got 'sheet.psd'"),
        ("sheet", "such as sheet.png or sheet.jpg, got 'sheet'"),
        (".", "--out .* cannot be written: it is a folder"),
    ],
)
def test_what_is_no_name_of_a_sheet_is_refused_before_anything_is_read(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with mock.patch("gevit.data.catalog.open_dataset") as opened, pytest.raises(ValueError, match=message):
        gevit_data("preview", "digits", "--out", name)
    opened.assert_not_called()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["list", "--data-root", "~nobody-by-name/x"], ["preview", "~nobody-by-name"]])
def test_a_home_folder_that_nobody_knows(words: list[str]) -> None:
    with pytest.raises(ValueError, match="home folder in ~nobody-by-name.*; write the path out"):
        gevit_data(*words)


def test_sheets_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    for flags in (["--image-size", "100000"], ["--image-size", "4000", "--rows", "20"]):
        with pytest.raises(ValueError, match="image_size must be at most|the sheet would have .* pixels.*--rows"):
            gevit_data("preview", "digits", *flags, "--out", out)
    assert not out.exists()
    assert gevit_data("preview", "digits", "--split", "test", "--rows", "1000000", "--out", out) == 0


def test_a_contact_sheet_shows_the_first_images_of_each_class() -> None:
    dataset = open_dataset("digits")
    sheet = np.asarray(contact_sheet(dataset, "valid", count=3).convert("L"))
    for label in range(10):
        members = (dataset.valid.labels == label).nonzero().flatten()[:3]
        for image in dataset.valid.images(members)[:, 0]:
            pixels = (image * 255).round().byte().numpy().repeat(2, 0).repeat(2, 1)
            windows = np.lib.stride_tricks.sliding_window_view(sheet, pixels.shape)
            assert (windows[:, :, 28, 28] == pixels[28, 28]).any()
            assert any((windows[row, column] == pixels).all() for row, column in _candidates(windows, pixels))


def _candidates(windows: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Places where a few pixels agree."""
    probe = [(0, 0), (28, 28), (20, 30), (30, 20), (36, 28), (28, 36)]
    return np.argwhere(np.logical_and.reduce([windows[:, :, r, c] == pixels[r, c] for r, c in probe]))


def test_many_classes_make_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in range(21):
        for number in range(3):
            path = tmp_path / "images" / f"a class with a long name {label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (10 * label, 100, 50 * number)).save(path)
    assert gevit_data("preview", tmp_path / "images", "--rows", "3", "--out", tmp_path / "grid.png") == 0
    with Image.open(tmp_path / "grid.png") as sheet:
        assert sheet.width < 400
        assert sheet.height < 400


def test_captions_are_cut_in_the_middle() -> None:
    font = _font()
    captions = [_fitting(f"a class with a long name {number}", 64, font) for number in (1, 20)]
    for caption, end in zip(captions, ("1", "20"), strict=True):
        assert caption.startswith("a")
        assert caption.endswith(end)
        assert 32 < font.getlength(caption) <= 64
    assert _fitting("short", 64, font) == "short"


def test_captions_have_the_letters_of_other_alphabets() -> None:
    pytest.importorskip("matplotlib")
    missing = bytes(_font().getmask("\uffff"))
    assert all(bytes(_font().getmask(letter)) != missing for letter in "äñřşлзεωשع")


def test_flags_are_declared_without_torch() -> None:
    code = (
        "import argparse, sys; from gevit.cli import data; data.add_arguments(argparse.ArgumentParser());"
        "sys.exit(any(name in sys.modules for name in ('torch', 'PIL', 'h5py', 'pooch', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_from_outside_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "[red]\x1b[2J"
    assert gevit_data("list", "--data-root", root) == 0
    assert gevit_data("verify", "pcam", "--data-root", root) == 1
    for number in range(6):
        path = root / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    assert gevit_data("preview", root, "--out", tmp_path / "sheet.png") == 0
    assert "\x1b" not in capsys.readouterr().out
