"""Pictures of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gevit.evaluation.metrics import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, INK, GRID = "#0072b2", "#d55e00", "#222222", "#dddddd"
FONT = 9


def angle_figure(by_angle: Mapping[float, float], images: int) -> Figure:
    """Accuracy against the angle that images were turned by, with its 95% interval; none if their number is 0."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes = figure.subplots()
    angles = sorted(by_angle)
    around = [*angles, angles[0] + 360]  # a full turn is where it began
    shares = [by_angle[angle] for angle in [*angles, angles[0]]]
    if images:
        low, high = zip(*(wilson_interval(share, images) for share in shares), strict=True)
        axes.fill_between(around, [100 * x for x in low], [100 * x for x in high], color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(around, [100 * share for share in shares], color=BLUE, marker="o", markersize=3.5, linewidth=1.6)
    axes.set_xticks(range(0, 361, 45), [f"{angle}°" for angle in range(0, 361, 45)])
    axes.set_xlabel("images turned by")
    axes.set_ylabel("accuracy, %")
    style(axes)
    return figure


def style(axes: Axes) -> None:
    """Quiet axes: no box, a light grid, text of one size."""
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(INK)
    axes.tick_params(colors=INK, labelsize=FONT)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set(color=INK, fontsize=FONT)
