"""A config file is the experiment: those that are shipped, and those that `gevit reproduce --configs` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gevit import list_models
from gevit.cli import main
from gevit.reproduce.budgets import BUDGETS, config_of
from gevit.reproduce.studies import STUDIES
from gevit.training.config import TrainConfig, read_yaml

SHIPPED = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_names_a_model_that_there_is(path: Path) -> None:
    assert TrainConfig(**read_yaml(path)).model in list_models()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", STUDIES)
def test_written_settings_are_those_that_reproduce_trains_with(
    name: str, budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "--budget", budget, "--configs", str(tmp_path), "--json"]) == 0
    study = STUDIES[name](budget)
    paths = [Path(text) for text in json.loads(capsys.readouterr().out)]
    assert sorted(paths) == sorted(tmp_path.iterdir())
    for cell, path in zip(study.runs, paths, strict=True):
        assert TrainConfig(**read_yaml(path)) == config_of(study, budget, cell)


def test_written_settings_name_the_numbers_of_the_paper(tmp_path: Path) -> None:
    assert main(["reproduce", "table2", "--budget", "paper", "--configs", str(tmp_path)]) == 0
    for cell in STUDIES["table2"]("paper").cells:
        [line] = [
            line
            for line in (tmp_path / f"{cell.key}.yaml").read_text(encoding="utf-8").splitlines()
            if line.startswith(f"# {cell.row}, {cell.column}")
        ]
        assert f"{cell.paper:.2f}%" in line


def test_a_folder_whose_name_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", "--configs", str(tmp_path / "\udcff")]) == 0
    assert all(line.startswith(f"{tmp_path}/\\udcff/") for line in capsys.readouterr().out.splitlines())


def test_nothing_is_left_where_settings_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["reproduce", "table1", "--configs", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err
