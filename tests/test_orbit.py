"""`gevit.Orbit`: any classifier made invariant; exactly for what moves pixels to pixels, nearly for the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import gevit
from gevit.cli import main
from gevit.data import open_dataset
from gevit.equivariance import EquivarianceError, assert_equivariant, measure
from gevit.evaluation.evaluate import predict_logits
from gevit.groups import Cyclic, Dihedral, Group, named_group
from gevit.models.info import ModelInfo

ON_GRID = [Cyclic(1), Cyclic(2), Cyclic(4), Dihedral(1), Dihedral(2), Dihedral(4)]
SIZES = [(8, 8), (9, 9), (8, 11)]


def cnn(classes: int = 3) -> nn.Module:
    """A plain network that sees orientation, in float64."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, classes, 3), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten()).double().eval()


def images(*size: int) -> Tensor:
    return torch.randn(2, 2, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def worst_change(model: nn.Module, x: Tensor, group: Group) -> float:
    """The largest change of the output, relative to the largest output, under what moves pixels to pixels."""
    return measure(model, x, group, translations=()).worst


@pytest.mark.parametrize("group", ON_GRID, ids=str)
@pytest.mark.parametrize("reduce", ["mean", "probability", "max"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_any_classifier_becomes_invariant(group: Group, reduce: str, size: tuple[int, int]) -> None:
    model, x = cnn(), images(*size)
    assert worst_change(gevit.Orbit(model, group, reduce), x, group) < 1e-12
    if group.order > 1:
        assert worst_change(model, x, group) > 1e-3


def test_a_larger_group_is_not_served() -> None:
    with pytest.raises(EquivarianceError, match="flip"):
        assert_equivariant(gevit.Orbit(cnn(), Cyclic(4)), images(9, 9), Dihedral(4))


def test_a_transformer_without_rotations_becomes_invariant() -> None:
    torch.manual_seed(0)
    model = gevit.create_model("z2_sa", preset="nano", neighborhood=3).double().eval()
    x = torch.randn(1, 1, 13, 16, dtype=torch.float64)
    assert worst_change(gevit.Orbit(model, Dihedral(4)), x, Dihedral(4)) < 1e-12
    assert worst_change(model, x, Dihedral(4)) > 1e-3


def test_two_passes_add_reflections_to_a_model_that_has_rotations() -> None:
    torch.manual_seed(0)
    model = gevit.create_model("r4_sa", preset="nano").double().eval()
    x = torch.randn(1, 1, 13, 13, dtype=torch.float64)
    assert worst_change(gevit.Orbit(model, Dihedral(1)), x, Dihedral(4)) < 1e-12
    assert worst_change(model, x, Dihedral(4)) > 1e-3


@pytest.mark.parametrize("group", [Cyclic(8), Dihedral(8), Cyclic(6), Dihedral(3)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_within_a_finer_group_quarter_turns_and_flips_are_exact(group: Group, size: tuple[int, int]) -> None:
    assert worst_change(gevit.Orbit(cnn(), group), images(*size), group) < 1e-12


def test_finer_angles_are_nearly_invariant_for_a_smooth_image() -> None:
    class RightHalf(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[..., x.shape[-1] // 2 :].mean((-2, -1))

    rows, columns = torch.meshgrid(*2 * [torch.linspace(-3, 3, 33, dtype=torch.float64)], indexing="ij")
    blob = torch.exp(-((rows - 0.5) ** 2) - 3 * (columns + 0.2) ** 2).expand(1, 2, -1, -1)
    turned = Cyclic(8).act_on_image(blob, 1)
    model, orbit = RightHalf(), gevit.Orbit(RightHalf(), Cyclic(8))
    assert (orbit(turned) - orbit(blob)).abs().max() < 0.05 * (model(turned) - model(blob)).abs().max()


def test_the_reductions_by_hand() -> None:
    model, x, group = cnn(), images(9, 9), Cyclic(4)
    answers = torch.stack([model(x.rot90(k, (2, 3))) for k in range(4)])
    torch.testing.assert_close(gevit.Orbit(model, group)(x), answers.mean(0))
    torch.testing.assert_close(gevit.Orbit(model, group, "probability")(x), answers.softmax(-1).mean(0).log())
    torch.testing.assert_close(gevit.Orbit(model, group, "max")(x), answers.amax(0))


@pytest.mark.parametrize("group", [Cyclic(8), Dihedral(8), Dihedral(3)], ids=str)
def test_every_element_of_the_group_is_seen_once(group: Group) -> None:
    """On a 1-pixel blob in the middle of a large empty image interpolation does little: the corners tell angles."""
    x = torch.zeros(1, 1, 41, 41, dtype=torch.float64)
    x[..., 12:15, 24:27] = 1.0
    seen: list[Tensor] = []

    def see(image: Tensor) -> None:
        seen.append(image)

    class Eye(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            see(image)
            return image.flatten(1)[:, :2]

    gevit.Orbit(Eye(), group)(x)
    expected = [group.act_on_image(x, h) for h in range(group.order)]
    distances = torch.stack([torch.stack([(a - b).norm() for b in expected]) for a in seen])
    assert sorted(distances.argmin(1).tolist()) == list(range(group.order))


def test_gradients_are_those_of_the_mean() -> None:
    model, x = cnn().train(), images(9, 9).requires_grad_()
    gevit.Orbit(model, Dihedral(1))(x).square().sum().backward()
    found = [x.grad, *[p.grad for p in model.parameters()]]
    mean = (model(x) + model(x.flip(3))) / 2
    wanted = torch.autograd.grad(mean.square().sum(), [x, *model.parameters()])
    torch.testing.assert_close(found, list(wanted))
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in list(model.parameters())[-2:])


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="unknown reduce 'median'; valid: mean, probability, max"):
        gevit.Orbit(cnn(), Cyclic(4), reduce="median")
    with pytest.raises(TypeError, match="group"):
        gevit.Orbit(cnn(), "d4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an Orbit averages logits"):
        gevit.Orbit(nn.Conv2d(2, 3, 3).double(), Cyclic(4))(images(9, 9))
    with pytest.raises(ValueError, match="an Orbit averages logits .*; the model returns a list"):
        gevit.Orbit(gevit.create_model("z2_sa", "nano", features_only=True), Cyclic(4))(torch.randn(1, 1, 8, 8))
    for name in ("d", "4", "e4", "c0", "d-1", "c100", "c4 "):
        with pytest.raises(ValueError, match="unknown group"):
            named_group(name)
    assert [named_group(name) for name in ("c4", "r4", "D12")] == [Cyclic(4), Cyclic(4), Dihedral(12)]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    facts = ModelInfo(
        name="z2_sa",
        preset="nano",
        in_channels=1,
        num_classes=10,
        neighborhood=3,
        classes=tuple("0123456789"),
        image_size=28,
        mean=(0.1307,),
        std=(0.3081,),
    )
    gevit.save(gevit.create_model("z2_sa", preset="nano", neighborhood=3), facts, folder / "model.safetensors")
    return folder


class TestCommandLine:
    def test_evaluate(self, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["evaluate", "--checkpoint", str(run_folder), "--data", "digits", "--limit", "10", "--angles", "0"]
        assert main([*command, "--orbit", "d2", "--out", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        assert "averaged over Dihedral(2)" in printed
        assert "flip, 180°" in printed
        answer = json.loads((tmp_path / "evaluation.json").read_text("utf-8"))
        assert answer["orbit"] == "Dihedral(2)"
        errors = answer["equivariance"]["elements"]
        assert len(errors) == 4
        assert all(error["logits"]["worst"] < 1e-5 and "feature_maps" not in error for error in errors)

    def test_predict(self, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data = open_dataset("digits")
        pixels = data.test.images(torch.tensor([0]))
        picture = Image.fromarray((255 * pixels[0, 0]).round().byte().numpy())
        files = [tmp_path / "upright.png", tmp_path / "turned.png"]
        picture.save(files[0])
        picture.transpose(Image.Transpose.ROTATE_90).save(files[1])
        command = ["predict", "--checkpoint", str(run_folder), *map(str, files), "--top", "10", "--json"]
        probabilities = {}
        for orbit in ([], ["--orbit", "r4"]):
            assert main([*command, *orbit]) == 0
            answers = json.loads(capsys.readouterr().out)
            probabilities[bool(orbit)] = [
                torch.tensor([row["probability"] for row in sorted(answer["top"], key=lambda row: str(row["class"]))])
                for answer in answers
            ]
        model = gevit.load(run_folder)
        wanted = predict_logits(gevit.Orbit(model, Cyclic(4)), data.normalize(pixels))
        torch.testing.assert_close(probabilities[True][0], wanted[0].softmax(0))
        torch.testing.assert_close(*probabilities[True])
        upright, turned = probabilities[False]
        assert not torch.allclose(upright, turned, rtol=1e-3)

    def test_a_group_that_there_is_not(self, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["predict", "--checkpoint", str(run_folder), "a.png", "--orbit", "e8"]) == 2
        assert "unknown group 'e8'; expected cN" in capsys.readouterr().err

    def test_weights_are_saved_without_the_orbit(self, run_folder: Path, tmp_path: Path) -> None:
        model = gevit.load(run_folder)
        orbit = gevit.Orbit(model, Cyclic(4))
        assert orbit.info is model.info
        assert model.info is not None
        with pytest.raises(ValueError, match=r"save the model inside, orbit\.model"):
            gevit.save(orbit, model.info, tmp_path / "model.safetensors")
        assert not list(tmp_path.iterdir())
        gevit.save(orbit.model, model.info, tmp_path / "model.safetensors")
