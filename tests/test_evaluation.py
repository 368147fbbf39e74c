from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import gevit
from gevit.cli import main
from gevit.data import open_dataset
from gevit.data.dataset import MemorySplit, choose
from gevit.data.rotation import rotate
from gevit.equivariance import Report
from gevit.evaluation.evaluate import (
    accuracy_by_angle,
    equivariance_of,
    equivariance_rows,
    evaluate,
    predict_logits,
)
from gevit.evaluation.metrics import area_under_roc, confusion_matrix, score, tally, wilson_interval
from gevit.evaluation.presentation import angle_figure
from gevit.groups import Group
from gevit.models.info import ModelInfo

DIGITS = tuple("0123456789")


def info(**change: Any) -> ModelInfo:
    facts: dict[str, Any] = {
        "name": "z2_sa",
        "preset": "rotmnist",
        "in_channels": 1,
        "num_classes": 10,
        "classes": DIGITS,
        "image_size": 28,
        "mean": (0.1307,),
        "std": (0.3081,),
        "data": "digits",
        **change,
    }
    return ModelInfo(**facts)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, with a small model of random weights."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    gevit.save(gevit.create_model("r4_sa", neighborhood=3), info(name="r4_sa", neighborhood=3), folder / "model.json")
    return folder


class TestMetrics:
    def test_a_hand_made_example(self) -> None:
        # true 0: predicted 0, 0, 1; true 1: predicted 1; true 2: predicted 0, 2
        predicted, labels = torch.tensor([0, 0, 1, 1, 0, 2]), torch.tensor([0, 0, 0, 1, 2, 2])
        logits = 5 * nn.functional.one_hot(predicted, 3).double()
        result = score(logits, labels)
        assert result.confusion == ((2, 1, 0), (0, 1, 0), (1, 0, 1))
        assert result.n == 6
        assert result.accuracy == pytest.approx(4 / 6)
        first, second, third = result.per_class
        assert (first.precision, first.recall, first.support) == pytest.approx((2 / 3, 2 / 3, 3))
        assert (second.precision, second.recall, second.f1) == pytest.approx((0.5, 1.0, 2 / 3))
        assert (third.precision, third.recall, third.support) == (1.0, 0.5, 2)
        right, wrong = math.log(1 + 2 * math.exp(-5)), 5 + math.log(1 + 2 * math.exp(-5))
        assert result.loss == pytest.approx((4 * right + 2 * wrong) / 6)
        assert result.auc is None

    def test_a_class_that_never_occurs_scores_nothing(self) -> None:
        result = score(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0]))
        assert (result.per_class[2].precision, result.per_class[2].recall, result.per_class[2].f1) == (0, 0, 0)

    def test_means_over_classes_by_hand(self) -> None:
        # Class 0: 6 images, 5 found, 6 predictions; 1: 3, 1 and 2; 2: 1, 1 and 2; 3: no images.
        confusion = torch.tensor([[5, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]])
        result = tally(confusion, loss=0.0)
        assert result.balanced_accuracy == pytest.approx((5 / 6 + 1 / 3 + 1) / 3)
        assert result.macro_f1 == pytest.approx((10 / 12 + 2 / 5 + 2 / 3) / 3)
        # A class that has no images is none to average over; to predict it is a mistake of another.
        confusion[0, 0], confusion[0, 3] = 4, 1
        result = tally(confusion, loss=0.0)
        assert result.balanced_accuracy == pytest.approx((4 / 6 + 1 / 3 + 1) / 3)
        assert result.macro_f1 == pytest.approx((8 / 11 + 2 / 5 + 2 / 3) / 3)
        assert result.to_json()["macro_f1"] == result.macro_f1

    def test_means_over_classes_agree_with_torchmetrics(self) -> None:
        functional = pytest.importorskip("torchmetrics.functional.classification")
        logits, labels = torch.randn(200, 4), torch.randint(4, (200,))
        result = score(logits, labels)
        recall = functional.multiclass_recall(logits, labels, 4, average="macro")
        assert result.balanced_accuracy == pytest.approx(float(recall), abs=1e-6)
        f1 = functional.multiclass_f1_score(logits, labels, 4, average="macro")
        assert result.macro_f1 == pytest.approx(float(f1), abs=1e-6)

    def test_auc_by_counting_pairs(self) -> None:
        scores, positive = torch.randint(6, (40,)).double(), torch.rand(40) < 0.4
        pairs = [(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]]
        assert area_under_roc(scores, positive) == pytest.approx(float(sum(pairs)) / len(pairs))

    def test_auc_of_perfect_reversed_and_one_sided_scores(self) -> None:
        scores, positive = torch.arange(4.0), torch.tensor([False, False, True, True])
        assert area_under_roc(scores, positive) == 1.0
        assert area_under_roc(-scores, positive) == 0.0
        assert area_under_roc(scores, torch.ones(4, dtype=torch.bool)) is None

    def test_agrees_with_torchmetrics(self) -> None:
        functional = pytest.importorskip("torchmetrics.functional.classification")
        logits, labels = torch.randn(200, 2), torch.randint(2, (200,))
        result = score(logits, labels)
        assert result.auc == pytest.approx(float(functional.binary_auroc(logits.softmax(1)[:, 1], labels)), abs=1e-6)
        wanted = functional.multiclass_confusion_matrix(logits.argmax(1), labels, 2)
        assert torch.equal(confusion_matrix(logits.argmax(1), labels, 2), wanted)
        f1 = functional.multiclass_f1_score(logits, labels, 2, average=None)
        assert [scores.f1 for scores in result.per_class] == pytest.approx(f1.tolist(), abs=1e-6)

    @pytest.mark.parametrize(
        ("share", "n", "low", "high"),
        [(0.5, 10, 0.2366, 0.7634), (0.0, 20, 0.0, 0.1611), (1.0, 20, 0.8389, 1.0), (0.972, 500, 0.9536, 0.9832)],
    )
    def test_wilson_interval(self, share: float, n: int, low: float, high: float) -> None:
        assert wilson_interval(share, n) == pytest.approx((low, high), abs=1e-4)

    def test_labels_of_any_integer_type(self) -> None:
        labels = torch.tensor([13, 2], dtype=torch.uint8)
        assert score(torch.eye(20)[[13, 2]], labels).accuracy == 1
        with pytest.raises(ValueError, match="labels must be 0 to 9, got 2 to 13"):
            confusion_matrix(torch.tensor([1, 2]), labels, 10)

    def test_json_is_plain(self) -> None:
        answer = json.loads(json.dumps(score(torch.eye(2), torch.tensor([0, 1])).to_json()))
        assert answer["accuracy"] == 1.0
        assert answer["confusion"] == [[1, 0], [0, 1]]
        assert answer["accuracy_interval"][1] == 1.0


class Brightest(nn.Module):
    """Finds which half of an image is brighter: left (0) or right (1)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        sums = torch.stack([x[..., :half].sum((1, 2, 3)), x[..., half:].sum((1, 2, 3))], 1)
        kept: Tensor = self.dropout(torch.ones_like(sums))
        return kept * self.scale * sums


def halves(n: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(n) % 2
    images = torch.zeros(n, 1, 8, 8, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        image[..., 4 * label : 4 * label + 4] = 255
    return images, labels


class TestEvaluate:
    @pytest.mark.parametrize("batch_size", [1, 3, 64])
    def test_batches_do_not_matter(self, batch_size: int) -> None:
        seen: list[int] = []
        result = evaluate(Brightest(), MemorySplit(*halves(7)), lambda x: x - 0.5, batch_size, seen.append)
        assert (result.n, result.accuracy, result.auc) == (7, 1.0, 1.0)
        assert sum(seen) == 7

    def test_evaluation_mode_and_back(self) -> None:
        model = Brightest()
        evaluate(model, MemorySplit(*halves(4)), lambda x: x)
        assert model.training
        predict_logits(model.eval(), torch.ones(1, 1, 8, 8))
        assert not model.training

    def test_it_runs_where_the_model_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The device `meta`, which every machine has, stands for a GPU; it computes nothing, so answers are made up."""
        seen: list[str] = []

        def answer(model: nn.Module, inputs: tuple[Tensor], logits: Tensor) -> Tensor:
            seen.append(inputs[0].device.type)
            return torch.zeros(logits.shape)

        def report(module: object, x: Tensor, group: Group) -> Report:
            seen.append(x.device.type)
            return Report(group, (), ())

        model = Brightest().to("meta")
        model.register_forward_hook(answer)
        images, labels = halves(4)
        assert evaluate(model, MemorySplit(images, labels), lambda x: x, batch_size=2).n == 4
        assert accuracy_by_angle(model, images / 255, labels, lambda x: x, [0.0]) == {0.0: 0.5}
        monkeypatch.setattr("gevit.evaluation.evaluate.measure", report)
        equivariance_of(gevit.create_model("z2_sa").to("meta"), torch.zeros(1, 1, 28, 28))
        assert seen == ["meta"] * 5

    def test_a_model_that_gives_nan_is_named(self) -> None:
        model = Brightest()
        nn.init.constant_(model.scale, math.nan)
        with pytest.raises(ValueError, match="not finite for 2 of 2 images"):
            evaluate(model, MemorySplit(*halves(2)), lambda x: x)

    def test_no_images(self) -> None:
        images, labels = halves(2)
        with pytest.raises(ValueError, match="no images"):
            evaluate(Brightest(), MemorySplit(images[:0], labels[:0]), lambda x: x)

    def test_accuracy_follows_the_angle(self) -> None:
        images, labels = halves(6)
        found = accuracy_by_angle(Brightest(), images.float() / 255, labels, lambda x: x, [0.0, 45.0, 180.0, 330.0])
        assert found == {0.0: 1.0, 45.0: 1.0, 180.0: 0.0, 330.0: 1.0}

    def test_quarter_turns_are_exact_and_others_turn_the_same_way(self) -> None:
        image = torch.rand(1, 2, 9, 9)
        assert torch.equal(rotate(image, 90.0), torch.rot90(image, 1, (-2, -1)))
        assert torch.equal(rotate(image, -90.0), torch.rot90(image, -1, (-2, -1)))
        assert torch.equal(rotate(image, 360.0), image)
        nearly = rotate(image, 90.0001)
        assert torch.allclose(nearly, rotate(image, 90.0), atol=1e-3)

    def test_a_subset_is_always_the_same_and_has_every_class_in_its_share(self) -> None:
        labels = torch.randint(10, (1000,)) % 7  # classes 0 to 2 are twice as frequent
        chosen = choose(labels, 100)
        assert torch.equal(chosen, choose(labels, 100))
        assert len(chosen.unique()) == 100
        share = labels.bincount() / 10
        assert (labels[chosen].bincount() - share).abs().max() <= 1
        assert choose(labels[:4], 10).tolist() == [0, 1, 2, 3]

    def test_equivariance_of_logits_and_maps(self) -> None:
        model = gevit.create_model("d1_sa", neighborhood=3).eval()
        rows = equivariance_rows(*equivariance_of(model, torch.randn(1, 1, 28, 28)))
        assert [row["name"] for row in rows] == ["identity", "flip"]
        assert rows[0]["logits"]["worst"] == 0
        assert 0 < rows[1]["feature_maps"]["worst"] < 1e-5


def save_two_classes(folder: Path, **change: Any) -> None:
    """A model of random weights for the images of `shades`."""
    model = gevit.create_model("z2_sa", num_classes=2, neighborhood=3)
    facts = info(**{"num_classes": 2, "classes": ("dark", "light"), "neighborhood": 3, **change})
    gevit.save(model, facts, folder / "model.safetensors")


def shades(folder: Path, count: int, start: int = 0) -> None:
    """Dark and light images of several sizes, so many of each."""
    for name, level in (("dark", 10), ("light", 200)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(start, start + count):
            Image.new("RGB", (40 + k, 50), (level + k,) * 3).save(folder / name / f"{k}.png")


class TestEvaluateCommand:
    def test_json_and_files(self, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        flags = ["--data", "digits", "--limit", "5", "--angles", "4", "--batch-size", "3"]
        out = tmp_path / "new"
        assert main(["evaluate", "--checkpoint", str(run_folder), *flags, "--json", "--out", str(out)]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert json.loads((out / "evaluation.json").read_text()) == answer
        assert sorted(path.name for path in out.iterdir()) == ["angle.png", "angle.svg", "evaluation.json"]

        data = open_dataset("digits")
        model = gevit.load(run_folder)
        some = choose(data.test.labels, 5)
        logits = predict_logits(model, data.normalize(data.test.images(some)))
        wanted = float((logits.argmax(1) == data.test.labels[some]).double().mean())
        assert answer["accuracy"] == pytest.approx(wanted)
        assert np.array(answer["confusion"]).sum() == 5
        # the model is invariant: quarter turns change nothing
        assert set(answer["by_angle"]["accuracy"].values()) == {answer["accuracy"]}
        assert [row["name"] for row in answer["equivariance"]["elements"]] == ["identity", "90°", "180°", "270°"]

    def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
        self, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("gevit.evaluation.evaluate.evaluate", lambda *_: pytest.fail("it was computed"))
        (tmp_path / "file").write_text("")
        flags = ["--data", "digits", "--limit", "2", "--out", str(tmp_path / "file")]
        assert main(["evaluate", "--checkpoint", str(run_folder), *flags]) == 2
        assert "evaluation.json cannot be written: there can be no folder" in capsys.readouterr().err

    def test_a_write_that_fails_leaves_the_numbers(
        self, run_folder: Path, tmp_path: Path, disk_full: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = ["--data", "digits", "--limit", "2", "--angles", "0", "--json", "--out", str(tmp_path)]
        assert main(["evaluate", "--checkpoint", str(run_folder), *flags]) == 2
        printed = capsys.readouterr()
        assert "the disk is full" in printed.err
        assert json.loads(printed.out)["n"] == 2

    def test_tables(self, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["--checkpoint", str(run_folder / "model.safetensors"), "--data", "digits", "--split", "valid"]
        assert main(["evaluate", *arguments, "--limit", "2", "--angles", "0"]) == 0
        printed = capsys.readouterr().out
        assert "r4_sa on digits, valid" in printed
        assert "accuracy (95% interval)" in printed
        assert "rotat" not in printed

    def test_a_pipe_folds_nothing_and_names_are_shown_as_they_are(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = ("a [bold]name with \x1b[31mred" + " and long" * 20, "b")
        save_two_classes(tmp_path, classes=names)
        for split in ("train", "valid", "test"):
            for name in names:
                (tmp_path / "images" / split / name).mkdir(parents=True)
                Image.new("L", (28, 28), len(name)).save(tmp_path / "images" / split / name / "x.png")
        arguments = ["--checkpoint", str(tmp_path), "--data", str(tmp_path / "images")]
        assert main(["evaluate", *arguments, "--split", "test", "--angles", "1"]) == 0
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert "a [bold]name with \\x1b[31mred" + " and long" * 20 in printed

    def test_a_folder_of_images_of_other_sizes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save_two_classes(tmp_path)
        for split in ("train", "valid", "test"):
            shades(tmp_path / "images" / split, 2)
        arguments = ["--checkpoint", str(tmp_path), "--data", str(tmp_path / "images")]
        assert main(["evaluate", *arguments, "--angles", "0", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["n"], answer["classes"]) == (4, ["dark", "light"])
        assert answer["auc"] is not None

    def test_a_folder_that_has_changed_since_training(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shades(tmp_path / "photos", 5)
        digest = open_dataset(str(tmp_path / "photos"), image_size=28, channels=1).digest
        monkeypatch.chdir(tmp_path)

        def warnings(split: str = "test", data: str = "photos", **trained: str | int) -> Any:
            save_two_classes(tmp_path, data="photos", trained=trained)
            command = f"evaluate --checkpoint . --data {data} --split {split} --limit 1 --angles 0 --json"
            assert main(command.split()) == 0
            captured = capsys.readouterr()
            found = json.loads(captured.out)["warnings"]
            assert all(f"gevit evaluate: warning: {text}\n" in captured.err for text in found)
            assert captured.err.count("warning") == len(found)
            return found

        assert warnings(data_digest=digest) == []
        shades(tmp_path / "photos", 1, start=5)
        for split in ("valid", "test"):
            (text,) = warnings(split, data_digest=digest)
            assert "the folder photos has changed since the model was trained on it" in text
            assert f"not the {split} images of then, and may include images that it was trained on" in text
            assert "put the images into folders train, valid and test" in text
        assert warnings() == [], "models of earlier versions do not know their data"
        assert warnings(data_digest="0" * 64) == [], "or know it in a way that says nothing"
        assert warnings(data_digest=7) == [], "or in none"
        shades(tmp_path / "others", 5)
        assert warnings(data="others", data_digest=digest) == [], "the same images under another name"
        shades(tmp_path / "others", 1, start=5)
        for split in ("valid", "test"):
            (text,) = warnings(split, data="others", data_digest=digest)
            assert f"the {split} images may include" in text
            assert "--split all" in text
        assert warnings("all", data="others", data_digest=digest) == []
        (text,) = warnings("all", data_digest=digest)
        assert "trained on a folder of the same name" in text
        for split, count in (("train", 6), ("test", 1)):
            shades(tmp_path / "kept" / "photos" / split, count)
        assert warnings(data="kept/photos", data_digest=digest) == [], "the test images are a folder of their own"
        assert warnings("valid", data="kept/photos", data_digest=digest), "but validation is drawn from train"

    def test_the_part_that_is_drawn_is_said(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save_two_classes(tmp_path)
        shades(tmp_path / "images", 10)
        command = ["evaluate", "--checkpoint", str(tmp_path), "--data", str(tmp_path / "images"), "--angles", "0"]
        assert main(command) == 0
        assert "images, test (2 of 20 images)" in capsys.readouterr().out

    def test_all_images_of_some_of_the_classes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save_two_classes(tmp_path)
        shades(tmp_path / "photos", 4)
        shutil.rmtree(tmp_path / "photos" / "dark")
        command = ["evaluate", "--checkpoint", str(tmp_path), "--split", "all", "--angles", "0", "--json", "--data"]
        assert main([*command, str(tmp_path / "photos")]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert [row["support"] for row in answer["per_class"]] == [0, 4], "they are labelled by the names of classes"

        for split in ("train", "test"):
            shades(tmp_path / "split" / split, 1)
        assert main([*command, str(tmp_path / "split")]) == 0
        assert json.loads(capsys.readouterr().out)["n"] == 4, "of all splits"

        (tmp_path / "photos" / "light").rename(tmp_path / "photos" / "bright")
        assert main([*command, str(tmp_path / "photos")]) == 2
        assert "not among dark, light: bright" in capsys.readouterr().err
        assert main([*command, "digits"]) == 2
        assert "digits has the splits train, valid and test" in capsys.readouterr().err

    def test_corrupt_files_are_left_out_if_asked(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save_two_classes(tmp_path)
        shades(tmp_path / "images", 3)
        (tmp_path / "images" / "dark" / "broken.png").write_bytes(b"no image")
        command = ["evaluate", "--checkpoint", str(tmp_path), "--data", str(tmp_path / "images"), "--angles", "0"]
        assert main(command) == 2
        assert "--skip-corrupt" in capsys.readouterr().err
        with pytest.warns(UserWarning, match="1 of 7 images .* left out"):
            assert main([*command, "--skip-corrupt"]) == 0
        capsys.readouterr()
        shutil.rmtree(tmp_path / "images" / "light")
        for sound in (tmp_path / "images" / "dark").glob("[0-9]*"):
            sound.unlink()
        with pytest.warns(UserWarning, match="1 of 1 images .* left out"):
            assert main([*command, "--skip-corrupt", "--split", "all"]) == 2
        assert "no sound images" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"in_channels": 3, "mean": (0.5,) * 3, "std": (0.5,) * 3}, "takes images of 3 channels, those of digits"),
            ({"num_classes": 2, "classes": ("a", "b")}, "knows the classes a, b, digits has 0, 1, 2"),
            ({"classes": DIGITS[::-1]}, "must be the same, in the same order"),
        ],
    )
    def test_data_of_another_kind(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
    ) -> None:
        facts = info(**change)
        model = gevit.create_model("z2_sa", in_channels=facts.in_channels, num_classes=facts.num_classes)
        gevit.save(model, facts, tmp_path / "model.safetensors")
        assert main(["evaluate", "--checkpoint", str(tmp_path), "--data", "digits"]) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ([], "which model? give --checkpoint PATH, or --model NAME --pretrained"),
            (["--model", "r4_sa"], "which model?"),
            (["--model", "nothing", "--pretrained"], "no pretrained weights of 'nothing'"),
            (["--checkpoint", "RUN", "--pretrained"], "leave one of them out"),
            (["--checkpoint", "RUN", "--model", "d4_sa"], "holds a r4_sa, not a d4_sa"),
            (["--checkpoint", "RUN", "--angles", "-1"], "--angles must be at least 0"),
            (["--checkpoint", "RUN/none.safetensors"], "there is no"),
        ],
    )
    def test_flags_that_make_no_sense(
        self, run_folder: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
    ) -> None:
        flags = [flag.replace("RUN", str(run_folder)) for flag in flags]
        assert main(["evaluate", *flags, "--data", "digits"]) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize("flag", ["--limit", "--batch-size"])
    @pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
    def test_counts_are_positive_integers(self, capsys: pytest.CaptureFixture[str], flag: str, value: str) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["evaluate", "--data", "digits", flag, value])
        assert f"argument {flag}: expected a positive integer, got '{value}'" in capsys.readouterr().err


def test_the_chart_closes_the_circle_and_needs_no_interval() -> None:
    for images, bands in ((50, 1), (0, 0)):
        axes = angle_figure({0.0: 0.9, 180.0: 0.5}, images).axes[0]
        assert np.array(axes.lines[0].get_xdata()).tolist() == [0, 180, 360]
        assert np.array(axes.lines[0].get_ydata()).tolist() == pytest.approx([90, 50, 90])
        assert len(axes.collections) == bands
