"""A real pseudo-terminal in place of stderr, and what is written on it."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator

import pytest

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """What a program has written on a terminal."""

    def __init__(self) -> None:
        self.written = ""

    @property
    def lines(self) -> list[str]:
        """Every line that was to be seen at some time, without colours and trailing spaces."""
        texts = (CONTROL.sub("", text).rstrip() for text in re.split(r"\r\x1b\[2K|\r?\n|\r", self.written))
        return [text for text in texts if text]


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int, kind: str) -> Iterator[Terminal]:
    """Until the block ends, stderr is a terminal so many columns wide, of a kind such as `xterm` or `dumb`."""
    screen = Terminal()
    ours, theirs = os.openpty()

    def listen() -> None:
        # A terminal whose other side is closed is an error on Linux, and the end of a file elsewhere.
        with contextlib.suppress(OSError):
            while received := os.read(ours, 2**16):
                pieces.append(received)

    pieces: list[bytes] = []
    listener = threading.Thread(target=listen)
    listener.start()
    with monkeypatch.context() as patch, open(theirs, "w", encoding="utf-8") as stderr:
        patch.setattr("sys.stderr", stderr)
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", kind)
        patch.delenv("NO_COLOR", raising=False)
        yield screen
    listener.join()
    os.close(ours)
    screen.written = b"".join(pieces).decode()
