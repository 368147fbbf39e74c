"""Past the paper: tables 1 and 2 with the encoding `relative`."""

from __future__ import annotations

from gevit.reproduce.studies.common import GE, RELATIVE, TEST_SELECTION, attention_cell
from gevit.reproduce.studies.table1 import PAPER as TABLE1
from gevit.reproduce.studies.table2 import PAPER as TABLE2
from gevit.reproduce.study import Study


def relative(budget: str) -> Study:
    """The cheaper encoding against the paper's; smoke has one row."""
    architectures = [("R4_SA", n, paper) for n, (_, paper) in TABLE1.items()]
    architectures += [(model, 5, TABLE2[model][1]) for model in ("R8_SA", "R12_SA", "R16_SA")]
    return Study(
        name="relative",
        title="Tables 1 and 2 with the relative encoding against that of GE-ViT",
        experiment="rotmnist",
        row_title="model, neighbourhood",
        cells=tuple(
            attention_cell(f"{model}, {n}x{n}", column, model.lower(), n, paper if column == GE else None)
            for model, n, paper in architectures[: 1 if budget == "smoke" else None]
            for column in (GE, RELATIVE)
        ),
        notes=(TEST_SELECTION, "the relative encoding is ours, the paper has no number for it"),
        ordered=False,
    )
