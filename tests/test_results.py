"""The results that come with the project are whole, are of this version's settings, and are what the docs show."""

from __future__ import annotations

from pathlib import Path

import pytest

from gevit.reproduce.draw import PLOT
from gevit.reproduce.latex import latex
from gevit.reproduce.markdown import markdown
from gevit.reproduce.page import page
from gevit.reproduce.studies import STUDIES
from gevit.reproduce.summary import Summary

PROJECT = Path(__file__).parents[1]
MEASURED = [name for name in STUDIES if list((PROJECT / "results" / name / "cpu").glob("*_seed*.json"))]


def summary_of(name: str) -> tuple[Summary, Path]:
    folder = PROJECT / "results" / name / "cpu"
    return Summary.read(STUDIES[name]("cpu"), "cpu", folder), folder


def test_there_are_results() -> None:
    assert MEASURED


@pytest.mark.parametrize("name", MEASURED)
def test_the_drawings_are_of_the_results(name: str) -> None:
    summary, folder = summary_of(name)
    texts = {"table.md": markdown(summary, PLOT), "table.html": page(summary), "table.tex": latex(summary)}
    for file, text in texts.items():
        assert (folder / file).read_text(encoding="utf-8") == text, f"draw it again: gevit reproduce {name} --draw-only"
    names = {f"{cell.key}_seed{seed}.json" for cell in summary.study.runs for seed in range(9)}
    assert {path.name for path in folder.glob("*.json")} <= names


@pytest.mark.parametrize("name", MEASURED)
def test_the_docs_show_the_table(name: str) -> None:
    summary, _ = summary_of(name)
    table = markdown(summary, PLOT).split("\n\n")[1]
    assert table in (PROJECT / "docs" / "reproduction.md").read_text(encoding="utf-8")
