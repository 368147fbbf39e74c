"""What a study is: a table of cells, each a number measured on the results of a training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        study: the table it is of.
        budget: how it was trained.
        run: the key of its cells.
        seed: of everything random.
        settings: of the training, all that matter.
        data: name of the data set.
        data_note: where it is from and how it was split.
        data_digest: tells it from other data of the same name.
        train_images: how many were trained on.
        valid_images: how many the epoch was chosen on.
        test_images: how many the kept weights were tested on, once.
        test_accuracy: share of the test images that is right.
        valid_accuracy: share of the validation images that is right.
        best_epoch: whose weights were kept.
        parameters: number of weights.
        equivariance_error: the worst relative error of the logits over quarter turns and flips of the model's group.
        by_angle: share of the test images that is right by the angle, in degrees, that they were rotated by.
        seconds: of training.
        environment: machine, versions and commit.
        finished: when.
        test_balanced_accuracy: mean recall of the classes on the test images; None in results of earlier versions.
        test_macro_f1: mean F1 of the classes on the test images; None in results of earlier versions.
        orbit_accuracy: share of the test images that is right by the model's mean over a group; None if not asked for.
        confusion: how many test images of a class (row) were taken for each; empty in results of earlier versions.
    """

    study: str
    budget: str
    run: str
    seed: int
    settings: Mapping[str, Any]
    data: str
    data_note: str
    data_digest: str
    train_images: int
    valid_images: int
    test_images: int
    test_accuracy: float
    valid_accuracy: float
    best_epoch: int | float
    parameters: int
    equivariance_error: float
    by_angle: Mapping[str, float]
    seconds: float
    environment: Mapping[str, str]
    finished: str
    test_balanced_accuracy: float | None = None
    test_macro_f1: float | None = None
    orbit_accuracy: float | None = None
    confusion: Sequence[Sequence[int]] = ()


def accuracy_on_test(result: Result) -> float:
    """Share of the test images that is right."""
    return result.test_accuracy


def mean_over_angles(result: Result) -> float:
    """Accuracy on the rotated test images, averaged over all angles."""
    return sum(result.by_angle.values()) / len(result.by_angle)


def worst_angle(result: Result) -> float:
    """Accuracy on the rotated test images, at the worst of all angles."""
    return min(result.by_angle.values())


def macro_f1_on_test(result: Result) -> float:
    """Mean F1 of the classes on the test images."""
    assert result.test_macro_f1 is not None
    return result.test_macro_f1


def accuracy_in_orbit(result: Result) -> float:
    """Share of the test images that is right by the mean over the study's group."""
    assert result.orbit_accuracy is not None
    return result.orbit_accuracy


def accuracy_of_parts(*parts: Sequence[int]) -> Callable[[Result], float]:
    """Of the test images of some classes that were taken for one of these, the share taken for one of the right part.

    Classes of the same part are not told apart.
    """

    def measure(result: Result) -> float:
        counts = [[sum(result.confusion[a][b] for a in true for b in said) for said in parts] for true in parts]
        return sum(row[i] for i, row in enumerate(counts)) / max(1, sum(map(sum, counts)))

    return measure


@dataclass(frozen=True)
class Cell:
    """A number of a table.

    Attributes:
        row: the label of its row.
        column: the label of its column.
        settings: what distinguishes its run from the other runs of the study.
        paper: the paper's number, in percent.
        measure: takes the result of a run to the number.
        most_seeds: how often its run is repeated at most; None if as often as the study says.
    """

    row: str
    column: str
    settings: Mapping[str, Any]
    paper: float | None = None
    measure: Callable[[Result], float] = accuracy_on_test
    most_seeds: int | None = None

    @property
    def key(self) -> str:
        """Names the run; cells with the same key share it.

        >>> Cell("R4_SA", "GE-ViT", {"model": "r4_sa", "encoding": "ge", "neighborhood": 5}).key
        'r4_sa-ge-5'
        """
        return "-".join(map(str, self.settings.values())).replace(":", "_")  # it is the name of a file, too


@dataclass(frozen=True)
class Study:
    """A table.

    Attributes:
        name: on the command line.
        title: says what is compared.
        recipe: which one of a budget trains the runs.
        row_title: what the rows are.
        cells: row by row.
        notes: what a reader has to know to judge the numbers.
        seeds: how many repetitions a budget of hours has time for.
        angles: in degrees; the accuracy on test images rotated by each of them is measured too.
        orbit: a group, such as d4; the accuracy of each model's mean over it is measured too.
        ordered: whether the rows are steps of one quantity, which a line may join.
        as_errors: whether the plot shows errors on a logarithmic axis: near 100 %, accuracies look alike.
        comparisons: pairs of rows whose difference in the first column is measured, seed by seed.
    """

    name: str
    title: str
    recipe: str
    row_title: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    seeds: int = 1
    angles: tuple[float, ...] = ()
    orbit: str = ""
    ordered: bool = True
    as_errors: bool = False
    comparisons: tuple[tuple[str, str], ...] = ()

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

    def only(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Study:
        """The same study with some of its rows and columns; with all of them where none are named."""
        for kind, chosen, there in (("row", rows, self.rows), ("column", columns, self.columns)):
            if unknown := [name for name in chosen if name not in there]:
                raise ValueError(f"{self.name} has no {kind} {unknown[0]!r}; choose of: {', '.join(map(repr, there))}")
        cells = tuple(
            cell for cell in self.cells if cell.row in (rows or self.rows) and cell.column in (columns or self.columns)
        )
        if not cells:
            raise ValueError(f"{self.name} has none of these columns in these rows")
        left = {cell.row for cell in cells}
        return replace(self, cells=cells, comparisons=tuple(pair for pair in self.comparisons if left.issuperset(pair)))
