"""A report as a picture: curves where a run sweeps over groups or neighbourhoods, bars where it does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from gevit.bench.cases import MODES, Case
from gevit.bench.report import Report, Result
from gevit.rendering.charts import BLUE, GREEN, GRID, ORANGE, WIDTH, save

__all__ = ["draw", "draw_bars", "draw_sweeps", "save"]

# Markers and dashes say the same as colours.
COLORS = {"reference": ORANGE, "factored": BLUE, "native": GREEN, "triton": GREEN}
MARKERS = {"reference": "s", "factored": "^", "native": "o", "triton": "D"}
DASHES = {"ge": "-", "gsa": ":", "relative": "--"}
QUANTITIES = ("milliseconds per image", "peak memory, MiB")
AXES = {"group_order": "elements of the group, |H|", "neighborhood": "neighbourhood n of n x n"}
FONT = 8

Curves = dict[tuple[str, str], list[Result]]  # of each (backend, encoding)


def draw(report: Report) -> Figure:
    """Curves of the first mode that has any, otherwise bars."""
    curves = (draw_sweeps(report, mode) for mode in MODES)
    return next(filter(None, curves), None) or draw_bars(report)


def draw_sweeps(report: Report, mode: str) -> Figure | None:
    """Time and memory against |H| and against n, as far as the run sweeps over them; None if it does not."""
    sweeps = {axis: curves for axis in AXES if (curves := _sweep(report.results, axis, mode))}
    if not sweeps:
        return None
    figure = Figure(figsize=(WIDTH * (0.1 + 0.45 * len(sweeps)), 5.4), layout="constrained")
    grid = figure.subplots(2, len(sweeps), sharex="col", sharey="row", squeeze=False)
    for column, (axis, curves) in zip(grid.T, sweeps.items(), strict=True):
        for quantity, axes in enumerate(column):
            for kind, results in curves.items():
                _draw_curve(axes, axis, quantity, kind, results)
            _log_scale(axes, "x")
            _log_scale(axes, "y")
        column[0].set_title(_title(curves, axis), fontsize=FONT)
        places = {_place(result, axis) for results in curves.values() for result in results}
        column[1].set_xticks(sorted(places))
        column[1].xaxis.set_minor_locator(NullLocator())
        column[1].set_xlabel(AXES[axis], fontsize=FONT)
    for axes, quantity_name in zip(grid[:, 0], QUANTITIES, strict=True):
        axes.set_ylabel(quantity_name, fontsize=FONT)
    kinds = dict.fromkeys(kind for curves in sweeps.values() for kind in curves)
    lines = [Line2D([], [], **_style(kind), label=_label(kind)) for kind in kinds]
    columns = len(lines) if len(sweeps) == 2 else 2
    figure.legend(handles=lines, loc="outside upper center", ncols=columns, fontsize=FONT, frameon=False)
    return figure


def draw_bars(report: Report) -> Figure:
    """Time and memory of every case, its backends next to each other."""
    sections: dict[Case, list[Result]] = defaultdict(list)
    for result in report.results:
        sections[replace(result.case, backend="")].append(result)
    height = 0.8 + 0.19 * (len(report.results) + len(sections))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    middles, row = [], 0
    for results in sections.values():
        middles.append(row + (len(results) - 1) / 2)
        for result in results:
            _draw_bar(panels, row, result)
            row += 1
        row += 1
    for axes, quantity_name in zip(panels, QUANTITIES, strict=True):
        _log_scale(axes, "x")
        axes.set_xlabel(quantity_name, fontsize=FONT)
        low, high = axes.get_xlim()
        axes.set_xlim(low / 2, high * (high / low) ** 0.4)  # room for the numbers
    labels = [f"{case.architecture}\n{case.mode}, batch {case.batch}" for case in sections]
    panels[0].set_yticks(middles, labels, fontsize=FONT)
    panels[0].set_ylim(row - 1, -1)
    return figure


def _sweep(results: Iterable[Result], axis: str, mode: str) -> Curves:
    """The curves along an axis of those cases that differ in nothing else and reach most places on it.

    Only rotation groups are compared: a dihedral group has the order of one of them.
    """
    families: dict[Case, list[Result]] = defaultdict(list)
    for result in results:
        case = result.case
        rotations = case.model.startswith(("z", "r"))
        if case.mode == mode and rotations and result.group_order and case.neighborhood:
            alike = replace(case, backend="", encoding="")
            alike = replace(alike, model="") if axis == "group_order" else replace(alike, neighborhood=None)
            families[alike].append(result)
    longest = max(families.values(), key=lambda family: _reach(family, axis), default=[])
    curves: Curves = defaultdict(list)
    if _reach(longest, axis) > 2:
        for result in sorted(longest, key=lambda result: _place(result, axis)):
            curves[result.case.backend, result.case.encoding].append(result)
    return {kind: results for kind, results in curves.items() if len(results) > 1}


def _reach(results: Iterable[Result], axis: str) -> int:
    return len({_place(result, axis) for result in results})


def _place(result: Result, axis: str) -> int:
    place = result.group_order if axis == "group_order" else result.case.neighborhood
    assert place is not None
    return place


def _values(result: Result) -> tuple[float, float]:
    """The two quantities of a result that was measured."""
    assert result.figures is not None
    return 1000 * result.figures.seconds / result.case.batch, result.figures.peak_mib


def _draw_curve(axes: Axes, axis: str, quantity: int, kind: tuple[str, str], results: Sequence[Result]) -> None:
    """A curve, which stops where the cases were too large to measure."""
    measured = [result for result in results if result.figures]
    points = [(_place(result, axis), _values(result)[quantity]) for result in measured]
    axes.plot([x for x, _ in points], [y for _, y in points], **_style(kind))
    if points and any(result.status == "skipped" for result in results):
        note: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": FONT - 1}
        axes.annotate("does not fit beyond", points[-1], (0, 6), color=COLORS[kind[0]], **note)


def _draw_bar(panels: Iterable[Axes], row: int, result: Result) -> None:
    backend = result.case.backend
    for quantity, axes in enumerate(panels):
        if result.figures:
            value = _values(result)[quantity]
            bar = axes.barh(row, value, height=0.9, color=COLORS[backend])
            number = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
            axes.bar_label(bar, [f"{backend} {number}"], padding=2, fontsize=FONT - 1)
        else:
            side = axes.get_yaxis_transform()
            text = f"{backend} {result.status}"
            axes.text(0.02, row, text, transform=side, va="center", fontsize=FONT - 1, color=COLORS[backend])


def _title(curves: Curves, axis: str) -> str:
    case = next(iter(curves.values()))[0].case
    what = "training" if case.mode == "train" else "inference"
    fixed = f"{case.neighborhood}x{case.neighborhood}" if axis == "group_order" else case.model
    return f"{what}, {fixed}, {case.work}"


def _label(kind: tuple[str, str]) -> str:
    backend, encoding = kind
    return backend if encoding == "ge" else f"{backend}, encoding {encoding}"


def _style(kind: tuple[str, str]) -> dict[str, Any]:
    backend, encoding = kind
    return {
        "color": COLORS[backend],
        "marker": MARKERS[backend],
        "linestyle": DASHES[encoding],
        "markerfacecolor": COLORS[backend] if encoding == "ge" else "white",
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def _log_scale(axes: Axes, name: str) -> None:
    """A logarithmic axis with plain numbers."""
    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="both", labelsize=FONT)
    axes.grid(axis="both" if name == "y" else "x", color=GRID)
    axes.set_axisbelow(True)
    axes.margins(y=0.1)
    axes.spines[["top", "right"]].set_visible(False)
