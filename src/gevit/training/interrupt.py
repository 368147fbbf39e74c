"""Stopping when asked: the first Ctrl-C (or SIGTERM) lets the step end, the second one does not wait."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType, TracebackType

# torchrun passes on the Ctrl-C that its processes had from the terminal already: so soon it is the same one.
SAME_SECONDS = 1.0


class Interrupt:
    """While it is entered, signals to stop set `requested`."""

    def __init__(self) -> None:
        self.requested = False
        self._since = math.inf
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._since > SAME_SECONDS:
            raise KeyboardInterrupt("stopped at once; --resume goes on from the last checkpoint")
        if not self.requested:
            self.requested, self._since = True, time.monotonic()
