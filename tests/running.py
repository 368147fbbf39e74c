"""`gevit train` in processes of its own, to be killed, starved and resumed, and what remains of them compared.

A `Life` is forked from a server that has imported torch and Lightning already: a real process for a tenth of the time.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import multiprocessing
import os
import pkgutil
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file

from gevit.cli import main
from gevit.data import DataSet, load_digits
from gevit.data.dataset import MemorySplit
from gevit.data.digits import digit_set
from gevit.training.checkpoint import Checkpoint, newest_good_checkpoint
from gevit.training.config import TrainConfig
from gevit.training.loop import Run
from gevit.training.run_folder import LOCK
from gevit.training.setup import make_fabric
from gevit.training.stopping import Interrupt

# Small, but with everything that a run has to remember.
TRAIN = (
    *("train", "--model", "z2_sa", "--neighborhood", "3", "--data", "rotmnist-rebuilt", "--data-root", "data"),
    *("--batch-size", "2", "--epochs", "2", "--image-size", "22", "--rotate", "--ema", "0.9", "--schedule", "cosine"),
    *("--checkpoint-seconds", "0", "--accelerator", "cpu"),
)
STEPS = 6
OPTIMIZERS = [*TrainConfig.__dataclass_fields__["optimizer"].metadata["choices"]]
PATIENCE = 300
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# What may differ between two runs that are the same.
TIMES = {"seconds", "images_per_second", "epoch_seconds", "spent", "evaluation_seconds"}
NAMES = {"command", "run_id"}

_numbers = itertools.count()
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        *("pytest", "gevit.cli", "gevit.training.loop", "gevit.training.finish"),
        *("tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"),
    ]
)


class Life:
    """One process of `gevit`.

    Args:
        arguments: of the command line.
        home: its working folder; what it prints goes to a file there.
        prepare: called in the process before anything else, to have a fault happen at a certain place.
        environment: more variables.
        columns: of the terminal that it runs in; None for no terminal, but a file.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        home: Path,
        prepare: Callable[[], None] | None = None,
        environment: Mapping[str, str] | None = None,
        columns: int | None = None,
    ) -> None:
        self._printed = home / f"printed-{next(_numbers)}.txt"
        self._terminal = Terminal(columns, self._printed) if columns else None
        prints_to = self._terminal.path if self._terminal else self._printed
        self._process = _forks.Process(
            target=_live, args=(list(arguments), home, prints_to, prepare, dict(environment or {}))
        )
        with mock.patch.dict(os.environ, ONE_THREAD):  # the first start is that of the server
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def output(self) -> str:
        return self._printed.read_text()

    def end(self) -> int:
        """Wait for the exit code, which is minus the signal that killed it."""
        self._process.join(PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"still running after {PATIENCE} s; it said: {self.output}")
        if self._terminal:
            self._terminal.close()
        return self._process.exitcode


class Terminal:
    """A pseudo-terminal whose screen is a file.

    Attributes:
        path: its device.
    """

    def __init__(self, columns: int, screen: Path) -> None:
        self._ours, self._theirs = pty.openpty()
        termios.tcsetwinsize(self._theirs, (24, columns))
        self.path = Path(os.ttyname(self._theirs))
        self._reader = threading.Thread(target=self._read, args=(screen,), daemon=True)
        self._reader.start()

    def _read(self, screen: Path) -> None:
        with screen.open("wb") as file, contextlib.suppress(OSError):  # the end of a terminal is an error
            while text := os.read(self._ours, 4096):
                file.write(text)

    def close(self) -> None:
        """Once its process has ended."""
        os.close(self._theirs)
        self._reader.join(PATIENCE)
        os.close(self._ours)


def _live(
    arguments: list[str],
    home: Path,
    printed: Path,
    prepare: Callable[[], None] | None,
    environment: dict[str, str],
) -> None:
    multiprocessing.set_start_method(None, force=True)  # workers are forked from here, as those of a user's process are
    os.environ.pop("COLUMNS", None)  # the readline of pytest sets it, and it counts for more than the terminal
    os.environ.update(environment)
    os.chdir(home)
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    torch.set_num_threads(1)
    sys.argv = ["gevit", *arguments]
    if arguments[0] == "train":  # its report takes as long as the run, and has tests of its own; `reproduce` reads it
        mock.patch("gevit.training.finish.write_report").start()
    if prepare:
        prepare()
    sys.exit(main(arguments))


@dataclass(frozen=True)
class At:
    """Something that happens to this process at one call of a function.

    Attributes:
        function: where it is looked up, such as `pathlib.Path.replace`.
        call: which call, counted from 1.
        happens: what happens before the function goes on.
        on: only calls count whose first argument reads like this somewhere.
    """

    function: str
    call: int
    happens: Callable[[], object]
    on: str = ""

    def __call__(self) -> None:
        owner, name = self.function.rsplit(".", 1)
        original, calls = getattr(pkgutil.resolve_name(owner), name), itertools.count(1)

        def eventful(*arguments: Any, **options: Any) -> Any:
            if self.on in str(arguments[:1]) and next(calls) == self.call:
                if name == "write_bytes":
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2])
                self.happens()
            return original(*arguments, **options)

        setattr(pkgutil.resolve_name(owner), name, eventful)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def held_elsewhere(folder: Path) -> Iterator[None]:
    """While another process has the lock of a run's folder."""
    folder.mkdir(parents=True)
    code = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(); input()"
    words = [sys.executable, "-c", code, str(folder / LOCK)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.communicate("\n")


def run_to_end(arguments: Sequence[str], home: Path) -> str:
    """What a run that must end well prints."""
    life = Life(arguments, home)
    assert life.end() == 0, life.output
    return life.output


def run_to_error(arguments: Sequence[str], home: Path, prepare: Callable[[], None] | None = None) -> str:
    """The one line that a run which must fail says, after what it said before."""
    life = Life(arguments, home, prepare)
    assert life.end() == 2, life.output
    *before, line = life.output.splitlines()
    assert line.startswith("gevit train: error: "), life.output
    assert not any("Traceback" in other or "Exception" in other for other in before), life.output
    return line


def cold(arguments: Sequence[str], home: Path) -> subprocess.CompletedProcess[str]:
    """Run `gevit` as a user does, from nothing."""
    return subprocess.run(
        [sys.executable, "-m", "gevit", *arguments],
        cwd=home,
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def write_digits(root: Path, train: int = STEPS, valid: int = 4, test: int = 4) -> None:
    """A few real digits under the name `rotmnist-rebuilt`, which are opened in no time."""
    images, labels = load_digits()
    order = np.random.default_rng(0).permutation(len(labels))
    arrays: dict[str, Any] = {}
    for split, members in zip(
        ("train", "valid", "test"), np.split(order, np.cumsum((train, valid, test))), strict=False
    ):
        arrays[f"x_{split}"] = images[members, 0].numpy()
        arrays[f"y_{split}"] = labels[members].numpy()
    root.mkdir(parents=True, exist_ok=True)
    np.savez(root / "rotmnist_rebuilt.npz", **arrays)


def few_digits() -> DataSet:
    """A dozen real digits to train on, in memory."""
    images, labels = load_digits()
    train, valid, test = (
        MemorySplit(images[first::step], labels[first::step]) for first, step in ((0, 417), (1, 1250), (2, 1250))
    )
    return digit_set("digits", train, valid, test, "a few digits")


def make_run(folder: Path, data: DataSet, **settings: Any) -> Run:
    """A small run in this process."""
    config = TrainConfig(
        **{"model": "z2_cnn", "batch_size": 4, "epochs": 1, "accelerator": "cpu", "out": str(folder), **settings}
    )
    return Run(config, make_fabric(config), data, data.digest, time.monotonic())


def fitted(folder: Path, data: DataSet, **settings: Any) -> Run:
    """A small run in this process, when it is through."""
    run = make_run(folder, data, **settings)
    run.fit(Interrupt())
    return run


def last_checkpoint(run: Path) -> Checkpoint:
    checkpoint, faults = newest_good_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert not faults
    return checkpoint


def assert_same_run(one: Path, other: Path) -> None:
    """The same to the last bit: weights, optimizer, best model and logs, all but the times."""
    a, b = last_checkpoint(one), last_checkpoint(other)
    assert_same_tensors(a.tensors, b.tensors)
    assert without_times(a.facts) == without_times(b.facts)
    assert_same_tensors(load_file(one / "model.safetensors"), load_file(other / "model.safetensors"))
    for name in ("steps.csv", "metrics.csv"):
        assert rows(one / name) == rows(other / name)
    assert not [path.name for path in other.rglob(".*")]


def assert_same_tensors(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a log, without times."""
    with path.open(newline="") as file:
        return [without_times(row) for row in csv.DictReader(file)]


def without_times(facts: Any) -> Any:
    if isinstance(facts, Mapping):
        return {name: without_times(value) for name, value in facts.items() if name not in TIMES | NAMES}
    return [without_times(value) for value in facts] if isinstance(facts, list) else facts
