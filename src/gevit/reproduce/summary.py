"""The results of a study in numbers and words, whatever they are written in."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gevit.reproduce.budgets import config_of
from gevit.reproduce.results import Result
from gevit.reproduce.store import read_results, settings_of
from gevit.reproduce.study import Cell, Study

# What the paper's numbers are on.
PAPER_DATA = {"rotmnist": "rotMNIST", "cifar10": "CIFAR-10", "pcam": "PatchCamelyon"}
FEWER = "†"
LIMITS = {"limit_train": "training images", "limit_valid": "validation images", "limit_test": "test images"}


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
        return PAPER_DATA[self.study.experiment] if any(cell.paper for cell in self.study.cells) else ""

    @property
    def seeds(self) -> int:
        """The most that any run was repeated."""
        return max(len(results) for results in self.results.values())

    def number(self, cell: Cell) -> Number | None:
        """Ours; None if it is not there yet."""
        results = self.results[cell.key]
        return Number.of([cell.measure(result) for result in results]) if results else None

    def cell(self, row: str, column: str) -> Cell:
        """The cell at a place."""
        return next(cell for cell in self.study.cells if (cell.row, cell.column) == (row, column))

    def has_paper(self, column: str) -> bool:
        """Whether the paper has numbers for a column."""
        return any(cell.paper is not None for cell in self.study.cells if cell.column == column)

    def label(self, row: str) -> str:
        """The label of a row, marked if it was trained on fewer images than the others."""
        return row + FEWER if row in self._fewer() else row

    def paper_text(self, cell: Cell) -> str:
        """The paper's number for people."""
        return "–" if cell.paper is None else f"{cell.paper:.2f}"

    def ours_text(self, cell: Cell) -> str:
        """Our number for people, with how many seeds it is from where they are fewer than elsewhere."""
        number = self.number(cell)
        if number is None:
            return "–"
        text = f"{number.mean:.2f}" + ("" if number.spread is None else f" ± {number.spread:.2f}")
        return text if number.seeds == self.seeds else f"{text} ({number.seeds} of {self.seeds} seeds)"

    def notes(self) -> list[str]:
        """What a reader has to know to judge the numbers."""
        results = self.all_results
        epochs = {result.settings["epochs"] for result in results}
        images = {name: sorted({getattr(result, f"{name}_images") for result in results}) for name in ("train", "test")}
        found = [
            f"Accuracy in percent. Ours: {self.data}, {_counts(images['train'])} training images, "
            f"{_counts(sorted(epochs))} epoch{'s' * (max(epochs) > 1)}, "
            f"the epoch chosen on validation images, tested once on {_counts(images['test'])} images.",
            *(f"Data: {note}." for note in dict.fromkeys(result.data_note for result in results)),
        ]
        if self.budget == "smoke":
            found.insert(
                0, "Smoke: the models are all but untrained; these numbers only prove that the machinery runs."
            )
        if differences := self._differences():
            found.append(f"What differs from the paper's setting: {', '.join(differences)}.")
        if fewer := self._fewer():
            rows = {count: [row for row in fewer if fewer[row] == count] for count in dict.fromkeys(fewer.values())}
            parts = [f"{', '.join(names)} on {count:,} images" for count, names in rows.items()]
            found.append(
                f"{FEWER} trained on fewer images than the other rows' {max(images['train']):,}: {'; '.join(parts)}."
            )
        found += [f"{note[0].upper()}{note[1:]}." for note in self.study.notes]
        found.append(
            f"± and the bars of the plot are the standard deviation over {self.seeds} seeds."
            if self.seeds > 1
            else "One seed, and seeds differ; the bars of the plot are the 95% interval that the number of test images "
            "leaves."
        )
        missing = sum(not results for results in self.results.values())
        if missing:
            found.append(f"– in our columns: {missing} of {len(self.results)} runs are not done yet.")
        return [*found, self._origin()]

    def run_table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Every run: the header, and a row each."""
        from gevit.training.report.parts import duration

        header = ("run", "seed", "training images", "test, %", "validation, %", "epoch kept", "parameters")
        return (*header, "equivariance error", "time"), [
            (
                result.run,
                str(result.seed),
                f"{result.train_images:,}",
                f"{100 * result.test_accuracy:.2f}",
                f"{100 * result.valid_accuracy:.2f}",
                f"{result.best_epoch} of {result.settings['epochs']}",
                f"{result.parameters:,}",
                f"{result.equivariance_error:.0e}" if result.equivariance_error else "0",
                duration(result.seconds),
            )
            for result in self.all_results
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
                    "seeds": number.seeds if number else 0,
                }
                for cell, number in numbers
            ],
            "notes": self.notes(),
        }

    def _fewer(self) -> dict[str, int]:
        """The rows that were trained on fewer images than the others, and on how many."""
        most = max(result.train_images for result in self.all_results)
        counts = {
            cell.row: result.train_images for cell in self.study.cells for result in self.results[cell.key] if cell.cost
        }
        return {row: count for row, count in counts.items() if count < most}

    def _differences(self) -> list[str]:
        """What our runs were trained with, and the paper's."""
        cell = next(cell for cell in self.study.runs if self.results[cell.key])
        ours = self.results[cell.key][0].settings
        paper = settings_of(config_of(self.study, "paper", cell))
        return [
            f"{LIMITS.get(name, name.replace('_', ' '))} {_value(name, ours)} instead of {_value(name, paper)}"
            for name in paper
            if ours[name] != paper[name]
        ]

    def _origin(self) -> str:
        from gevit.training.report.parts import duration

        results = self.all_results
        machines, versions, commits = (
            _listed(result.environment.get(name, "unknown") for result in results)
            for name in ("cpu", "gevit", "commit")
        )
        seconds = sum(result.seconds for result in results)
        return f"{duration(seconds)} of training in all, on {machines}; gevit {versions}, commit {commits}."


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _counts(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def _value(name: str, settings: Mapping[str, Any]) -> str:
    value = settings[name]
    if value is None:
        return "all" if name in LIMITS else "the default"
    return f"{value:,}" if name in LIMITS else str(value)
