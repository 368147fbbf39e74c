"""From results to tables and pictures."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gevit.evaluation.metrics import mean_interval, wilson_interval
from gevit.reproduce.draw import draw, markdown, study_table
from gevit.reproduce.results import result_path, write_result
from gevit.reproduce.studies import STUDIES
from gevit.reproduce.study import accuracy_of_parts, mean_over_angles, worst_angle
from gevit.reproduce.summary import Summary
from tests.studies import DRAWN, made_up, reproduce


@pytest.fixture
def table1(tmp_path: Path) -> tuple[Summary, Path]:
    """Table 1 with two seeds, of the budget cpu, under `results`."""
    folder = tmp_path / "results" / "table1" / "cpu"
    study = STUDIES["table1"]("cpu")
    made_up(study, "cpu", folder, seeds=2)
    return Summary.read(study, "cpu", folder), folder


@pytest.mark.usefixtures("sketched")
def test_tables_are_drawn_from_the_results_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "cifar10" / "smoke"
    made_up(STUDIES["cifar10"]("smoke"), "smoke", folder)
    assert reproduce(tmp_path, "cifar10", "--budget", "smoke", "--draw-only") == 0
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".json") == DRAWN
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("sketched")
def test_json(table1: tuple[Summary, Path], capsys: pytest.CaptureFixture[str]) -> None:
    summary, folder = table1
    assert reproduce(folder.parents[2], "table1", "--seeds", "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(cell["row"], cell["column"], cell["paper"]) for cell in answer["cells"]] == [
        (cell.row, cell.column, cell.paper) for cell in summary.study.cells
    ]
    assert answer["cells"][1]["ours"] == pytest.approx(51.3)
    assert answer["cells"][1]["seeds"] == 2


def edit(content: dict[str, Any]) -> None:
    content["test_accuracy"] = 0.999


def age(content: dict[str, Any]) -> None:
    content["format"] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [(edit, "was edited by hand or damaged"), (age, "another version of gevit: expected format 2")],
)
@pytest.mark.parametrize("flags", [[], ["--draw-only"]])
def test_changed_results_are_refused(
    change: Any, message: str, flags: list[str], table1: tuple[Summary, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = table1
    path = folder / "r4_sa-ge-5_seed1.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    assert reproduce(folder.parents[2], "table1", "--seeds", "2", *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("gevit reproduce: error: ")
    assert message in error
    assert path.name in error
    assert "move it away, and the same command makes it again" in error
    assert not (folder / "table.md").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"lr": 1.0}}, "lr = 1.0 instead of 0.02"),
        ({"budget": "paper"}, "is of budget 'paper', expected 'cpu'"),
        ({"seed": 7}, "is of seed 7, expected 0: it was renamed or copied"),
        ({"data_digest": "v2:others"}, "are on different data"),
        ({"by_angle": {"0": 0.5}}, "has other angles"),
    ],
)
def test_results_of_something_else_are_refused(
    change: dict[str, Any], message: str, table1: tuple[Summary, Path]
) -> None:
    summary, folder = table1
    cell = summary.study.runs[0]
    result = summary.results[cell.key][0]
    change = {**change, "settings": {**result.settings, **change.get("settings", {})}}
    write_result(result_path(folder, cell, 0), dataclasses.replace(result, **change))
    with pytest.raises(ValueError, match=re.escape(message)):
        Summary.read(summary.study, "cpu", folder)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is damaged, it is not JSON"), ("[1]", "another version"), ("[" * 10**5, "is damaged")]
)
def test_files_that_are_no_results_are_refused(text: str, message: str, table1: tuple[Summary, Path]) -> None:
    summary, folder = table1
    result_path(folder, summary.study.runs[0], 0).write_text(text)
    with pytest.raises(ValueError, match=message):
        Summary.read(summary.study, "cpu", folder)


@pytest.mark.usefixtures("sketched")
def test_the_tables_tell_the_numbers_of_the_results(table1: tuple[Summary, Path]) -> None:
    summary, folder = table1
    draw(summary, folder)
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in folder.glob("table.*")}
    for cell in summary.study.cells:
        shares = [json.loads(result_path(folder, cell, seed).read_text())["test_accuracy"] for seed in (0, 1)]
        mean, spread = 50 * sum(shares), 100 * abs(shares[0] - shares[1]) / 2**0.5
        assert f"| {cell.paper:.2f} | {mean:.2f} ± {spread:.2f} |" in texts[".md"]
        assert f"<td>{cell.paper:.2f}</td><td>{mean:.2f} ± {spread:.2f}</td>" in texts[".html"]
        assert f"& {cell.paper:.2f} & {mean:.2f} $\\pm$ {spread:.2f} " in texts[".tex"]


def test_the_tables_say_what_they_are_on(table1: tuple[Summary, Path]) -> None:
    summary, _ = table1
    text = markdown(summary)
    assert "GE-ViT, paper (rotMNIST) | GE-ViT, ours (rotmnist-rebuilt)" in text.replace(" GSA-Nets", " GE-ViT")
    assert "rotMNIST" not in text.replace("paper (rotMNIST)", "")
    notes = " ".join(summary.notes())
    for fact in (
        *(
            "data rotmnist-rebuilt instead of rotmnist",
            "epochs 3 instead of 300",
            "training images 3,000 instead of all",
        ),
        *("over 2 seeds", "a machine"),
        "chosen on validation images",
    ):
        assert fact in notes


def test_a_setting_that_is_newer_than_a_result_had_its_default(table1: tuple[Summary, Path]) -> None:
    summary, folder = table1
    cell = summary.study.runs[0]
    result = summary.results[cell.key][0]
    for name, is_default in (("ema", True), ("limit_valid", False)):
        older = {key: value for key, value in result.settings.items() if key != name}
        write_result(result_path(folder, cell, 0), dataclasses.replace(result, settings=older))
        if is_default:
            assert Summary.read(summary.study, "cpu", folder).notes() == summary.notes()
        else:
            with pytest.raises(ValueError, match="limit_valid = None instead of 500"):
                Summary.read(summary.study, "cpu", folder)


def test_a_seed_counts_once(table1: tuple[Summary, Path]) -> None:
    summary, folder = table1
    path = result_path(folder, summary.study.runs[0], 0)
    shutil.copy(path, path.with_name(path.name.replace("seed0", "seed00")))
    with pytest.raises(ValueError, match="seeds have no leading zeros"):
        Summary.read(summary.study, "cpu", folder)


def test_a_sample_is_called_one(table1: tuple[Summary, Path]) -> None:
    summary, _ = table1
    cell = summary.study.runs[0]
    sample = dataclasses.replace(summary.results[cell.key][0], data="pcam sample", train_images=1000)
    results = {key: [sample] if key == cell.key else [] for key in summary.results}
    notes = " ".join(dataclasses.replace(summary, results=results).notes())
    assert "Ours: pcam sample, 1,000 training images" in notes
    assert "training images 1,000 instead of all" in notes


def test_models_of_different_sizes_show_theirs(tmp_path: Path) -> None:
    study = STUDIES["table4"]("cpu")
    made_up(study, "cpu", tmp_path)
    summary = Summary.read(study, "cpu", tmp_path)
    assert [row[-1] for row in study_table(summary).rows] == ["44,428"] * len(study.rows)
    results = dict(summary.results)
    [result] = results["p4_cnn"]
    results["p4_cnn"] = [dataclasses.replace(result, parameters=73_130)]
    rows = {row[0]: row[-1] for row in study_table(dataclasses.replace(summary, results=results)).rows}
    assert (rows["P4-CNN"], rows["R4_SA"]) == ("73,130", "44,428")


def test_what_is_missing_is_said(table1: tuple[Summary, Path]) -> None:
    summary, folder = table1
    result_path(folder, summary.study.runs[0], 1).unlink()
    for seed in (0, 1):
        result_path(folder, summary.study.runs[3], seed).unlink()
    partial = Summary.read(summary.study, "cpu", folder)
    low, high = wilson_interval(0.5, partial.results[summary.study.runs[0].key][0].test_images)
    assert study_table(partial).rows[0][2] == f"50.00 ({100 * low:.2f} to {100 * high:.2f}; 1 of 2 seeds)"
    assert "interval that the number of test images leaves" in " ".join(partial.notes())
    assert "interval that the number of test images leaves" not in " ".join(summary.notes())  # there is no such number
    assert study_table(partial).rows[1][4] == "–"
    assert "1 of 16 runs are not done yet" in " ".join(partial.notes())


@pytest.mark.parametrize("name", STUDIES)
def test_drawing_every_study(name: str, tmp_path: Path) -> None:
    study = STUDIES[name]("cpu")
    made_up(study, "cpu", tmp_path, seeds=2)
    draw(Summary.read(study, "cpu", tmp_path), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".json") == DRAWN
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert_latex_is_sound((tmp_path / "table.tex").read_text(encoding="utf-8"))
    html = (tmp_path / "table.html").read_text(encoding="utf-8")
    assert html.count("<table") == html.count("</table>") == (3 if study.comparisons else 2)
    assert "<svg" in html
    assert "made-up digits &amp; more" in html
    assert not re.search(r'(?:src|href)="(?!#)', html)


def assert_latex_is_sound(text: str) -> None:
    """Environments and braces are closed in order, rows fill the columns, and nothing special stands bare."""
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    bare = re.sub(r"\\[\\&%$#_{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert columns is not None
    body = text.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
    for row in body:
        assert row.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", row)) == len(columns.group(1)) - 1
    assert text.isascii()
    # A bare % would hide the rest of its line; only the first line is a comment.
    assert not re.search(r"(?<!\\)[%#_]", text.split("\n", 1)[1].replace("tab:gevit-", ""))


def test_the_same_results_give_the_same_files(table1: tuple[Summary, Path], tmp_path: Path) -> None:
    summary, _ = table1
    for name in ("one", "other"):
        draw(summary, tmp_path / name)
    for name in DRAWN:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_no_results_say_how_to_make_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(tmp_path, "table3", "--draw-only") == 2
    assert "make some with: gevit reproduce table3 --budget cpu" in capsys.readouterr().err


def test_measures_over_angles(tmp_path: Path) -> None:
    study = STUDIES["angles"]("cpu")
    made_up(study, "cpu", tmp_path)
    summary = Summary.read(study, "cpu", tmp_path)
    result = summary.results["z2_sa-False"][0]
    assert len(result.by_angle) == 24
    assert worst_angle(result) == result.by_angle["345"]
    assert worst_angle(result) < mean_over_angles(result) < result.test_accuracy
    shown = [text.split()[0] for text in study_table(summary).rows[0][1:4]]
    assert shown == [
        f"{100 * share:.2f}" for share in (result.test_accuracy, mean_over_angles(result), worst_angle(result))
    ]


def test_accuracy_of_parts(tmp_path: Path) -> None:
    study = STUDIES["galaxies"]("smoke")
    made_up(study, "smoke", tmp_path)
    result = Summary.read(study, "smoke", tmp_path).all_results[0]
    counts = [[5, 1, 0, 0], [2, 6, 0, 1], [0, 0, 3, 4], [1, 0, 2, 7]]
    result = dataclasses.replace(result, confusion=counts)
    assert accuracy_of_parts((2,), (3,))(result) == pytest.approx(10 / 16)
    assert accuracy_of_parts((0,), (1,), (2, 3))(result) == pytest.approx((5 + 6 + 16) / 32)


def test_differences_pair_the_seeds(tmp_path: Path) -> None:
    """Seeds move both rows alike: their difference is known better than either."""
    study = STUDIES["converged"]("cpu")
    made_up(study, "cpu", tmp_path, seeds=3)
    summary = Summary.read(study, "cpu", tmp_path)
    for difference, (row, other) in zip(summary.differences(), study.comparisons, strict=True):
        numbers = [summary.number(summary.cell(name, "accuracy")) for name in (row, other)]
        assert numbers[0] is not None
        assert numbers[1] is not None
        assert difference.mean == pytest.approx(numbers[0].mean - numbers[1].mean)
        assert difference.interval == pytest.approx((difference.mean, difference.mean))
        assert (difference.row, difference.other, difference.seeds) == (row, other, 3)
    result_path(tmp_path, study.runs[2], 0).unlink()  # a seed that one of two lacks does not count
    seeds = [difference.seeds for difference in Summary.read(study, "cpu", tmp_path).differences()]
    assert seeds == [2 if study.runs[2].row in pair else 3 for pair in study.comparisons]


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    draws = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)).tolist()
    covered = sum(low <= 0 <= high for low, high in map(mean_interval, draws)) / len(draws)
    assert covered == pytest.approx(0.95, abs=0.02)
    assert mean_interval([1.0]) == (-math.inf, math.inf)
