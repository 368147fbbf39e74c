"""Files that are whole or not there: written aside, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def write_aside(path: str | Path) -> Iterator[Path]:
    """A name beside `path`, with its suffix, to write to; it becomes `path` if the block ends well, else vanishes.

    Folders that `path` needs are made. What was at `path` stays until the new file is complete on disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "greeting.txt")
    ...     with write_aside(path) as aside:
    ...         _ = aside.write_text("hello")
    ...     path.read_text()
    'hello'
    """
    path = Path(path)
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or error
        raise OSError(f"cannot write {path}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
