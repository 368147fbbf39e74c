from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from PIL import Image
from torch import Tensor

import gevit
from gevit.cli import main
from gevit.cli.figures import DIGIT
from gevit.data.digits import load_digits, normalize_digits
from gevit.data.preview import as_colours
from gevit.equivariance import measure
from gevit.equivariance.comparison import NothingToShow, compare_elements, compare_translation
from gevit.equivariance.figures import COLUMN, PAGE, equivariance_figure, error_figure, feature_map_figure, save
from gevit.models.base import EquivariantModel
from gevit.models.info import ModelInfo

MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


def random_model(name: str, encoding: str = "ge", **options: Any) -> EquivariantModel:
    torch.manual_seed(0)
    model: EquivariantModel = gevit.create_model(name, encoding=encoding, **options)
    return model.eval()


def digit() -> Tensor:
    return normalize_digits(load_digits()[0][DIGIT])


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def images(figure: Figure, logarithmic: bool) -> list[AxesImage]:
    found: list[AxesImage] = figure.findobj(AxesImage)
    return [image for image in found if isinstance(image.norm, LogNorm) == logarithmic]


def pixels(image: AxesImage) -> np.ndarray:
    return np.asarray(image.get_array())


def in_print(value: float) -> str:
    digits, exponent = f"{value:.1e}".split("e-0")
    return f"{digits}×10⁻{'⁰¹²³⁴⁵⁶⁷⁸⁹'[int(exponent)]}"


def errors_of(model: EquivariantModel, layer: str) -> list[tuple[float, float]]:
    report = measure(lambda x: model.forward_features(x)[layer], digit()[None], model.group, translations=())
    return [(error.mean, error.worst) for error in report]


def test_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "reflection", "--model", "d1_sa", "--out", str(tmp_path / "new")]) == 0
    assert "reflection.{png,pdf,svg,json}" in capsys.readouterr().out
    files = {file.name for file in (tmp_path / "new").iterdir()}
    assert files == {"reflection.png", "reflection.pdf", "reflection.svg", "reflection.json"}
    for suffix, magic in MAGIC.items():
        assert (tmp_path / "new" / f"reflection.{suffix}").read_bytes().startswith(magic)


def test_all_figures(tmp_path: Path) -> None:
    assert main(["figures", "--formats", "png", "--out", str(tmp_path)]) == 0
    names = ("translation", "rotation", "reflection", "errors")
    assert {file.name for file in tmp_path.iterdir()} == {f"{n}.{suffix}" for n in names for suffix in ("png", "json")}
    for name, model, what in (("rotation", "r4_sa", "90°"), ("reflection", "d4_sa", "flip")):
        numbers = read(tmp_path / f"{name}.json")
        assert (numbers["model"], numbers["name"]) == (model, what)
        assert 0 < numbers["mean"] <= numbers["worst"] < 1e-5

    errors = read(tmp_path / "errors.json")
    for name, encoding in (("GE-ViT", "ge"), ("GSA-Nets", "gsa")):
        wanted = errors_of(random_model("r4_sa", encoding), "stage1_block1")
        assert [(e["mean"], e["worst"]) for e in errors[name]["elements"]] == wanted
    turned = {name: errors[name]["elements"][1:] for name in errors}
    assert max(e["worst"] for e in turned["GE-ViT"]) < 1e-5
    assert min(e["worst"] for e in turned["GSA-Nets"]) > 1e-2


def test_errors_of_reflections(tmp_path: Path) -> None:
    assert main(["figures", "errors", "--model", "d4_sa", "--formats", "png", "--out", str(tmp_path)]) == 0
    errors = read(tmp_path / "errors.json")
    flipped = {name: [e for e in errors[name]["elements"] if "flip" in e["name"]] for name in errors}
    assert len(flipped["GE-ViT"]) == 4
    assert max(e["worst"] for e in flipped["GE-ViT"]) < 1e-5
    assert min(e["mean"] for e in flipped["GSA-Nets"]) > 1e-3


def test_comparisons_are_those_of_measure_at_any_angle() -> None:
    model = random_model("r8_sa", neighborhood=3)
    comparisons = compare_elements(model, digit(), range(8), "lifting")
    assert [(c.error.mean, c.error.worst) for c in comparisons] == errors_of(model, "lifting")
    assert [c.exact for c in comparisons] == [True, False] * 4


@pytest.mark.parametrize("layer", ["lifting", "stage1_block1", "stage1_pool", "stage2_block3", "classes"])
def test_translations_are_exact_in_every_layer(layer: str) -> None:
    comparison = compare_translation(random_model("r4_sa"), digit(), layer)
    assert comparison.error < 1e-5
    scale = comparison.plain.abs().mean()
    assert (comparison.found - comparison.plain).abs().mean() > 1e-2 * scale  # they did move
    assert comparison.image.sum() == pytest.approx(float(comparison.moved.sum()))  # and stayed in the picture


def test_translations_need_a_border_that_is_far(unchecked_shapes: None) -> None:
    with pytest.raises(NothingToShow, match="global attention"):
        compare_translation(random_model("z2_sa", neighborhood=None), digit())


def drawn(name: str) -> dict[str, Callable[[], Figure]]:
    model, image = random_model(name), digit()
    group = model.group

    def errors() -> Figure:
        encodings = {"GE-ViT": model, "GSA-Nets": random_model(name, "gsa")}
        comparisons = {
            name: compare_elements(model, image, range(group.order), "stage1_block1")
            for name, model in encodings.items()
        }
        return error_figure(group, comparisons, f"Error of feature maps\n{name}, trained weights")

    title = f"Translation equivariance: 16 pixels down and right\n{name}, trained weights"
    return {
        "following": lambda: equivariance_figure(group, compare_elements(model, image, [1])[0], title),
        "maps": lambda: feature_map_figure({name: model, "r4_sa": random_model("r4_sa")}, image),
        "errors": errors,
    }


@pytest.mark.parametrize(
    ("name", "kind", "width"),
    [
        ("r4_sa", "following", COLUMN),
        ("r4_sa", "errors", COLUMN),
        ("d1_sa", "errors", COLUMN),
        ("d4_sa", "maps", PAGE),
        ("d4_sa", "errors", PAGE),
    ],
)
def test_figures_are_legible_in_print(name: str, kind: str, width: float) -> None:
    figure = drawn(name)[kind]()
    assert figure.get_figwidth() == width
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(float(text.get_fontsize()) for text in texts) >= 7
    box = figure.get_tightbbox()  # of everything in it, in inches
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
def test_images_are_drawn_as_their_pixels(channels: int) -> None:
    model = random_model("d1_sa", in_channels=channels, neighborhood=3)
    mean, std = tuple(0.3 + 0.02 * k for k in range(channels)), tuple(0.1 + 0.01 * k for k in range(channels))
    model.info = replace(model.describe(), mean=mean, std=std)
    given = torch.rand(channels, 28, 28)
    figure = feature_map_figure({"d1_sa": model}, model.info.normalize(given))
    shown = [pixels(image) for image in images(figure, logarithmic=False) if pixels(image).ndim == 3]
    wanted = as_colours(given[None], mean, std)[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(shown[0], wanted, atol=1e-6)
    np.testing.assert_allclose(shown[1], wanted[:, ::-1], atol=1e-6)


def test_images_of_an_unknown_normalisation_can_be_seen() -> None:
    shown, *_ = (pixels(image) for image in images(drawn("d1_sa")["following"](), logarithmic=False))
    assert shown.max() - shown.min() > 0.5


def test_what_can_be_compared_is_on_one_scale() -> None:
    figure = drawn("r4_sa")["following"]()
    maps = [image for image in images(figure, logarithmic=False) if image.get_cmap().name == "cividis"]
    assert len(maps) == 3 * 4
    assert len({(image.norm.vmin, image.norm.vmax) for image in maps}) == 1
    plain, found, promised = maps[:4], maps[4:8], maps[8:]
    for element in range(4):
        np.testing.assert_allclose(pixels(found[element]), pixels(promised[element]), atol=1e-4)
        np.testing.assert_array_equal(pixels(promised[element]), np.rot90(pixels(plain[element - 1])))


def test_the_drawn_error_has_the_printed_mean() -> None:
    figure = drawn("r4_sa")["errors"]()
    maps = images(figure, logarithmic=True)
    assert len(maps) == 2 * 3
    assert len({(image.norm.vmin, image.norm.vmax) for image in maps}) == 1
    printed = {text.get_text() for text in figure.findobj(Text)}
    for encoding, drawn_maps in (("ge", maps[:3]), ("gsa", maps[3:])):
        wanted = errors_of(random_model("r4_sa", encoding), "stage1_block1")[1:]
        for image, (mean, worst) in zip(drawn_maps, wanted, strict=True):
            assert float(pixels(image).mean()) == pytest.approx(mean, rel=1e-4)
            assert f"{in_print(mean)}\n{in_print(worst)}" in printed


@pytest.mark.parametrize("suffix", ["pdf", "svg"])
def test_the_same_figure_is_the_same_file(suffix: str, tmp_path: Path) -> None:
    figure = drawn("d1_sa")["following"]()
    for name in ("a", "b"):
        save(figure, tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Figure, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    (tmp_path / "rotation.png").write_bytes(b"before")
    assert main(["figures", "rotation", "--out", str(tmp_path)]) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["rotation.png"]
    assert (tmp_path / "rotation.png").read_bytes() == b"before"


def saved(path: Path, name: str, encoding: str) -> str:
    info = ModelInfo(
        name=name,
        preset="rotmnist",
        in_channels=1,
        num_classes=10,
        encoding=encoding,
        classes=tuple("0123456789"),
        image_size=28,
        mean=(0.1307,),
        std=(0.3081,),
        data="digits",
    )
    gevit.save(random_model(name, encoding), info, path)
    return str(path)


def test_saved_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ge = saved(tmp_path / "ge.safetensors", "r4_sa", "ge")
    gsa = saved(tmp_path / "gsa.safetensors", "r4_sa", "gsa")
    mirrored = saved(tmp_path / "d1.safetensors", "d1_sa", "gsa")
    out = ["--formats", "png", "--out", str(tmp_path / "out")]

    assert main(["figures", "errors", "--checkpoint", ge, "--against", gsa, *out]) == 0
    errors = read(tmp_path / "out" / "errors.json")
    assert errors["GSA-Nets"]["weights"] == "trained, digits"
    wanted = errors_of(random_model("r4_sa", "gsa"), "stage1_block1")
    found = [(e["mean"], e["worst"]) for e in errors["GSA-Nets"]["elements"]]
    np.testing.assert_allclose(found, wanted, rtol=1e-2)

    assert main(["figures", "errors", "--checkpoint", ge, *out]) == 2
    assert "give GSA-Nets with --against PATH" in capsys.readouterr().err
    assert main(["figures", "errors", "--checkpoint", ge, "--against", mirrored, *out]) == 2
    assert "a model of Dihedral(1), expected Cyclic(4)" in capsys.readouterr().err
    assert main(["figures", "errors", "--checkpoint", ge, "--encoding", "gsa", *out]) == 2
    assert "--encoding is for random weights" in capsys.readouterr().err


def test_all_leaves_out_what_a_model_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--model", "z2_sa", "--formats", "png", "--out", str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"translation.png", "translation.json"}
    printed = capsys.readouterr().out
    assert "rotation is left out: Cyclic(1) has no rotation" in printed
    assert "errors is left out" in printed


def test_any_picture_and_double_precision(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg")
    picture = ["--image", str(tmp_path / "photo.jpg"), "--dtype", "float64", "--formats", "svg"]
    assert main(["figures", "reflection", "--model", "d1_sa", *picture, "--out", str(tmp_path)]) == 0
    assert read(tmp_path / "reflection.json")["worst"] < 1e-13


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rotation", "--layer", "stage9"], "unknown layer 'stage9'; valid: lifting, stage1_block1, stage1_block2"),
        (["rotation", "--channel", "20"], "stage1_block1 has channels 0 to 19, got 20"),
        (["rotation", "--image", "missing.png"], "cannot read missing.png as a picture: No such file"),
        (["rotation", "--image", __file__], "no image of a known format"),
        (["rotation", "--model", "d1_sa"], "Dihedral(1) has no rotation that moves pixels to pixels"),
        (["reflection", "--model", "r4_sa"], "use a model such as d4_sa"),
        (["errors", "--encoding", "gsa"], "both models are GSA-Nets"),
        (["errors", "--model", "p4_cnn"], "p4_cnn has none"),
        (["errors", "--against", "gsa.safetensors"], "give --checkpoint or --pretrained, too"),
        (["rotation", "--checkpoint", "missing.safetensors"], "missing"),
        (
            ["rotation", "--out", "/dev/null/x"],
            "--out /dev/null/x/rotation.png cannot be written: there can be no folder",
        ),
        (["all", "--out", "/dev/null/x"], "--out /dev/null/x/translation.png cannot be written"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["figures", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gevit figures: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "\udcff"
    assert main(["figures", "rotation", "--preset", "nano", "--formats", "svg", "--out", str(folder)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/\\udcff/rotation.{{svg,json}}\n"


def test_unknown_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["figures", "scaling"])
    assert "invalid choice: 'scaling'" in capsys.readouterr().err
