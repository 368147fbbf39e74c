"""Draws a study: `table.md`, `table.html`, `table.tex`, `plot.png` and `plot.svg`, from its results alone."""

from __future__ import annotations

from pathlib import Path

from gevit.files import write_aside
from gevit.reproduce.chart import figure
from gevit.reproduce.latex import latex
from gevit.reproduce.markdown import markdown
from gevit.reproduce.page import page
from gevit.reproduce.summary import Summary

PLOT = "plot.png"


def draw(summary: Summary, folder: Path) -> None:
    """Write all files of a study into its folder."""
    import matplotlib

    for leftover in [*folder.glob(".table.*"), *folder.glob(".plot.*")]:  # of a process that was killed while it wrote
        leftover.unlink(missing_ok=True)
    texts = {"table.md": markdown(summary, PLOT), "table.html": page(summary), "table.tex": latex(summary)}
    for name, text in texts.items():
        with write_aside(folder / name) as aside:
            aside.write_text(text, encoding="utf-8")
    picture = figure(summary)
    for name in (PLOT, "plot.svg"):
        # The same results give the same files: no date, no random names.
        with write_aside(folder / name) as aside, matplotlib.rc_context({"svg.hashsalt": "gevit"}):
            picture.savefig(aside, dpi=160, metadata={"Date": None} if name.endswith("svg") else None)
