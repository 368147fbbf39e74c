"""Where the results of a study are, and whether they are those of this version's settings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.reproduce.budgets import config_of
from gevit.reproduce.results import REMEDY, Result, read_result
from gevit.reproduce.study import Cell, Study

if TYPE_CHECKING:
    from gevit.training.config import TrainConfig

# Where things lie is no part of an experiment.
PLACES = ("out", "data_root")


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The settings that make an experiment what it is."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in PLACES}


def read_results(study: Study, budget: str, folder: Path) -> dict[str, list[Result]]:
    """All results that are there, with whatever seeds, by the key of their cells.

    Raises:
        ValueError: one of them is not what it should be, or they are not all on the same data.
    """
    from gevit.data.dataset import is_other_data

    results = {
        cell.key: [
            result
            for seed in sorted(_seeds(folder, cell))
            if (result := find_result(study, budget, cell, seed, folder)) is not None
        ]
        for cell in study.runs
    }
    there = [result for of_cell in results.values() for result in of_cell]
    for first, result in itertools.pairwise(there):
        if is_other_data(result.data_digest, first.data_digest):
            raise ValueError(
                f"the results in {folder} are on different data: {result.run}, seed {result.seed}, on {result.data} "
                f"({result.data_note}), but {first.run}, seed {first.seed}, on {first.data} ({first.data_note}); "
                "move away those of one, or choose another --results"
            )
    return results


def find_result(study: Study, budget: str, cell: Cell, seed: int, folder: Path) -> Result | None:
    """The result of a run; None if it is not there. Raises `ValueError` if it is not what it should be."""
    path = result_path(folder, cell, seed)
    if not path.exists():
        return None
    identity = {"study": study.name, "budget": budget, "run": cell.key, "seed": seed}
    result = read_result(path, identity, settings_of(config_of(study, budget, cell, seed)))
    angles = [f"{angle:g}" for angle in study.angles]
    if list(result.by_angle) != angles:
        raise ValueError(f"{path} has other angles than this version's {', '.join(angles) or 'none'}; {REMEDY}")
    return result


def result_path(folder: Path, cell: Cell, seed: int) -> Path:
    """The file of a run's result."""
    return folder / f"{cell.key}_seed{seed}.json"


def _seeds(folder: Path, cell: Cell) -> Iterator[int]:
    for path in folder.glob(f"{cell.key}_seed*.json"):
        seed = path.stem.rpartition("_seed")[2]
        if seed.isdecimal():
            if str(int(seed)) != seed:
                raise ValueError(f"{path} is no name of a result, seeds have no leading zeros; {REMEDY}")
            yield int(seed)
