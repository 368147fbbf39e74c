"""`gevit predict`: image files of every kind, what it says of them, and where it says it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gevit
from gevit.cli import main
from gevit.data import load_digits, open_dataset
from gevit.evaluation.evaluate import predict_logits
from gevit.evaluation.predict import expected_images, find_images, looks_inverted, predict
from gevit.models.info import ModelInfo
from gevit.training.config import TrainConfig
from gevit.training.loop import train

DIGITS = tuple("0123456789")


def info(**change: Any) -> ModelInfo:
    facts: dict[str, Any] = {
        "name": "r4_sa",
        "preset": "rotmnist",
        "in_channels": 1,
        "num_classes": 10,
        "neighborhood": 3,
        "classes": DIGITS,
        "image_size": 28,
        "mean": (0.1307,),
        "std": (0.3081,),
        "data": "digits",
        **change,
    }
    return ModelInfo(**facts)


def save_model(folder: Path, **change: Any) -> Path:
    """The folder of a run, with a small model of random weights."""
    torch.manual_seed(0)
    gevit.save(gevit.create_model("r4_sa", neighborhood=3), info(**change), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One digit in many formats, a broken file, and files that are no images."""
    folder = tmp_path_factory.mktemp("pictures")
    data = open_dataset("digits")
    pixels = (255 * data.test.images(torch.tensor([0]))[0, 0]).round().byte().numpy()
    grey = Image.fromarray(pixels)
    (folder / "deep").mkdir()
    grey.save(folder / "grey.png")
    grey.convert("RGB").save(folder / "colour.bmp")
    Image.merge("RGBA", [grey, grey, grey, Image.new("L", grey.size, 255)]).save(folder / "deep" / "rgba.png")
    Image.fromarray(pixels.astype(np.uint16) * 257).save(folder / "deep" / "sixteen.png")
    grey.save(folder / "grey.JPEG", quality=95)
    grey.resize((280, 280), Image.Resampling.NEAREST).save(folder / "large.tif")
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def test_another_architecture_than_that_of_the_checkpoint_is_refused(
    run_folder: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", "--checkpoint", str(run_folder), str(pictures / "grey.png")]
    assert main([*command, "--preset", "small"]) == 2
    assert "has the architecture rotmnist, not small: leave out --preset" in capsys.readouterr().err
    assert main([*command, "--preset", "rotmnist"]) == 0


def test_every_format_gives_the_same_answer(run_folder: Path, pictures: Path) -> None:
    model = gevit.load(run_folder)
    found = {p.path.name: p for p in predict(model, find_images([str(pictures)]), top=10, batch_size=4)}
    assert set(found) == {"grey.png", "colour.bmp", "rgba.png", "sixteen.png", "grey.JPEG", "large.tif"}
    data = open_dataset("digits")
    logits = predict_logits(model, data.normalize(data.test.images(torch.tensor([0]))))
    for name, prediction in found.items():
        wanted = [float(logits.softmax(1)[0, DIGITS.index(c)]) for c in prediction.classes]
        lossy = name.startswith(("grey.JPEG", "large"))
        assert list(prediction.probabilities) == pytest.approx(wanted, abs=0.1 if lossy else 1e-5)
        assert sum(prediction.probabilities) == pytest.approx(1)
        assert list(prediction.probabilities) == sorted(prediction.probabilities, reverse=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_in_another_precision(dtype: torch.dtype, pictures: Path, tmp_path: Path) -> None:
    model = gevit.create_model("r4_sa", preset="nano", pretrained=True)
    model.to(dtype).save_pretrained(tmp_path)
    [answer] = predict(gevit.load(tmp_path), [pictures / "grey.png"])
    [usual] = predict(gevit.create_model("r4_sa", preset="nano", pretrained=True), [pictures / "grey.png"])
    assert answer.classes == usual.classes
    assert answer.probabilities == pytest.approx(usual.probabilities, abs=0.05)
    assert main(["predict", "--checkpoint", str(tmp_path), str(pictures / "grey.png")]) == 0
    assert main(["evaluate", "--checkpoint", str(tmp_path), "--data", "digits", "--limit", "4"]) == 0


def test_features_are_no_prediction(pictures: Path, tmp_path: Path) -> None:
    gevit.create_model("r4_sa", preset="nano", num_classes=0).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no classes"):
        next(predict(gevit.load(tmp_path), [pictures / "grey.png"]))


def test_names_folders_and_globs(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pictures)
    assert find_images(["grey.png", "./deep", "*.png"]) == [
        Path("grey.png"),
        Path("deep/rgba.png"),
        Path("deep/sixteen.png"),
    ]
    assert [path.name for path in find_images(["**/*.png"])] == ["rgba.png", "sixteen.png", "grey.png"]
    (pictures / "odd[1].png").write_bytes(b"")
    assert find_images(["odd[1].png"]) == [Path("odd[1].png")]
    (pictures / "odd[1].png").unlink()


def test_no_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file matches .*\*\.png"):
        find_images([f"{tmp_path}/*.png"])
    with pytest.raises(ValueError, match="no images in"):
        find_images([str(tmp_path)])
    with pytest.raises(ValueError, match="the name of an image is empty"):
        find_images([""])


def test_an_empty_word_is_not_the_current_folder(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pictures)
    assert main(["predict", "--model", "r4_sa", "--pretrained", ""]) == 2
    with pytest.raises(ValueError, match="unknown data set ''"):
        open_dataset("")
    with pytest.raises(ValueError, match="unknown data set ''"):
        train(TrainConfig(data=""))


def test_unreadable_files_are_named_and_the_others_predicted(
    run_folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (pictures / "grey.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[:100])
    (tmp_path / "b.png").write_bytes(whole)
    (tmp_path / "c.png").write_bytes(b"")
    arguments = ["--checkpoint", str(run_folder), str(tmp_path), str(tmp_path / "missing.png"), "--top", "2"]
    assert main(["predict", *arguments, "--json"]) == 1
    captured = capsys.readouterr()
    a, b, c, missing = json.loads(captured.out)
    assert len(b["top"]) == 2
    assert b["class"] == b["top"][0]["class"]
    assert b["probability"] >= b["top"][1]["probability"]
    for answer in (a, c, missing):
        assert answer["error"]
        assert f"cannot read {answer['file']}: {answer['error']}" in captured.err
    assert "Traceback" not in captured.err


def test_a_pipe_gets_one_line_a_file(
    run_folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("a long name " * 15) / "picture.png"
    path.parent.mkdir()
    path.write_bytes((pictures / "grey.png").read_bytes())
    assert main(["predict", "--checkpoint", str(run_folder), str(path), str(pictures / "grey.png"), "--top", "2"]) == 0
    first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert (first[0], second[0]) == (str(path), str(pictures / "grey.png"))
    assert first[1:] == second[1:]
    assert (first[1] in DIGITS, float(first[2]) >= float(first[4])) == (True, True)


HOSTILE = "[bold]\x1b[2J\tname\n"


def in_terminal(arguments: list[str], columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command shows in a terminal of so many columns."""
    ours, theirs = os.openpty()
    shown: list[bytes] = []

    def show() -> None:
        try:
            while block := os.read(ours, 2**16):
                shown.append(block)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=show)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as terminal:
        patch.setenv("COLUMNS", str(columns))
        patch.setattr("sys.stdout", terminal)
        patch.setattr("sys.stderr", terminal)
        assert main(arguments) == 0
    reader.join()
    os.close(ours)
    return b"".join(shown).decode()


@pytest.mark.parametrize("variables", [{"TERM": "xterm"}, {"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_a_terminal_gets_a_table_that_no_name_can_spoil(
    variables: dict[str, str], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    save_model(tmp_path, classes=tuple(f"{HOSTILE}{digit}" for digit in DIGITS), data=HOSTILE)
    path = tmp_path / f"{HOSTILE}.png"
    path.write_bytes((pictures / "grey.png").read_bytes())
    for columns in (40, 300):
        shown = in_terminal(["predict", "--checkpoint", str(tmp_path), str(path)], columns, monkeypatch)
        assert "\x1b[2J" not in shown
        if variables["TERM"] == "dumb":
            assert "\x1b" not in shown
        elif columns == 300:
            assert shown.count(r"[bold]\x1b[2J\tname\n") == 3, "file, class and data"
            assert "%" in shown


def test_a_pipe_gets_names_escaped(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path, classes=tuple(f"{HOSTILE}{digit}" for digit in DIGITS))
    paths = [tmp_path / f"{HOSTILE}.png", Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))]
    for path in paths:
        path.write_bytes((pictures / "grey.png").read_bytes())
    broken = tmp_path / f"{HOSTILE}broken.png"
    broken.touch()
    assert main(["predict", "--checkpoint", str(tmp_path), *map(str, [*paths, broken])]) == 1
    captured = capsys.readouterr()
    assert [len(line.split("\t")) for line in captured.out.splitlines()] == [3, 3]
    assert "\x1b" not in captured.out + captured.err
    assert main(["predict", "--checkpoint", str(tmp_path), str(paths[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["file"] == str(paths[1])


def test_a_pipe_is_no_image(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for name in (str(tmp_path / "pipe.png"), f"{tmp_path}/*.png", "/dev/zero"):
        assert main(["predict", "--checkpoint", str(run_folder), name]) == 1
        assert "expected a file, it is a" in capsys.readouterr().err


@pytest.fixture(scope="module")
def dark_on_white(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three digits of each class, as people write them, named by their class."""
    folder = tmp_path_factory.mktemp("written")
    images, labels = load_digits()
    for index in torch.cat([(labels == digit).nonzero().flatten()[:3] for digit in range(10)]).tolist():
        Image.fromarray(255 - images[index, 0].numpy()).save(folder / f"{int(labels[index])}_{index}.png")
    return folder


def test_inverted_images_are_noticed_and_can_be_put_right(
    dark_on_white: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", "--model", "r4_sa", "--pretrained", str(dark_on_white), "--json"]

    def right(*flags: str) -> tuple[int, int, str]:
        assert main([*command, *flags]) == 0
        captured = capsys.readouterr()
        answers = json.loads(captured.out)
        correct = sum(Path(answer["file"]).name.startswith(answer["class"]) for answer in answers)
        return correct, sum(answer["looks_inverted"] for answer in answers), captured.err

    correct, inverted, said = right()
    assert correct < 10
    assert inverted == 30
    assert said.count("warning") == 1
    assert "--invert" in said
    correct, inverted, said = right("--invert")
    assert correct >= 28
    assert (inverted, said) == (0, "")


def test_images_that_are_right_do_not_look_inverted() -> None:
    images = open_dataset("digits").test.images(torch.arange(200))
    assert not any(looks_inverted(image, info()) for image in images)
    assert all(looks_inverted(1 - image, info()) for image in images)
    bright = info(mean=(0.9,), std=(0.2,))
    assert all(looks_inverted(image, bright) for image in images)
    photographs = info(mean=(0.38,), std=(0.15,))
    forests = info(mean=(0.2, 0.25, 0.2), std=(0.1, 0.1, 0.1), in_channels=3)
    for shade in (0.0, 0.3, 0.7, 1.0):
        assert not looks_inverted(torch.full((1, 8, 8), shade), photographs), "negatives are about as bright"
        assert not looks_inverted(torch.full((3, 8, 8), shade), forests), "a bright field is no negative of a forest"


def test_only_grey_images_are_said_to_be_bright_on_dark() -> None:
    assert "bright on dark" in expected_images(info())
    forests = info(mean=(0.2, 0.25, 0.2), std=(0.1, 0.1, 0.1), in_channels=3)
    assert "bright on dark" not in expected_images(forests)


@pytest.mark.parametrize("flag", ["--top", "--batch-size"])
def test_bad_numbers(flag: str, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["predict", "--checkpoint", str(run_folder), "x.png", flag, "0"])
    assert f"argument {flag}: expected a positive integer, got '0'" in capsys.readouterr().err
