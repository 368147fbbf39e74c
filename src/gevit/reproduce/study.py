"""What a study is: a table of cells, each the outcome of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gevit.reproduce.results import Result, accuracy_on_test


@dataclass(frozen=True)
class Cell:
    """A number of a table.

    Attributes:
        row: the label of its row.
        column: the label of its column.
        settings: what distinguishes its run from the other runs of the study.
        paper: the paper's number, in percent.
        measure: takes the result of a run to the number.
    """

    row: str
    column: str
    settings: Mapping[str, Any]
    paper: float | None = None
    measure: Callable[[Result], float] = accuracy_on_test

    @property
    def key(self) -> str:
        """Names the run; cells with the same key share it.

        >>> Cell("R4_SA", "GE-ViT", {"model": "r4_sa", "encoding": "ge", "neighborhood": 5}).key
        'r4_sa-ge-5'
        """
        return "-".join(map(str, self.settings.values()))


@dataclass(frozen=True)
class Study:
    """A table.

    Attributes:
        name: on the command line.
        title: says what is compared.
        experiment: which recipe of a budget trains the runs.
        row_title: what the rows are.
        cells: row by row.
        notes: what a reader has to know to judge the numbers.
        seeds: how many repetitions a budget of hours has time for.
        angles: in degrees; the accuracy on test images turned by each of them is measured too.
        ordered: whether the rows are steps of one quantity, which a line may join.
    """

    name: str
    title: str
    experiment: str
    row_title: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    seeds: int = 1
    angles: tuple[float, ...] = ()
    ordered: bool = True

    @property
    def rows(self) -> list[str]:
        """Labels of the rows, from top to bottom."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """Labels of the columns, from left to right."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    @property
    def runs(self) -> list[Cell]:
        """A cell for each run."""
        return list({cell.key: cell for cell in self.cells}.values())
