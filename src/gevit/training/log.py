"""What a run leaves behind as it goes: `steps.csv`, `metrics.csv`, TensorBoard events, Weights & Biases if wanted."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gevit.files import write_aside
from gevit.training.events import EventFile

# What is known of a step or an epoch, by name.
Row = dict[str, int | float]
STEP_COLUMNS = ("step", "epoch", "lr", "loss", "accuracy", "gradient_norm", "images_per_second")
TENSORBOARD_EVERY = 10


class RunLog:
    """The logs of a run, continued from a step: what an interrupted run wrote after it is taken back.

    Args:
        folder: of the run.
        name: of the run, for Weights & Biases.
        config: settings, for Weights & Biases.
        step: how many steps are done.
        wandb: whether to log to Weights & Biases.
    """

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], step: int, wandb: bool) -> None:
        self._folder = folder
        self._steps = _continue_csv(folder / "steps.csv", step)
        self._tensorboard = EventFile(folder / "tensorboard", step + 1)
        self._wandb = _start_wandb(folder, name, config) if wandb else None

    def step(self, row: Row) -> None:
        """Log one step."""
        csv.writer(self._steps).writerow([row[column] for column in STEP_COLUMNS])
        if row["step"] % TENSORBOARD_EVERY == 0:
            self._send(
                {f"train/{name}": row[name] for name in ("loss", "accuracy", "lr", "gradient_norm")}, row["step"]
            )

    def epoch(self, history: Sequence[Row]) -> None:
        """Log the last epoch of a history."""
        with write_aside(self._folder / "metrics.csv") as aside, aside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(history[-1]))
            writer.writeheader()
            writer.writerows(history)
        row = history[-1]
        self._send(
            {f"epoch/{name}": value for name, value in row.items() if name not in ("epoch", "step")}, row["step"]
        )

    def flush(self) -> None:
        """Put everything on the disk."""
        self._steps.flush()
        os.fsync(self._steps.fileno())
        self._tensorboard.flush()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finishes = [self._steps.close, self._tensorboard.close, *([self._wandb.finish] if self._wandb else [])]
        for finish in finishes:
            # On a full disk closing fails too; what is worth saying was said by the first error.
            with contextlib.suppress(OSError) if error else contextlib.nullcontext():
                finish()

    def _send(self, values: Row, step: int | float) -> None:
        self._tensorboard.add(values, int(step))
        if self._wandb is not None:
            self._wandb.log(values, step=int(step))


def _continue_csv(path: Path, step: int) -> Any:
    """`steps.csv` open for appending, with the rows up to a step; a last row cut short by a crash is dropped."""
    rows = []
    if step and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == len(STEP_COLUMNS) and row[0].isdigit()]
    with write_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([STEP_COLUMNS, *(row for row in rows if int(row[0]) <= step)])
    return path.open("a", newline="", encoding="utf-8")


def _start_wandb(folder: Path, name: str, config: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("logging to Weights & Biases needs its package: pip install wandb") from error
    return wandb.init(project="gevit", name=name, id=folder.name, dir=folder, config=dict(config), resume="allow")
