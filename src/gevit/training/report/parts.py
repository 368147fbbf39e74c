"""The parts of a report as words and tables, whatever they are written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gevit.evaluation.tables import percent_interval
from gevit.rendering.words import duration, percent, relative_error
from gevit.training.report.record import RunRecord

MOST_CLASSES = 20  # of a confusion matrix that can be read
WORST_PAIRS = 20


class Headline(NamedTuple):
    """A number that comes first, and what it is."""

    name: str
    value: str
    note: str


class Table(NamedTuple):
    """Rows under a header; the first column names them."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def headlines(run: RunRecord) -> list[Headline]:
    """The numbers that come first."""
    low, high = run.test.interval
    chosen = f"chosen on validation, {percent(run.best['valid_accuracy'])}"
    interval = f"95% interval {100 * low:.1f} to {100 * high:.1f}, {run.test.n:,} images, used once"
    found = [
        Headline("test accuracy", percent(run.test.accuracy), interval),
        Headline("epoch kept", f"{run.best_epoch} of {len(run.history)}", chosen),
        Headline("training time", duration(run.seconds), _speed(run)),
        Headline("parameters", f"{run.parameters:,}", f"{len(run.classes)} classes"),
        Headline(
            "equivariance error",
            relative_error(run.equivariance.worst),
            f"worst over quarter turns and flips of {run.equivariance.group}; "
            f"feature maps {relative_error(run.equivariance_maps.worst)}",
        ),
    ]
    if run.test.auc is not None:
        found.insert(1, Headline("area under ROC", f"{run.test.auc:.4f}", f"of {run.classes[1]}"))
    return found


def history_table(run: RunRecord) -> Table:
    """One row an epoch."""
    columns = ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "lr", "seconds")
    rows = [(f"{row['epoch']:g}", *(_number(name, row.get(name)) for name in columns)) for row in run.history]
    return Table(("epoch", *(name.replace("_", " ") for name in columns)), rows)


def class_table(run: RunRecord) -> Table:
    """The scores of each class."""
    rows = [
        (name, f"{scores.support:,}", percent(scores.precision), percent(scores.recall), percent(scores.f1))
        for name, scores in zip(run.classes, run.test.per_class, strict=True)
    ]
    return Table(("class", "images", "precision", "recall", "F1"), rows)


def confusion_table(run: RunRecord) -> Table:
    """How often each class was taken for each; where there are too many to read, the pairs confused most often."""
    if len(run.classes) <= MOST_CLASSES:
        rows = [
            (name, *(f"{count:,}" for count in counts))
            for name, counts in zip(run.classes, run.test.confusion, strict=True)
        ]
        return Table(("true \\ predicted", *run.classes), rows)
    pairs = [
        (count, true, predicted)
        for true, counts in enumerate(run.test.confusion)
        for predicted, count in enumerate(counts)
        if count and true != predicted
    ]
    pairs.sort(key=lambda pair: -pair[0])
    return Table(
        ("true", "predicted", "images", "share of the class"),
        [
            (run.classes[true], run.classes[predicted], f"{count:,}", percent(count / sum(run.test.confusion[true])))
            for count, true, predicted in pairs[:WORST_PAIRS]
        ],
    )


def equivariance_table(run: RunRecord) -> Table:
    """The relative errors of each element of the group."""
    rows = [
        (
            row["name"],
            *(relative_error(row[what][which]) for what in ("logits", "feature_maps") for which in ("worst", "mean")),
            "exact" if row["exact"] else "interpolated: approximate",
        )
        for row in run.equivariance_rows
    ]
    return Table(("element", "logits: worst", "mean", "feature maps: worst", "mean", ""), rows)


def angle_table(run: RunRecord) -> Table:
    """Accuracy by angle, with its interval."""
    rows = [
        (f"{angle:g}°", percent_interval(accuracy, run.by_angle_images)) for angle, accuracy in run.by_angle.items()
    ]
    return Table(("turned by", "accuracy (95% interval)"), rows)


def _speed(run: RunRecord) -> str:
    speeds = [row["images_per_second"] for row in run.history if "images_per_second" in row]
    epochs = f"{len(run.history)} epoch{'s' * (len(run.history) > 1)}"
    return f"{epochs}, {sum(speeds) / len(speeds):.0f} images a second" if speeds else epochs


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("accuracy"):
        return percent(value)
    return f"{value:.1f}" if name == "seconds" else f"{value:.4g}"
