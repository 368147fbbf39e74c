from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gevit
from gevit.evaluation.evaluate import equivariance_of
from gevit.evaluation.metrics import score
from gevit.evaluation.presentation import worst_confusions
from gevit.rendering.charts import inline_svg
from gevit.rendering.escape import markdown
from gevit.rendering.words import duration, printable
from gevit.training.report import PANELS, RunRecord, curve_figures, write_report
from tests.html_page import Page

FILES = ["curves.png", "report.html", "report.json", "report.md"]


def record(classes: tuple[str, ...] = tuple("0123456789"), **change: Any) -> RunRecord:
    """A run of made-up numbers, with the errors of a real model."""
    torch.manual_seed(0)
    labels = torch.arange(200) % len(classes)
    logits = torch.randn(200, len(classes))
    logits[torch.arange(200), labels] += 3
    model = gevit.create_model("d1_sa", neighborhood=3).eval()
    equivariance, equivariance_maps = equivariance_of(model, torch.randn(1, 1, 28, 28))
    history = [
        {
            "epoch": epoch,
            "step": 100 * epoch,
            "lr": 0.001 / epoch,
            "train_loss": 2 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "valid_loss": 2.1 / epoch,
            "valid_accuracy": 0.9123 - 0.5 / epoch,
            "valid_balanced_accuracy": 0.8 - 0.5 / epoch,
            "valid_macro_f1": 0.7345 - 0.5 / epoch,
            "seconds": 12.5,
            "images_per_second": 320.0,
        }
        for epoch in (1.0, 2.0, 3.0)
    ]
    facts: dict[str, Any] = {
        "title": "d1_sa on digits",
        "config": {"model": "d1_sa", "lr": 0.001, "data_root": None},
        "command": "gevit train --model d1_sa --out 'a <b>'",
        "environment": {"torch": "2.x", "cpu": "a processor"},
        "parameters": 44388,
        "history": history,
        "best_epoch": 2,
        "seconds": 754.0,
        "data_note": "digits, rotated",
        "test": score(logits, labels),
        "equivariance": equivariance,
        "equivariance_maps": equivariance_maps,
        "by_angle": {0.0: 0.9, 90.0: 0.85, 180.0: 0.9, 270.0: 0.87},
        "classes": classes,
        "by_angle_images": 100,
        **change,
    }
    return RunRecord(**facts)


@pytest.fixture(scope="module")
def run() -> RunRecord:
    return record()


@pytest.fixture(scope="module")
def folder(run: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "new"
    write_report(folder, run)
    return folder


def test_all_files_and_nothing_else(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == FILES


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_the_numbers_are_told(folder: Path, run: RunRecord, name: str) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    low, high = run.test.interval
    scores = run.test.per_class[3]
    for number in (
        f"{100 * run.test.accuracy:.1f}%",
        f"{100 * low:.1f} to {100 * high:.1f}",
        "2 of 3",
        "accuracy 66.2%",
        f"{100 * run.test.macro_f1:.1f}%",
        f"{100 * run.test.balanced_accuracy:.1f}%",
        "12 min 34 s",
        "44,388",
        f"{run.equivariance.worst:.1e}",
        f"{run.equivariance_maps[1].mean:.1e}",
        f"{100 * scores.precision:.1f}%",
        f"{100 * scores.recall:.1f}%",
        "90.0% (82.6 to 94.5)",
        "digits, rotated",
        "data_root",
        "a processor",
        "0.001",
    ):
        assert number in text, number


def test_the_page_is_whole_and_needs_nothing_else(folder: Path, run: RunRecord) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert all(reference.startswith("#") for reference in page.references)
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert text.count("<svg") == 4
    assert "gevit train --model d1_sa --out 'a <b>'" in page.words
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    for row in run.test.confusion:
        for count in row:
            assert f">{count}</td>" in text


def test_charts_take_the_colours_of_the_theme(run: RunRecord) -> None:
    svg = inline_svg(curve_figures(run.history, run.best_epoch)["loss"], "loss")
    assert svg.startswith("<svg viewBox=")
    for name in ("blue", "orange", "ink", "grid"):
        assert f"var(--{name})" in svg
    assert not set(re.findall(r"#[0-9a-f]{6}", svg)) - {"#000000"}


def test_curves_show_the_history(run: RunRecord) -> None:
    figures = curve_figures(run.history, run.best_epoch)
    assert list(figures) == list(PANELS)
    train, valid, kept = figures["accuracy, %"].axes[0].lines
    assert np.array(train.get_xdata()).tolist() == [1, 2, 3]
    assert np.array(valid.get_ydata()).tolist() == pytest.approx([100 * row["valid_accuracy"] for row in run.history])
    assert set(np.array(kept.get_xdata()).tolist()) == {2}


@pytest.mark.parametrize("epoch", [0.05, 0.4, 1, 7])
def test_the_curves_of_a_short_run_are_within_their_axes(run: RunRecord, epoch: float) -> None:
    for figure in curve_figures([{**run.history[0], "epoch": epoch}], epoch).values():
        left, right = figure.axes[0].get_xlim()
        assert left < epoch < right


def test_json_has_everything(folder: Path, run: RunRecord) -> None:
    facts = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert facts["test"]["accuracy"] == run.test.accuracy
    assert facts["test"]["confusion"] == [list(row) for row in run.test.confusion]
    assert facts["history"] == run.history
    assert facts["config"] == run.config
    assert facts["by_angle"] == {"0.0": 0.9, "90.0": 0.85, "180.0": 0.9, "270.0": 0.87}
    assert facts["equivariance"][1]["feature_maps"]["worst"] == run.equivariance_maps.worst
    assert set(facts) | {"equivariance_maps"} == {field.name for field in dataclasses.fields(RunRecord)}


def test_numbers_that_are_not_finite_are_still_json(run: RunRecord) -> None:
    history = [{**run.history[0], "valid_loss": math.inf, "train_loss": math.nan}, *run.history[1:]]
    facts = json.loads(json.dumps(dataclasses.replace(run, history=history).to_json(), allow_nan=False))
    assert facts["history"][0]["valid_loss"] is None
    assert facts["history"][1] == run.history[1]


def test_markdown_tables_are_straight(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "](curves.png)" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    width, height = struct.unpack(">II", (folder / "curves.png").read_bytes()[16:24])
    assert width > 3 * height > 1000


@pytest.mark.parametrize(
    "names",
    [("a|b", "<script>&"), ("\x1b[31mred", "[bold]x"), ("$\\input{x}$", "`a` *b*"), ("no text \udcff", "two\nlines")],
)
def test_hostile_names_are_shown_as_they_are(tmp_path: Path, names: tuple[str, str]) -> None:
    first, second = names
    run = record(
        names,
        title=first,
        data_note=second,
        command=f"gevit train --data '{first}'",
        config={first: second},
        environment={second: first},
    )
    write_report(tmp_path, run)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.words.count(printable(first)) >= 6  # heading, title, class, confusion twice, settings
    assert run.test.auc is not None
    assert f"{run.test.auc:.4f}" in page.words
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.replace("\n", "").isprintable()
    assert f"# {markdown(first)}\n" in text
    assert f"| {markdown(first)} | {markdown(second)} |\n" in text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 8
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["classes"] == list(names)


def test_many_classes_become_the_worst_pairs(tmp_path: Path) -> None:
    run = record(tuple(f"kind {k}" for k in range(30)))
    rows = worst_confusions(run.classes, run.test, 20).rows
    counts = [int(images) for _, _, images, _ in rows]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == max(c for i, row in enumerate(run.test.confusion) for j, c in enumerate(row) if i != j)
    write_report(tmp_path, run)
    assert f">{rows[0][1]}</td>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'class="confusion"' not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_failed_report_leaves_the_old_one(tmp_path: Path, run: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.html").write_text("old")

    def fail(run: RunRecord) -> str:
        raise RuntimeError("stop")

    monkeypatch.setattr("gevit.training.report.page", fail)
    with pytest.raises(RuntimeError, match="stop"):
        write_report(tmp_path, run)
    assert (tmp_path / "report.html").read_text() == "old"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_same_run_gives_the_same_page(tmp_path: Path, folder: Path, run: RunRecord) -> None:
    write_report(tmp_path, run)
    assert (tmp_path / "report.html").read_text() == (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60.0, "1 min 0 s"), (3599.6, "1 h 0 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
