"""The results that come with the project are whole, are of this version's settings, and are what the docs show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gevit.data import load_digits
from gevit.equivariance.comparison import compare_elements
from gevit.models.base import info_of
from gevit.persistence import load
from gevit.reproduce.draw import latex, markdown, page
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
    texts = {"table.md": markdown(summary), "table.html": page(summary), "table.tex": latex(summary)}
    for file, text in texts.items():
        assert (folder / file).read_text(encoding="utf-8") == text, f"draw it again: gevit reproduce {name} --draw-only"
    names = {f"{cell.key}_seed{seed}.json" for cell in summary.study.runs for seed in range(9)}
    assert {path.name for path in folder.glob("*.json")} <= names


@pytest.mark.parametrize("name", MEASURED)
def test_the_docs_show_the_table(name: str) -> None:
    summary, _ = summary_of(name)
    table = markdown(summary).split("\n\n")[1]
    assert any(table in page.read_text(encoding="utf-8") for page in (PROJECT / "docs").glob("*.md"))


@pytest.mark.parametrize("model", ["r4_sa", "d4_sa"])
def test_the_errors_of_trained_weights(model: str) -> None:
    """The paper's figure in numbers: GE-ViT errs by rounding, GSA-Nets by orders of magnitude more."""
    errors = {}
    for encoding in ("ge", "gsa"):
        network = load(PROJECT / "results" / "weights" / f"{model}-{encoding}.safetensors")
        image = info_of(network).normalize(torch.as_tensor(load_digits()[0][0]).float() / 255)
        errors[encoding] = [found.error for found in compare_elements(network, image, range(1, network.group.order))]
    assert max(error.worst for error in errors["ge"]) < 1e-5
    for ge, gsa in zip(errors["ge"], errors["gsa"], strict=True):
        assert gsa.mean > 100 * ge.mean, ge.name
