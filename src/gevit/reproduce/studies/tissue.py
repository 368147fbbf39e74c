"""Past the paper: table 3 with reflections, which tissue has as a symmetry, and with the encoding `relative`."""

from __future__ import annotations

from gevit.reproduce.studies.common import CODES_SETTING, GE, GSA, RELATIVE, attention_cell
from gevit.reproduce.studies.table3 import PAPER
from gevit.reproduce.study import Study

MODELS = ("Z2_SA", "R4_SA", "D4_SA", "R8_SA")


def tissue(budget: str) -> Study:
    """Rotations and reflections on tissue; smoke has the two smallest groups."""
    return Study(
        name="tissue",
        title="Table 3 with reflections and the relative encoding: PatchCamelyon",
        experiment="pcam",
        row_title="model",
        cells=tuple(
            attention_cell(model, column, model.lower(), paper=paper)
            for model in MODELS[: 2 if budget == "smoke" else None]
            for column, paper in zip((GSA, GE, RELATIVE), (*PAPER.get(model, (None, None)), None), strict=True)
        ),
        notes=(
            "Z2_SA has neither rotations nor reflections, so all encodings are the same and it is one run",
            "the relative encoding is ours, the paper has no number for it, and none for D4",
            CODES_SETTING,
        ),
        ordered=False,
    )
