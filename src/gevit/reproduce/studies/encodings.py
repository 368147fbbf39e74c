"""Past the paper: the three encodings on quarter turns, and no rotations, under one recipe with several seeds."""

from __future__ import annotations

from gevit.reproduce.studies.common import GE, GSA, RELATIVE, TEST_SELECTION, attention_cell
from gevit.reproduce.studies.table2 import PAPER
from gevit.reproduce.study import Study


def encodings(budget: str) -> Study:
    """Whether the encodings differ by more than seeds do; every budget has all rows."""
    return Study(
        name="encodings",
        title="The encodings on R4_SA, and Z2_SA, under one recipe, 5x5 neighbourhoods",
        experiment="encodings",
        row_title="model",
        cells=tuple(
            attention_cell(model, column, model.lower(), paper=paper)
            for model in ("Z2_SA", "R4_SA")
            for column, paper in zip((GSA, GE, RELATIVE), (*PAPER[model], None), strict=True)
        ),
        notes=(
            TEST_SELECTION,
            "Z2_SA has no rotations, so all encodings are the same and it is one run",
            "the relative encoding is ours, the paper has no number for it",
        ),
        seeds=3,
        ordered=False,
    )
