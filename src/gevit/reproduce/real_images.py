"""Studies on real images: satellite images, blood cells, tissue, galaxies, and photographs, which do have an "up".

Every network of a study (but not of `tissue` and `photographs`) trains for about the same time on one core. At 64x64
pixels a core of an AMD EPYC (AVX2) trains about 30 images a second of `d4_sa` in the architecture `tiny`, 95 of
`r4_sa`, 290 of `z2_sa` and 20 of `p4_cnn`; the numbers of epochs are in these proportions, so that a slower network
sees its images less often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gevit.reproduce.study import (
    Cell,
    Result,
    Study,
    accuracy_in_orbit,
    accuracy_of_parts,
    accuracy_on_test,
    macro_f1_on_test,
)

Measure = Callable[[Result], float]

SAME_TIME = (
    "every row trains for about the same time: the number of epochs is in proportion to the images a second that one "
    "core trains"
)
SAME_IMAGES = "every network sees the same images equally often"
TWIN = "Z2_SA is the same architecture on the group of one element: it knows no rotations or reflections"
AUGMENTATION = "augmented: half of the images rotated by any angle, half mirrored"
BY_SMEAR = "the epoch is chosen by macro-F1 on validation images; no smear is in two of training, validation and test"
ORBIT = "in an orbit: the mean of the trained network's logits over the eight quarter turns and flips of an image"
BUILT_IN, BOTH, MIRRORED, WITH_GSA = "R4_SA", "R4_SA, augmented", "D4_SA", "R4_SA, GSA-Nets"
PLAIN, AUGMENTED, CNN = "Z2_SA", "Z2_SA, augmented", "P4-CNN"
LONGER, LONGER_AUGMENTED = f"{BUILT_IN}, four times as long", f"{AUGMENTED}, four times as long"
FLIPPED, FLIPPED_WITH_GSA = "D1_SA", "D1_SA, GSA-Nets"
ONE_SEED = (LONGER, LONGER_AUGMENTED, CNN)  # they take many times as long as the others


def _run(model: str, epochs: int, rotate: bool = False, flip: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": model, "epochs": epochs, "rotate": rotate, "flip": flip, **more}


def _cnn(budget: str, epochs: int) -> dict[str, dict[str, Any]]:
    """The row of the CNN; a smoke test is in `tiny`, an architecture that it has not."""
    return {} if budget == "smoke" else {CNN: _run("p4_cnn", epochs)}


def _table(budget: str, runs: Mapping[str, Mapping[str, Any]], measures: Mapping[str, Measure]) -> tuple[Cell, ...]:
    shorter = {"epochs": 1} if budget == "smoke" else {}
    return tuple(
        Cell(row, column, {**settings, **shorter}, measure=measure, most_seeds=1 if row in ONE_SEED else None)
        for row, settings in runs.items()
        for column, measure in measures.items()
    )


def _networks(name: str, title: str, table: tuple[Cell, ...], **more: Any) -> Study:
    """A study whose rows are networks, in no order."""
    return Study(name=name, title=title, recipe=name, row_title="network", cells=table, ordered=False, **more)


def satellites(budget: str) -> Study:
    """Land use seen from above, which has neither an up nor a handedness."""
    return _networks(
        "satellites",
        "EuroSAT: equivariant networks against a plain one with and without augmentation",
        _table(
            budget,
            {
                BUILT_IN: _run("r4_sa", 3),
                BOTH: _run("r4_sa", 3, rotate=True, flip=True),
                PLAIN: _run("z2_sa", 9),
                AUGMENTED: _run("z2_sa", 9, rotate=True, flip=True),
                LONGER: _run("r4_sa", 12),
                LONGER_AUGMENTED: _run("z2_sa", 36, rotate=True, flip=True),
                **_cnn(budget, 1),
            },
            {"accuracy": accuracy_on_test, "macro-F1": macro_f1_on_test, "accuracy in an orbit": accuracy_in_orbit},
        ),
        notes=(f"{SAME_TIME}, but for two rows that train four times as long", TWIN, AUGMENTATION, ORBIT),
        seeds=3,
        orbit="d4",
        comparisons=((BUILT_IN, AUGMENTED), (BUILT_IN, PLAIN), (BOTH, BUILT_IN), (LONGER, LONGER_AUGMENTED)),
    )


def cells(budget: str) -> Study:
    """Red blood cells of patients whose smears were not trained on."""
    return _networks(
        "cells",
        "Red blood cells: equivariant networks against a plain one with and without augmentation",
        _table(
            budget,
            {
                BUILT_IN: _run("r4_sa", 3),
                BOTH: _run("r4_sa", 3, rotate=True, flip=True),
                MIRRORED: _run("d4_sa", 1),
                PLAIN: _run("z2_sa", 9),
                AUGMENTED: _run("z2_sa", 9, rotate=True, flip=True),
            },
            {"macro-F1": macro_f1_on_test, "accuracy": accuracy_on_test, "accuracy in an orbit": accuracy_in_orbit},
        ),
        notes=(SAME_TIME, TWIN, AUGMENTATION, ORBIT, BY_SMEAR),
        seeds=3,
        orbit="d4",
        comparisons=((BUILT_IN, AUGMENTED), (BUILT_IN, PLAIN), (BOTH, BUILT_IN)),
    )


def tissue(budget: str) -> Study:
    """Tissue, which has neither an up nor a handedness; `table3` has the paper's architecture for the same patches."""
    return _networks(
        "tissue",
        "PatchCamelyon: equivariant networks against a plain one with and without augmentation",
        _table(
            budget,
            {
                BUILT_IN: _run("r4_sa", 20),
                WITH_GSA: _run("r4_sa", 20, encoding="gsa"),
                MIRRORED: _run("d4_sa", 20),
                PLAIN: _run("z2_sa", 20),
                AUGMENTED: _run("z2_sa", 20, rotate=True, flip=True),
            },
            {"accuracy": accuracy_on_test, "accuracy in an orbit": accuracy_in_orbit},
        ),
        notes=(SAME_IMAGES, TWIN, AUGMENTATION, ORBIT),
        seeds=3,
        orbit="d4",
        comparisons=((BUILT_IN, AUGMENTED), (BUILT_IN, PLAIN), (BUILT_IN, WITH_GSA), (MIRRORED, BUILT_IN)),
    )


def photographs(budget: str) -> Study:
    """Photographs, which have an up and no handedness; `cifar10` has the paper's architecture for the same images."""
    return _networks(
        "photographs",
        "CIFAR-10: mirror images, quarter turns or neither built in",
        _table(
            budget,
            {
                FLIPPED: _run("d1_sa", 20),
                FLIPPED_WITH_GSA: _run("d1_sa", 20, encoding="gsa"),
                PLAIN: _run("z2_sa", 20),
                AUGMENTED: _run("z2_sa", 20, flip=True),
                BUILT_IN: _run("r4_sa", 20),
            },
            {"accuracy": accuracy_on_test, "accuracy in an orbit": accuracy_in_orbit},
        ),
        notes=(
            SAME_IMAGES,
            TWIN,
            "D1_SA gives an image and its mirror image the same logits, R4_SA an image and its quarter turns",
            "augmented: half of the images mirrored",
            "in an orbit: the mean of the trained network's logits over an image and its mirror image",
        ),
        seeds=3,
        orbit="d1",
        comparisons=((FLIPPED, FLIPPED_WITH_GSA), (FLIPPED, AUGMENTED), (FLIPPED, PLAIN), (BUILT_IN, PLAIN)),
    )


def galaxies(budget: str) -> Study:
    """Which group: two of the four classes are mirror images of each other."""
    edge_on, elliptical, anticlockwise, clockwise = range(4)
    return _networks(
        "galaxies",
        "Galaxies: which symmetries a network should have, and which not",
        _table(
            budget,
            {
                BUILT_IN: _run("r4_sa", 40),
                MIRRORED: _run("d4_sa", 12),
                f"{MIRRORED}, C4 from the last stage on": _run("d4_sa", 20, restrict="c4"),
                PLAIN: _run("z2_sa", 120),
                "Z2_SA, rotations": _run("z2_sa", 120, rotate=True),
                **_cnn(budget, 4),
            },
            {
                "four classes": accuracy_on_test,
                "clockwise or anticlockwise": accuracy_of_parts((anticlockwise,), (clockwise,)),
                "elliptical, edge-on or spiral": accuracy_of_parts(
                    (elliptical,), (edge_on,), (anticlockwise, clockwise)
                ),
            },
        ),
        notes=(
            SAME_TIME,
            TWIN,
            "clockwise or anticlockwise: of the spirals that were taken for spirals, how many have the right sense; "
            "D4_SA gives both senses the same logits for an image and its mirror image, so it can only guess",
        ),
        seeds=2,
    )


def labels(budget: str) -> Study:
    """How many labels the symmetry saves."""
    passes = {BUILT_IN: 6_400, AUGMENTED: 19_200}
    sizes = (8, 16) if budget == "smoke" else (100, 300, 1000, 3000)
    return Study(
        name="labels",
        title="EuroSAT: accuracy against the number of labels, with the symmetry built in or learned by augmentation",
        recipe="labels",
        row_title="labelled images (ten classes)",
        cells=tuple(
            Cell(
                f"{size:,}",
                column,
                {
                    **_run(model, 1 if budget == "smoke" else max(1, passes[column] // size), *augmentation),
                    "limit_train": size,
                },
            )
            for size in sizes
            for column, model, *augmentation in ((BUILT_IN, "r4_sa"), (AUGMENTED, "z2_sa", True, True))
        ),
        notes=(
            SAME_TIME,
            TWIN,
            "the same number of steps for every number of labels; the epoch is chosen on 100 validation images",
        ),
        seeds=2,
    )


def finetuning(budget: str) -> Study:
    """What the weights that come with the package are worth on other images."""
    scratch = _run("d4_sa", 10, preset="tiny")
    at_random, pretrained = "random weights", "weights for EuroSAT"
    return Study(
        name="finetuning",
        title="Red blood cells, 500 labels: initialised with the weights for satellite images, or at random",
        recipe="finetuning",
        row_title="d4_sa starts from",
        cells=_table(
            budget,
            {at_random: scratch, pretrained: {**scratch, "start_from": "d4_sa:eurosat"}},
            {"macro-F1": macro_f1_on_test, "accuracy": accuracy_on_test},
        ),
        notes=("both rows have the same images, steps and recipe, so they take the same time", BY_SMEAR),
        seeds=3,
        ordered=False,
        comparisons=((pretrained, at_random),),
    )
