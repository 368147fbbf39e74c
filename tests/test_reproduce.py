"""Running studies: from a recipe to results."""

from __future__ import annotations

import dataclasses
import json
import os
import re
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
from gevit.data import DataSet, load_digits, open_dataset
from gevit.data.dataset import choose
from gevit.environment import environment
from gevit.evaluation.evaluate import accuracy_by_angle
from gevit.model_card import REPORT
from gevit.models import list_models
from gevit.models.base import info_of
from gevit.models.info import ModelInfo
from gevit.persistence import save
from gevit.reproduce import runner
from gevit.reproduce.budgets import BUDGETS, REAL_IMAGES, config_of
from gevit.reproduce.results import result_path
from gevit.reproduce.studies import GE, STUDIES
from gevit.training.config import TrainConfig
from tests.outside import reference
from tests.running import At, Life, die, held_elsewhere, without_times
from tests.studies import DRAWN, made_up, reproduce, sketch


def facts_of(folder: Path) -> dict[str, dict[str, Any]]:
    """All results in a folder, by file name, without times."""
    changing = ("digest", "finished")
    contents = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {
        name: {key: value for key, value in without_times(content).items() if key not in changing}
        for name, content in contents.items()
    }


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
        (config.folder / REPORT).write_text(json.dumps(report))

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


def test_what_has_fewer_seeds_is_run_last(tmp_path: Path, trained: list[TrainConfig]) -> None:
    place = runner.Workplace(tmp_path / "results", tmp_path / "runs")
    runner.run_study(STUDIES["converged"]("smoke"), "smoke", 2, place, lambda message: None)
    assert [(config.seed, config.initialisation) for config in trained] == [
        *[(seed, None) for seed in (0, 1) for _ in range(4)],
        (0, "convolution"),
    ]


@pytest.mark.usefixtures("sketched")
def test_some_rows_and_columns_are_run_and_all_are_drawn(
    tmp_path: Path, trained: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(tmp_path, "table1", "--budget", "smoke", "--rows", "5x5", "--seeds", "2") == 0
    assert [(config.neighborhood, config.seed) for config in trained] == [(5, 0), (5, 0), (5, 1), (5, 1)]
    table = (tmp_path / "results/table1/smoke/table.md").read_text()
    assert "| 3x3 |" in table
    assert reproduce(tmp_path, "table1", "--budget", "smoke", "--rows", "4x4") == 2
    assert "'3x3', '5x5'" in capsys.readouterr().err
    assert reproduce(tmp_path, "table1", "--budget", "smoke", "--columns", "GSA") == 2
    assert "'GSA-Nets', 'GE-ViT'" in capsys.readouterr().err
    assert reproduce(tmp_path, "table1", "--budget", "smoke", "--rows", "5x5", "--draw-only") == 2
    assert len(trained) == 4
    assert reproduce(tmp_path, "table1", "--budget", "smoke", "--rows", "3x3", "--columns", "GE-ViT") == 0
    assert [(config.neighborhood, config.encoding) for config in trained[4:]] == [(3, "ge")]


def test_a_chosen_part_of_a_study_compares_what_is_left_of_it() -> None:
    study = STUDIES["converged"]("cpu")
    pair = study.comparisons[0]
    assert study.only(pair).comparisons == (pair,)
    assert study.only(pair[:1]).comparisons == ()
    assert study.only() == study


def test_accuracy_by_angle_is_that_of_the_kept_weights(tmp_path: Path) -> None:
    model, data, angles = create_model("r4_sa", pretrained=True).eval(), open_dataset("digits-upright"), (0.0, 45.0)
    save(model, info_of(model), tmp_path / "model.safetensors")
    chosen = choose(data.test.labels, 5)
    expected = accuracy_by_angle(model, data.test.images(chosen), data.test.labels[chosen], data.normalize, angles)
    assert runner._by_angle(tmp_path, data, 5, angles) == {"0": expected[0.0], "45": expected[45.0]}
    assert expected[0.0] > 0.5


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
    report = tmp_path / "runs" / runner._run_name(config, runner._open(config, None)) / REPORT
    report.parent.mkdir(parents=True)
    report.write_text(text)
    assert reproduce(tmp_path, "table2", "--budget", "smoke") == 2
    error = capsys.readouterr().err
    assert f"{report} is damaged or of another version of gevit" in error
    assert "move its folder away" in error


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
        if study.recipe in REAL_IMAGES:  # every network trains for the same time, some are augmented
            differing |= {"epochs": 1, "rotate": False, "flip": False, "restrict": None}
        if name == "clock":
            differing["epochs"] = 1
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


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(tmp_path, "table1", "--budget", "paper", "--data-root", "nowhere") == 2
    assert "gevit data prepare rotmnist --data-root nowhere" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(SystemExit, match="2"):
        reproduce(tmp_path, "table1", "--seeds", "0")
    assert "argument --seeds: expected a positive integer, got '0'" in capsys.readouterr().err.splitlines()[-1]


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
