"""The plot of a study."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gevit.evaluation.metrics import mean_interval
from gevit.rendering.charts import BLUE, FONT, GREEN, INK, ORANGE, PINK, SKY, WIDTH, label_angles, style
from gevit.reproduce.studies import GE, GSA, RELATIVE
from gevit.reproduce.study import Cell, accuracy_on_test
from gevit.reproduce.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Markers say the same as colours.
KNOWN = {GSA: (ORANGE, "s"), GE: (BLUE, "o"), RELATIVE: (GREEN, "^")}
PALETTE = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PINK, "D"), (SKY, "v"), (INK, "P"))
CROWDED = 36  # characters below a panel
LETTERS = 110  # of a legend, in a figure of the full width
ENOUGH_SEEDS = 3  # for an interval of their mean: that of two is twelve times their standard deviation to each side


@dataclass(frozen=True)
class Point:
    """A number of the table as it is drawn.

    Attributes:
        place: of its row.
        mean: over seeds.
        seeds: the number of each seed; none in the paper.
        interval: the ends of the bar; those of the mean where there is none.
    """

    place: float
    mean: float
    seeds: tuple[float, ...]
    interval: tuple[float, float]


def figure(summary: Summary) -> Figure:
    """Accuracy against the angle if the study rotates its test images, else of every cell."""
    from matplotlib.figure import Figure

    if summary.study.angles:
        drawn = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        _draw_angles(drawn.subplots(), summary)
    else:
        panels = 1 + bool(summary.paper_data)
        height = 3.2 if summary.study.ordered else 1.5 + 0.27 * len(summary.study.rows)
        drawn = Figure(figsize=(WIDTH if panels == 2 else 0.75 * WIDTH, height), layout="constrained")
        axes = drawn.subplots(1, panels, squeeze=False, sharey=not summary.study.ordered)[0]  # rows are named once
        if panels == 2:
            _draw_cells(axes[0], summary, is_paper=True)
            axes[0].set_title(f"the paper, {summary.paper_data}")
        _draw_cells(axes[-1], summary, is_paper=False)
        axes[-1].set_title(f"ours, {summary.data}")
    for axes_of_panel in drawn.axes:
        style(axes_of_panel)
    entries = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in drawn.axes]
    handles = {label: handle for panel in entries for handle, label in panel}
    if len(handles) > 1:
        # As many beside each other as the width has room for, with a marker of about six letters each.
        columns = int(LETTERS * drawn.get_figwidth() / WIDTH) // (max(map(len, handles)) + 6)
        drawn.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=max(1, columns),
            fontsize=FONT,
            frameon=False,
            labelcolor=INK,
        )
    return drawn


def _draw_cells(axes: Axes, summary: Summary, is_paper: bool) -> None:
    """A series for each column: along lines where the rows are ordered, else one row below the other."""
    from matplotlib.ticker import LogLocator, NullLocator

    columns, ordered = summary.study.columns, summary.study.ordered
    rows = _rows(summary, [is_paper] if ordered else [True, False])
    for index, (column, (color, marker)) in enumerate(_styles(columns)):
        # Side by side, so that bars do not hide each other.
        shift = (0.04 if ordered else 0.16) * (index - (len(columns) - 1) / 2)
        if points := _points(summary, rows, column, shift, is_paper):
            _draw_series(axes, points, ordered, color=color, marker=marker, label=column)
    if ordered:
        crowded = len(rows) * max(map(len, rows)) > CROWDED
        axes.set_xticks(range(len(rows)), rows, rotation=40 if crowded else 0)
        axes.set_xlabel(summary.study.row_title)
    else:
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
    values = axes.yaxis if ordered else axes.xaxis
    values.set_label_text("errors, %" if summary.study.as_errors else "accuracy, %")
    if summary.study.as_errors:
        (axes.set_yscale if ordered else axes.set_xscale)("log")
        values.set_major_locator(LogLocator(subs=(1, 2, 5)))
        values.set_major_formatter("{x:g}")
        values.set_minor_locator(NullLocator())


def _draw_series(axes: Axes, points: Sequence[Point], ordered: bool, color: str, marker: str, label: str) -> None:
    """Means, their intervals, and a dot for each of several seeds; what has one seed is hollow."""

    def plot(places: Sequence[float], values: Sequence[float], **looks: Any) -> None:
        axes.plot(*((places, values) if ordered else (values, places)), color=color, linewidth=1.3, **looks)

    filled = [index for index, point in enumerate(points) if len(point.seeds) != 1]
    places, means = [point.place for point in points], [point.mean for point in points]
    line = "-" if ordered else "none"
    plot(places, means, marker=marker, markersize=5, markevery=filled, linestyle=line, label=label, zorder=3)
    for point in points:
        plot([point.place] * 2, point.interval, marker="_" if ordered else "|", markersize=5)
        if len(point.seeds) == 1:
            plot([point.place], [point.mean], marker=marker, markersize=5, markerfacecolor="none")
        else:
            dot: dict[str, Any] = {"marker": ".", "markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.6}
            plot([point.place] * len(point.seeds), point.seeds, linestyle="none", **dot)


def _rows(summary: Summary, panels: Sequence[bool]) -> list[str]:
    """The rows that have a number in some of the panels: in the paper's (True), or in ours."""

    def is_drawn(cell: Cell) -> bool:
        return any(cell.paper is not None if is_paper else summary.results[cell.key] for is_paper in panels)

    drawn = {cell.row for cell in summary.study.cells if is_drawn(cell)}
    return [row for row in summary.study.rows if row in drawn]


def _points(summary: Summary, rows: Sequence[str], column: str, shift: float, is_paper: bool) -> list[Point]:
    """Intervals are those of the mean over seeds; of a single one, what the number of test images leaves of a share."""
    points = []
    for place, row in enumerate(rows):
        cell = summary.cell(row, column)
        seeds = tuple(100 * cell.measure(result) for result in summary.results[cell.key])
        if is_paper and cell.paper is not None:
            points.append(Point(place + shift, cell.paper, (), (cell.paper, cell.paper)))
        elif not is_paper and seeds:
            mean = statistics.fmean(seeds)
            interval = (mean, mean)
            if len(seeds) >= ENOUGH_SEEDS:
                interval = mean_interval(seeds)
            elif len(seeds) == 1:
                interval = summary.interval(cell) or interval
            points.append(Point(place + shift, mean, seeds, interval))
    return [_as_errors(point) for point in points] if summary.study.as_errors else points


def _as_errors(point: Point) -> Point:
    """What is missing to 100 %."""
    low, high = point.interval
    return Point(point.place, 100 - point.mean, tuple(100 - seed for seed in point.seeds), (100 - high, 100 - low))


def _draw_angles(axes: Axes, summary: Summary) -> None:
    """A curve for each model, in a band from its lowest to its highest seed."""
    runs = [cell for cell in summary.study.cells if cell.measure is accuracy_on_test and summary.results[cell.key]]
    styles = dict(_styles(summary.study.rows))
    for cell in runs:
        results = summary.results[cell.key]
        color, marker = styles[cell.row]
        angles = [*map(float, results[0].by_angle), 360.0]  # a full rotation ends where it starts
        curves = [[100 * share for share in result.by_angle.values()] for result in results]
        means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        label = cell.row if len(results) == summary.seeds else f"{cell.row} ({len(results)} of {summary.seeds} seeds)"
        axes.plot(angles, [*means, means[0]], color=color, marker=marker, markersize=4, linewidth=1.4, label=label)
        if len(curves) > 1:
            low, high = ([end(values) for values in zip(*curves, strict=True)] for end in (min, max))
            axes.fill_between(angles, [*low, low[0]], [*high, high[0]], color=color, alpha=0.18, linewidth=0)
    label_angles(axes)
    first = summary.all_results[0]
    axes.set_title(f"trained on {first.train_images:,} upright images, tested on {first.test_images:,}: {summary.data}")


def _styles(labels: Sequence[str]) -> Iterable[tuple[str, tuple[str, str]]]:
    return ((label, KNOWN.get(label, PALETTE[index])) for index, label in enumerate(labels))
