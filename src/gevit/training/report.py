"""The report of a run: a page (`report.html`), Markdown (`report.md` with `curves.png`) and numbers (`report.json`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.equivariance import Report
from gevit.evaluation import presentation
from gevit.evaluation.evaluate import equivariance_rows
from gevit.evaluation.metrics import Evaluation
from gevit.files import write_aside
from gevit.model_card import REPORT
from gevit.rendering import charts, escape
from gevit.rendering.charts import BLUE, FONT, INK, ORANGE
from gevit.rendering.pages import render
from gevit.rendering.tables import Table
from gevit.rendering.words import (
    METRICS,
    duration,
    epoch_number,
    metric_text,
    percent,
    percent_range,
    printable,
    relative_error,
)
from gevit.training.log import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = "curves.png"
FEW_CLASSES = 10  # whose confusion matrix has room beside another table
MOST_CLASSES = 20  # of a confusion matrix that can be read
WORST_PAIRS = 20
LONG_NAME = 4  # characters; longer names of classes are written upright above a confusion matrix

Curve = tuple[str, str, str, str, str]  # label, column of the history, colour, dash, marker
# Panels by title: their curves, and what the numbers are multiplied by.
PANELS: dict[str, tuple[list[Curve], float]] = {
    "loss": ([("train", "train_loss", BLUE, "-", "o"), ("validation", "valid_loss", ORANGE, "--", "s")], 1),
    "accuracy, %": (
        [("train", "train_accuracy", BLUE, "-", "o"), ("validation", "valid_accuracy", ORANGE, "--", "s")],
        100,
    ),
    "learning rate": ([("learning rate", "lr", BLUE, "-", "o")], 1),
}


@dataclass(frozen=True)
class RunRecord:
    """A finished run.

    Attributes:
        title: what was trained on what.
        config: every setting.
        command: the command line that started it.
        environment: versions and machine.
        parameters: number of weights.
        history: one row an epoch: epoch, step, lr, train_loss, train_accuracy, the `METRICS` on validation (valid_loss,
            valid_accuracy, valid_balanced_accuracy, valid_macro_f1), seconds, images_per_second.
        best_epoch: the epoch whose weights were kept; the last one may be a part of one.
        seconds: training time over all resumes.
        data_note: where the data is from and how it was split.
        test: of the kept weights, on the test images, once.
        equivariance: of the kept weights: logits.
        equivariance_maps: of the kept weights: feature maps.
        by_angle: accuracy by the angle, in degrees, that test images were rotated by.
        classes: names of the classes.
        by_angle_images: how many images were rotated.
    """

    title: str
    config: dict[str, Any]
    command: str
    environment: dict[str, str]
    parameters: int
    history: list[Row]
    best_epoch: int | float
    seconds: float
    data_note: str
    test: Evaluation
    equivariance: Report
    equivariance_maps: Report
    by_angle: dict[float, float]
    classes: tuple[str, ...]
    by_angle_images: int

    @property
    def best(self) -> Row:
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


def write_report(folder: Path, run: RunRecord) -> None:
    """Write `report.json`, `report.md` with `curves.png`, and `report.html`, which needs no other file."""
    charts.save(curves_figure(run.history, run.best_epoch), folder / CURVES)
    texts = {
        REPORT: json.dumps(run.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "report.md": markdown(run),
        "report.html": page(run),
    }
    for name, text in texts.items():
        # The name of a folder may be no text; JSON has a way to write the bytes, pages show them.
        with write_aside(folder / name) as aside:
            aside.write_text(text, encoding="utf-8", errors="backslashreplace")


def page(run: RunRecord) -> str:
    """The report as a page."""
    few = len(run.classes) <= MOST_CLASSES
    curves = curve_figures(run.history, run.best_epoch)
    return render(
        "report.html",
        run=run,
        headlines=headlines(run),
        curves={title: charts.inline_svg(figure, f"{title} by epoch") for title, figure in curves.items()},
        history=history_table(run.history),
        wide=FEW_CLASSES < len(run.classes) <= MOST_CLASSES,
        classes=presentation.class_table(run.classes, run.test),
        matrix=_shaded(run.test.confusion) if few else None,
        confusion=_confusion(run),
        upright=max(map(len, run.classes)) > LONG_NAME,
        equivariance=presentation.equivariance_table(run.equivariance_rows),
        angle_chart=charts.inline_svg(
            presentation.angle_figure(run.by_angle, run.by_angle_images), "accuracy against rotation angle"
        ),
        angles=presentation.angle_table(run.by_angle, run.by_angle_images),
    )


def markdown(run: RunRecord) -> str:
    """The report in Markdown."""
    few = len(run.classes) <= MOST_CLASSES
    sections = [
        f"# {escape.markdown(run.title)}",
        headlines(run).to_markdown(),
        f"Data: {escape.markdown(run.data_note)}",
        "## Training",
        f"![Loss, accuracy and learning rate by epoch]({CURVES})",
        history_table(run.history).to_markdown(),
        "## Scores by class",
        presentation.class_table(run.classes, run.test).to_markdown(),
        "## Confusion matrix" if few else "## Most frequent confusions",
        _confusion(run).to_markdown(),
        "## Equivariance",
        "Relative error of the trained model on test images.",
        presentation.equivariance_table(run.equivariance_rows).to_markdown(),
        "## Accuracy against rotation angle",
        presentation.angle_table(run.by_angle, run.by_angle_images).to_markdown(),
        "## How to repeat it",
        f"```sh\n{printable(run.command)}\n```",
        "### Settings",
        _facts(run.config).to_markdown(),
        "### Environment",
        _facts(run.environment).to_markdown(),
    ]
    return "\n\n".join(sections) + "\n"


def headlines(run: RunRecord) -> Table:
    """The numbers that come first: what each is, the number, and what to know about it."""
    interval = f"95% interval {percent_range(*run.test.interval)}, {run.test.n:,} images, never used for selection"
    select = run.config.get("select", "accuracy")
    present = sum(scores.support > 0 for scores in run.test.per_class)
    rows = [
        ("test accuracy", percent(run.test.accuracy), interval),
        (
            "macro-F1",
            percent(run.test.macro_f1),
            f"mean over {present} classes; balanced accuracy {percent(run.test.balanced_accuracy)}",
        ),
        (
            "epoch kept",
            f"{epoch_number(run.best_epoch)} of {epoch_number(run.history[-1]['epoch'])}",
            f"chosen on validation, {METRICS[select]} {metric_text(select, run.best[f'valid_{select}'])}",
        ),
        ("training time", duration(run.seconds), _speed(run)),
        ("parameters", f"{run.parameters:,}", f"{len(run.classes)} classes"),
        (
            "equivariance error",
            relative_error(run.equivariance.worst),
            f"worst over quarter turns and flips of {run.equivariance.group}; "
            f"feature maps {relative_error(run.equivariance_maps.worst)}",
        ),
    ]
    if run.test.auc is not None:
        rows.insert(2, ("area under ROC", f"{run.test.auc:.4f}", f"of {run.classes[1]}"))
    return Table(("", "", ""), rows, alignment="lrl")


def history_table(history: Sequence[Row]) -> Table:
    """One row an epoch."""
    columns = ("train_loss", "train_accuracy", *(f"valid_{name}" for name in METRICS), "lr", "seconds")
    rows = [(epoch_number(row["epoch"]), *(_number(name, row.get(name)) for name in columns)) for row in history]
    return Table(("epoch", *(name.replace("_", " ") for name in columns)), rows)


def curve_figures(history: Sequence[Row], best_epoch: int | float) -> dict[str, Figure]:
    """Each panel as a picture of its own, by its title."""
    from matplotlib.figure import Figure

    figures = {}
    for title in PANELS:
        figures[title] = Figure(figsize=(4.2, 2.9), layout="constrained")
        _draw(figures[title].subplots(), title, history, best_epoch)
    return figures


def curves_figure(history: Sequence[Row], best_epoch: int | float) -> Figure:
    """All panels in one picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1), layout="constrained")
    for axes, title in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        _draw(axes, title, history, best_epoch)
        axes.set_title(title, fontsize=FONT + 1, color=INK)
    return figure


def _draw(axes: Axes, title: str, history: Sequence[Row], best_epoch: int | float) -> None:
    from matplotlib.ticker import MaxNLocator

    curves, scale = PANELS[title]
    for label, column, color, dash, marker in curves:
        points = [(row["epoch"], scale * row[column]) for row in history if column in row]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=color,
                linestyle=dash,
                linewidth=1.6,
                marker=marker,
                markersize=3.5 if len(points) <= 30 else 0,
                label=label,
            )
    axes.axvline(best_epoch, color=INK, linewidth=0.9, linestyle=":", label="epoch kept")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    epochs = [row["epoch"] for row in history]
    axes.set_xlim(min(0.5, epochs[0] / 2), max(epochs) + 0.5)
    axes.set_xlabel("epoch")
    if title == "learning rate":
        axes.set_ylim(bottom=0)
    charts.style(axes)
    if len(curves) > 1:
        axes.legend(fontsize=FONT - 1, frameon=False, labelcolor=INK)


def _confusion(run: RunRecord) -> Table:
    """The confusion matrix; where there are too many classes to read it, the pairs confused most often."""
    if len(run.classes) <= MOST_CLASSES:
        return presentation.confusion_table(run.classes, run.test)
    return presentation.worst_confusions(run.classes, run.test, WORST_PAIRS)


def _shaded(confusion: Sequence[Sequence[int]]) -> list[list[tuple[int, str, float]]]:
    """Each count, whether it is of right or wrong answers or none, and how deep its colour is."""
    return [
        [_shade(count, sum(counts), true == predicted) for predicted, count in enumerate(counts)]
        for true, counts in enumerate(confusion)
    ]


def _shade(count: int, total: int, is_right: bool) -> tuple[int, str, float]:
    """The root of the share for mistakes, so that rare ones still show."""
    if not count:
        return count, "zero", 0.0
    if is_right:
        return count, "right", count / total
    return count, "wrong", min(1.0, 0.12 + (count / total) ** 0.5)


def _facts(facts: Mapping[str, Any]) -> Table:
    return Table(("name", "value"), [(name, str(value)) for name, value in facts.items()])


def _speed(run: RunRecord) -> str:
    speeds = [row["images_per_second"] for row in run.history if "images_per_second" in row]
    last = run.history[-1]["epoch"]
    epochs = f"{epoch_number(last)} epoch{'s' * (last != 1)}"
    return f"{epochs}, {sum(speeds) / len(speeds):.0f} images a second" if speeds else epochs


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith(("accuracy", "f1")):
        return percent(value)
    return f"{value:.1f}" if name == "seconds" else f"{value:.4g}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
