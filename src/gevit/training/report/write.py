"""Writes the files of a report."""

from __future__ import annotations

import json
from pathlib import Path

from gevit.files import write_aside
from gevit.training.report.charts import curves_figure
from gevit.training.report.markdown import markdown
from gevit.training.report.page import page
from gevit.training.report.record import RunRecord

CURVES = "curves.png"


def write_report(folder: Path, run: RunRecord) -> None:
    """Write `report.json`, `report.md` with `curves.png`, and `report.html`, which needs no other file."""
    with write_aside(folder / CURVES) as aside:
        curves_figure(run.history, run.best_epoch).savefig(aside, dpi=150)
    texts = {
        "report.json": json.dumps(run.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "report.md": markdown(run, CURVES),
        "report.html": page(run),
    }
    for name, text in texts.items():
        with write_aside(folder / name) as aside:
            aside.write_text(text, encoding="utf-8")
