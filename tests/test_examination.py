from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import gevit
from gevit.cli import main, parse
from gevit.cli.arguments import trained_or_random
from gevit.cli.equivariance import _images
from gevit.data import load_digits
from gevit.equivariance import measure, measure_layers, worst_of
from gevit.evaluation.evaluate import accuracy_by_angle, predict_logits
from gevit.evaluation.examination import MOST_MISTAKES, Examination, LabelledImages, examine
from gevit.evaluation.examination_page import headlines, page
from gevit.groups import Dihedral
from gevit.models.base import EquivariantModel, info_of
from gevit.models.info import ModelInfo
from gevit.rendering.words import printable
from tests.html_page import Page
from tests.running import Life

QUARTERS = (0.0, 90.0, 180.0, 270.0)


def model_of(name: str, classes: tuple[str, ...] = tuple("0123456789"), **options: Any) -> EquivariantModel:
    """A small model of random weights that knows how to be used."""
    torch.manual_seed(0)
    model: EquivariantModel = gevit.create_model(name, num_classes=len(classes), neighborhood=3, **options).eval()
    model.info = ModelInfo(
        name=name,
        preset="rotmnist",
        in_channels=1,
        num_classes=len(classes),
        neighborhood=3,
        classes=classes,
        image_size=22,
        mean=(0.1307,),
        std=(0.3081,),
        data="digits",
        **options,
    )
    return model


def digits(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits()
    step = len(images) // count
    return images[::step][:count, :, 3:25, 3:25].float() / 255, labels[::step][:count]


def examined(name: str, angles: tuple[float, ...] = QUARTERS, **options: Any) -> Examination:
    return examine(model_of(name, **options).double(), digits(2)[0], ["one", "two"], angles=angles)


@pytest.fixture(scope="module")
def rotating() -> Examination:
    return examined("r4_sa")


@pytest.fixture(scope="module")
def plain() -> Examination:
    """A network that knows no rotations, on labelled images: those that it gives itself before they turn."""
    model = model_of("z2_sa")
    images, _ = digits(8)
    answers = predict_logits(model, info_of(model).normalize(images)).argmax(1)
    labelled = LabelledImages("a few digits", images, answers, [f"image {k}" for k in range(8)])
    return examine(model, images[:2], ["one", "two"], labelled, angles=(0.0, 45.0, 90.0, 200.0))


class TestExamination:
    def test_an_equivariant_network(self, rotating: Examination) -> None:
        found = rotating
        assert found.is_equivariant
        assert max(found.logits.worst, found.maps.worst) < 1e-10
        assert list(found.layers) == ["lifting", *model_of("r4_sa").body]
        assert found.shift is not None
        assert found.shift < 1e-10
        # Reflections are none of its business.
        assert [error.name for error in found.beyond] == ["flip", "flip, 90°", "flip, 180°", "flip, 270°"]
        assert min(found.beyond) > 1e-4
        for image in found.images:
            assert image.is_steady
            assert image.spread < 1e-10
            assert torch.allclose(image.probabilities.sum(1), torch.ones(4).double())

    def test_reflections_belong_to_the_group(self) -> None:
        found = examine(model_of("d4_sa"), digits(1)[0], ["one"], angles=())
        assert found.is_equivariant
        assert found.beyond == ()
        assert found.images == ()

    def test_the_encoding_that_is_not_equivariant_shows(self) -> None:
        found = examined("r4_sa", encoding="gsa")
        assert not found.is_equivariant
        assert found.layers["lifting"].worst < 1e-10
        assert found.layers["stage1_block1"].worst > 1e-3
        assert found.logits.worst > 1e-4
        assert min(image.spread for image in found.images) > 1e-5

    def test_a_plain_network_is_measured_beyond_its_group(self, plain: Examination) -> None:
        model, images = model_of("z2_sa"), digits(8)[0][:2]
        wanted = measure(model, info_of(model).normalize(images), Dihedral(4))
        assert [error.name for error in plain.beyond] == [error.name for error in wanted][1:]
        assert list(plain.beyond) == pytest.approx(list(wanted)[1:], rel=1e-3)
        assert min(plain.beyond) > 1e-3
        assert max(image.spread for image in plain.images) > 1e-3

    def test_angles_turn_the_images_the_way_accuracy_by_angle_does(self, plain: Examination) -> None:
        model, (images, _) = model_of("z2_sa"), digits(8)
        normalize = info_of(model).normalize
        answers = predict_logits(model, normalize(images)).argmax(1)
        assert plain.labelled is not None
        wanted = accuracy_by_angle(model, images, answers, normalize, plain.angles)
        assert plain.labelled.accuracies == pytest.approx(list(wanted.values()))
        assert plain.labelled.accuracies[0] == 1

    def test_mistakes_are_those_that_are_wrong_somewhere(self, plain: Examination) -> None:
        labelled = plain.labelled
        assert labelled is not None
        assert labelled.always_right + labelled.changing + labelled.never_right == labelled.count == 8
        assert labelled.never_right == 0
        assert labelled.changing == len(labelled.mistakes) > 0
        assert all(image.predicted[0] == image.label for image in labelled.mistakes)
        assert not any(image.is_steady for image in labelled.mistakes)

    def test_of_many_mistakes_the_changing_ones_come_first(self) -> None:
        images, _ = digits(MOST_MISTAKES + 6)
        model = model_of("z2_sa")
        answers = predict_logits(model, info_of(model).normalize(images)).argmax(1)
        labels = (answers + (torch.arange(len(images)) > 4)) % 10  # all but five are wrong before they turn
        names = [str(k) for k in range(len(images))]
        found = examine(model, images[:1], ["x"], LabelledImages("x", images, labels, names), angles=(0.0, 180.0))
        assert found.labelled is not None
        kept = [len({answer == image.label for answer in image.predicted}) == 1 for image in found.labelled.mistakes]
        assert len(kept) == MOST_MISTAKES
        assert kept == sorted(kept)

    def test_progress_reaches_the_end_and_may_stop_it(self) -> None:
        model, (images, _) = model_of("d1_sa"), digits(2)
        shares: list[float] = []
        examine(model, images, ["a", "b"], angles=QUARTERS, progress=shares.append)
        assert shares == sorted(shares)
        assert shares[0] < 0.2
        assert shares[-1] == 1

        class Stopped(Exception):  # noqa: N818
            pass

        def stop(share: float) -> None:
            raise Stopped

        with pytest.raises(Stopped):
            examine(model, images, ["a", "b"], progress=stop)
        model(info_of(model).normalize(images))  # which nobody watches any more

    def test_features_have_no_answer(self) -> None:
        model = model_of("d1_sa")
        model.reset_classifier(0)
        with pytest.raises(ValueError, match="has no classes"):
            examine(model, digits(1)[0], ["a"])

    def test_json_is_plain(self, plain: Examination) -> None:
        facts = json.loads(json.dumps(plain.to_json(), allow_nan=False))
        assert facts["labelled"]["accuracy"][0] == 1
        assert len(facts["images"][0]["probabilities"]) == len(facts["angles"]) == 4
        assert [row["name"] for row in facts["elements"]] == ["identity"]


def test_the_worst_of_the_layers_is_the_error_of_all() -> None:
    model, x = model_of("d1_sa").double(), torch.randn(1, 1, 22, 22).double()
    layers, whole = (
        measure_layers(model.forward_features, x, model.group),
        measure(model.forward_features, x, model.group),
    )
    together = worst_of(layers.values())
    assert [(error.worst, error.mean) for error in together] == [(error.worst, error.mean) for error in whole]
    assert max(report.worst for report in layers.values()) == whole.worst


class TestPage:
    def test_it_is_whole_and_needs_nothing_else(self, plain: Examination, rotating: Examination) -> None:
        text = page([plain, rotating], "gevit equivariance --image 'a <b>'")
        found = Page(text)
        assert found.references
        assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in found.references)
        assert not found.tags & {"script", "link", "iframe", "object"}
        assert not re.search(r"https?:|@import|url\((?!#)", text)
        assert "gevit equivariance --image 'a <b>'" in found.words
        assert plain.labelled is not None
        for number in (max(plain.beyond), plain.logits.translations[0]):
            assert f"{number:.1e}" in text
        assert text.count('class="answers"') == len(plain.labelled.mistakes)
        assert text.count("<h1") == 1

    @pytest.mark.parametrize(
        "names", [("<script>&", "a'b\"c"), ("\x1b[31mred", "{{ 7 * 7 }}"), ("\u202ereversed", "two\nlines")]
    )
    def test_hostile_names_are_shown_as_they_are(self, names: tuple[str, str]) -> None:
        model, (images, _) = model_of("d1_sa", classes=names), digits(3)
        labelled = LabelledImages(names[1], images, torch.tensor([0, 1, 0]), [names[0]] * 3)
        found = Page(page([examine(model, images[:1], [names[0]], labelled, angles=(0.0, 180.0))]))
        assert "script" not in found.tags
        assert not {"two", "lines"} & set(found.words)
        assert printable(names[0]) in " ".join(found.words)
        assert any(word.startswith(printable(names[1])) for word in found.words)

    def test_the_lowest_accuracy_has_an_angle_unless_all_are_alike(self, plain: Examination) -> None:
        assert plain.labelled is not None
        assert ("lowest accuracy", "rotated by") in [(row[0], row[2][:10]) for row in headlines(plain).rows]
        alike = dataclasses.replace(plain.labelled, right=torch.ones(8, 4, dtype=torch.bool))
        rows = headlines(dataclasses.replace(plain, labelled=alike)).rows
        assert ("lowest accuracy", "100.0%", "at every angle") in rows

    def test_doubts_about_the_images_are_shown(self) -> None:
        model, (images, labels) = model_of("d1_sa"), digits(3)
        labelled = LabelledImages("a few", images, labels, ["one"] * 3, ("these may be <known>",))
        found = examine(model, images[:1], ["one"], labelled, angles=(0.0, 180.0))
        assert found.to_json()["labelled"]["warnings"] == ["these may be <known>"]
        assert any("these may be <known>" in word for word in Page(page([found])).words)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    model = model_of("d1_sa", classes=("dark", "light"))
    gevit.save(model, info_of(model), folder / "model.safetensors")
    for split in ("train", "valid", "test"):
        for name, level in (("dark", 10), ("light", 200)):
            (folder / "images" / split / name).mkdir(parents=True)
            Image.new("RGB", (40, 50), (level, level, 5)).save(folder / "images" / split / name / "x.png")
    return folder


class TestCommand:
    def test_a_page_in_a_terminal(self, run_folder: Path, tmp_path: Path) -> None:
        Image.new("I;16", (30, 30), 40000).save(tmp_path / "deep.png")
        Image.new("RGBA", (30, 40), (9, 200, 9, 90)).save(tmp_path / "a [red] <b>.webp")
        files = ("deep.png", "a [red] <b>.webp", str(run_folder / "images" / "test"))
        flags = ("--data", str(run_folder / "images"), "--angles", "4", "--html", "new/out.html")
        life = Life(("equivariance", "--checkpoint", str(run_folder), "--image", *files, *flags), tmp_path, columns=80)
        assert life.end() == 0, life.output
        assert "Traceback" not in life.output
        text = (tmp_path / "new" / "out.html").read_text(encoding="utf-8")
        words = Page(text).words
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.html"]
        for name in ("deep.png", "a [red] <b>.webp"):
            assert name in words
        assert text.count('class="polar"') == 4

    def test_json_of_images_as_they_turn(self, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        image = str(run_folder / "images" / "test" / "dark" / "x.png")
        arguments = ["--checkpoint", str(run_folder), "--image", image, "--angles", "2", "--json"]
        assert main(["equivariance", *arguments]) == 0
        [answer] = json.loads(capsys.readouterr().out)
        assert answer["angles"] == [0, 180]
        assert answer["images"][0]["name"] == image
        assert answer["classes"] == ["dark", "light"]

    def test_without_other_images_those_with_known_classes_are_turned_and_measured(
        self, run_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = ["--checkpoint", str(run_folder), "--angles", "2", "--json"]
        test = run_folder / "images" / "test"
        assert main(["equivariance", "--data", str(run_folder / "images"), *flags]) == 0
        [answer] = json.loads(capsys.readouterr().out)
        assert main(["equivariance", "--image", str(test / "dark"), str(test / "light"), *flags]) == 0
        [wanted] = json.loads(capsys.readouterr().out)
        assert [image["name"] for image in answer["images"]] == ["dark/x.png", "light/x.png"]
        assert [image["probabilities"] for image in answer["images"]] == [
            image["probabilities"] for image in wanted["images"]
        ]
        assert (answer["elements"], answer["layers"]) == (wanted["elements"], wanted["layers"])

    @pytest.mark.parametrize("flag", ["--html", "--figure"])
    def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
        self, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("gevit.evaluation.examination.examine", lambda *_, **__: pytest.fail("it was computed"))
        (tmp_path / "file.svg").mkdir()
        assert main(["equivariance", "--model", "d1_sa", flag, str(tmp_path / "file.svg")]) == 2
        assert "it is a folder; name another file" in capsys.readouterr().err

    @pytest.mark.parametrize("flag", ["--html", "--figure"])
    def test_a_write_that_fails_leaves_the_numbers(
        self, flag: str, run_folder: Path, tmp_path: Path, disk_full: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = ["--images", "1", "--angles", "1", "--json", flag, str(tmp_path / "out.svg")]
        assert main(["equivariance", "--checkpoint", str(run_folder), *flags]) == 2
        printed = capsys.readouterr()
        assert "the disk is full" in printed.err
        assert json.loads(printed.out)[0]["model"] == "d1_sa"

    def test_own_images_and_several_models(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "out.html"
        models = ["--model", "z2_sa", "d1_sa", "--neighborhood", "3"]
        assert main(["equivariance", *models, "--images", "1", "--angles", "2", "--html", str(out)]) == 0
        assert str(out) in capsys.readouterr().out
        assert Page(out.read_text(encoding="utf-8")).words.count("d1_sa") == 1

    def test_there_are_no_more_digits_than_there_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        digits, labels = load_digits()
        monkeypatch.setattr("gevit.data.load_digits", lambda: (digits[:3], labels[:3]))
        for asked, given in ((1, 1), (2, 2), (9, 3)):
            args = parse(["equivariance", "--preset", "nano", "--images", str(asked)])
            assert len(_images(args, trained_or_random(args, "z2_sa"))[0]) == given

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--image", "missing.png"], "cannot read missing.png as a picture: No such file"),
            (["--image", "no/*.png"], "no file matches no/*.png"),
            (["--image", __file__], "it is no image of a known format"),
            (["--data", "missing"], "missing"),
            (["--html", "/"], "--html / cannot be written: it is a folder"),
            (["--html", "/dev/null/x.html"], "--html /dev/null/x.html cannot be written: there can be no folder"),
            (["--figure", "maps.gif"], "--figure draws .png, .svg, .pdf, got 'maps.gif'"),
        ],
    )
    def test_errors_are_one_line(
        self, run_folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["equivariance", "--checkpoint", str(run_folder), "--angles", "1", *flags]) == 2
        said = capsys.readouterr().err
        assert said.startswith("gevit equivariance: error: ")
        assert message in said
        assert said.count("\n") == 1

    def test_a_package_that_a_page_needs(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "PIL", None)
        assert main(["equivariance", "--html", str(tmp_path / "out.html")]) == 2
        said = capsys.readouterr().err
        assert "pip install 'gevit[train]'" in said
        assert said.count("\n") == 1

    def test_data_of_other_classes_is_refused(self, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["equivariance", "--checkpoint", str(run_folder), "--data", "digits"]) == 2
        assert "the model knows the classes dark, light" in capsys.readouterr().err
