"""The curves of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gevit.rendering.charts import BLUE, FONT, INK, ORANGE, style
from gevit.training.log import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[Row]

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


def curve_figures(history: History, best_epoch: int) -> dict[str, Figure]:
    """Each panel as a picture of its own, by its title."""
    from matplotlib.figure import Figure

    figures = {}
    for title in PANELS:
        figures[title] = Figure(figsize=(4.2, 2.9), layout="constrained")
        _draw(figures[title].subplots(), title, history, best_epoch)
    return figures


def curves_figure(history: History, best_epoch: int) -> Figure:
    """All panels in one picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1), layout="constrained")
    for axes, title in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        _draw(axes, title, history, best_epoch)
        axes.set_title(title, fontsize=FONT + 1, color=INK)
    return figure


def _draw(axes: Axes, title: str, history: History, best_epoch: int) -> None:
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
    axes.set_xlim(0.5, max(row["epoch"] for row in history) + 0.5)
    axes.set_xlabel("epoch")
    if title == "learning rate":
        axes.set_ylim(bottom=0)
    style(axes)
    if len(curves) > 1:
        axes.legend(fontsize=FONT - 1, frameon=False, labelcolor=INK)
