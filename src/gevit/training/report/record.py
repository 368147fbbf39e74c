"""The facts of a run that its report tells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gevit.equivariance import Report
from gevit.evaluation.evaluate import equivariance_rows
from gevit.evaluation.metrics import Evaluation
from gevit.training.log import Row


@dataclass(frozen=True)
class RunRecord:
    """A finished run.

    Attributes:
        title: what was trained on what.
        config: every setting.
        command: the command line that started it.
        environment: versions and machine.
        parameters: number of weights.
        history: one row an epoch: epoch, step, lr, train_loss, train_accuracy, valid_loss, valid_accuracy, seconds,
            images_per_second.
        best_epoch: the epoch whose weights were kept.
        seconds: training time over all resumes.
        data_note: where the data is from and how it was split.
        test: of the kept weights, on the test images, once.
        equivariance: of the kept weights: logits.
        equivariance_maps: of the kept weights: feature maps.
        by_angle: accuracy by the angle, in degrees, that test images were turned by.
        classes: names of the classes.
        by_angle_images: how many images were turned.
    """

    title: str
    config: dict[str, Any]
    command: str
    environment: dict[str, str]
    parameters: int
    history: list[Row]
    best_epoch: int
    seconds: float
    data_note: str
    test: Evaluation
    equivariance: Report
    equivariance_maps: Report
    by_angle: dict[float, float]
    classes: tuple[str, ...]
    by_angle_images: int

    @property
    def best(self) -> dict[str, float]:
        """The row of the epoch whose weights were kept."""
        return next(row for row in self.history if row["epoch"] == self.best_epoch)

    @property
    def equivariance_rows(self) -> list[dict[str, Any]]:
        """The errors of each element of the group as plain types."""
        return equivariance_rows(self.equivariance, self.equivariance_maps)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain types; numbers that are not finite, which JSON has no word for, become None."""
        facts = dict(vars(self))
        del facts["equivariance_maps"]
        facts |= {"test": self.test.to_json(), "equivariance": self.equivariance_rows}
        plain: dict[str, Any] = _plain(facts)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
