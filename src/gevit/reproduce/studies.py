"""The studies by name: the tables of the paper, then what goes beyond them. Each is a function of the budget."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gevit.reproduce.real_images import SAME_TIME, cells, finetuning, galaxies, labels, photographs, satellites, tissue
from gevit.reproduce.study import Cell, Study, accuracy_on_test, mean_over_angles, worst_angle

Row = TypeVar("Row")

GSA, GE, RELATIVE = "GSA-Nets", "GE-ViT", "relative"
ENCODINGS = {GSA: "gsa", GE: "ge", RELATIVE: "relative"}

# The paper's accuracies in percent, of GSA-Nets and of GE-ViT. Table 1 is of R4_SA, by the side of the neighbourhood.
TABLE1 = {
    3: (96.28, 96.63),
    5: (97.47, 97.58),
    7: (97.33, 97.45),
    9: (97.10, 97.15),
    11: (97.06, 97.16),
    15: (96.89, 97.12),
    19: (96.86, 97.37),
    23: (96.90, 97.01),
}
TABLE2 = {
    "Z2_SA": (96.63, 96.63),
    "R4_SA": (97.46, 97.58),
    "R8_SA": (97.79, 97.88),
    "R12_SA": (97.97, 98.01),
    "R16_SA": (97.66, 97.83),
}
TABLE3 = {
    "Z2_SA": (80.14, 80.14),
    "R4_SA": (79.40, 82.73),
    "R8_SA": (82.26, 83.82),
}
CIFAR10 = {"D1_SA": (69.31, 70.40)}
# Of table 4: those that are not GE-ViT.
BASELINES = {
    "Z2-CNN": ("z2_cnn", 95.14),
    "P4-CNN": ("p4_cnn", 98.21),
    "α-P4-CNN": ("alpha_p4_cnn", 98.31),
    "CPVT": ("cpvt", 97.69),
}

TEST_SELECTION = "the authors' code chooses the epoch by its accuracy on the test images, ours on validation images"
CODES_SETTING = (
    "the budget `paper` trains as the authors' code does, with SGD; the paper names one setting for all data"
)
ONE_RECIPE = "every model is trained by the recipe of GE-ViT; the paper trains the CNNs as their own papers do"
OURS = "the relative encoding is ours, the paper has no number for it"


def _no_symmetry(encodings: str, symmetries: str = "no rotations") -> str:
    return f"Z2_SA has {symmetries}, so {encodings} encodings are the same and it is one run"


# From here on a run takes ten to thirty times as long as R4_SA with 5x5 neighbourhoods: one seed, after all others.
COSTLY_MODELS, COSTLY_NEIGHBORHOOD = ("r12_sa", "r16_sa"), 15


def attention_cell(row: str, column: str, model: str, neighborhood: int = 5, paper: float | None = None) -> Cell:
    """A self-attention model with the encoding that the column is named after.

    >>> attention_cell("Z2_SA", GSA, "z2_sa").key  # with one group element, all encodings are the same
    'z2_sa-ge-5'
    """
    encoding = "ge" if model == "z2_sa" else ENCODINGS[column]
    costly = model in COSTLY_MODELS or neighborhood >= COSTLY_NEIGHBORHOOD
    settings = {"model": model, "encoding": encoding, "neighborhood": neighborhood}
    return Cell(row, column, settings, paper, most_seeds=1 if costly else None)


def _by_encoding(
    models: Iterable[str], columns: Sequence[str], paper: Mapping[str, tuple[float, float]]
) -> tuple[Cell, ...]:
    """A row for each model and a column for each encoding, beside the numbers that the paper has."""
    return tuple(
        attention_cell(model, column, model.lower(), paper=number)
        for model in models
        for column, number in itertools.zip_longest(columns, paper.get(model, ()))
    )


def _rows(rows: Iterable[Row], budget: str, smoke: int = 2) -> list[Row]:
    """All rows; a smoke test has the first ones, which are the quickest."""
    return list(rows)[: smoke if budget == "smoke" else None]


# ---- the paper ----


def table1(budget: str) -> Study:
    """How the size of the neighbourhood matters."""
    return Study(
        name="table1",
        title="Table 1: R4_SA with neighbourhoods of different sizes, GSA-Nets against GE-ViT",
        recipe="rotmnist",
        row_title="neighbourhood",
        cells=tuple(
            attention_cell(f"{n}x{n}", column, "r4_sa", n, paper)
            for n in _rows(TABLE1, budget)
            for column, paper in zip((GSA, GE), TABLE1[n], strict=True)
        ),
        notes=(TEST_SELECTION,),
    )


def table2(budget: str) -> Study:
    """How the number of rotations matters."""
    return Study(
        name="table2",
        title="Table 2: rotation groups of increasing order, GSA-Nets against GE-ViT, 5x5 neighbourhoods",
        recipe="rotmnist",
        row_title="model",
        cells=_by_encoding(_rows(TABLE2, budget), (GSA, GE), TABLE2),
        notes=(TEST_SELECTION, _no_symmetry("both")),
    )


def table3(budget: str) -> Study:
    """Rotations on images of tissue."""
    attention = _by_encoding(_rows(TABLE3, budget), (GSA, GE), TABLE3)
    return Study(
        name="table3",
        title="Table 3: PatchCamelyon, GSA-Nets against GE-ViT",
        recipe="pcam",
        row_title="model",
        # At 96x96 pixels R8 takes more than an hour: one seed, after all others.
        cells=tuple(dataclasses.replace(cell, most_seeds=1) if cell.row == "R8_SA" else cell for cell in attention),
        notes=(_no_symmetry("both"), CODES_SETTING, "the paper does not say the neighbourhood; ours is 5x5"),
    )


def table4(budget: str) -> Study:
    """GE-ViT beside other networks."""
    column = "accuracy"
    attention = [attention_cell(model, GE, model.lower(), paper=TABLE2[model][1]) for model in _rows(TABLE2, budget)]
    return Study(
        name="table4",
        title="Table 4: GE-ViT against convolutional networks and CPVT",
        recipe="rotmnist",
        row_title="model",
        cells=(
            *(dataclasses.replace(cell, column=column) for cell in attention),
            *(Cell(label, column, {"model": name}, paper) for label, (name, paper) in BASELINES.items()),
        ),
        notes=(TEST_SELECTION, ONE_RECIPE, "CPVT's number is in the text of the paper"),
        ordered=False,
    )


def clock(budget: str) -> Study:
    """Table 4 for as much time instead of as many images: networks that are quick to train see them more often."""
    # A core trains R4_SA for three epochs in about five minutes, and the others for these.
    epochs = {"Z2_SA": 12, "R4_SA": 3, "Z2-CNN": 60, "P4-CNN": 21, "CPVT": 60}
    networks = {"Z2_SA": ("z2_sa", TABLE2["Z2_SA"][1]), "R4_SA": ("r4_sa", TABLE2["R4_SA"][1]), **BASELINES}
    table = []
    for row in _rows(epochs, budget):
        model, paper = networks[row]
        length = {"epochs": epochs[row]} if budget == "cpu" else {}
        table.append(Cell(row, "accuracy", {"model": model, **length}, paper))
    return Study(
        name="clock",
        title="Table 4 by the clock: every network trains for about as long as R4_SA",
        recipe="rotmnist",
        row_title="model",
        cells=tuple(table),
        notes=(TEST_SELECTION, ONE_RECIPE, SAME_TIME),
        seeds=2,
        ordered=False,
    )


def cifar10(budget: str) -> Study:
    """Two numbers in the text of the paper, on natural images."""
    return Study(
        name="cifar10",
        title="CIFAR-10, GSA-Nets against GE-ViT",
        recipe="cifar10",
        row_title="model",
        cells=_by_encoding(CIFAR10, (GSA, GE), CIFAR10),
        notes=(
            TEST_SELECTION,
            CODES_SETTING,
            "the paper says neither the group nor the neighbourhood; ours are the authors' code's flips (D1), and 5x5",
        ),
        ordered=False,
    )


# ---- beyond the paper ----


def encodings(budget: str) -> Study:
    """Whether the encodings differ by more than seeds do, early in training; every budget has all rows."""
    return Study(
        name="encodings",
        title="The encodings on R4_SA, and Z2_SA, under one recipe, 5x5 neighbourhoods",
        recipe="encodings",
        row_title="model",
        cells=_by_encoding(("Z2_SA", "R4_SA"), (GSA, GE, RELATIVE), TABLE2),
        notes=(TEST_SELECTION, _no_symmetry("all"), OURS),
        seeds=3,
        ordered=False,
    )


def converged(budget: str) -> Study:
    """The same in networks that have learned, each pair of encodings compared seed by seed."""
    gsa, ge, ours, started = (f"R4_SA, {name}" for name in (GSA, GE, RELATIVE, f"{GE}, starts like a convolution"))
    column = "accuracy"
    table = [attention_cell("Z2_SA", GE, "z2_sa", paper=TABLE2["Z2_SA"][1])]
    for row, encoding, paper in ((gsa, GSA, TABLE2["R4_SA"][0]), (ge, GE, TABLE2["R4_SA"][1]), (ours, RELATIVE, None)):
        table.append(attention_cell(row, encoding, "r4_sa", paper=paper))
    # A look at another start, not a verdict on it: as long as a run takes, the seeds are for the encodings.
    table.append(Cell(started, GE, {**table[2].settings, "initialisation": "convolution"}, most_seeds=1))
    return Study(
        name="converged",
        title="The encodings on R4_SA, and Z2_SA, trained on all images until they have learned, 5x5 neighbourhoods",
        recipe="converged",
        row_title="model",
        cells=tuple(dataclasses.replace(cell, column=column) for cell in table),
        notes=(TEST_SELECTION, OURS),
        seeds=3,
        ordered=False,
        comparisons=((ge, gsa), (ge, ours), (ge, "Z2_SA"), (gsa, "Z2_SA"), (started, ge)),
    )


def relative(budget: str) -> Study:
    """The cheaper encoding against the paper's."""
    architectures = [("R4_SA", n, paper) for n, (_, paper) in TABLE1.items()]
    architectures += [(model, 5, TABLE2[model][1]) for model in ("R8_SA", "R12_SA", "R16_SA")]
    return Study(
        name="relative",
        title="Tables 1 and 2 with the relative encoding against that of GE-ViT",
        recipe="rotmnist",
        row_title="model, neighbourhood",
        cells=tuple(
            attention_cell(f"{model}, {n}x{n}", column, model.lower(), n, paper if column == GE else None)
            for model, n, paper in _rows(architectures, budget, smoke=1)
            for column in (GE, RELATIVE)
        ),
        notes=(TEST_SELECTION, OURS),
        ordered=False,
    )


def reflections(budget: str) -> Study:
    """Each group of rotations, without and with reflections."""
    return Study(
        name="reflections",
        title="Table 2 with reflections: R_n against D_n, GSA-Nets against GE-ViT, 5x5 neighbourhoods",
        recipe="rotmnist",
        row_title="model",
        cells=_by_encoding(_rows(("Z2_SA", "D1_SA", "R4_SA", "D4_SA", "R8_SA", "D8_SA"), budget), (GSA, GE), TABLE2),
        notes=(
            TEST_SELECTION,
            "a reflected digit is often not a digit: this data is not symmetric under reflections",
            _no_symmetry("both", "neither rotations nor reflections"),
        ),
        ordered=False,
    )


# By name: the model, whether half of its training images are rotated by any angle; the encoding, if not GE-ViT's.
NETWORKS: dict[str, dict[str, str | bool]] = {
    "Z2_SA": {"model": "z2_sa", "rotate": False},
    "Z2_SA, augmented": {"model": "z2_sa", "rotate": True},
    "R4_SA": {"model": "r4_sa", "rotate": False},
    f"R4_SA, {GSA}": {"model": "r4_sa", "rotate": False, "encoding": "gsa"},
    "R8_SA": {"model": "r8_sa", "rotate": False},
    "D4_SA": {"model": "d4_sa", "rotate": False},
}
SLOW = ("r8_sa", "d4_sa")  # they take three times as long as r4_sa
AUGMENTED_NOTE = "augmented: half of the training images are rotated by any angle, anew in every epoch"
MIRRORED_NOTE = "D4_SA cannot tell a digit from its mirror image, which some digits need"


def sizes(budget: str) -> Study:
    """Whether equivariance helps most with little data."""
    # Few images are seen more often: training goes on until it brings no more.
    epochs = {4: 1, 8: 1} if budget == "smoke" else {100: 100, 300: 50, 1000: 30, 3000: 20, 10_000: 10}
    return Study(
        name="sizes",
        title="Accuracy against the number of training images: symmetry built in, learned by augmentation, or neither",
        recipe="sizes",
        row_title="training images",
        cells=tuple(
            Cell(
                f"{size:,}",
                column,
                {"model": network["model"], "limit_train": size, "epochs": epochs[size], **network},
                most_seeds=1 if network["model"] in SLOW else None,
            )
            for size in epochs
            for column, network in NETWORKS.items()
        ),
        notes=(AUGMENTED_NOTE, MIRRORED_NOTE, "within a row all networks see the same images equally often"),
        seeds=3,
        as_errors=True,
    )


def angles(budget: str) -> Study:
    """Which rotations a model handles that it has never been shown."""
    step = 15
    measures = {"upright": accuracy_on_test, "mean of all angles": mean_over_angles, "worst angle": worst_angle}
    return Study(
        name="angles",
        title="Trained on upright digits, tested on rotated ones",
        recipe="upright",
        row_title="model",
        cells=tuple(
            Cell(row, column, settings, measure=measure, most_seeds=2 if settings["model"] in SLOW else None)
            for row, settings in _rows(NETWORKS.items(), budget)
            for column, measure in measures.items()
        ),
        notes=(
            AUGMENTED_NOTE,
            MIRRORED_NOTE,
            f"all test images are rotated by every multiple of {step}°; a 6 rotated by 180° is a 9, and a 9 is a 6",
        ),
        seeds=3,
        angles=tuple(float(angle) for angle in range(0, 360, step)),
        ordered=False,
    )


STUDIES: dict[str, Callable[[str], Study]] = {
    study.__name__: study
    for study in (
        *(table1, table2, table3, table4, cifar10),
        *(encodings, converged, clock, relative, reflections, sizes, angles),
        *(satellites, cells, tissue, photographs, galaxies, labels, finetuning),
    )
}
