"""How every chart looks: one palette, quiet axes; and its ways into a page and a file."""

from __future__ import annotations

import base64
import io
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from gevit.environment import needs
from gevit.files import write_aside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PINK, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"
INK, GRID = "#222222", "#dddddd"
WIDTH = 7.2  # inches, of a chart as wide as a page
FONT = 9
# The same chart is the same file, whenever it is drawn.
_REPEATABLE: dict[Any, Any] = {"svg.hashsalt": "gevit"}
_NO_DATE = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


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


def label_angles(axes: Axes) -> None:
    """Axes of accuracy against the angle by which images are rotated, around the circle."""
    axes.set_xticks(range(0, 361, 45), [f"{angle}°" for angle in range(0, 361, 45)])
    axes.set_xlabel("rotation angle")
    axes.set_ylabel("accuracy, %")


def inline_svg(figure: Figure, label: str) -> str:
    """A picture as an element of a page: as wide as there is room, its colours those of the page's theme."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", **_REPEATABLE}):  # text stays text
        figure.savefig(file, format="svg", transparent=True, metadata=_NO_DATE[".svg"])
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    start = f'<svg {view.group()} role="img" aria-label="{escape(label)}">'
    svg = re.sub(r"<svg[^>]*>", lambda _: start, svg, count=1)
    for color, name in ((BLUE, "blue"), (ORANGE, "orange"), (INK, "ink"), (GRID, "grid")):
        svg = svg.replace(color, f"var(--{name})")
    return svg.strip()


def inline_png(pixels: UInt8[np.ndarray, "height width 3"]) -> str:
    """An image as the address of itself, for the `src` of an element of a page."""
    with needs("pillow"):
        from PIL import Image
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def save(figure: Figure, path: Path, dpi: int = 160) -> None:
    """Write a picture, whole or not at all; the file's suffix says in which format."""
    import matplotlib

    with matplotlib.rc_context(_REPEATABLE), write_aside(path) as aside:
        figure.savefig(aside, dpi=dpi, metadata=_NO_DATE.get(path.suffix))
