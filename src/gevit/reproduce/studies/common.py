"""What several studies share: names of the encodings, and cells of the self-attention models."""

from __future__ import annotations

from gevit.reproduce.study import Cell

GSA, GE, RELATIVE = "GSA-Nets", "GE-ViT", "relative"
ENCODINGS = {GSA: "gsa", GE: "ge", RELATIVE: "relative"}
# A step takes time with |H|^2 n^2. These models, and neighbourhoods from here on, get fewer images where time is short.
COSTLY_MODELS = ("r8_sa", "r12_sa", "r16_sa", "d4_sa", "d8_sa")
COSTLY_NEIGHBORHOOD = 9
TEST_SELECTION = "the authors' code chooses the epoch by its accuracy on the test images, ours on validation images"
ONE_RECIPE = "every model is trained by the recipe of GE-ViT; the paper trains the CNNs as their own papers do"


def attention_cell(row: str, column: str, model: str, neighborhood: int = 5, paper: float | None = None) -> Cell:
    """A self-attention model with the encoding that the column is named by.

    >>> attention_cell("Z2_SA", GSA, "z2_sa").key  # with one element, all encodings are the same
    'z2_sa-ge-5'
    """
    encoding = "ge" if model == "z2_sa" else ENCODINGS[column]
    settings = {"model": model, "encoding": encoding, "neighborhood": neighborhood}
    costly = model in COSTLY_MODELS or neighborhood >= COSTLY_NEIGHBORHOOD
    return Cell(row, column, settings, paper, costly=costly)
