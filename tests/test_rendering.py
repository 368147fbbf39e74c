"""Tables and pages show names as they are, whatever form they take."""

from __future__ import annotations

import html
import io
import re

import pytest
from rich.console import Console

from gevit.rendering import escape
from gevit.rendering.pages import render
from gevit.rendering.tables import Table, make_console
from gevit.rendering.words import printable

HOSTILE = [
    "<script>alert(1)</script>",
    "a|b\\",
    "\x1b[31mred\x07",
    "[bold]x[/bold] [link=y]",
    "$\\input{x}$ %&#_{}~^",
    "`code` *a* _b_ **c** ~~d~~ ![e](f)",
    "two\nlines\r\u2028",
    "\u202egnp.exe",
    "no text \udcff",
    "]]> --> &lt;",
]


def table(name: str) -> Table:
    return Table(("class", name), [(name, "1"), ("b", name)], title=name, notes=[name])


def unescaped_markdown(text: str) -> str:
    """What a reader of CommonMark sees of text without bare markup."""
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", text)
    assert not re.search(r"[`*|~$<>\[\]\\]|(?<![^\W_])_|_(?![^\W_])", bare), bare
    return html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text))


@pytest.mark.parametrize("name", HOSTILE)
class TestHostileNames:
    def test_nothing_controls_a_terminal(self, name: str) -> None:
        shown = printable(name)
        assert shown.isprintable()
        shown.encode()
        assert printable(shown) == shown

    def test_markdown(self, name: str) -> None:
        lines = table(name).to_markdown().splitlines()
        assert len(lines) == 4
        cells = [line[2:-2].split(" | ") for line in lines]
        assert all(len(row) == 2 for row in cells)
        for found in (cells[0][1], cells[2][0], cells[3][1]):
            assert unescaped_markdown(found) == printable(name)

    def test_html(self, name: str) -> None:
        text = table(name).to_html()
        assert set(re.findall(r"</?(\w+)", text)) == {"div", "table", "thead", "tbody", "tr", "th", "td"}
        assert html.unescape(text).count(printable(name)) == 3

    def test_latex(self, name: str) -> None:
        text = table(name).to_latex("tab:x")
        assert text.count("\\\\\n") == 3
        rows = text.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
        for row in rows:
            assert not re.match(r"\s*[\[*]", row), "an optional argument of the row before"
            assert len(re.findall(r"(?<!\\)&", row)) == 1
        written = escape.latex(name)
        commands = set(re.findall(r"\\([a-z]+)", written))
        assert commands <= {"textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar"}
        bare = re.sub(r"\\(?:[a-z]+\{\}|[&%$#_{}])|\{[\[*]\}", "", written)
        assert not set(bare) & set("\\&%$#_{}~^")

    def test_terminal(self, name: str) -> None:
        console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
        console.print(table(name).to_rich())
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert text.replace("\n", "").isprintable()
        assert text.count(printable(name)) == 5

    def test_pages(self, name: str) -> None:
        one = Table(("a",), [])
        tables = {"table": one, "differences": one, "runs": one}
        page = render("study.html", title=name, budget=name, data=name, chart="<svg></svg>", **tables)
        assert "<svg></svg>" in page
        assert "<script" not in page
        assert "\x1b" not in page
        assert html.unescape(page).count(printable(name)) == 4


def test_words_are_left_alone() -> None:
    for text in ("R4_SA, 97.58 ± 0.12%", "neighbourhood 3x3 (1 of 2 seeds)", "größe 画像 α–β", "a - b + c. d!"):
        assert printable(text) == escape.markdown(text) == text


def test_groups_of_columns() -> None:
    groups = ("", "ours", "ours", "", "")
    grouped = Table(("row", "mean", "worst", "size", "time"), [("a", "1", "2", "3", "4")], groups)
    assert grouped.spans == [("", 1), ("ours", 2), ("", 1), ("", 1)]
    assert grouped.to_markdown().splitlines()[0] == "| row | ours, mean | ours, worst | size | time |"
    assert "\\multicolumn{2}{c}{ours}" in grouped.to_latex("x")
    assert "\\cmidrule(lr){2-3}\n" in grouped.to_latex("x")
    assert 'colspan="2">ours</th>' in grouped.to_html()


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="2 columns, got a row of 3"):
        Table(("a", "b"), [("1", "2", "3")])


def test_alignment_is_the_same_in_every_form() -> None:
    aligned = Table(("a", "b", "c"), [("x", "1", "word")], alignment="lrl")
    assert aligned.to_markdown().splitlines()[1] == "| :-- | --: | :-- |"
    assert "\\begin{tabular}{lrl}" in aligned.to_latex("x")
    assert '<td>1</td><td class="words">word</td>' in aligned.to_html()


@pytest.mark.parametrize("width", [24, 30, 36, 44, 80])
def test_a_narrow_terminal_leaves_numbers_whole(width: int) -> None:
    drawn = io.StringIO()
    table = Table(("name of the element", "worst", "mean"), [("a rotation by ninety degrees", "1.25e-07", "9.38e-08")])
    Console(file=drawn, width=width, force_terminal=True, color_system=None).print(table.to_rich())
    assert {"rotation", "degrees", "worst", "mean"} <= set(drawn.getvalue().replace(":", "").split())
    assert {"1.25e-07", "9.38e-08"} <= set(drawn.getvalue().split())


@pytest.mark.parametrize("width", range(40, 90, 5))
def test_a_narrow_terminal_leaves_the_words_of_the_header_whole(width: int) -> None:
    drawn = io.StringIO()
    table = Table(
        ("file", "classification", "probability"), [("some/rather/long/path/of/an/image/file.png", "a", "1%")]
    )
    Console(file=drawn, width=width, force_terminal=True, color_system=None).print(table.to_rich())
    assert {"classification", "probability"} <= set(drawn.getvalue().replace(":", "").split())


def test_a_pipe_folds_nothing_and_a_terminal_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Table(("file", "class"), [("x" * 300, "y")])
    make_console().print(wide.to_rich())
    assert "x" * 300 in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("COLUMNS", "40")
    make_console().print(wide.to_rich())
    assert "x" * 41 not in capsys.readouterr().out
