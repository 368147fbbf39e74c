"""A study in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from gevit.reproduce.summary import Summary

PARAMETERS = "parameters"


def markdown(summary: Summary, plot: str) -> str:
    """The table, the plot in the file named `plot`, the notes, and every run."""
    header, runs = summary.run_table()
    notes = "\n".join(f"- {note}" for note in summary.notes())
    sections = [
        f"# {summary.study.title}",
        _table(table_header(summary), table_rows(summary)),
        f"![{summary.study.title}]({plot})",
        notes,
        "## Every run",
        _table(header, runs),
    ]
    return "\n\n".join(sections) + "\n"


def table_header(summary: Summary) -> list[str]:
    """What the columns are; beside the paper's, each says the data set it is on."""
    heads = [summary.study.row_title]
    for column in summary.study.columns:
        if summary.has_paper(column):
            heads.append(f"{column}, paper ({summary.paper_data})")
        heads.append(f"{column}, ours ({summary.data})" if summary.paper_data else column)
    return [*heads, PARAMETERS] if summary.parameters else heads


def table_rows(summary: Summary) -> list[list[str]]:
    """The label of each row, then the paper's number and ours for each column, and the size of the row's models."""
    rows = []
    for row in summary.study.rows:
        texts = [row]
        for column in summary.study.columns:
            cell = summary.cell(row, column)
            if summary.has_paper(column):
                texts.append(summary.paper_text(cell))
            texts.append(summary.ours_text(cell))
        rows.append([*texts, summary.parameters[row]] if summary.parameters else texts)
    return rows


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(header)
    alignment = [":--", *["--:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, alignment, *rows))
