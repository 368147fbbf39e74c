"""Files that are whole or not there, folders that one process at a time may write to, and nothing but files read.

A file is written aside, under the name `.gevit-RANDOM.SUFFIX` in the same folder, and then renamed. A process that is
killed leaves that name behind; `is_left_over` knows it from the files of others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_ASIDE = re.compile(r"\.gevit-[0-9a-f]{16}(\.[^.]+)?")


@contextlib.contextmanager
def write_aside(path: str | Path) -> Iterator[Path]:
    """A name beside `path`, with its suffix, to write to; it becomes `path` if the block ends well, else vanishes.

    Folders that `path` needs are made. What was at `path` stays until the new file is complete on disk. A link stays,
    and the file that it leads to is replaced; what is no file (a device, a pipe) is refused with `OSError`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "greeting.txt")
    ...     with write_aside(path) as aside:
    ...         _ = aside.write_text("hello")
    ...     path.read_text()
    'hello'
    """
    path = Path(path)
    if obstacle := no_file_at(path):
        raise OSError(f"cannot write {path}: it is {obstacle}; name a file")
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    aside = target.with_name(f".gevit-{secrets.token_hex(8)}{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The name cannot be guessed, and must be new: nobody can lay a link there for us to follow.
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or error
        raise OSError(f"cannot write {path}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def no_file_at(path: Path) -> str | None:
    """What is at `path`, or where it links to, if that is something else than a file; None if a file can be there."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "a symbolic link that leads to itself" if error.errno == errno.ELOOP else None
    return None if stat.S_ISREG(mode) else _kind(mode)


def is_left_over(path: Path) -> bool:
    """Whether `write_aside` gave this name: if nobody is writing, a process was killed and left it half-written.

    >>> is_left_over(Path("run/.gevit-0123456789abcdef.json")), is_left_over(Path("run/.notes.2024.txt"))
    (True, False)
    """
    return _ASIDE.fullmatch(path.name) is not None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, an empty file that stays; it is released when the process ends, however it ends.

    Raises:
        BlockingIOError: another process holds it.
        OSError: something else than a file is there, or it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.name != "posix":
        yield
        return
    import fcntl

    try:
        # Neither truncated nor followed: what a link points to is not ours.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        wanted = "" if isinstance(error, PermissionError) else ", expected a file"
        raise OSError(error.errno, f"cannot lock {path}{wanted}: {_reason(error)}") from error
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise OSError(f"cannot lock {path}, expected a file: it is {_kind(os.fstat(lock).st_mode)}")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # forked workers do not inherit it, as they would flock's
        except (BlockingIOError, PermissionError) as error:
            raise BlockingIOError(
                f"another process is at work in {path.parent}; wait for it, or stop it, and start again"
            ) from error
        except OSError as error:
            raise OSError(
                error.errno, f"cannot lock {path}: {_reason(error)}; use a folder on a disk that has locks"
            ) from error
        yield
    finally:
        os.close(lock)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; a pipe, socket or device, which might never answer, is refused with `ValueError`."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise ValueError(f"expected a file, it is {_kind(mode)}")
    return os.fdopen(file, "rb")


def _reason(error: OSError) -> str:
    return "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)


def _kind(mode: int) -> str:
    names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")
