"""The weights that come with the package are what their cards say: trained digit models, exactly equivariant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gevit
from gevit.data import open_dataset
from gevit.equivariance import assert_equivariant

FOLDER = Path(gevit.models.__path__[0]) / "pretrained"
NAMES = [path.stem.removesuffix("_rotmnist") for path in sorted(FOLDER.glob("*_rotmnist.safetensors"))]


def test_there_are_weights_of_r4_sa() -> None:
    assert "r4_sa" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_pretrained_digits(name: str) -> None:
    model = gevit.create_model(name, pretrained=True)
    assert not model.training
    assert model.info is not None
    digits = open_dataset("digits")
    images = model.info.normalize(digits.test.images(torch.arange(40)))
    with torch.inference_mode():
        accuracy = (model(images).argmax(1) == digits.test.labels[:40]).float().mean()
    assert accuracy > 0.9
    assert_equivariant(model, images[:1], model.group, tolerance=1e-5)
    assert f"{100 * model.info.trained['test_accuracy']:.2f}%" in (FOLDER / f"{name}_rotmnist.md").read_text("utf-8")


def test_models_without_weights_say_which_have_some() -> None:
    with pytest.raises(ValueError, match="there are no pretrained weights of 'r16_sa'"):
        gevit.create_model("r16_sa", pretrained=True)
