"""Pictures of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gevit.evaluation.metrics import wilson_interval
from gevit.rendering.charts import BLUE, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
