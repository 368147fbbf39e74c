"""Runs what a study still lacks; whatever was done before, or is being done elsewhere, is neither repeated nor lost."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.files import is_left_over
from gevit.model_card import REPORT
from gevit.rendering.words import duration
from gevit.reproduce.budgets import config_of
from gevit.reproduce.results import read_results, result_path, settings_of, write_result
from gevit.reproduce.study import Cell, Result, Study
from gevit.training.config import TrainConfig

if TYPE_CHECKING:
    from gevit.data import DataSet

# What is half-written for so long is of a process that was killed, and not of one that shares the study.
OLD_SECONDS = 60


@dataclass(frozen=True)
class Workplace:
    """Where a study is run.

    Attributes:
        results: the folder of all results.
        runs: the folder of all training runs.
        data_root: the folder of the data sets; None for the usual one.
        command: what is being run, for the reports.
    """

    results: Path
    runs: Path
    data_root: str | None = None
    command: str = ""

    def folder(self, study: Study, budget: str) -> Path:
        """Where the results of a study are."""
        return self.results / study.name / budget


def run_study(study: Study, budget: str, seeds: int, place: Workplace, say: Callable[[str], None]) -> int:
    """Run every cell with every seed, the first seed of all cells first, unless its result is there.

    Cells that have fewer seeds than the study come last.

    Several processes share a study, one a core or a machine: each leaves out what another is running. (Not where files
    cannot be locked.)

    Returns:
        How many results there are.

    Raises:
        ValueError: results that are there are not what they should be, or on other data; nothing was run.
        KeyboardInterrupt: after a Ctrl-C; the same call goes on from there.
    """
    wanted = [
        (cell, seed)
        for seed in range(seeds)
        for cell in study.runs
        if cell.most_seeds is None or seed < cell.most_seeds
    ]
    wanted.sort(key=lambda run: run[0].most_seeds is not None)
    folder = place.folder(study, budget)
    for path in filter(is_left_over, folder.glob(".*")):
        with contextlib.suppress(FileNotFoundError):  # who writes or tidies up there may be faster
            if time.time() - path.stat().st_mtime > OLD_SECONDS:
                path.unlink()
    there = [result for results in read_results(study, budget, folder).values() for result in results]
    runs = {(result.run, result.seed) for result in there}
    missing = [(cell, seed) for cell, seed in wanted if (cell.key, seed) not in runs]
    if missing:
        _check(_open(config_of(study, budget, missing[0][0]), place.data_root), there, folder)

    def finished() -> int:
        return sum(result_path(folder, cell, seed).exists() for cell, seed in wanted)

    done = len(wanted) - len(missing)
    say(f"{study.name}, budget {budget}: {len(wanted)} runs, {done} of them done already")
    began, ran = time.monotonic(), 0
    for number, (cell, seed) in enumerate(missing):
        path = result_path(folder, cell, seed)
        if path.exists():  # another process made it meanwhile
            continue
        pace = (time.monotonic() - began) / ran if ran else None
        rest = f", about {duration(pace * (len(missing) - number))} to go at this pace" if pace else ""
        say(f"run {done + number + 1} of {len(wanted)}: {cell.key}, seed {seed}{rest}")
        try:
            write_result(path, run_cell(study, budget, cell, seed, place))
        except BlockingIOError:
            say("left out: another process is running it")
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"stopped with {finished()} of {len(wanted)} runs done; nothing is lost, the same command goes on"
            ) from error
        else:
            ran += 1
    if left := len(wanted) - finished():
        say(
            f"still with other processes: {left} of {len(wanted)} runs; once they are done, the same command draws them"
        )
    return len(wanted) - left


def _check(data: DataSet, there: list[Result], folder: Path) -> None:
    """Find out before the first run what would spoil its result."""
    from gevit.data.dataset import is_other_data

    if there and is_other_data(there[0].data_digest, data.digest):
        raise ValueError(
            f"the results in {folder} are on other data ({there[0].data_note}) than what is there now "
            f"({data.note}); restore that data, or choose another --results"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder}: {error.strerror}; choose another --results") from error


def run_cell(study: Study, budget: str, cell: Cell, seed: int, place: Workplace) -> Result:
    """Train and test the model of a cell; a run with the same settings, of whatever study, is taken as it is."""
    config = config_of(study, budget, cell, seed)
    data = _open(config, place.data_root)
    limits = {name: getattr(config, f"limit_{name}") for name in ("train", "valid", "test")}
    sizes = {name: min(limit or len(data.split(name)), len(data.split(name))) for name, limit in limits.items()}
    folder = place.runs / _run_name(config, data)
    if not (folder / REPORT).exists():
        from gevit.training.loop import train

        # One device: the order of additions, and the meaning of the batch size, stay the same everywhere.
        run = dataclasses.replace(config, out=str(folder), data_root=place.data_root, devices=1)
        # As a resumed one also if it is new: another process may begin it meanwhile, and is then left alone.
        train(run, resume=True, command=place.command)
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        measured = _measured(report)
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
        raise ValueError(
            f"{folder / REPORT} is damaged or of another version of gevit ({error!r}); move its folder away, and the "
            "same command runs it again"
        ) from error
    return Result(
        study=study.name,
        budget=budget,
        run=cell.key,
        seed=seed,
        settings=settings_of(config),
        data=data.label,
        data_note=data.note,
        data_digest=data.digest,
        train_images=sizes["train"],
        valid_images=sizes["valid"],
        test_images=sizes["test"],
        by_angle=_by_angle(folder, data, sizes["test"], study.angles) if study.angles else {},
        orbit_accuracy=_in_orbit(folder, data, sizes["test"], study.orbit) if study.orbit else None,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        **measured,
    )


def _measured(report: dict[str, Any]) -> dict[str, Any]:
    """What a result takes from the report of its run."""
    best = next(row for row in report["history"] if row["epoch"] == report["best_epoch"])
    return {
        "test_accuracy": report["test"]["accuracy"],
        "test_balanced_accuracy": report["test"]["balanced_accuracy"],
        "test_macro_f1": report["test"]["macro_f1"],
        "confusion": report["test"]["confusion"],
        "valid_accuracy": best["valid_accuracy"],
        "best_epoch": report["best_epoch"],
        "parameters": report["parameters"],
        "equivariance_error": max(row["logits"]["worst"] for row in report["equivariance"] if row["exact"]),
        "seconds": report["seconds"],
        "environment": report["environment"],
    }


def _open(config: TrainConfig, root: str | None) -> DataSet:
    data = _open_named(config.data, root)
    return data.resized(config.image_size) if config.image_size else data


@functools.cache
def _open_named(name: str, root: str | None) -> DataSet:
    from gevit.data import open_dataset

    return open_dataset(name, root)


def _run_name(config: TrainConfig, data: DataSet) -> str:
    """A name unique to this recipe and data, so that no run is resumed as another."""
    identity = json.dumps([settings_of(config), data.digest], sort_keys=True)
    return f"{config.model}-{data.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _in_orbit(folder: Path, data: DataSet, images: int, group: str) -> float:
    from gevit.data.dataset import choose
    from gevit.evaluation.evaluate import evaluate
    from gevit.groups import named_group
    from gevit.orbit import Orbit
    from gevit.persistence import load

    test = data.test.subset(choose(data.test.labels, images))
    return evaluate(Orbit(load(folder), named_group(group)), test, data.normalize).accuracy


def _by_angle(folder: Path, data: DataSet, images: int, angles: tuple[float, ...]) -> dict[str, float]:
    from gevit.data.dataset import choose
    from gevit.evaluation.evaluate import accuracy_by_angle
    from gevit.persistence import load

    chosen = choose(data.test.labels, images)
    found = accuracy_by_angle(load(folder), data.test.images(chosen), data.test.labels[chosen], data.normalize, angles)
    return {f"{angle:g}": accuracy for angle, accuracy in found.items()}
