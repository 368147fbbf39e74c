"""CIFAR-10: two numbers in the text of the paper."""

from __future__ import annotations

from gevit.reproduce.studies.common import CODES_SETTING, GE, GSA, TEST_SELECTION, attention_cell
from gevit.reproduce.study import Study


def cifar10(budget: str) -> Study:
    """The encodings on natural images."""
    return Study(
        name="cifar10",
        title="CIFAR-10, GSA-Nets against GE-ViT",
        experiment="cifar10",
        row_title="model",
        cells=(
            attention_cell("D1_SA", GSA, "d1_sa", paper=69.31),
            attention_cell("D1_SA", GE, "d1_sa", paper=70.40),
        ),
        notes=(
            TEST_SELECTION,
            CODES_SETTING,
            "the paper says neither the group nor the neighbourhood; ours are the authors' code's flips (D1), and 5x5",
        ),
        seeds=2,
        ordered=False,
    )
