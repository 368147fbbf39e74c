"""TensorBoard's event files, written here and now.

TensorBoard's own writer has a thread; what fails there, as on a full disk, cannot be caught.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
