"""What several studies share: names of the encodings, and cells of the self-attention models."""

from __future__ import annotations

from gevit.reproduce.study import Cell

GSA, GE, RELATIVE = "GSA-Nets", "GE-ViT", "relative"
ENCODINGS = {GSA: "gsa", GE: "ge", RELATIVE: "relative"}
TEST_SELECTION = "the authors' code chooses the epoch by its accuracy on the test images, ours on validation images"
CODES_SETTING = (
    "the budget `paper` trains as the authors' code does, with SGD; the paper names one setting for all data"
)
ONE_RECIPE = "every model is trained by the recipe of GE-ViT; the paper trains the CNNs as their own papers do"


def attention_cell(row: str, column: str, model: str, neighborhood: int = 5, paper: float | None = None) -> Cell:
    """A self-attention model with the encoding that the column is named by.

    >>> attention_cell("Z2_SA", GSA, "z2_sa").key  # with one element, all encodings are the same
    'z2_sa-ge-5'
    """
    encoding = "ge" if model == "z2_sa" else ENCODINGS[column]
    return Cell(row, column, {"model": model, "encoding": encoding, "neighborhood": neighborhood}, paper)
