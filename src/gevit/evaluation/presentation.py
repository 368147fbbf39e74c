"""An evaluation as tables and as a chart, for the terminal and for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gevit.evaluation.metrics import Evaluation, wilson_interval
from gevit.rendering.charts import BLUE, WIDTH, label_angles, style
from gevit.rendering.tables import Table
from gevit.rendering.words import percent, percent_range, relative_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERRORS = ("worst", "mean")


def percent_interval(share: float, n: int) -> str:
    """A share of n images with its 95% interval.

    >>> percent_interval(0.9, 100)
    '90.0% (82.6 to 94.5)'
    """
    return f"{percent(share)} ({percent_range(*wilson_interval(share, n))})"


def summary_table(title: str, result: Evaluation) -> Table:
    """The few numbers that come first."""
    rows = [
        ("accuracy (95% interval)", percent_interval(result.accuracy, result.n)),
        ("balanced accuracy", percent(result.balanced_accuracy)),
        ("macro-F1", percent(result.macro_f1)),
        ("images", f"{result.n:,}"),
        ("loss", f"{result.loss:.4f}"),
    ]
    if result.auc is not None:
        rows.append(("area under ROC", f"{result.auc:.4f}"))
    return Table(("", ""), rows, alignment="ll", title=title)


def class_table(classes: Sequence[str], result: Evaluation) -> Table:
    """The scores of each class."""
    rows = [
        (name, f"{scores.support:,}", percent(scores.precision), percent(scores.recall), percent(scores.f1))
        for name, scores in zip(classes, result.per_class, strict=True)
    ]
    return Table(("class", "images", "precision", "recall", "F1"), rows, title="scores by class")


def confusion_table(classes: Sequence[str], result: Evaluation) -> Table:
    """How often each class was taken for each."""
    rows = [(name, *(f"{count:,}" for count in counts)) for name, counts in zip(classes, result.confusion, strict=True)]
    return Table(("true \\ predicted", *classes), rows, title="confusion matrix")


def worst_confusions(classes: Sequence[str], result: Evaluation, most: int) -> Table:
    """The pairs of classes that are confused most often, at most so many."""
    pairs = [
        (count, true, predicted)
        for true, counts in enumerate(result.confusion)
        for predicted, count in enumerate(counts)
        if count and true != predicted
    ]
    pairs.sort(key=lambda pair: -pair[0])
    rows = [
        (classes[true], classes[predicted], f"{count:,}", percent(count / sum(result.confusion[true])))
        for count, true, predicted in pairs[:most]
    ]
    header = ("true", "predicted", "images", "share of the class")
    return Table(header, rows, alignment="llrr", title="most frequent confusions")


def angle_table(by_angle: Mapping[float, float], images: int) -> Table:
    """Accuracy against the angle by which so many images are rotated."""
    rows = [(f"{angle:g}°", percent_interval(accuracy, images)) for angle, accuracy in by_angle.items()]
    title = f"accuracy against rotation angle ({images:,} images)"
    return Table(("rotated by", "accuracy (95% interval)"), rows, title=title)


def equivariance_table(rows: Sequence[Mapping[str, Any]], title: str = "relative equivariance error") -> Table:
    """The relative errors of each transformation, as `equivariance_rows` and `Examination.rows` give them."""
    measured = [what for what in ("logits", "feature_maps") if what in rows[0]]
    cells = [
        (
            row["name"],
            *(relative_error(row[what][which]) if what in row else "" for what in measured for which in ERRORS),
            row.get("note") or ("exact" if row["exact"] else "interpolated: approximate"),
        )
        for row in rows
    ]
    return Table(
        ("element", *ERRORS * len(measured), ""),
        cells,
        groups=("", *(what.replace("_", " ") for what in measured for _ in ERRORS), ""),
        alignment="l" + "rr" * len(measured) + "l",
        title=title,
    )


def angle_figure(by_angle: Mapping[float, float], images: int) -> Figure:
    """Accuracy against the angle by which images are rotated, with its 95% interval; none if their number is 0."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    angles = sorted(by_angle)
    around = [*angles, angles[0] + 360]  # a full rotation ends where it starts
    shares = [by_angle[angle] for angle in [*angles, angles[0]]]
    if images:
        low, high = zip(*(wilson_interval(share, images) for share in shares), strict=True)
        axes.fill_between(around, [100 * x for x in low], [100 * x for x in high], color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(around, [100 * share for share in shares], color=BLUE, marker="o", markersize=3.5, linewidth=1.6)
    label_angles(axes)
    style(axes)
    return figure
