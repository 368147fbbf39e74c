"""A study as a page of HTML that needs nothing else: no other file, no network, no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from gevit.rendering.charts import inline_svg
from gevit.rendering.style import STYLE
from gevit.reproduce.chart import figure
from gevit.reproduce.markdown import table_header, table_rows
from gevit.reproduce.summary import Summary


def page(summary: Summary) -> str:
    """The table, the plot, the notes, and every run."""
    title = escape(summary.study.title)
    header, runs = summary.run_table()
    notes = "".join(f"<li>{escape(note)}</li>" for note in summary.notes())
    body = "\n".join(
        [
            f"<h1>{title}</h1>",
            f'<p class="quiet">budget {summary.budget}, ours on {escape(summary.data)}</p>',
            _table(table_header(summary), table_rows(summary)),
            f'<figure class="wide">{inline_svg(figure(summary), title)}</figure>',
            f"<h2>How to read it</h2><ul>{notes}</ul>",
            f"<h2>Every run</h2>{_table(header, runs)}",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = [escape(name).replace(", ", ",<br>") for name in header]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{escape(text)}</td>" for text in texts)}</tr>'
        for label, *texts in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
