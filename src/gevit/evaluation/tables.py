"""An evaluation as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from gevit.evaluation.metrics import Evaluation, wilson_interval
from gevit.rendering.words import percent, relative_error


def percent_interval(share: float, n: int) -> str:
    """A share of n images with its 95% interval.

    >>> percent_interval(0.9, 100)
    '90.0% (82.6 to 94.5)'
    """
    low, high = wilson_interval(share, n)
    return f"{percent(share)} ({100 * low:.1f} to {100 * high:.1f})"


def summary(title: str, result: Evaluation) -> Table:
    """The few numbers that come first."""
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, show_header=False, title_style="bold")
    table.add_column(style="dim")
    table.add_column()
    table.add_row("accuracy (95% interval)", percent_interval(result.accuracy, result.n))
    table.add_row("images", f"{result.n:,}")
    table.add_row("loss", f"{result.loss:.4f}")
    if result.auc is not None:
        table.add_row("area under ROC", f"{result.auc:.4f}")
    return table


def classes(names: Sequence[str], result: Evaluation) -> Table:
    """The scores of each class, and what it is most often taken for."""
    table = _table("each class", "class", "images", "precision", "recall", "F1", "mostly taken for")
    for name, scores, row in zip(names, result.per_class, result.confusion, strict=True):
        wrong = {other: count for other, count in zip(names, row, strict=True) if count and other != name}
        worst = max(wrong, key=lambda other: wrong[other], default="")
        numbers = [percent(share) for share in (scores.precision, scores.recall, scores.f1)]
        mistake = f"{worst} ({wrong[worst]})" if worst else ""
        table.add_row(escape(name), f"{scores.support:,}", *numbers, escape(mistake))
    return table


def angles(by_angle: Mapping[float, float], images: int) -> Table:
    """Accuracy against the angle."""
    table = _table(f"accuracy as the images turn ({images:,} images)", "angle", "accuracy (95% interval)")
    for angle, accuracy in by_angle.items():
        table.add_row(f"{angle:g}°", percent_interval(accuracy, images))
    return table


def equivariance(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The relative errors of each element of the group."""
    table = _table("relative equivariance error", "element", "logits: worst", "mean", "feature maps: worst", "mean", "")
    for row in rows:
        numbers = [
            relative_error(row[what][which]) for what in ("logits", "feature_maps") for which in ("worst", "mean")
        ]
        table.add_row(row["name"], *numbers, "exact" if row["exact"] else "interpolated: approximate")
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right" if name else "left")
    return table
