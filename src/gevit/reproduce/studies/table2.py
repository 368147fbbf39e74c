"""Table 2: groups of more and more rotations."""

from __future__ import annotations

from gevit.reproduce.studies.common import GE, GSA, TEST_SELECTION, attention_cell
from gevit.reproduce.study import Study

PAPER = {
    "Z2_SA": (96.63, 96.63),
    "R4_SA": (97.46, 97.58),
    "R8_SA": (97.79, 97.88),
    "R12_SA": (97.97, 98.01),
    "R16_SA": (97.66, 97.83),
}


def table2(budget: str) -> Study:
    """How the number of rotations matters; smoke has the two smallest groups."""
    models = list(PAPER)[: 2 if budget == "smoke" else None]
    return Study(
        name="table2",
        title="Table 2: groups of more and more rotations, GSA-Nets against GE-ViT, 5x5 neighbourhoods",
        experiment="rotmnist",
        row_title="model",
        cells=tuple(
            attention_cell(model, column, model.lower(), paper=paper)
            for model in models
            for column, paper in zip((GSA, GE), PAPER[model], strict=True)
        ),
        notes=(TEST_SELECTION, "Z2_SA has no rotations, so both encodings are the same and it is one run"),
    )
