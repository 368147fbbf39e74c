"""Two processes on one machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.running import (
    ONE_THREAD,
    PATIENCE,
    STEPS,
    TRAIN,
    At,
    Life,
    assert_same_run,
    cold,
    die,
    last_checkpoint,
    rows,
    run_to_end,
    write_digits,
)

# Without dropout, whose random numbers are each process's own.
ARGUMENTS = (*TRAIN, "--dropout", "0", "--devices", "2")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_digits(folder / "data", train=2 * STEPS, valid=5)
    return folder


def pair(
    arguments: list[str], home: Path, prepare: Callable[[], None] | None = None, other_home: Path | None = None
) -> list[Life]:
    """Two processes as torchrun starts them; the second one is prepared, and may be on another machine's disk."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
    }
    return [
        Life(arguments, place, prepare if rank else None, common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank, place in enumerate((home, other_home or home))
    ]


@pytest.fixture(scope="module")
def shared(home: Path) -> Path:
    """A run that two processes did together."""
    first, second = pair([*ARGUMENTS, "--batch-size", "4", "--out", "shared"], home)
    assert (first.end(), second.end()) == (0, 0), first.output + second.output
    assert "epoch" not in second.output  # the first one speaks for both
    return home / "shared"


def losses(run: Path) -> torch.Tensor:
    return torch.tensor([float(row["loss"]) for row in rows(run / "steps.csv")])


@pytest.mark.parametrize("accumulate", ["1", "2"])
def test_two_processes_learn_as_one_does(home: Path, shared: Path, accumulate: str) -> None:
    name = f"alone-{accumulate}"
    run_to_end([*ARGUMENTS, "--devices", "1", "--batch-size", "4", "--accumulate", accumulate, "--out", name], home)
    torch.testing.assert_close(losses(home / name), losses(shared), rtol=1e-4, atol=0)
    alone, together = (rows(run / "metrics.csv") for run in (home / name, shared))
    for one, other in zip(alone, together, strict=True):
        assert float(one["valid_loss"]) == pytest.approx(float(other["valid_loss"]), rel=1e-4)
        assert one["valid_accuracy"] == other["valid_accuracy"]


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not list((run / "checkpoints").glob(f"step-*{step}.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_under_torchrun_then_resume_with_devices(home: Path, shared: Path) -> None:
    """Both ways to start two processes, and between them they end where an undisturbed pair does, bit for bit."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gevit"]
    with subprocess.Popen(
        [*launcher, *ARGUMENTS, "--batch-size", "4", "--out", "launched"],
        cwd=home,
        env=os.environ | ONE_THREAD,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for_step(home / "launched", 2, process)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    step = last_checkpoint(home / "launched").facts["progress"]["step"]
    assert f"stopped after step {step} of {STEPS}, nothing is lost" in said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)

    resumed = cold(["train", "--out", "launched", "--resume"], home)
    assert resumed.returncode == 0, resumed.stderr
    assert (home / "launched" / "report.html").exists()
    assert f"resuming after step {step} of {STEPS}" in resumed.stderr
    assert_same_run(shared, home / "launched")


def test_a_request_to_one_process_stops_both_and_they_go_on_without_a_shared_disk(
    home: Path, shared: Path, tmp_path: Path
) -> None:
    asked = At("gevit.training.loop.learning_rate", 3, partial(signal.raise_signal, signal.SIGTERM))
    lives = pair([*ARGUMENTS, "--batch-size", "4", "--out", "asked"], home, asked)
    assert [life.end() for life in lives] == [130, 130]
    assert f"stopped after step 3 of {STEPS}" in lives[0].output
    # The other machine has the data, and of the run nothing, or what was left of another one under the same name.
    shutil.copytree(home / "data", tmp_path / "data")
    shutil.copytree(shared, tmp_path / "asked")
    before = sorted(path.name for path in (tmp_path / "asked" / "checkpoints").iterdir())
    lives = pair(["train", "--out", "asked", "--resume"], home, other_home=tmp_path)
    assert [life.end() for life in lives] == [0, 0], lives[0].output + lives[1].output
    assert_same_run(shared, home / "asked")
    assert sorted(path.name for path in (tmp_path / "asked" / "checkpoints").iterdir()) == before


def test_machines_with_different_data_are_refused(home: Path, tmp_path: Path) -> None:
    write_digits(tmp_path / "data", train=2 * STEPS, valid=4)
    lives = pair([*ARGUMENTS, "--batch-size", "4", "--out", "different"], home, other_home=tmp_path)
    assert [life.end() for life in lives] == [2, 2]
    assert "process 1" in lives[0].output
    assert "same data" in lives[0].output.splitlines()[-1]
    assert not (home / "different").exists()


def test_a_killed_process_ends_the_other_one(home: Path) -> None:
    killed = At("gevit.training.loop.learning_rate", 3, die)
    lives = pair([*ARGUMENTS, "--batch-size", "4", "--out", "killed"], home, killed)
    assert [life.end() for life in lives] == [2, -signal.SIGKILL]
    assert "another process of this run failed or was killed. Nothing is lost" in lives[0].output.splitlines()[-1]
    assert "Traceback" not in lives[0].output
    assert last_checkpoint(home / "killed").facts["progress"]["step"] == 2


def test_what_the_first_process_finds_wrong_stops_the_second(home: Path, shared: Path) -> None:
    lives = pair([*ARGUMENTS, "--batch-size", "4", "--out", "shared"], home)
    assert [life.end() for life in lives] == [2, 2]
    assert "there is a run in shared" in lives[0].output
    assert "error" not in lives[1].output


def test_a_batch_that_cannot_be_shared(home: Path) -> None:
    lives = pair([*ARGUMENTS, "--batch-size", "3", "--out", "odd"], home)
    assert [life.end() for life in lives] == [2, 2]
    assert "multiple of processes x accumulate = 2 x 1, got 3" in lives[0].output
