"""What a run leaves behind as it goes: `steps.csv`, `metrics.csv`, TensorBoard events, Weights & Biases if wanted.

TensorBoard's event files are written here and now: its own writer has a thread, and what fails there, as on a full
disk, cannot be caught.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gevit.files import write_aside

# What is known of a step or an epoch, by name.
Row = dict[str, int | float]
STEP_COLUMNS = ("step", "epoch", "lr", "loss", "accuracy", "gradient_norm", "images_per_second")
TENSORBOARD_EVERY = 10


class RunLog:
    """The logs of a run, continued from a step: what an interrupted run wrote after it is taken back.

    Args:
        folder: of the run.
        step: how many steps are done.
        config: the settings, for Weights & Biases.
        wandb_id: of the run at Weights & Biases; empty not to log there.
    """

    def __init__(self, folder: Path, step: int, config: Mapping[str, Any], wandb_id: str = "") -> None:
        self._folder = folder
        self._steps = _continue_csv(folder / "steps.csv", step)
        self._tensorboard = EventFile(folder / "tensorboard", step + 1)
        self._wandb = _start_wandb(folder, config, wandb_id) if wandb_id else None

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


class EventFile:
    """A new event file in a folder, which takes back what older ones say of the steps from `step` on.

    Args:
        folder: that TensorBoard is pointed to.
        step: the first one that will be written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}").open("wb")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def add(self, values: Mapping[str, int | float], step: int) -> None:
        """Write the values of a step."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        parts = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=parts))

    def flush(self) -> None:
        """Put everything on the disk."""
        self._file.flush()

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())


def _continue_csv(path: Path, step: int) -> Any:
    """`steps.csv` open for appending, with the rows up to a step; a last row cut short by a crash is dropped."""
    rows = []
    if step and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == len(STEP_COLUMNS) and row[0].isdigit()]
    with write_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([STEP_COLUMNS, *(row for row in rows if int(row[0]) <= step)])
    return path.open("a", newline="", encoding="utf-8")


def _start_wandb(folder: Path, config: Mapping[str, Any], id: str) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("logging to Weights & Biases needs its package: pip install wandb") from error
    return wandb.init(project="gevit", name=folder.name, id=id, dir=folder, config=dict(config), resume="allow")
