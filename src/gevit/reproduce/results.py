"""The results of a study as JSON files, each of which shows whether it was changed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gevit.files import write_aside
from gevit.reproduce.budgets import config_of
from gevit.reproduce.study import Cell, Result, Study
from gevit.training.config import PLACES, TrainConfig

# To be raised whenever results of before are no longer comparable, or no longer readable.
FORMAT = 2
IDENTITY = ("study", "budget", "run", "seed")
REMEDY = "move it away, and the same command makes it again"


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The settings that make an experiment what it is."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in PLACES}


def result_path(folder: Path, cell: Cell, seed: int) -> Path:
    """The file of a run's result."""
    return folder / f"{cell.key}_seed{seed}.json"


def write_result(path: Path, result: Result) -> None:
    """Write the file, whole or not at all."""
    content = {"format": FORMAT, **dataclasses.asdict(result)}
    with write_aside(path) as aside:
        text = json.dumps({**content, "digest": _digest(content)}, indent=2, ensure_ascii=False, allow_nan=False)
        aside.write_text(text + "\n", encoding="utf-8")


def read_results(study: Study, budget: str, folder: Path) -> dict[str, list[Result]]:
    """All results that are there, with whatever seeds, by the key of their cells.

    Raises:
        ValueError: one of them is not what it should be, or they are not all on the same data.
    """
    from gevit.data.dataset import is_other_data

    results = {
        cell.key: [read_result(study, budget, cell, seed, folder) for seed in sorted(_seeds(folder, cell))]
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


def read_result(study: Study, budget: str, cell: Cell, seed: int, folder: Path) -> Result:
    """Read the result of a run, which must be of this study and made with the settings of its budget.

    Raises:
        ValueError: it was edited, is of another version, or of something else.
    """
    path = result_path(folder, cell, seed)
    result = _read(path)
    for name, expected in zip(IDENTITY, (study.name, budget, cell.key, seed), strict=True):
        if getattr(result, name) != expected:
            raise ValueError(
                f"{path} is of {name} {getattr(result, name)!r}, expected {expected!r}: it was renamed or copied; "
                f"{REMEDY}"
            )
    ours = settings_of(config_of(study, budget, cell, seed))
    made_with = {
        **settings_of(TrainConfig()),
        **result.settings,
    }  # a setting that is newer than the result: its default
    differences = [
        f"{name} = {made_with[name]!r} instead of {ours.get(name)!r}"
        for name in sorted(made_with)
        if made_with[name] != ours.get(name)
    ]
    if differences:
        raise ValueError(
            f"{path} was made with other settings than this version's: {', '.join(differences)}; {REMEDY}, "
            "or choose another --results"
        )
    angles = [f"{angle:g}" for angle in study.angles]
    if list(result.by_angle) != angles:
        raise ValueError(f"{path} has other angles than this version's {', '.join(angles) or 'none'}; {REMEDY}")
    return result


def _read(path: Path) -> Result:
    """A result as it was written."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, it is not JSON ({error}); {REMEDY}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise ValueError(
            f"{path} is the result of another version of gevit: expected format {FORMAT}, found {found!r}; {REMEDY}"
        )
    if content.pop("digest", None) != _digest(content):
        raise ValueError(
            f"{path} was edited by hand or damaged: its content does not match its digest; restore it, or {REMEDY}"
        )
    del content["format"]
    newer = {entry.name for entry in dataclasses.fields(Result) if entry.default is not dataclasses.MISSING}
    expected = {entry.name for entry in dataclasses.fields(Result)}
    if content.keys() | newer != expected:
        names = ", ".join(sorted((content.keys() | newer) ^ expected))
        raise ValueError(f"{path} is the result of another version of gevit, which differs in {names}; {REMEDY}")
    return Result(**content)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _seeds(folder: Path, cell: Cell) -> Iterator[int]:
    for path in folder.glob(f"{cell.key}_seed*.json"):
        seed = path.stem.rpartition("_seed")[2]
        if seed.isdecimal():
            if str(int(seed)) != seed:
                raise ValueError(f"{path} is no name of a result, seeds have no leading zeros; {REMEDY}")
            yield int(seed)
