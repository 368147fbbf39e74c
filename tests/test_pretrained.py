"""The weights that come with the package: they are what their cards say, and can be asked for by their data."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import gevit
from gevit.cli import main
from gevit.data import open_dataset
from gevit.equivariance import assert_equivariant
from gevit.models.base import info_of
from gevit.models.info import ModelInfo
from gevit.pretrained import pretrained_path
from gevit.training.setup import take_weights

FOLDER = Path(gevit.models.__path__[0]) / "pretrained"
DIGITS = [
    (row.model, row.preset, row.data) for row in gevit.list_pretrained() if row.data.startswith("rotmnist-rebuilt")
]


def test_there_are_weights_for_digits() -> None:
    for name, preset in (("r4_sa", "rotmnist"), ("d4_sa", "rotmnist"), ("r4_sa", "nano"), ("d4_sa", "nano")):
        assert (name, preset, "rotmnist-rebuilt") in DIGITS
        assert pretrained_path(name, preset) == pretrained_path(name, preset, "rotmnist-rebuilt")


@pytest.mark.parametrize(("name", "preset", "data"), DIGITS)
def test_pretrained_digits(name: str, preset: str, data: str) -> None:
    model = gevit.create_model(name, preset=preset, pretrained=data)
    assert not model.training
    assert model.info is not None
    digits = open_dataset("digits")
    images = model.info.normalize(digits.test.images(torch.arange(40)))
    with torch.inference_mode():
        accuracy = (model(images).argmax(1) == digits.test.labels[:40]).float().mean()
    assert accuracy > 0.9
    assert_equivariant(model, images[:1], model.group, tolerance=1e-5)
    assert f"{100 * model.info.trained['test_accuracy']:.2f}%" in pretrained_path(name, preset, data).with_suffix(
        ".md"
    ).read_text("utf-8")


def test_of_a_digit_and_its_mirror_image_only_the_restricted_weights_know_which_is_which() -> None:
    digits = open_dataset("digits")
    images = digits.test.images(torch.arange(4))
    for data, tells_them_apart in (("rotmnist-rebuilt", False), ("rotmnist-rebuilt-c4", True)):
        model = gevit.create_model("d4_sa", preset="nano", pretrained=data)
        with torch.inference_mode():
            logits, mirrored = (model(info_of(model).normalize(x)) for x in (images, images.flip(-1)))
        assert ((logits - mirrored).abs().max() > 1e-3 * logits.abs().max()) == tells_them_apart


def test_none_are_random_weights() -> None:
    assert gevit.create_model("r4_sa", preset="nano", pretrained=None).info is None


def test_models_without_weights_say_which_have_some() -> None:
    with pytest.raises(ValueError, match="there are no pretrained weights of 'r16_sa'"):
        gevit.create_model("r16_sa", pretrained=True)


def facts(data: str, classes: int, accuracy: float | None) -> ModelInfo:
    return ModelInfo(
        name="r4_sa",
        preset="nano",
        in_channels=3,
        num_classes=classes,
        classes=tuple(f"{data} {number}" for number in range(classes)),
        image_size=16,
        mean=(0.2, 0.4, 0.6),
        std=(0.5, 0.5, 0.5),
        data=data,
        trained={} if accuracy is None else {"test_accuracy": accuracy},
    )


def add(folder: Path, stem: str, info: ModelInfo, seed: int) -> None:
    torch.manual_seed(seed)
    model = gevit.create_model(info.name, info.preset, info.in_channels, info.num_classes)
    gevit.save(model, info, folder / f"{stem}.safetensors")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of one model for two data sets, and default ones."""
    folder = tmp_path_factory.mktemp("weights")
    add(folder, "r4_sa_nano_fields", facts("fields", 4, 0.75), seed=1)
    add(folder, "r4_sa_nano_cells", facts("cells.zip", 3, None), seed=2)
    add(folder, "r4_sa_nano", facts("stars", 2, 0.5), seed=3)
    return folder


@pytest.fixture
def with_default(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(weights, tmp_path / "weights")
    monkeypatch.setattr("gevit.pretrained.FOLDER", folder)
    return folder


@pytest.fixture
def shipped(with_default: Path) -> Path:
    """None of them the default."""
    for path in with_default.glob("r4_sa_nano.*"):
        path.unlink()
    return with_default


def same_weights(a: torch.nn.Module, b: torch.nn.Module, but: str = "nothing") -> bool:
    others = b.state_dict()
    return all(torch.equal(value, others[key]) for key, value in a.state_dict().items() if but not in key)


class TestByData:
    def test_each_data_set_has_its_weights(self, shipped: Path) -> None:
        for data, classes in (("fields", 4), ("cells", 3)):
            model = gevit.create_model("r4_sa", preset="nano", pretrained=data)
            assert not model.training
            assert model.preset.num_classes == classes
            assert same_weights(model, gevit.load(shipped / f"r4_sa_nano_{data}.safetensors"))

    def test_true_means_the_default_ones(self, with_default: Path) -> None:
        assert gevit.create_model("r4_sa", preset="nano", pretrained=True).preset.num_classes == 2
        assert pretrained_path("r4_sa", "nano", "stars") == pretrained_path("r4_sa", "nano")

    def test_without_default_ones_true_means_the_only_ones(self, shipped: Path) -> None:
        with pytest.raises(ValueError, match="several pretrained weights of 'r4_sa' for 'nano'; .*: cells, fields"):
            gevit.create_model("r4_sa", preset="nano", pretrained=True)
        for path in shipped.glob("*cells*"):
            path.unlink()
        assert pretrained_path("r4_sa", "nano").stem == "r4_sa_nano_fields"

    @pytest.mark.parametrize("data", ["clouds", ""])
    def test_data_without_weights(self, shipped: Path, data: str) -> None:
        message = f"no pretrained weights of 'r4_sa' for 'nano' trained on '{data}'; there are: r4_sa nano cells, "
        with pytest.raises(ValueError, match=message):
            gevit.create_model("r4_sa", preset="nano", pretrained=data)

    def test_other_classes_get_a_new_classifier_alone(self, shipped: Path, tmp_path: Path) -> None:
        trained = gevit.create_model("r4_sa", preset="nano", pretrained="fields")
        model = gevit.create_model("r4_sa", preset="nano", pretrained="fields", num_classes=7)
        assert same_weights(model, trained, but="body.classes")
        x = torch.randn(1, 3, 16, 16)
        assert model(x).shape == (1, 7)
        assert not model.training
        info = info_of(model)
        assert (info.num_classes, info.classes, info.trained) == (7, tuple("0123456"), {})
        assert info.mean == info_of(trained).mean
        named = dataclasses.replace(info, classes=tuple("abcdefg"))
        gevit.save(model, named, tmp_path / "mine.safetensors")
        assert torch.equal(gevit.load(tmp_path / "mine.safetensors")(x), model(x))

    def test_other_channels_are_refused(self, shipped: Path) -> None:
        with pytest.raises(ValueError, match="has in_channels=3, not 5; leave in_channels out"):
            gevit.create_model("r4_sa", preset="nano", pretrained="fields", in_channels=5)

    def test_training_starts_from_them(self, shipped: Path) -> None:
        model = gevit.create_model("r4_sa", preset="nano", in_channels=3, num_classes=9)
        assert take_weights(model, "r4_sa:fields", "nano") == ["body.classes.weight"]
        trained = gevit.create_model("r4_sa", preset="nano", pretrained="fields")
        assert same_weights(model, trained, but="body.classes")
        with pytest.raises(ValueError, match="trained on 'clouds'"):
            take_weights(model, "r4_sa:clouds", "nano")


class TestListing:
    def test_rows_and_table(self, shipped: Path) -> None:
        cells, fields = gevit.list_pretrained()
        assert (fields.model, fields.preset, fields.data, len(fields.classes)) == ("r4_sa", "nano", "fields", 4)
        assert (fields.accuracy, cells.accuracy) == (0.75, None)
        assert fields.size == fields.path.stat().st_size > 10_000
        printed = str(gevit.list_pretrained())
        assert "fields" in printed
        assert "75.0%" in printed

    def test_command(self, shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["pretrained", "--json"]) == 0
        assert [row["data"] for row in json.loads(capsys.readouterr().out)] == ["cells", "fields"]
        assert main(["pretrained"]) == 0
        assert "75.0%" in capsys.readouterr().out


@pytest.fixture
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "a.png"
    Image.new("RGB", (16, 16), (90, 20, 200)).save(path)
    return path


class TestFlag:
    def predicted(self, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
        assert main(["predict", "--model", "r4_sa", "--preset", "nano", *flags, "--json"]) == 0
        answer: str = json.loads(capsys.readouterr().out)[0]["class"]
        return answer

    def test_by_name_and_alone(self, with_default: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.predicted(capsys, "--pretrained", "fields", str(picture)).startswith("fields")
        assert self.predicted(capsys, str(picture), "--pretrained", "cells").startswith("cells.zip")
        # The word after the flag is a file, unless it names data.
        assert self.predicted(capsys, "--pretrained", str(picture)).startswith("stars")
        assert self.predicted(capsys, "--pretrained", str(picture.parent), str(picture)).startswith("stars")
        assert self.predicted(capsys, str(picture), "--pretrained").startswith("stars")

    def test_wrong_ones(self, shipped: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["predict", "--model", "r4_sa", "--preset", "nano", "--pretrained"]
        assert main([*command, "feilds", str(picture)]) == 2
        assert "trained on 'feilds'; there are: r4_sa nano cells" in capsys.readouterr().err
        assert main([*command, "fields"]) == 2
        assert "which images?" in capsys.readouterr().err
        assert main([*command, str(picture)]) == 2
        assert "several pretrained weights" in capsys.readouterr().err
