"""A shipped network as the backbone of a PyTorch Lightning module: frozen at first, then fine-tuned as a whole.

    python examples/lightning_trainer.py --data photos/ --epochs 6 --frozen 2

`gevit train` does more (it resumes, reports, measures equivariance). This is for those who have a trainer already.
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import gevit
from gevit.data import DataSet, open_dataset


class Classifier(lightning.LightningModule):
    """A network with a new classifier, which alone learns in the first epochs.

    Args:
        num_classes: of the new images.
        frozen_epochs: how many epochs these are.
        lr: the learning rate of the classifier; the others have a tenth of it.
        pretrained: the data whose weights come with the package; None for random ones.
    """

    def __init__(
        self, num_classes: int, frozen_epochs: int = 1, lr: float = 3e-3, pretrained: str | None = "eurosat"
    ) -> None:
        super().__init__()
        self.model = gevit.create_model("d4_sa", preset="tiny", num_classes=num_classes, pretrained=pretrained or False)
        self.frozen_epochs, self.lr = frozen_epochs, lr

    @property
    def backbone(self) -> list[torch.nn.Parameter]:
        """All weights but those of the classifier."""
        head = {id(parameter) for parameter in self.model.get_classifier().parameters()}
        return [parameter for parameter in self.model.parameters() if id(parameter) not in head]

    def on_train_epoch_start(self) -> None:
        """Freeze the backbone, its batch norms too, or set it free."""
        is_frozen = self.current_epoch < self.frozen_epochs
        self.model.train(not is_frozen)
        for parameter in self.backbone:
            parameter.requires_grad_(not is_frozen)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """The accuracy on validation images."""
        images, labels = batch
        self.log("valid_accuracy", (self.model(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """A tenth of the rate for what is already trained."""
        groups = [
            {"params": self.backbone, "lr": 0.1 * self.lr},
            {"params": list(self.model.get_classifier().parameters()), "lr": self.lr},
        ]
        return torch.optim.AdamW(groups)


def loader(data: DataSet, split: str, limit: int | None = None) -> DataLoader[tuple[Tensor, ...]]:
    """Batches of normalised images and labels; those for training in random order."""
    part = data.split(split)
    chosen = torch.arange(min(len(part), limit or len(part)))
    pairs = TensorDataset(data.normalize(part.images(chosen)), part.labels[chosen])
    return DataLoader(pairs, batch_size=16, shuffle=split == "train")


def main() -> None:
    """Fine-tune on a folder of images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="data set by name, or folder or archive of images")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--frozen", type=int, default=2, help="epochs in which the classifier alone learns")
    options = parser.parse_args()
    data = open_dataset(options.data)
    module = Classifier(len(data.classes), options.frozen)
    trainer = lightning.Trainer(max_epochs=options.epochs, logger=False, enable_checkpointing=False)
    trainer.fit(module, loader(data, "train"), loader(data, "valid"))


if __name__ == "__main__":
    main()
