"""A config file IS the experiment: those of the paper's rows are its studies' `paper` settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gevit import list_models
from gevit.reproduce.budgets import config_of
from gevit.reproduce.studies import STUDIES
from gevit.training.config import TrainConfig, read_yaml

FOLDER = Path(__file__).parents[1] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))
OF_THE_PAPER = [path for path in FILES if "# The paper's accuracy: " in path.read_text(encoding="utf-8")]
PAPER_STUDIES = ("table1", "table2", "table3", "table4", "cifar10")


def paper_numbers() -> list[tuple[TrainConfig, float]]:
    """Every run of the paper and its accuracy."""
    studies = [STUDIES[name]("paper") for name in PAPER_STUDIES]
    return [
        (config_of(study, "paper", cell), cell.paper)
        for study in studies
        for cell in study.cells
        if cell.paper is not None
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_a_model_that_there_is(path: Path) -> None:
    assert TrainConfig(**read_yaml(path)).model in list_models()


@pytest.mark.parametrize("path", OF_THE_PAPER, ids=lambda path: path.stem)
def test_is_a_run_of_the_paper_with_its_accuracy_on_top(path: Path) -> None:
    config = TrainConfig(**read_yaml(path))
    numbers = {number for run, number in paper_numbers() if run == config}
    assert numbers
    _, accuracy, effort, command, *_ = path.read_text(encoding="utf-8").splitlines()
    assert numbers == {float(word.rstrip("%")) for word in accuracy.split() if word.endswith("%")}
    images, total = (int(word.replace(",", "")) for word in re.findall(r"[\d,]{5,}", effort))
    assert total == images * config.epochs
    assert command == f"# gevit train --config configs/{path.name} --data-root DIR"


def test_every_run_of_the_paper_has_one() -> None:
    files = [TrainConfig(**read_yaml(path)) for path in OF_THE_PAPER]
    runs = [run for run, _ in paper_numbers()]
    assert len(set(runs)) == len(files)
    assert set(runs) == set(files)
