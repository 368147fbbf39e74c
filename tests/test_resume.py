"""Runs that are killed and go on, in real processes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gevit.training.checkpoint import checkpoint_paths
from tests.running import (
    ONE_THREAD,
    PATIENCE,
    STEPS,
    TRAIN,
    At,
    Life,
    assert_same_run,
    die,
    last_checkpoint,
    rows,
    run_to_end,
    run_to_error,
    write_digits,
)

KILLS = 5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_digits(folder / "data")
    return folder


@pytest.fixture(scope="module")
def straight(home: Path) -> Path:
    run_to_end([*TRAIN, "--out", "straight"], home)
    assert len(rows(home / "straight" / "steps.csv")) == STEPS
    return home / "straight"


def last_step(run: Path) -> int:
    paths = checkpoint_paths(run / "checkpoints")
    return int(paths[0].stem.removeprefix("step-")) if paths else 0


PLACES = {
    "in a step, before the weights change": At("torch.nn.utils.clip_grad_norm_", 4, die),
    "in a step, while the weights change": At("gevit.training.optimizer.Muon.step", 5, die),
    "in validation": At("gevit.evaluation.evaluate.predict_logits", 2, die),
    "halfway through a checkpoint": At("pathlib.Path.write_bytes", 5, die, "checkpoints"),
    "before a checkpoint gets its name": At("pathlib.Path.replace", 5, die, "checkpoints"),
    "between a checkpoint and the removal of old ones": At("gevit.training.checkpoint.checkpoint_paths", 9, die),
    "halfway through the best model": At("pathlib.Path.write_bytes", 1, die, "model/.gevit"),
    "before the first checkpoint": At("gevit.training.loop.save_checkpoint", 1, die),
    "in the final test": At("gevit.training.finish.write_report", 1, die),
}


@pytest.mark.parametrize("place", PLACES)
def test_killed(home: Path, straight: Path, place: str) -> None:
    name = place.replace(" ", "-")
    life = Life([*TRAIN, "--out", name], home, PLACES[place])
    assert life.end() == -signal.SIGKILL, life.output
    said = run_to_end(["train", "--out", name, "--resume"], home)
    assert "warning" not in said  # a file is whole or not there
    assert_same_run(straight, home / name)


@dataclass(frozen=True)
class DieSoon:
    """Kill this process when it has saved so many steps more, and has then run for so long."""

    run: Path
    steps: int
    seconds: float

    def __call__(self) -> None:
        threading.Thread(target=self._watch, args=(last_step(self.run),), daemon=True).start()

    def _watch(self, begun: int) -> None:
        while last_step(self.run) - begun < self.steps:
            time.sleep(0.002)
        moment = time.process_time() + self.seconds
        while time.process_time() < moment:
            time.sleep(0.001)
        die()


def test_killed_at_random_times(home: Path) -> None:
    random.seed(2023)
    arguments = [*TRAIN, "--epochs", "6"]
    run_to_end([*arguments, "--out", "long"], home)
    with (home / "long" / "steps.csv").open() as file:
        step_seconds = 2 / max(float(line.rsplit(",", 1)[1]) for line in list(file)[1:])
    run = home / "often-killed"
    for kill in range(KILLS):
        in_start = kill == 2
        soon = DieSoon(
            run, 0 if in_start else random.randint(1, 2), random.random() * (0.4 if in_start else step_seconds)
        )
        life = Life([*arguments, "--out", run.name, *(["--resume"] if kill else [])], home, soon)
        assert life.end() == -signal.SIGKILL, life.output
    assert 0 < last_step(run) < last_step(home / "long")
    run_to_end([*arguments, "--out", run.name, "--resume"], home)
    assert_same_run(home / "long", run)


def test_killed_with_attention_over_rotations(home: Path) -> None:
    arguments = [*TRAIN, "--model", "r4_sa", "--limit-train", "6", "--epochs", "1", "--workers", "1"]
    run_to_end([*arguments, "--out", "r4"], home)
    life = Life([*arguments, "--out", "r4-killed"], home, At("gevit.training.optimizer.Muon.step", 3, die))
    assert life.end() == -signal.SIGKILL, life.output
    run_to_end(["train", "--out", "r4-killed", "--resume"], home)
    assert_same_run(home / "r4", home / "r4-killed")


# Stopping


def twice() -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(1.1)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_ends_the_step_and_saves_it(home: Path, straight: Path, number: signal.Signals) -> None:
    name = f"stopped-by-{number.name}"
    asked = At("gevit.training.loop.learning_rate", 5, partial(signal.raise_signal, number))
    life = Life([*TRAIN, "--checkpoint-seconds", "1000", "--out", name], home, asked)
    assert life.end() == 130, life.output
    assert life.output.splitlines()[-1] == (
        f"gevit train: stopped after step 5 of {STEPS}, nothing is lost; go on with: gevit train --out {name} --resume"
    )
    assert last_checkpoint(home / name).facts["progress"]["step"] == 5
    assert f"resuming after step 5 of {STEPS}" in run_to_end(["train", "--out", name, "--resume"], home)
    assert_same_run(straight, home / name)


def test_a_second_request_is_obeyed_at_once(home: Path, straight: Path) -> None:
    life = Life([*TRAIN, "--out", "at-once"], home, At("gevit.training.loop.learning_rate", 5, twice))
    assert life.end() == 130, life.output
    assert "Traceback" not in life.output
    assert life.output.splitlines()[-1] == ("gevit train: stopped at once; --resume goes on from the last checkpoint")
    assert last_step(home / "at-once") == 4
    run_to_end(["train", "--out", "at-once", "--resume"], home)
    assert_same_run(straight, home / "at-once")


def test_ctrl_c_in_a_terminal_reaches_the_workers_too(home: Path) -> None:
    """As a user has it: a process from nothing, and the signal goes to the whole group."""
    command = [sys.executable, "-m", "gevit", *TRAIN, "--epochs", "100", "--workers", "2", "--out", "terminal"]
    with subprocess.Popen(
        command, cwd=home, env=os.environ | ONE_THREAD, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while last_step(home / "terminal") < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert f"stopped after step {last_step(home / 'terminal')} of 300" in said.splitlines()[-1]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


# Going on


def fingerprint(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_is_not_overwritten(home: Path, straight: Path) -> None:
    before = fingerprint(straight)
    said = run_to_error([*TRAIN, "--out", "straight"], home)
    assert "there is a run in straight; go on with it by --resume" in said
    assert fingerprint(straight) == before


def test_what_makes_a_run_cannot_change(home: Path, straight: Path) -> None:
    before = fingerprint(straight)
    said = run_to_error(["train", "--out", "straight", "--resume", "--batch-size", "4"], home)
    assert "the run in straight has batch_size = 2, so it cannot be resumed with 4" in said
    assert fingerprint(straight) == before


def test_a_run_cannot_be_shorter_than_it_is(home: Path, straight: Path) -> None:
    before = fingerprint(straight)
    said = run_to_error(["train", "--out", "straight", "--resume", "--epochs", "1"], home)
    assert f"the run in straight has trained {STEPS} steps, more than --epochs 1 has" in said
    assert fingerprint(straight) == before


def test_a_finished_run_repeats_nothing(home: Path, straight: Path) -> None:
    before = fingerprint(straight / "checkpoints") | {"steps": (straight / "steps.csv").read_text()}
    said = [run_to_end(["train", "--out", "straight", "--resume", "--json"], home) for _ in range(2)]
    outcomes = [json.loads(text[text.index("{") :]) for text in said]
    assert outcomes[0] == outcomes[1]
    assert f"resuming after step {STEPS} of {STEPS}" in said[0]
    assert fingerprint(straight / "checkpoints") | {"steps": (straight / "steps.csv").read_text()} == before


def test_what_may_change_changes_from_there_on(home: Path) -> None:
    stop = At("gevit.training.loop.learning_rate", 2, partial(signal.raise_signal, signal.SIGINT))
    life = Life([*TRAIN, "--schedule", "constant", "--out", "changing"], home, stop)
    assert life.end() == 130, life.output
    run_to_end(["train", "--out", "changing", "--resume", "--lr", "1e-5", "--epochs", "1"], home)
    assert [row["lr"] for row in rows(home / "changing" / "steps.csv")] == ["0.02"] * 2 + ["1e-05"]
