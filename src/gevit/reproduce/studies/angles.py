"""Past the paper: accuracy against the angle of the test images, when trained on upright ones only."""

from __future__ import annotations

from gevit.reproduce.results import accuracy_on_test, mean_over_angles, worst_angle
from gevit.reproduce.studies.common import ONE_RECIPE
from gevit.reproduce.study import Cell, Study

MODELS = {
    "Z2_SA": "z2_sa",
    "R4_SA": "r4_sa",
    "R8_SA": "r8_sa",
    "Z2-CNN": "z2_cnn",
    "P4-CNN": "p4_cnn",
    "CPVT": "cpvt",
}
COLUMNS = {"upright": accuracy_on_test, "mean of all angles": mean_over_angles, "worst angle": worst_angle}
STEP = 15


def angles(budget: str) -> Study:
    """What equivariance gives for free; smoke has the smallest groups."""
    return Study(
        name="angles",
        title="Trained on upright digits, tested on turned ones",
        experiment="upright",
        row_title="model",
        cells=tuple(
            Cell(row, column, {"model": model}, measure=measure)
            for row, model in MODELS.items()
            if budget != "smoke" or model in ("z2_sa", "r4_sa")
            for column, measure in COLUMNS.items()
        ),
        notes=(
            ONE_RECIPE,
            f"all test images are turned by every multiple of {STEP}°; turning a 6 or a 9 by 180° makes it the other",
        ),
        seeds=3,
        angles=tuple(float(angle) for angle in range(0, 360, STEP)),
        ordered=False,
    )
