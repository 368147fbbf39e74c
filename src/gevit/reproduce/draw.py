"""Draws a study: `table.md`, `table.html`, `table.tex`, `plot.png` and `plot.svg`, from its results alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gevit.files import write_aside
from gevit.rendering import charts, escape
from gevit.rendering.pages import render
from gevit.rendering.tables import Table
from gevit.reproduce.chart import figure
from gevit.reproduce.summary import Summary

PLOT = "plot.png"


def draw(summary: Summary, folder: Path) -> None:
    """Write all files of a study into its folder."""
    texts = {"table.md": markdown(summary), "table.html": page(summary), "table.tex": latex(summary)}
    for name, text in texts.items():
        with write_aside(folder / name) as aside:
            aside.write_text(text, encoding="utf-8")
    picture = figure(summary)
    for name in (PLOT, "plot.svg"):
        charts.save(picture, folder / name)


def study_table(summary: Summary) -> Table:
    """The paper's number and ours for each row and column, and the size of the row's models.

    Where the paper has numbers, the header says which data set each column is on.
    """
    columns = summary.study.columns
    groups, header = [""], [summary.study.row_title]
    for column in columns:
        if summary.has_paper(column):
            groups.append(column)
            header.append(f"paper ({summary.paper_data})")
        groups.append(column if summary.paper_data else "")
        header.append(f"ours ({summary.data})" if summary.paper_data else column)
    rows = []
    for row in summary.study.rows:
        texts = [row]
        for cell in (summary.cell(row, column) for column in columns):
            texts += [summary.paper_text(cell)] if summary.has_paper(cell.column) else []
            texts.append(summary.ours_text(cell))
        rows.append(texts)
    if summary.parameters:
        groups, header = [*groups, ""], [*header, "parameters"]
        rows = [[*texts, summary.parameters[texts[0]]] for texts in rows]
    return Table(header, rows, groups, title=summary.study.title, notes=summary.notes())


def difference_table(summary: Summary) -> Table:
    """The differences between rows that the study compares, seed by seed; it may have none."""
    return Table(*summary.difference_rows(), alignment="llrrr")


def run_table(summary: Summary) -> Table:
    """Every run."""
    return Table(*summary.run_rows())


def markdown(summary: Summary) -> str:
    """The table, the plot, the notes, and every run."""
    table, differences = study_table(summary), difference_table(summary)
    title = escape.markdown(table.title)
    sections = [
        f"# {title}",
        table.to_markdown(),
        f"![{title}]({PLOT})",
        "\n".join(f"- {escape.markdown(note)}" for note in table.notes),
        *(["## Differences, seed by seed", differences.to_markdown()] if differences.rows else []),
        "## Every run",
        run_table(summary).to_markdown(),
    ]
    return "\n\n".join(sections) + "\n"


def page(summary: Summary) -> str:
    """The table, the plot, the notes, and every run, as a page of HTML that needs nothing else."""
    return render(
        "study.html",
        title=summary.study.title,
        budget=summary.budget,
        data=summary.data,
        table=study_table(summary),
        chart=charts.inline_svg(figure(summary), summary.study.title),
        differences=difference_table(summary),
        runs=run_table(summary),
    )


def latex(summary: Summary) -> str:
    """The table in LaTeX, with the notes below it; the data sets, too wide for the header, are in the caption."""
    table = study_table(summary)
    caption = f"{table.title}. Accuracy in percent; ours on {summary.data}"
    if summary.paper_data:
        caption += f", the paper's on {summary.paper_data}"
    header = [
        name.partition(" (")[0] if group else name for group, name in zip(table.groups, table.header, strict=True)
    ]
    return replace(table, header=header, title=f"{caption}.").to_latex(f"tab:gevit-{summary.study.name}")
