"""Table 1: R4_SA with neighbourhoods of different sizes."""

from __future__ import annotations

from gevit.reproduce.studies.common import GE, GSA, TEST_SELECTION, attention_cell
from gevit.reproduce.study import Study

PAPER = {
    3: (96.28, 96.63),
    5: (97.47, 97.58),
    7: (97.33, 97.45),
    9: (97.10, 97.15),
    11: (97.06, 97.16),
    15: (96.89, 97.12),
    19: (96.86, 97.37),
    23: (96.90, 97.01),
}


def table1(budget: str) -> Study:
    """How the size of the neighbourhood matters; smoke has the two smallest."""
    sizes = list(PAPER)[: 2 if budget == "smoke" else None]
    return Study(
        name="table1",
        title="Table 1: R4_SA with neighbourhoods of different sizes, GSA-Nets against GE-ViT",
        experiment="rotmnist",
        row_title="neighbourhood",
        cells=tuple(
            attention_cell(f"{n}x{n}", column, "r4_sa", n, paper)
            for n in sizes
            for column, paper in zip((GSA, GE), PAPER[n], strict=True)
        ),
        notes=(TEST_SELECTION,),
    )
