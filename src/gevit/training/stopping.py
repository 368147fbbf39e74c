"""What ends a run before its last epoch does: a signal, or the end of its time."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import NamedTuple

from gevit.rendering.words import duration
from gevit.training.checkpoint import Progress

# torchrun passes on the Ctrl-C that its processes had from the terminal already: so soon it is the same one.
SAME_SECONDS = 1.0

# A run aims to be done when this share of its time is over: machines do other things too.
USED_SHARE = 0.95
REPORT_SECONDS = 6.0
# A validation that would take more than this share of the time that is left is put off to the end.
VALIDATION_SHARE = 0.5
# Images rotated by so many angles are tested in this share of the time at most: they are for a curve, and a few do for
# its shape.
ANGLES, ROTATED_SHARE = 12, 0.1


class Interrupt:
    """While it is entered, signals to stop set `requested`: the first lets the step end, the second does not wait.

    Signals come to the main thread; in another one there is nothing to hear.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = math.inf
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
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


class Moment(NamedTuple):
    """Where in its time a run is, before a step.

    Attributes:
        share: of the time for training that is over, from 0 to 1.
        is_last: whether there is no time for another step after this one.
        may_validate: whether a validation after this step leaves enough time for more steps.
    """

    share: float = 0.0
    is_last: bool = False
    may_validate: bool = True


class Budget:
    """The time of a run, from its start to its report, over all processes that it was resumed by.

    What comes after the last step (a validation, the test, the report) is set aside, as long as evaluating an image was
    measured to take.

    Args:
        seconds: for everything; None for no limit.
        began: when this process's part of it began, by `time.monotonic()`.
        valid_images: of a validation, on this process.
        test_images: of the final test.
        rotated_images: rotated ones besides, at most.
    """

    def __init__(
        self, seconds: float | None, began: float, valid_images: int, test_images: int, rotated_images: int
    ) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.spent_before = 0.0  # by processes before this one
        self.last_step = 0.0  # seconds of it
        self._began = began
        self.valid_images, self._test_images, self._rotated_images = valid_images, test_images, rotated_images

    def spent(self) -> float:
        """Seconds of it that are over."""
        return self.spent_before + time.monotonic() - self._began

    def rotated(self, progress: Progress) -> int:
        """How many rotated images are tested: fewer where time is short."""
        most = ROTATED_SHARE * self.seconds / progress.evaluation_seconds if progress.evaluation_seconds else math.inf
        return int(min(self._rotated_images, max(ANGLES, most)))

    def after(self, progress: Progress) -> float:
        """Seconds that what comes after the last step will take."""
        images = self.valid_images + self._test_images + self.rotated(progress)
        return REPORT_SECONDS + images * progress.evaluation_seconds

    def moment(self, progress: Progress) -> Moment:
        """Where the run is, before its next step."""
        left = USED_SHARE * self.seconds - self.spent() - self.after(progress)
        step = max(self.last_step, progress.seconds / progress.step) if progress.step else 0.0
        validation = self.valid_images * progress.evaluation_seconds
        share = progress.seconds / (progress.seconds + left) if left > 0 else 1.0
        return Moment(share, left < 2 * step or left <= 0, VALIDATION_SHARE * (left - step) > validation)

    def last_words(self, progress: Progress) -> str:
        """What to say before the last step."""
        after = self.after(progress)
        words = f"the time for training is over; validation, test and report take about {duration(after)}"
        if (excess := self.spent() + after - self.seconds) > 0:
            words = (
                f"warning: {words}, which is {duration(excess)} more than there is of --max-time "
                f"{duration(self.seconds)}; --limit-valid and --limit-test make it shorter"
            )
        return words
