"""The results of a study in numbers and words, whatever they are written in."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gevit.evaluation.metrics import mean_interval, wilson_interval
from gevit.rendering.words import duration, epoch_number
from gevit.reproduce.budgets import config_of
from gevit.reproduce.results import read_results, settings_of
from gevit.reproduce.study import Cell, Result, Study, accuracy_in_orbit, accuracy_on_test

# What the paper's numbers are on.
PAPER_DATA = {
    "rotmnist": "rotMNIST",
    "encodings": "rotMNIST",
    "converged": "rotMNIST",
    "cifar10": "CIFAR-10",
    "pcam": "PatchCamelyon",
}
SHARES = (accuracy_on_test, accuracy_in_orbit)  # of all test images: of these their number leaves an interval
# Of each limit: how many images there were, in a result, and what they are called.
IMAGES = {
    "limit_train": ("train_images", "training images"),
    "limit_valid": ("valid_images", "validation images"),
    "limit_test": ("test_images", "test images"),
}


@dataclass(frozen=True)
class Number:
    """A mean over seeds, in percent; the spread is their standard deviation, None for a single one."""

    mean: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, shares: Sequence[float]) -> Number:
        """Of shares between 0 and 1.

        >>> Number.of([0.9, 0.92]).mean
        91.0
        """
        percents = [100 * share for share in shares]
        spread = statistics.stdev(percents) if len(percents) > 1 else None
        return cls(statistics.fmean(percents), spread, len(percents))


@dataclass(frozen=True)
class Difference:
    """By how much one row of a study is above another, in points, over the seeds that both have.

    Attributes:
        row: of what is subtracted from.
        other: of what is subtracted.
        mean: over seeds.
        interval: Student's 95% interval of the mean.
        seeds: how many.
    """

    row: str
    other: str
    mean: float
    interval: tuple[float, float]
    seeds: int


@dataclass(frozen=True)
class Summary:
    """A study and its results.

    Attributes:
        study: what was compared.
        budget: how it was trained.
        results: of each run, by the key of its cells, in the order of their seeds.
    """

    study: Study
    budget: str
    results: Mapping[str, Sequence[Result]]

    @classmethod
    def read(cls, study: Study, budget: str, folder: Path) -> Summary:
        """From the JSON files in the study's folder, and nothing else."""
        results = read_results(study, budget, folder)
        if not any(results.values()):
            raise ValueError(
                f"there are no results in {folder}; make some with: gevit reproduce {study.name} --budget {budget}"
            )
        return cls(study, budget, results)

    @property
    def all_results(self) -> list[Result]:
        """Of all runs, one after the other."""
        return [result for results in self.results.values() for result in results]

    @property
    def data(self) -> str:
        """The names of the data sets that our numbers are on."""
        return _listed(result.data for result in self.all_results)

    @property
    def paper_data(self) -> str:
        """The name of the data set that the paper's numbers are on; empty if it has none."""
        return PAPER_DATA[self.study.recipe] if any(cell.paper for cell in self.study.cells) else ""

    @property
    def seeds(self) -> int:
        """The most that any run was repeated."""
        return max(len(results) for results in self.results.values())

    def number(self, cell: Cell) -> Number | None:
        """Ours; None if it is not there yet."""
        results = self.results[cell.key]
        return Number.of([cell.measure(result) for result in results]) if results else None

    def interval(self, cell: Cell) -> tuple[float, float] | None:
        """In percent, with 95% confidence: what the number of test images leaves of a share; None of anything else."""
        number = self.number(cell)
        if number is None or cell.measure not in SHARES:
            return None
        low, high = wilson_interval(number.mean / 100, self.results[cell.key][0].test_images)
        return 100 * low, 100 * high

    def cell(self, row: str, column: str) -> Cell:
        """The cell at a place."""
        return next(cell for cell in self.study.cells if (cell.row, cell.column) == (row, column))

    def has_paper(self, column: str) -> bool:
        """Whether the paper has numbers for a column."""
        return any(cell.paper is not None for cell in self.study.cells if cell.column == column)

    @property
    def parameters(self) -> dict[str, str]:
        """How many weights the models of each row have; empty where a row has models of different sizes."""
        counts = {
            row: {
                result.parameters for cell in self.study.cells if cell.row == row for result in self.results[cell.key]
            }
            for row in self.study.rows
        }
        if any(len(found) > 1 for found in counts.values()):
            return {}
        return {row: f"{found.pop():,}" if found else "–" for row, found in counts.items()}

    def paper_text(self, cell: Cell) -> str:
        """The paper's number for people."""
        return "–" if cell.paper is None else f"{cell.paper:.2f}"

    def ours_text(self, cell: Cell) -> str:
        """Our number for people: with its interval, and the number of its seeds where others have more."""
        number = self.number(cell)
        if number is None:
            return "–"
        text = f"{number.mean:.2f}" + ("" if number.spread is None else f" ± {number.spread:.2f}")
        interval = self.interval(cell) if number.seeds == 1 else None
        remarks = [] if interval is None else ["{:.2f} to {:.2f}".format(*interval)]
        remarks += [] if number.seeds == self.seeds else [f"{number.seeds} of {self.seeds} seeds"]
        return f"{text} ({'; '.join(remarks)})" if remarks else text

    def notes(self) -> list[str]:
        """What a reader has to know to judge the numbers."""
        results = self.all_results
        epochs = sorted({result.settings["epochs"] or 0 for result in results})
        time = max(result.settings.get("max_time") or 0 for result in results)
        length = f"{_counts(epochs)} epoch{'s' * (epochs[-1] > 1)}" if epochs[-1] else "as many epochs as fit"
        length += f" into at most {duration(time)} a run" if time else ""
        images = {name: sorted({getattr(result, f"{name}_images") for result in results}) for name in ("train", "test")}
        found = [
            f"Accuracy in percent. Ours: {self.data}, {_counts(images['train'])} training images, "
            f"{length}, the epoch chosen on validation images, tested once on {_counts(images['test'])} images.",
            *(f"Data: {note}." for note in dict.fromkeys(result.data_note for result in results)),
        ]
        if self.budget == "smoke":
            found.insert(
                0, "Smoke: the models are all but untrained; these numbers only prove that the machinery runs."
            )
        if changes := self._changes():
            found.append(f"What differs from the budget of the paper: {', '.join(changes)}.")
        found += [f"{note[0].upper()}{note[1:]}." for note in self.study.notes]
        found.append(self._uncertainty())
        missing = sum(not results for results in self.results.values())
        if missing:
            found.append(f"– in our columns: {missing} of {len(self.results)} runs are not done yet.")
        return [*found, self._origin()]

    def run_rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Every run: the header, and a row each."""
        header = ("run", "seed", "training images", "test, %", "validation, %", "epoch kept", "parameters")
        return (*header, "equivariance error", "time"), [
            (
                result.run,
                str(result.seed),
                f"{result.train_images:,}",
                f"{100 * result.test_accuracy:.2f}",
                f"{100 * result.valid_accuracy:.2f}",
                epoch_number(result.best_epoch) + (f" of {epochs}" if (epochs := result.settings["epochs"]) else ""),
                f"{result.parameters:,}",
                f"{result.equivariance_error:.0e}" if result.equivariance_error else "0",
                duration(result.seconds),
            )
            for result in self.all_results
        ]

    def differences(self) -> list[Difference]:
        """Of the pairs of rows that the study compares: seeds are paired, so what they share cancels."""
        found = []
        for row, other in self.study.comparisons:
            cells = [self.cell(name, self.study.columns[0]) for name in (row, other)]
            ours, theirs = ({result.seed: cell.measure(result) for result in self.results[cell.key]} for cell in cells)
            points = [100 * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
            if points:
                found.append(Difference(row, other, statistics.fmean(points), mean_interval(points), len(points)))
        return found

    def difference_rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The differences: the header, and a row each."""
        header = ("row", "minus", "points", "95% interval", "seeds")
        return header, [
            (
                difference.row,
                difference.other,
                f"{difference.mean:+.2f}",
                "{:+.2f} to {:+.2f}".format(*difference.interval) if difference.seeds > 1 else "–",
                str(difference.seeds),
            )
            for difference in self.differences()
        ]

    def to_json(self) -> dict[str, Any]:
        """The table as plain types."""
        numbers = [(cell, self.number(cell)) for cell in self.study.cells]
        return {
            "study": self.study.name,
            "budget": self.budget,
            "title": self.study.title,
            "cells": [
                {
                    "row": cell.row,
                    "column": cell.column,
                    "paper": cell.paper,
                    "ours": number and number.mean,
                    "spread": number and number.spread,
                    "interval": self.interval(cell),
                    "seeds": number.seeds if number else 0,
                }
                for cell, number in numbers
            ],
            "differences": [
                {**asdict(difference), "interval": difference.interval if difference.seeds > 1 else None}
                for difference in self.differences()
            ],
            "notes": self.notes(),
        }

    def _uncertainty(self) -> str:
        """What ± and brackets are, and the bars of the plot."""
        measured = [(cell, interval) for cell in self.study.cells if (interval := self.interval(cell))]
        repeated = [interval for cell, interval in measured if len(self.results[cell.key]) > 1]
        notes = [f"±: the standard deviation over {self.seeds} seeds."] if self.seeds > 1 else []
        if repeated:
            reach = max((high - low) / 2 for low, high in repeated)
            columns = list(dict.fromkeys(cell.column for cell, _ in measured))
            where = "" if columns == self.study.columns else f" ({', '.join(columns)})"
            notes.append(f"The test images, the same for all seeds, leave up to ±{reach:.1f} points besides{where}.")
        if len(repeated) < len(measured):
            notes.append(
                "Brackets, of a number of one seed: the 95% interval that the number of test images leaves; how much "
                "seeds differ is not in it."
            )
        if self.study.angles:
            notes.append("Bands of the plot reach from the lowest seed to the highest.")
        else:
            notes.append(
                "Dots of the plot are seeds, bars the 95% interval of the mean of three seeds or more (Student's); a "
                "hollow mark is one seed, its bar what the test images leave."
            )
        return " ".join(notes)

    def _changes(self) -> list[str]:
        """What our runs were trained with, and the paper's."""
        cell = next(cell for cell in self.study.runs if self.results[cell.key])
        result = self.results[cell.key][0]
        ours, paper = (settings_of(config_of(self.study, budget, cell)) for budget in (self.budget, "paper"))
        return [
            f"{IMAGES[name][1]} {getattr(result, IMAGES[name][0]):,} instead of all"
            if name in IMAGES
            else f"{name.replace('_', ' ')} {_value(ours[name])} instead of {_value(paper[name])}"
            for name in paper
            if ours[name] != paper[name]
        ]

    def _origin(self) -> str:
        results = self.all_results
        machines, versions, commits = (
            _listed(result.environment.get(name, "unknown") for result in results)
            for name in ("cpu", "gevit", "commit")
        )
        seconds = sum(result.seconds for result in results)
        return f"{duration(seconds)} of training in all, on {machines}; gevit {versions}, commit {commits}."


def _listed(facts: Iterable[str]) -> str:
    """Each once; the fact of a run that several processes made is a list already."""
    return ", ".join(dict.fromkeys(word for fact in facts for word in fact.split(", ")))


def _counts(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def _value(setting: Any) -> str:
    return "the default" if setting is None else str(setting)
