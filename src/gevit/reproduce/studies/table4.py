"""Table 4: against convolutional networks and CPVT."""

from __future__ import annotations

import dataclasses

from gevit.reproduce.studies.common import GE, ONE_RECIPE, TEST_SELECTION, attention_cell
from gevit.reproduce.study import Cell, Study

ATTENTION = {"Z2_SA": 96.63, "R4_SA": 97.58, "R8_SA": 97.88, "R12_SA": 98.01, "R16_SA": 97.83}
OTHERS = {
    "Z2-CNN": ("z2_cnn", 95.14),
    "P4-CNN": ("p4_cnn", 98.21),
    "α-P4-CNN": ("alpha_p4_cnn", 98.31),
    "CPVT": ("cpvt", 97.69),
}
COLUMN = "accuracy"


def table4(budget: str) -> Study:
    """GE-ViT beside other networks; smoke leaves out the large groups."""
    attention = list(ATTENTION)[: 2 if budget == "smoke" else None]
    return Study(
        name="table4",
        title="Table 4: GE-ViT against convolutional networks and CPVT",
        experiment="rotmnist",
        row_title="model",
        cells=(
            *(
                dataclasses.replace(attention_cell(model, GE, model.lower(), paper=ATTENTION[model]), column=COLUMN)
                for model in attention
            ),
            *(Cell(label, COLUMN, {"model": name}, paper) for label, (name, paper) in OTHERS.items()),
        ),
        notes=(TEST_SELECTION, ONE_RECIPE, "CPVT's number is in the text of the paper"),
        ordered=False,
    )
