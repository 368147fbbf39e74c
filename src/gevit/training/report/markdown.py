"""A report in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from gevit.training.report import parts
from gevit.training.report.parts import Table
from gevit.training.report.record import RunRecord


def markdown(run: RunRecord, curves: str) -> str:
    """The whole report; `curves` is the name of the picture beside it."""
    headlines = Table(("", "", ""), [(name, f"**{value}**", note) for name, value, note in parts.headlines(run)])
    few = len(run.classes) <= parts.MOST_CLASSES
    sections = [
        f"# {run.title}",
        _table(headlines),
        f"Data: {run.data_note}",
        "## Training",
        f"![Loss, accuracy and learning rate by epoch]({curves})",
        _table(parts.history_table(run)),
        "## Test images, by class",
        _table(parts.class_table(run)),
        "## Confusion" if few else "## Classes confused most often",
        _table(parts.confusion_table(run)),
        "## Equivariance",
        "Relative error of the trained model on test images.",
        _table(parts.equivariance_table(run)),
        "## Accuracy as the images turn",
        _table(parts.angle_table(run)),
        "## How to repeat it",
        f"```sh\n{run.command}\n```",
        "### Settings",
        _facts(run.config),
        "### Environment",
        _facts(run.environment),
    ]
    return "\n\n".join(sections) + "\n"


def _facts(facts: dict[str, str] | dict[str, object]) -> str:
    return _table(Table(("name", "value"), [(name, str(value)) for name, value in facts.items()]))


def _table(table: Table) -> str:
    alignment = [":--", *["--:"] * (len(table.header) - 1)]
    return "\n".join(map(_row, (table.header, alignment, *table.rows)))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
