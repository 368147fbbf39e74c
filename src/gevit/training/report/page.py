"""A report as a page of HTML that needs nothing else: no other file, no network, no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from gevit.evaluation.charts import angle_figure
from gevit.rendering.charts import inline_svg
from gevit.rendering.style import STYLE
from gevit.training.report import parts
from gevit.training.report.charts import curve_figures
from gevit.training.report.parts import Table
from gevit.training.report.record import RunRecord

FEW_CLASSES = 10  # whose confusion matrix has room beside another table
LONG_NAME = 4  # characters; longer names of classes are written upright above a confusion matrix


def page(run: RunRecord) -> str:
    """The whole report."""
    layout = "stack" if FEW_CLASSES < len(run.classes) <= parts.MOST_CLASSES else "pair"
    body = "\n".join(
        [
            f"<h1>{escape(run.title)}</h1>",
            f'<p class="quiet">{escape(run.data_note)}</p>',
            _headlines(run),
            "<h2>Training</h2>",
            _curves(run),
            f"<details><summary>Every epoch</summary>{_table(parts.history_table(run))}</details>",
            f'<div class="{layout}"><section>{_classes(run)}</section><section>{_confusion(run)}</section></div>',
            "<h2>Equivariance</h2>",
            "<p>Relative error of the trained model on test images: how far the logits of a transformed image are from "
            "those of the image, and its feature maps from the transformed feature maps.</p>",
            _table(parts.equivariance_table(run)),
            *_angles(run),
            "<h2>How to repeat it</h2>",
            f"<pre>{escape(run.command)}</pre>",
            "<h3>Settings</h3>",
            _facts(run.config),
            "<h2>Environment</h2>",
            _facts(run.environment),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(run.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _headlines(run: RunRecord) -> str:
    tiles = [
        f'<div class="tile"><dt>{escape(name)}</dt><dd class="value">{escape(value)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for name, value, note in parts.headlines(run)
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _curves(run: RunRecord) -> str:
    figures = [
        f"<figure><figcaption>{title}</figcaption>{inline_svg(figure, f'{title} by epoch')}</figure>"
        for title, figure in curve_figures(run.history, run.best_epoch).items()
    ]
    return f'<div class="charts">{"".join(figures)}</div>'


def _classes(run: RunRecord) -> str:
    """Scores with a bar under each."""
    table = parts.class_table(run)
    rows = (
        f'<th scope="row">{escape(name)}</th><td>{images}</td>'
        + "".join(f'<td class="bar" style="--share:{share}">{share}</td>' for share in shares)
        for name, images, *shares in table.rows
    )
    return f"<h2>Test images, by class</h2>{_rows(table.header, rows)}"


def _confusion(run: RunRecord) -> str:
    if len(run.classes) > parts.MOST_CLASSES:
        return f"<h2>Classes confused most often</h2>{_table(parts.confusion_table(run))}"
    upright = max(map(len, run.classes)) > LONG_NAME
    names = [f'<div class="turned">{escape(name)}</div>' if upright else escape(name) for name in run.classes]
    header = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = (
        f'<th scope="row">{escape(name)}</th>'
        + "".join(_cell(count, sum(counts), true == predicted) for predicted, count in enumerate(counts))
        for true, (name, counts) in enumerate(zip(run.classes, run.test.confusion, strict=True))
    )
    return (
        "<h2>Confusion</h2><p>Rows are the true classes, columns the predicted ones; blue is right, orange wrong.</p>"
        f'<div class="scroll"><table class="confusion"><thead><tr><td></td>{header}</tr></thead>'
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )


def _cell(count: int, total: int, is_right: bool) -> str:
    """A count on its colour; the root of the share, so that rare mistakes still show."""
    if not count:
        return '<td class="zero">0</td>'
    depth = count / total if is_right else min(1.0, 0.12 + (count / total) ** 0.5)
    strong = " strong" if depth > 0.6 else ""
    return f'<td class="{"right" if is_right else "wrong"}{strong}" style="--share:{depth:.2f}">{count:,}</td>'


def _angles(run: RunRecord) -> Iterable[str]:
    figure = inline_svg(angle_figure(run.by_angle, run.by_angle_images), "accuracy by angle")
    images = f"{run.by_angle_images:,} test images, each turned about its centre by every angle"
    yield "<h2>Accuracy as the images turn</h2>"
    yield f"<p>{images}; the band is the 95% interval.</p>"
    yield f'<figure class="wide">{figure}</figure>'
    yield f"<details><summary>Every angle</summary>{_table(parts.angle_table(run))}</details>"


def _facts(facts: Mapping[str, object]) -> str:
    rows = [f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items()]
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _table(table: Table) -> str:
    rows = (f'<th scope="row">{escape(name)}</th>' + "".join(map(_text_cell, cells)) for name, *cells in table.rows)
    return _rows(table.header, rows)


def _text_cell(text: str) -> str:
    words = "" if not text or text[0].isdigit() else ' class="words"'
    return f"<td{words}>{escape(text)}</td>"


def _rows(header: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
