"""How every chart looks: one palette, quiet axes, and a way into a page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, INK, GRID = "#0072b2", "#d55e00", "#222222", "#dddddd"
FONT = 9


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


def inline_svg(figure: Figure, label: str) -> str:
    """A picture as an element of a page: as wide as there is room, its colours those of the page's theme."""
    import matplotlib

    file = io.StringIO()
    # Text stays text; a fixed salt and no date make the same run give the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gevit"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    svg = re.sub(r"<svg[^>]*>", f'<svg {view.group()} role="img" aria-label="{label}">', svg, count=1)
    for color, name in ((BLUE, "blue"), (ORANGE, "orange"), (INK, "ink"), (GRID, "grid")):
        svg = svg.replace(color, f"var(--{name})")
    return svg.strip()
