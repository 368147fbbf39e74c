"""The worked examples: their networks have the properties that they are shown for."""

from __future__ import annotations

import warnings

import lightning
import pytest
import torch
from examples.lightning_trainer import Classifier
from examples.segmentation import Segmenter, is_whole, learn, middle_cell, overlap, segment
from torch.utils.data import DataLoader, TensorDataset

import gevit
from gevit.equivariance import assert_equivariant, measure
from gevit.groups import Cyclic, Dihedral


def cells(count: int, side: int = 24) -> torch.Tensor:
    """Pictures of a purple disc in the middle and of another at the border, on a bright ground."""
    torch.manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    radius = torch.randint(4, 8, (count, 1, 1))
    place = (side - 1) / 2
    middle = (rows - place) ** 2 + (columns - place) ** 2 < radius**2
    neighbour = (rows - place) ** 2 + columns**2 < 9
    ground = torch.tensor([0.8, 0.85, 0.8])[:, None, None].expand(count, 3, side, side)
    cell = torch.tensor([0.6, 0.4, 0.6])[:, None, None]
    return torch.where((middle | neighbour)[:, None], cell, ground) + 0.02 * torch.rand(count, 3, side, side)


@pytest.mark.parametrize("size", [(16, 16), (13, 18), (9, 7)])
def test_masks_rotate_and_reflect_with_the_image(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    backbone = gevit.create_model("d4_sa", preset="tiny", features_only=True)
    model = Segmenter(backbone, classes=2).double().eval()
    x = torch.randn(1, 3, *size, dtype=torch.float64)
    assert model(x).shape == (1, 2, *size)
    assert_equivariant(model, x, Dihedral(4), tolerance=1e-10)


def test_masks_of_a_plain_network_do_not() -> None:
    model = Segmenter(gevit.create_model("z2_sa", preset="tiny", features_only=True)).double().eval()
    assert measure(model, torch.randn(1, 3, 16, 16, dtype=torch.float64), Cyclic(4)).worst > 1e-3


def test_it_learns_the_cell_in_the_middle() -> None:
    pictures = cells(16)
    masks = middle_cell(pictures)
    assert not masks[..., :2].any()  # the neighbour is not part of it
    assert is_whole(masks).all()
    assert not is_whole(torch.cat([masks | torch.eye(24, dtype=torch.bool), masks & False])).any()
    assert masks.rot90(1, (1, 2)).equal(middle_cell(pictures.rot90(1, (2, 3))))
    torch.manual_seed(0)
    model = Segmenter(gevit.create_model("r4_sa", preset="tiny", features_only=True), width=8)
    before = overlap(segment(model.eval(), pictures), masks)
    learn(model, pictures, masks, epochs=24, batch=8, lr=1e-2)
    assert overlap(segment(model, pictures), masks) > max(before, 0.7)
    assert_equivariant(model, pictures[:2], Cyclic(4), tolerance=1e-4)


class TestLightning:
    """The shipped weights, fine-tuned by PyTorch Lightning."""

    @staticmethod
    def fitted(epochs: int, frozen: int) -> tuple[dict[str, torch.Tensor], Classifier]:
        torch.manual_seed(0)
        module = Classifier(2, frozen_epochs=frozen, lr=1e-2)
        before = {name: value.clone() for name, value in module.model.state_dict().items()}
        images = cells(8, side=16)
        batches = DataLoader(TensorDataset(images, torch.arange(8) % 2), batch_size=4)
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the trainer, about itself
            trainer.fit(module, batches, batches)
        return before, module

    def test_a_frozen_backbone_stays_and_the_classifier_learns(self) -> None:
        before, module = self.fitted(epochs=1, frozen=1)
        changed = {name for name, value in module.model.state_dict().items() if not value.equal(before[name])}
        assert changed == {"body.classes.weight"}

    def test_a_free_one_learns_and_stays_equivariant(self) -> None:
        before, module = self.fitted(epochs=2, frozen=1)
        changed = {name for name, value in module.model.state_dict().items() if not value.equal(before[name])}
        assert {"body.classes.weight", "lifting.0.weight"} <= changed
        assert_equivariant(module.model.eval(), cells(2, side=16), Dihedral(4), tolerance=1e-4)
