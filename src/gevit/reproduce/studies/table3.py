"""Table 3: PatchCamelyon."""

from __future__ import annotations

from gevit.reproduce.studies.common import CODES_SETTING, GE, GSA, attention_cell
from gevit.reproduce.study import Study

PAPER = {
    "Z2_SA": (80.14, 80.14),
    "R4_SA": (79.40, 82.73),
    "R8_SA": (82.26, 83.82),
}


def table3(budget: str) -> Study:
    """Rotations on tissue; smoke has the two smallest groups."""
    models = list(PAPER)[: 2 if budget == "smoke" else None]
    return Study(
        name="table3",
        title="Table 3: PatchCamelyon, GSA-Nets against GE-ViT",
        experiment="pcam",
        row_title="model",
        cells=tuple(
            attention_cell(model, column, model.lower(), paper=paper)
            for model in models
            for column, paper in zip((GSA, GE), PAPER[model], strict=True)
        ),
        notes=(
            "Z2_SA has no rotations, so both encodings are the same and it is one run",
            CODES_SETTING,
            "the paper does not say the neighbourhood; ours is 5x5",
        ),
    )
