"""What a person watching a run sees."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gevit.rendering.words import epoch_number, metric_text, printable
from gevit.training.config import TrainConfig
from gevit.training.log import Row

# A narrower terminal gets no more than fits on its line.
WIDE = 100
NOTHING_YET: dict[str, Any] = {"loss": "-", "speed": "-", "best": "-"}


class Display:
    """A progress bar over all steps on a terminal, and a line after each epoch everywhere.

    Args:
        config: of the run.
        visible: False on all processes but the first.
    """

    def __init__(self, config: TrainConfig, visible: bool) -> None:
        self.console = Console(stderr=True, quiet=not visible, soft_wrap=True)
        self._select = config.select
        self._epochs = f"/{config.epochs}" if config.epochs else ""
        details = (
            BarColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} images/s  best {task.fields[best]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            MofNCompleteColumn(),
            *(details if self.console.width >= WIDE else ()),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not visible or not self.console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, **NOTHING_YET)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def go_on(self, step: int, best: Row | None, steps: int | float) -> None:
        """Begin after some steps, of so many, that were done before, whose time is not counted."""
        # A reset replaces all fields of a task by those that it is given.
        self._progress.reset(self._task, completed=step, total=_whole(steps), **NOTHING_YET)
        if best:
            self._progress.update(self._task, best=self._best_text(best))

    def say(self, message: str) -> None:
        """A line of text."""
        self.console.print(printable(message), markup=False, highlight=False)

    def step(self, row: Row, steps: int | float) -> None:
        """Show the last step, of as many as it will be."""
        self._progress.update(
            self._task,
            completed=row["step"],
            total=_whole(steps),
            description=f"epoch {int(row['epoch'])}{self._epochs}",
            loss=f"{row['loss']:.3f}",
            speed=f"{row['images_per_second']:.0f}",
        )

    def validation(self, images: int) -> Callable[[int], None]:
        """Show how far a validation is: a function that is told how many images more are done."""
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._progress.update(self._task, description=f"validating {100 * done // images}%")

        return advance

    def epoch(self, row: Row, best: Row, is_best: bool) -> None:
        """Show an epoch's outcome."""
        number = f"epoch {epoch_number(row['epoch']):>3}{self._epochs}"
        self._progress.update(self._task, best=self._best_text(best), description=number)
        scores = f"acc {row['valid_accuracy']:.2%} F1 {row['valid_macro_f1']:.2%}"
        if self._select == "balanced_accuracy":
            scores += f" balanced {row['valid_balanced_accuracy']:.2%}"
        if self.console.is_terminal and self.console.width < WIDE:
            losses, pace = f"loss {row['train_loss']:.3f}, valid {row['valid_loss']:.3f}", ""
        else:
            losses = (
                f"train loss {row['train_loss']:.4f} acc {row['train_accuracy']:.2%}  "
                f"valid loss {row['valid_loss']:.4f}"
            )
            pace = f"  {row['images_per_second']:.0f} images/s"
        self.say(f"{number}  {losses} {scores}{pace}  {row['seconds']:.0f} s{'  *' if is_best else ''}")

    def _best_text(self, best: Row) -> str:
        return f"{metric_text(self._select, best[f'valid_{self._select}'])} (epoch {epoch_number(best['epoch'])})"

    @contextlib.contextmanager
    def bar(self, title: str, images: int) -> Iterator[Callable[[int], None]]:
        """A bar of its own, for what comes after training; yields a function that is told how many more are done."""
        with Progress(console=self.console, disable=self._progress.disable, transient=True) as progress:
            task = progress.add_task(title, total=images)
            yield lambda count: progress.update(task, advance=count)


def _whole(steps: int | float) -> int | None:
    return round(steps) if math.isfinite(steps) else None
