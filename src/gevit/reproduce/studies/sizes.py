"""Past the paper: accuracy against the number of training images."""

from __future__ import annotations

from gevit.reproduce.studies.common import ONE_RECIPE
from gevit.reproduce.study import Cell, Study

SIZES = {"smoke": (4, 8), "cpu": (100, 250, 500, 1000, 2000), "paper": (100, 250, 500, 1000, 2500, 5000, 10_000)}
MODELS = {"Z2_SA": "z2_sa", "R4_SA (GE-ViT)": "r4_sa", "Z2-CNN": "z2_cnn", "P4-CNN": "p4_cnn"}


def sizes(budget: str) -> Study:
    """Whether equivariance pays most with little data."""
    return Study(
        name="sizes",
        title="Accuracy against the number of training images, with and without equivariance to quarter turns",
        experiment="sizes",
        row_title="training images",
        cells=tuple(
            Cell(f"{size:,}", column, {"model": model, "limit_train": size})
            for size in SIZES[budget]
            for column, model in MODELS.items()
        ),
        notes=(ONE_RECIPE, "every size is trained for the same number of epochs, so fewer images mean fewer steps"),
        seeds=2,
    )
