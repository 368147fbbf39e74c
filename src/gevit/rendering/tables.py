"""A table, and its forms: Markdown, HTML, LaTeX and the terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gevit.rendering import escape
from gevit.rendering.pages import render
from gevit.rendering.words import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

# A pipe or a file has no edge to fold at.
UNFOLDED = 10_000
# What a terminal leaves of a column before a table is too wide for it: words may be folded, numbers and
# the words of the header not.
SHORTEST_WORDS, LONGEST_NUMBER, BETWEEN_COLUMNS = 8, 12, 3


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; every form shows the text as it is, whatever is in it.

    A page has headings and a place for notes: Markdown and HTML are the table alone. LaTeX and the terminal have the
    title above the table and the notes below it.

    Attributes:
        header: the names of the columns.
        rows: the cells of each row; the first one names it.
        groups: for each column, what it shares with its neighbours; empty for a column that stands alone.
        alignment: `l` or `r` for each column; if not given, the first is left, the others right.
        title: says what the table shows.
        notes: what a reader has to know to judge it.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    groups: Sequence[str] = ()
    alignment: str = ""
    title: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        columns = len(self.header)
        object.__setattr__(self, "groups", self.groups or ("",) * columns)
        object.__setattr__(self, "alignment", self.alignment or "l" + "r" * (columns - 1))
        for row in (self.groups, self.alignment, *self.rows):
            if len(row) != columns:
                raise ValueError(f"the table has {columns} columns, got a row of {len(row)}: {row!r}")

    @property
    def flat_header(self) -> list[str]:
        """The names of the columns on one line, each with its group."""
        return [f"{group}, {name}" if group else name for group, name in zip(self.groups, self.header, strict=True)]

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The groups from left to right, each with the number of its columns; columns without one stand alone."""
        found = []
        for group, columns in itertools.groupby(self.groups):
            width = len(list(columns))
            found += [(group, width)] if group else [("", 1)] * width
        return found

    def to_markdown(self) -> str:
        """As GitHub and others render it."""
        rules = [":--" if side == "l" else "--:" for side in self.alignment]
        cells = ([escape.markdown(cell) for cell in row] for row in (self.flat_header, *self.rows))
        head, *body = map(_piped, cells)
        return "\n".join([head, _piped(rules), *body])

    def to_html(self) -> str:
        """As an element of a page."""
        return render("table.html", table=self)

    def to_latex(self, label: str) -> str:
        r"""A table environment to refer to by `label`; needs the package booktabs."""
        header = " & ".join(map(escape.latex, self.header)) + r" \\"
        if any(self.groups):
            header = f"{self._latex_groups()}\n{header}"
        rows = "\n".join(" & ".join(map(escape.latex, row)) + r" \\" for row in self.rows)
        notes = "\n\n".join(map(escape.latex, self.notes))
        below = f"\n\n\\medskip\n\\parbox{{\\linewidth}}{{\\footnotesize\n{notes}\n}}" if notes else ""
        return f"""% needs \\usepackage{{booktabs}}
\\begin{{table}}
\\caption{{{escape.latex(self.title)}}}
\\label{{{label}}}
\\centering
\\begin{{tabular}}{{{self.alignment}}}
\\toprule
{header}
\\midrule
{rows}
\\bottomrule
\\end{{tabular}}{below}
\\end{{table}}
"""

    def to_rich(self) -> RenderableType:
        """For the terminal: a table, or the cells of each row below each other where it is too narrow for that."""
        return _InTerminal(self)

    def _latex_groups(self) -> str:
        """A line that names the groups, and rules below them."""
        names, rules, first = [], "", 1
        for group, width in self.spans:
            names.append(f"\\multicolumn{{{width}}}{{c}}{{{escape.latex(group)}}}" if group else "")
            rules += f"\\cmidrule(lr){{{first}-{first + width - 1}}}" if group else ""
            first += width
        return f"{' & '.join(names)} \\\\\n{rules}"


def make_console(stderr: bool = False) -> Console:
    """A console that folds what is too wide for a terminal, and nothing in a pipe or a file."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=UNFOLDED)


@dataclass(frozen=True)
class _InTerminal:
    """A table that rich draws when it knows how wide the terminal is."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.table.title:
            yield _plain(self.table.title, "bold")
        widths = [self._narrowest(column) for column in range(len(self.table.header))]
        if sum(widths) + BETWEEN_COLUMNS * len(widths) <= options.max_width:
            yield self._drawn(widths)
        else:
            yield from self._listed()
        yield from (_plain(note, "dim") for note in self.table.notes)

    def _narrowest(self, column: int) -> int:
        longest = max((len(word) for row in self.table.rows for word in row[column].split()), default=0)
        name = max(map(len, self.table.flat_header[column].split()), default=0)
        return max(name, min(longest, SHORTEST_WORDS if self.table.alignment[column] == "l" else LONGEST_NUMBER))

    def _drawn(self, widths: Sequence[int]) -> RenderableType:
        from rich import box, table

        drawn = table.Table(box=box.SIMPLE_HEAD, show_header=any(self.table.header), pad_edge=False)
        for name, side, width in zip(self.table.flat_header, self.table.alignment, widths, strict=True):
            drawn.add_column(_plain(name), justify="left" if side == "l" else "right", overflow="fold", min_width=width)
        for row in self.table.rows:
            drawn.add_row(*map(_plain, row))
        return drawn

    def _listed(self) -> Iterator[RenderableType]:
        for first, *cells in self.table.rows:
            yield _plain(first, "bold")
            for name, cell in zip(self.table.flat_header[1:], cells, strict=True):
                yield _plain(f"  {name}: {cell}" if name else f"  {cell}")


def _plain(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(printable(text), style)  # which, unlike a string, has no markup


def _piped(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
