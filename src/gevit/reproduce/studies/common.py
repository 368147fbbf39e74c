"""What several studies share: names of the encodings, and cells of the self-attention models."""

from __future__ import annotations

from gevit.reproduce.study import Cell

GSA, GE, RELATIVE = "GSA-Nets", "GE-ViT", "relative"
ENCODINGS = {GSA: "gsa", GE: "ge", RELATIVE: "relative"}
# A step takes time with |H|^2 n^2 or more, so these models and neighbourhoods get fewer images where time is short.
COSTS: dict[str | int, int] = {
    **{"r8_sa": 1, "d4_sa": 1, 9: 1, 11: 1, 15: 1},
    **{"r12_sa": 2, "r16_sa": 2, "d8_sa": 2, 19: 2, 23: 2},
}
TEST_SELECTION = "the authors' code chooses the epoch by its accuracy on the test images, ours on validation images"
ONE_RECIPE = "every model is trained by the recipe of GE-ViT; the paper trains the CNNs as their own papers do"


def attention_cell(row: str, column: str, model: str, neighborhood: int = 5, paper: float | None = None) -> Cell:
    """A self-attention model with the encoding that the column is named by.

    >>> attention_cell("Z2_SA", GSA, "z2_sa").key  # with one element, all encodings are the same
    'z2_sa-ge-5'
    """
    encoding = "ge" if model == "z2_sa" else ENCODINGS[column]
    settings = {"model": model, "encoding": encoding, "neighborhood": neighborhood}
    return Cell(row, column, settings, paper, cost=max(COSTS.get(model, 0), COSTS.get(neighborhood, 0)))
