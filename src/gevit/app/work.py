"""What the models compute, one thing after the other, in a queue that has an end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from starlette.requests import Request

Answer = TypeVar("Answer")

LONGEST_QUEUE = 32
LONGEST_GOODBYE = 5  # seconds


class Busy(Exception):  # noqa: N818 - it is no fault of the caller's
    """Too much is waiting already."""


class Gone(Exception):  # noqa: N818
    """Who asked has left."""


class Work:
    """A thread and a queue of what it is to do: torch gains nothing from more, and the event loop stays free."""

    def __init__(self, longest: int = LONGEST_QUEUE) -> None:
        """At most `longest` requests are waiting or in work."""
        self.longest = longest
        self._unfinished: list[Future[Any]] = []
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="gevit-work")
        self._thread.start()

    async def run(self, request: Request, function: Callable[..., Answer], *arguments: object) -> Answer:
        """The function's result; if the client leaves before its turn comes, it is not called.

        Raises:
            Busy: the queue is full.
            Gone: the client has left.
        """
        self._unfinished = [future for future in self._unfinished if not future.done()]
        if len(self._unfinished) >= self.longest:
            raise Busy("the lab is busy: too many requests are waiting; try again in a moment")
        future: Future[Answer] = Future()
        self._unfinished.append(future)
        self._tasks.put(partial(_fulfil, future, function, *arguments))
        answer, left = asyncio.wrap_future(future), asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Gone
            return answer.result()
        finally:
            left.cancel()
            answer.cancel()

    def close(self) -> None:
        """Drop what is waiting, and wait a moment for what is not: a process must not end amid a computation."""
        for future in self._unfinished:
            future.cancel()
        self._tasks.put(None)
        self._thread.join(LONGEST_GOODBYE)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


class Gate:
    """Admits a few at a time; others are refused, not kept waiting."""

    def __init__(self, most: int) -> None:
        """At most so many at a time."""
        self.most, self._inside = most, 0

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Hold a place; raises `Busy` if there is none."""
        if self._inside >= self.most:
            raise Busy("too many files are being uploaded; try again in a moment")
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


def _fulfil(future: Future[Answer], function: Callable[..., Answer], *arguments: object) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*arguments))
    except BaseException as error:
        future.set_exception(error)


async def _left(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
