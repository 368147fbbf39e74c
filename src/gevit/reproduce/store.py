"""Where the results of a study are, and whether they are those of this version's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.reproduce.budgets import config_of
from gevit.reproduce.results import Result, read_result
from gevit.reproduce.study import Cell, Study

if TYPE_CHECKING:
    from gevit.training.config import TrainConfig

# Where things lie is no part of an experiment.
PLACES = ("out", "data_root")


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The settings that make an experiment what it is."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in PLACES}


def read_results(study: Study, budget: str, folder: Path) -> dict[str, list[Result]]:
    """All results that are there, with whatever seeds, by the key of their cells."""
    return {
        cell.key: [
            result
            for seed in sorted(_seeds(folder, cell))
            if (result := find_result(study, budget, cell, seed, folder)) is not None
        ]
        for cell in study.runs
    }


def find_result(study: Study, budget: str, cell: Cell, seed: int, folder: Path) -> Result | None:
    """The result of a run; None if it is not there. Raises `ValueError` if it is not what it should be."""
    path = result_path(folder, cell, seed)
    if not path.exists():
        return None
    identity = {"study": study.name, "budget": budget, "run": cell.key, "seed": seed}
    return read_result(path, identity, settings_of(config_of(study, budget, cell, seed)))


def result_path(folder: Path, cell: Cell, seed: int) -> Path:
    """The file of a run's result."""
    return folder / f"{cell.key}_seed{seed}.json"


def _seeds(folder: Path, cell: Cell) -> Iterator[int]:
    for path in folder.glob(f"{cell.key}_seed*.json"):
        seed = path.stem.rpartition("_seed")[2]
        if seed.isdecimal():
            yield int(seed)
