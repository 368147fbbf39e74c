from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from matplotlib.figure import Figure

from gevit import create_model
from gevit.cli import main
from gevit.data import DataSet, load_digits, open_dataset
from gevit.data.dataset import choose
from gevit.environment import environment
from gevit.evaluation.evaluate import accuracy_by_angle
from gevit.evaluation.metrics import mean_interval
from gevit.models import list_models
from gevit.models.base import info_of
from gevit.models.info import ModelInfo
from gevit.persistence import save
from gevit.reproduce import runner
from gevit.reproduce.budgets import BUDGETS, REAL_IMAGES, config_of
from gevit.reproduce.draw import draw, markdown, study_table
from gevit.reproduce.results import result_path, settings_of, write_result
from gevit.reproduce.studies import GE, STUDIES
from gevit.reproduce.study import Result, Study, accuracy_of_parts, mean_over_angles, worst_angle
from gevit.reproduce.summary import Summary
from gevit.training.config import TrainConfig
from tests.outside import reference
from tests.running import At, Life, die, held_elsewhere, without_times

DRAWN = ["plot.png", "plot.svg", "table.html", "table.md", "table.tex"]


def made_up(study: Study, budget: str, folder: Path, seeds: int = 1) -> None:
    """Results of made-up numbers, all different."""
    for seed in range(seeds):
        for number, cell in enumerate(study.runs):
            config = config_of(study, budget, cell, seed)
            accuracy = 0.5 + 0.0123 * number + 0.0014 * seed
            result = Result(
                study=study.name,
                budget=budget,
                run=cell.key,
                seed=seed,
                settings=settings_of(config),
                data=config.data,
                data_note="made-up digits & more, 50% of them",
                data_digest="v2:those",
                train_images=config.limit_train or 10_000,
                valid_images=200,
                test_images=1000,
                test_accuracy=accuracy,
                valid_accuracy=accuracy + 0.003,
                best_epoch=1,
                parameters=44_428,
                equivariance_error=2e-7,
                by_angle={f"{angle:g}": accuracy * (1 - angle / 1000) for angle in study.angles},
                seconds=100.0,
                environment={"cpu": "a machine", "gevit": "0.0", "commit": "abc"},
                finished="2000-01-01T00:00:00+00:00",
                test_macro_f1=accuracy,
                orbit_accuracy=accuracy,
                confusion=[[1] * 4] * 4,
            )
            write_result(result_path(folder, cell, seed), result)


@pytest.fixture
def table1(tmp_path: Path) -> tuple[Summary, Path]:
    """Table 1 with two seeds, of the budget cpu, under `results`."""
    folder = tmp_path / "results" / "table1" / "cpu"
    study = STUDIES["table1"]("cpu")
    made_up(study, "cpu", folder, seeds=2)
    return Summary.read(study, "cpu", folder), folder


def reproduce(home: Path, *words: str) -> int:
    return main(["reproduce", *words, "--results", str(home / "results"), "--runs", str(home / "runs")])


def facts_of(folder: Path) -> dict[str, dict[str, Any]]:
    """All results in a folder, by file name, without times."""
    changing = ("digest", "finished")
    contents = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {
        name: {key: value for key, value in without_times(content).items() if key not in changing}
        for name, content in contents.items()
    }


def sketch(figure: Figure, file: str | Path | io.StringIO, **options: Any) -> None:
    """In place of a picture, which takes longer to draw than a small model to train."""
    svg = '<svg viewBox="0 0 1 1"></svg>'
    if isinstance(file, io.StringIO):
        file.write(svg)
    else:
        Path(file).write_text(svg)


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", sketch)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The runs that were trained: in no time, with made-up reports."""
    runs: list[TrainConfig] = []

    def train(config: TrainConfig, resume: bool, command: str) -> None:
        runs.append(config)
        report = {
            "history": [{"epoch": 1, "valid_accuracy": 0.25}],
            "best_epoch": 1,
            "test": {"accuracy": 0.5, "balanced_accuracy": 0.375, "macro_f1": 0.125, "confusion": [[1] * 4] * 4},
            "parameters": 44_428,
            "equivariance": [
                {"exact": True, "logits": {"worst": 2e-7}},
                {"exact": False, "logits": {"worst": 0.1}},
            ],
            "seconds": 1.0,
            "environment": environment(),
        }
        config.folder.mkdir(parents=True)
        (config.folder / runner.REPORT).write_text(json.dumps(report))

    def by_angle(folder: Path, data: DataSet, images: int, angles: tuple[float, ...]) -> dict[str, float]:
        return dict.fromkeys((f"{angle:g}" for angle in angles), 0.5)

    monkeypatch.setitem(sys.modules, "gevit.training.loop", SimpleNamespace(train=train))
    monkeypatch.setattr(runner, "_by_angle", by_angle)
    monkeypatch.setattr(runner, "_in_orbit", lambda *_: 0.75)
    return runs


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_run_recorded_and_drawn(
    name: str, tmp_path: Path, trained: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(tmp_path, name, "--budget", "smoke") == 0
    study, folder = STUDIES[name]("smoke"), tmp_path / "results" / name / "smoke"
    files = [f"{cell.key}_seed0.json" for cell in study.runs]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, *DRAWN])
    assert len(trained) == len(files)
    for content in facts_of(folder).values():
        assert content["environment"]["cpu"]
        assert content["environment"]["torch"] == torch.__version__
        assert (content["train_images"], content["test_images"]) == (content["settings"]["limit_train"], 2)
        assert (content["test_accuracy"], content["valid_accuracy"]) == (0.5, 0.25)
        assert (content["test_balanced_accuracy"], content["test_macro_f1"]) == (0.375, 0.125)
        assert content["equivariance_error"] == 2e-7  # of exact rotations alone
    said = capsys.readouterr()
    assert f"run {len(files)} of {len(files)}: {study.runs[-1].key}, seed 0" in said.err
    assert study.rows[0] in said.out


def test_what_tables_have_in_common_is_trained_once(tmp_path: Path, trained: list[TrainConfig]) -> None:
    place = runner.Workplace(tmp_path / "results", tmp_path / "runs")
    keys = set()
    for name in ("table1", "table2"):
        runner.run_study(STUDIES[name]("smoke"), "smoke", 1, place, lambda message: None)
        keys |= {cell.key for cell in STUDIES[name]("smoke").runs}
    assert len(trained) == len(keys) == 5


@pytest.mark.usefixtures("sketched")
def test_tables_are_drawn_from_the_results_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "cifar10" / "smoke"
    made_up(STUDIES["cifar10"]("smoke"), "smoke", folder)
    assert reproduce(tmp_path, "cifar10", "--budget", "smoke", "--draw-only") == 0
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".json") == DRAWN
    assert not (tmp_path / "runs").exists()


def test_accuracy_by_angle_is_that_of_the_kept_weights(tmp_path: Path) -> None:
    model, data, angles = create_model("r4_sa", pretrained=True).eval(), open_dataset("digits-upright"), (0.0, 45.0)
    save(model, info_of(model), tmp_path / "model.safetensors")
    chosen = choose(data.test.labels, 5)
    expected = accuracy_by_angle(model, data.test.images(chosen), data.test.labels[chosen], data.normalize, angles)
    assert runner._by_angle(tmp_path, data, 5, angles) == {"0": expected[0.0], "45": expected[45.0]}
    assert expected[0.0] > 0.5


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


@dataclass(frozen=True)
class Sketched:
    """Prepares a process that draws no pictures, and to which something may happen."""

    event: At | None = None

    def __call__(self) -> None:
        Figure.savefig = sketch  # type: ignore[method-assign, assignment]
        if self.event:
            self.event()


def interrupt_self() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_anywhere_nothing_is_repeated_and_nothing_lost(tmp_path: Path) -> None:
    words = ["reproduce", "table2", "--budget", "smoke"]
    results = tmp_path / "results" / "table2" / "smoke"
    study = STUDIES["table2"]("smoke")
    first, second, third = (f"{cell.key}_seed0.json" for cell in study.runs)

    # In the second run.
    killed_in_training = Life(
        words, tmp_path, Sketched(At("gevit.training.optimizer.Muon.step", 3, die))
    )  # of the second run
    assert killed_in_training.end() == -signal.SIGKILL
    assert [path.name for path in results.iterdir()] == [first]
    kept = (results / first).stat().st_mtime_ns

    killed_before_its_name = Life(words, tmp_path, Sketched(At("pathlib.Path.replace", 1, die, "smoke/.gevit")))
    assert killed_before_its_name.end() == -signal.SIGKILL
    assert [path.name for path in results.glob("[!.]*")] == [first]
    (half_written,) = results.glob(".*")
    os.utime(half_written, (0, 0))  # who may still be at it is not disturbed

    # The second run was finished: now the first step is of the third.
    stopped = Life(words, tmp_path, Sketched(At("gevit.training.optimizer.Muon.step", 1, interrupt_self)))
    assert stopped.end() == 130
    assert "1 of them done already" in stopped.output
    assert stopped.output.splitlines()[-1] == (
        "gevit reproduce: stopped with 2 of 3 runs done; nothing is lost, the same command goes on"
    )
    assert {path.name for path in results.iterdir()} == {first, second}

    last = Life(words, tmp_path, Sketched())
    assert last.end() == 0, last.output
    assert "resuming after step" in last.output
    assert "only prove that the machinery runs" in last.output
    assert (results / first).stat().st_mtime_ns == kept
    assert "–" not in (results / "table.md").read_text().split("## Every run")[0].split("![")[0]

    times = {name: (results / name).stat().st_mtime_ns for name in (first, second, third)}
    said: list[str] = []
    place = runner.Workplace(tmp_path / "results", tmp_path / "runs" / "reproduce")
    runner.run_study(study, "smoke", 1, place, said.append)
    assert said == ["table2, budget smoke: 3 runs, 3 of them done already"]
    assert times == {name: (results / name).stat().st_mtime_ns for name in times}

    straight = tmp_path / "straight"
    straight.mkdir()
    assert Life(words, straight, Sketched()).end() == 0
    assert facts_of(results) == facts_of(straight / "results" / "table2" / "smoke")


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


def test_results_on_other_data_stop_a_study_before_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, folder = STUDIES["table2"]("smoke"), tmp_path / "results" / "table2" / "smoke"
    made_up(study, "smoke", folder)
    result_path(folder, study.runs[-1], 0).unlink()
    assert reproduce(tmp_path, "table2", "--budget", "smoke") == 2
    assert "are on other data (made-up digits & more, 50% of them) than what is there now" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_is_refused_before_anything_is_run(
    tmp_path: Path, trained: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("not a folder")
    assert reproduce(tmp_path, "table2", "--budget", "smoke") == 2
    assert "choose another --results" in capsys.readouterr().err
    assert not trained


def test_refused_before_anything_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, folder = STUDIES["table2"]("smoke"), tmp_path / "results" / "table2" / "smoke"
    made_up(study, "smoke", folder, seeds=2)
    edited = result_path(folder, study.runs[0], 1)  # which one seed does not need, but the table takes
    edited.write_text(edited.read_text().replace("a machine", "another"))
    result_path(folder, study.runs[-1], 0).unlink()
    assert reproduce(tmp_path, "table2", "--budget", "smoke") == 2
    assert "was edited by hand or damaged" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ["{", "{}", '{"history": [], "best_epoch": 1}', "[]"])
def test_a_damaged_report_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = STUDIES["table2"]("smoke")
    config = config_of(study, "smoke", study.runs[0])
    report = tmp_path / "runs" / runner._run_name(config, runner._open(config, None)) / runner.REPORT
    report.parent.mkdir(parents=True)
    report.write_text(text)
    assert reproduce(tmp_path, "table2", "--budget", "smoke") == 2
    error = capsys.readouterr().err
    assert f"{report} is damaged or of another version of gevit" in error
    assert "move its folder away" in error


def test_a_sample_is_called_one(table1: tuple[Summary, Path]) -> None:
    summary, _ = table1
    cell = summary.study.runs[0]
    sample = dataclasses.replace(summary.results[cell.key][0], data="pcam sample", train_images=1000)
    notes = " ".join(dataclasses.replace(summary, results={cell.key: [sample]}).notes())
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
    assert study_table(partial).rows[0][2] == "50.00 (1 of 2 seeds)"
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


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", STUDIES)
def test_studies_are_well_made_and_fair(name: str, budget: str) -> None:
    study = STUDIES[name](budget)
    assert study.name == name
    assert len({(cell.row, cell.column) for cell in study.cells}) == len(study.cells)
    assert len(study.cells) == len(study.rows) * len(study.columns)
    configs = {cell.key: config_of(study, budget, cell) for cell in study.cells}
    assert len(set(configs.values())) == len(configs)
    recipes = set()
    for cell in study.cells:
        config = config_of(study, budget, cell)
        assert config == configs[cell.key]
        assert config.model in list_models()
        differing: dict[str, Any] = {"model": "", "encoding": "ge", "neighborhood": 5}
        if name in ("sizes", "labels"):  # their rows differ in how many images there are, and how often they are seen
            differing |= {"limit_train": None, "epochs": 1}
        if name in ("sizes", "angles"):  # some are augmented
            differing["rotate"] = False
        if name == "converged":  # how attention starts is a row
            differing["initialisation"] = None
        if study.experiment in REAL_IMAGES:  # every network trains for the same time, some are augmented
            differing |= {"epochs": 1, "rotate": False, "flip": False, "restrict": None}
        if name == "finetuning":  # that is what its rows are about
            differing["start_from"] = None
        recipes.add(dataclasses.replace(config, **differing))
    assert len(recipes) == 1
    if GE in study.columns:
        for row in study.rows:  # within a row, nothing but the encoding differs
            encodings = [config_of(study, budget, cell) for cell in study.cells if cell.row == row]
            assert len({dataclasses.replace(config, encoding="ge") for config in encodings}) == 1


def test_the_numbers_of_the_paper() -> None:
    text = reference("paper", "gevit.tex").read_text(encoding="utf-8")
    tables = re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, flags=re.DOTALL)
    cells = {name: STUDIES[name]("paper").cells for name in ("table1", "table2", "table3", "table4", "cifar10")}
    for name, table in zip(("table1", "table2", "table3"), tables, strict=False):
        numbers = [f"{cell.paper:.2f}" for cell in cells[name]]
        # In table 2 one number spans both columns of the first row.
        assert re.findall(r"\d\d\.\d\d", table) == (numbers[1:] if name == "table2" else numbers)
    *in_table, cpvt = cells["table4"]
    for cell in in_table:
        label = cell.row.replace("_", r"\_").replace("α", r"$\alpha$")
        assert f"{label} & {cell.paper:.2f}" in tables[3].replace("Z2CNN", "Z2-CNN")
    assert f"{cpvt.paper:.2f}" in text
    assert (
        "GE-ViT and GSA-Nets on CIFAR-10 are {1:.2f}\\% and {0:.2f}\\%".format(*(c.paper for c in cells["cifar10"]))
        in text
    )


def test_measures_over_angles(tmp_path: Path) -> None:
    study = STUDIES["angles"]("cpu")
    made_up(study, "cpu", tmp_path)
    summary = Summary.read(study, "cpu", tmp_path)
    result = summary.results["z2_sa-False"][0]
    assert len(result.by_angle) == 24
    assert worst_angle(result) == result.by_angle["345"]
    assert worst_angle(result) < mean_over_angles(result) < result.test_accuracy
    assert study_table(summary).rows[0][1:4] == [
        f"{100 * share:.2f}" for share in (result.test_accuracy, mean_over_angles(result), worst_angle(result))
    ]


@pytest.mark.skipif(os.name != "posix", reason="locks are POSIX ones")
@pytest.mark.usefixtures("sketched")
def test_two_processes_share_a_study_and_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = STUDIES["table2"]("smoke")
    first, *others = (f"{cell.key}_seed0.json" for cell in study.runs)
    config = config_of(study, "smoke", study.runs[0])
    folder = tmp_path / "runs" / runner._run_name(config, runner._open(config, None))
    with held_elsewhere(folder):
        (folder / "config.yaml").write_text(dataclasses.replace(config, out=str(folder), devices=1).to_yaml())
        assert reproduce(tmp_path, "table2", "--budget", "smoke") == 0
        assert "still with other processes: 1 of 3 runs" in capsys.readouterr().err
        assert set(facts_of(tmp_path / "results" / "table2" / "smoke")) == set(others)
    assert reproduce(tmp_path, "table2", "--budget", "smoke") == 0
    assert set(facts_of(tmp_path / "results" / "table2" / "smoke")) == {first, *others}


def test_nothing_is_drawn_where_others_are_at_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(runner, "run_cell", side_effect=BlockingIOError("another process is at work")):
        assert reproduce(tmp_path, "table2", "--budget", "smoke") == 0
    assert "still with other processes: 3 of 3 runs" in capsys.readouterr().err


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "table2" / "smoke"
    folder.mkdir(parents=True)
    new, old = folder / ".gevit-0123456789abcdef.json", folder / ".gevit-fedcba9876543210.json"
    for path in (new, old):
        path.touch()
    os.utime(old, (0, 0))
    with mock.patch.object(runner, "run_cell", side_effect=BlockingIOError("another process is at work")):
        reproduce(tmp_path, "table2", "--budget", "smoke")
    assert new.exists()
    assert not old.exists()


def test_other_settings_are_another_run() -> None:
    study = STUDIES["table1"]("smoke")
    config = config_of(study, "smoke", study.runs[0])
    data = runner._open(config, None)
    changes: list[dict[str, Any]] = [{"lr": 0.5}, {"seed": 1}, {"limit_test": 3}]
    changed = [dataclasses.replace(config, **change) for change in changes]
    assert len({runner._run_name(run, data) for run in (config, *changed)}) == 4
    other = dataclasses.replace(data, test=data.test.subset(torch.arange(3)))
    assert runner._run_name(config, other) != runner._run_name(config, data)
    assert runner._run_name(dataclasses.replace(config, out="elsewhere", data_root="x"), data) == runner._run_name(
        config, data
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table1", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["table1", "--budget", "paper", "--data-root", "nowhere"], "gevit data prepare rotmnist --data-root nowhere"),
    ],
)
def test_errors_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(tmp_path, *words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_upright_digits_are_those_of_digits_unturned() -> None:
    upright, turned = open_dataset("digits-upright"), open_dataset("digits")
    images = {image.numpy().tobytes() for image in load_digits()[0]}
    for name in ("train", "valid", "test"):
        assert torch.equal(upright.split(name).labels, turned.split(name).labels)
        some = (upright.split(name).images(torch.arange(20)) * 255).round().to(torch.uint8)
        assert all(image.numpy().tobytes() in images for image in some)
    first = torch.arange(20)
    assert not torch.equal(upright.test.images(first), turned.test.images(first))
    # Turning about the centre moves ink, but makes and loses little.
    ratio = turned.test.images(first).sum((1, 2, 3)) / upright.test.images(first).sum((1, 2, 3))
    assert ((ratio > 0.9) & (ratio < 1.1)).all()


def test_the_accuracy_in_an_orbit_is_that_of_the_mean_over_the_group(tmp_path: Path) -> None:
    data = open_dataset("digits-upright")
    model = create_model("z2_sa", "nano").eval()
    info = ModelInfo(
        name="z2_sa",
        preset="nano",
        in_channels=1,
        num_classes=10,
        classes=data.classes,
        image_size=28,
        mean=data.mean,
        std=data.std,
    )
    save(model, info, tmp_path / "model.safetensors")
    chosen = choose(data.test.labels, 20)
    images = data.normalize(data.test.images(chosen))
    logits = sum(model(images.rot90(turns, (-2, -1))) for turns in range(4))
    expected = (logits.argmax(1) == data.test.labels[chosen]).double().mean().item()
    assert runner._in_orbit(tmp_path, data, 20, "c4") == pytest.approx(expected)


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
    assert seeds == [2, 2, 2, 2]


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    draws = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)).tolist()
    covered = sum(low <= 0 <= high for low, high in map(mean_interval, draws)) / len(draws)
    assert covered == pytest.approx(0.95, abs=0.02)
    assert mean_interval([1.0]) == (-math.inf, math.inf)
