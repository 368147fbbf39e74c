"""The examination of a model on a set of images, in a thread of its own: it takes a while, and can be stopped."""

from __future__ import annotations

import copy
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gevit.app.pixels import as_base64, as_rgb
from gevit.app.scenes import Contender
from gevit.app.store import Recent
from gevit.app.work import LONGEST_GOODBYE, Busy
from gevit.data import DataSet
from gevit.data.dataset import choose
from gevit.evaluation.examination import Examination, LabelledImages, examine
from gevit.evaluation.examination_page import page
from gevit.evaluation.matching import ScoredImages
from gevit.models.base import EquivariantModel, info_of
from gevit.rendering.words import printable

SHOWN_IMAGES = 4  # of those of which the report shows the full turn
REMEMBERED = 4
BATCH = 16  # images at a time, after which it can be cancelled
LONGEST = 30 * 60  # seconds


class Stopped(Exception):  # noqa: N818 - wanted
    """The examination was cancelled."""


@dataclass
class Job:
    """An examination on its way.

    Attributes:
        state: `running`, `done`, `failed` or `cancelled`.
        share: how much of it is done.
        problem: why it failed.
        result: what was found.
        report: as a page.
    """

    name: str
    state: str = "running"
    share: float = 0.0
    problem: str = ""
    result: Examination | None = None
    report: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)

    def describe(self) -> dict[str, Any]:
        """For the page."""
        return {"examination": self.name, "state": self.state, "share": self.share, "problem": self.problem}


class Examinations:
    """Starts examinations, one at a time, and remembers the latest."""

    def __init__(self) -> None:
        self._jobs: Recent[str, Job] = Recent(REMEMBERED)
        self._latest: Job | None = None
        self._thread: threading.Thread | None = None

    def start(self, contender: Contender, open_data: Callable[[], DataSet], images: int) -> Job:
        """Examine a model on up to `images` test images of a set; raises `Busy` while another one is on its way."""
        if self.running:
            raise Busy("another examination is running; wait for it, or cancel it")
        job = Job(secrets.token_hex(8))
        self._latest = self._jobs[job.name] = job
        # A copy: the examination hooks into its model, and others go on asking it.
        model = copy.deepcopy(contender.model)
        arguments = (job, model, open_data, images)
        self._thread = threading.Thread(target=_run, args=arguments, daemon=True, name="gevit-examine")
        self._thread.start()
        return job

    @property
    def running(self) -> str | None:
        """The name of the one that is on its way."""
        return self._latest.name if self._latest and self._latest.state == "running" else None

    def get(self, name: str) -> Job | None:
        """The examination of this name."""
        return self._jobs.get(name)

    def close(self) -> None:
        """Stop what is running, and wait for it."""
        if self._latest and self._thread:
            self._latest.cancelled.set()
            self._thread.join(LONGEST_GOODBYE)


def _run(job: Job, model: EquivariantModel, open_data: Callable[[], DataSet], images: int) -> None:
    end = time.monotonic() + LONGEST

    def progress(share: float) -> None:
        job.share = share
        if job.cancelled.is_set():
            raise Stopped
        if time.monotonic() > end:
            raise ValueError(f"this took longer than {LONGEST // 60} minutes: use fewer images")

    try:
        scored = ScoredImages.of(info_of(model), open_data(), "test")
        chosen = scored.split.subset(choose(scored.split.labels, images))
        labelled = LabelledImages.of(scored.title, chosen, scored.doubts)
        names, pixels = labelled.some(SHOWN_IMAGES)
        job.result = examine(model, pixels, names, labelled, batch_size=BATCH, progress=progress)
        job.report = page([job.result])
        job.state = "done"
    except Stopped:
        job.state = "cancelled"
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        job.state, job.problem = "failed", str(error)
    except Exception:
        job.state, job.problem = "failed", "this is a bug in gevit; the terminal shows where"
        raise


def shown(result: Examination) -> dict[str, Any]:
    """What was found, for the page: numbers, and the pixels of the mistakes."""
    found = result.to_json() | {"equivariant": result.is_equivariant, "size": result.info.image_size}
    assert result.labelled is not None
    for image, facts in zip(result.labelled.mistakes, found["labelled"]["mistakes"], strict=True):
        facts["name"] = printable(image.name)  # that of a file may be no text
        facts["pixels"] = as_base64(as_rgb(image.pixels, result.info))
    del found["images"]
    return found
