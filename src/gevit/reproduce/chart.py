"""The plot of a study."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gevit.rendering.charts import BLUE, FONT, GREEN, INK, ORANGE, PINK, SKY, WIDTH, label_angles, style
from gevit.reproduce.studies import GE, GSA, RELATIVE
from gevit.reproduce.study import accuracy_on_test
from gevit.reproduce.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Markers say the same as colours.
KNOWN = {GSA: (ORANGE, "s"), GE: (BLUE, "o"), RELATIVE: (GREEN, "^")}
PALETTE = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PINK, "D"), (SKY, "v"), (INK, "P"))
CROWDED = 36  # characters below a panel
Point = tuple[float, float, float, float]  # place, percent, reach of the bar below and above

LETTERS = 110  # of a legend, in a figure of the full width


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
    rows, columns = summary.study.rows, summary.study.columns
    ordered = summary.study.ordered
    for index, (column, (color, marker)) in enumerate(_styles(columns)):
        # Side by side, so that bars do not hide each other.
        shift = (0.04 if ordered else 0.16) * (index - (len(columns) - 1) / 2)
        if not (points := _points(summary, column, shift, is_paper)):
            continue
        places, values, below, above = zip(*points, strict=True)
        looks: dict[str, Any] = {
            "color": color,
            "marker": marker,
            "markersize": 5,
            "capsize": 2.5,
            "linewidth": 1.3,
            "label": column,
        }
        if ordered:
            axes.errorbar(places, values, yerr=(below, above), linestyle="-", **looks)
        else:
            axes.errorbar(values, places, xerr=(below, above), linestyle="none", **looks)
    if ordered:
        crowded = len(rows) * max(map(len, rows)) > CROWDED
        axes.set_xticks(range(len(rows)), rows, rotation=40 if crowded else 0)
        axes.set_xlabel(summary.study.row_title)
        axes.set_ylabel("accuracy, %")
    else:
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("accuracy, %")


def _points(summary: Summary, column: str, shift: float, is_paper: bool) -> list[Point]:
    """Bars are the spread over seeds; of a single one, the 95% interval that the number of images leaves of a share."""
    points = []
    for place, row in enumerate(summary.study.rows):
        cell = summary.cell(row, column)
        number = summary.number(cell)
        if is_paper and cell.paper is not None:
            points.append((place + shift, cell.paper, 0.0, 0.0))
        elif not is_paper and number is not None:
            below = above = number.spread or 0.0
            if number.seeds == 1 and (interval := summary.interval(cell)):
                below, above = number.mean - interval[0], interval[1] - number.mean
            points.append((place + shift, number.mean, below, above))
    return points


def _draw_angles(axes: Axes, summary: Summary) -> None:
    """A curve for each model, with a band of the spread over seeds."""
    runs = [cell for cell in summary.study.cells if cell.measure is accuracy_on_test and summary.results[cell.key]]
    styles = dict(_styles(summary.study.rows))
    for cell in runs:
        results = summary.results[cell.key]
        color, marker = styles[cell.row]
        angles = [*map(float, results[0].by_angle), 360.0]  # a full rotation ends where it starts
        curves = [[100 * share for share in result.by_angle.values()] for result in results]
        means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(angles, [*means, means[0]], color=color, marker=marker, markersize=4, linewidth=1.4, label=cell.row)
        if len(curves) > 1:
            spreads = [statistics.stdev(values) for values in zip(*curves, strict=True)]
            low, high = (
                [mean + sign * spread for mean, spread in zip(means, spreads, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(angles, [*low, low[0]], [*high, high[0]], color=color, alpha=0.18, linewidth=0)
    label_angles(axes)
    axes.set_title(f"trained upright: {summary.data}")


def _styles(labels: Sequence[str]) -> Iterable[tuple[str, tuple[str, str]]]:
    return ((label, KNOWN.get(label, PALETTE[index])) for index, label in enumerate(labels))
