"""Past the paper: table 2 with reflections."""

from __future__ import annotations

from gevit.reproduce.studies.common import GE, GSA, TEST_SELECTION, attention_cell
from gevit.reproduce.studies.table2 import PAPER
from gevit.reproduce.study import Study

MODELS = ("Z2_SA", "D1_SA", "R4_SA", "D4_SA", "R8_SA", "D8_SA")


def reflections(budget: str) -> Study:
    """Each group of rotations, without and with reflections; smoke has the first two."""
    return Study(
        name="reflections",
        title="Table 2 with reflections: R_n against D_n, GSA-Nets against GE-ViT, 5x5 neighbourhoods",
        experiment="rotmnist",
        row_title="model",
        cells=tuple(
            attention_cell(model, column, model.lower(), paper=paper)
            for model in MODELS[: 2 if budget == "smoke" else None]
            for column, paper in zip((GSA, GE), PAPER.get(model, (None, None)), strict=True)
        ),
        notes=(
            TEST_SELECTION,
            "a mirrored digit is often no digit, so reflections are a symmetry that this data does not have",
            "Z2_SA has neither rotations nor reflections, so both encodings are the same and it is one run",
        ),
        ordered=False,
    )
