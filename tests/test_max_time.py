"""Runs with a budget of time, on a clock that goes on by what each step and each image is said to take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from gevit.data import DataSet
from gevit.evaluation import evaluate as evaluation
from gevit.training.config import TrainConfig
from gevit.training.finish import images_to_test
from gevit.training.loop import Run
from gevit.training.optimizer import learning_rate
from gevit.training.stopping import REPORT_SECONDS, Interrupt
from tests.running import few_digits, last_checkpoint, make_run, rows

SET_UP = 7.0  # seconds before a run's first step
SCHEDULES = [*TrainConfig.__dataclass_fields__["schedule"].metadata["choices"]]


class Machine:
    """A machine that takes so many seconds for a training step, and for evaluating an image."""

    def __init__(self, step: float, image: float) -> None:
        self.step, self.image = step, image
        self.now = 1000.0

    def run(self, folder: Path, data: DataSet, **settings: Any) -> Run:
        """A run of 3 steps an epoch, 4 images of a validation and 92 of a test."""
        run = make_run(folder, data, **{"epochs": None, "lr": 1e-3, **settings})
        run.restore()
        self.now += SET_UP
        return run

    def seconds(self, run: Run) -> float:
        """That the whole run takes, with what comes after its last step."""
        images = images_to_test(run.data, order=1)[0] + run.budget.rotated(run.state.progress)
        return run.budget.spent() + self.image * images + 0.5 * REPORT_SECONDS


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(5.0, 0.2)
    step, predict = Run._step, evaluation.predict_logits

    def slow_step(*arguments: Any) -> Any:
        machine.now += machine.step
        return step(*arguments)

    def slow_predict(model: nn.Module, images: torch.Tensor, *more: Any) -> torch.Tensor:
        machine.now += machine.image * len(images)
        return predict(model, images, *more)

    clock = SimpleNamespace(monotonic=lambda: machine.now)
    with (
        mock.patch("gevit.training.loop.time", clock),
        mock.patch("gevit.training.stopping.time", clock),
        mock.patch("tests.running.time", clock),
        mock.patch.object(Run, "_step", slow_step),
        mock.patch("gevit.evaluation.evaluate.predict_logits", slow_predict),
    ):
        yield machine


@pytest.fixture(scope="module")
def data() -> DataSet:
    return few_digits()


def course(run: Run) -> list[float]:
    """The learning rates, as shares of the peak."""
    return [float(row["lr"]) / run.config.peak_lr for row in rows(run.folder / "steps.csv")]


@pytest.mark.parametrize(("step", "image", "max_time"), [(5.0, 0.1, 150.0), (7.0, 0.01, 150.0), (6.0, 2.0, 400.0)])
@pytest.mark.parametrize("schedule", ["cosine", "one_cycle"])
def test_a_run_uses_its_time_and_its_schedule_ends_with_it(
    tmp_path: Path, data: DataSet, machine: Machine, step: float, image: float, max_time: float, schedule: str
) -> None:
    machine.step, machine.image = step, image
    run = machine.run(tmp_path, data, max_time=max_time, schedule=schedule)
    run.fit(Interrupt())
    assert 0.85 * max_time < machine.seconds(run) <= max_time
    rates = course(run)
    assert rates[-1] < 0.05
    top = rates.index(max(rates))
    assert rates[top] > 0.95
    assert top / len(rates) == pytest.approx(0.3 if schedule == "one_cycle" else 0.0, abs=0.1)
    assert all(later < before for before, later in itertools.pairwise(rates[top:]))


def test_a_part_of_an_epoch_is_validated_and_can_be_chosen(tmp_path: Path, data: DataSet, machine: Machine) -> None:
    machine.step, machine.image = 40.0, 0.5
    run = machine.run(tmp_path, data, max_time=155.0)
    run.fit(Interrupt())
    progress = run.state.progress
    assert 0 < progress.step < 3
    assert [row["epoch"] for row in progress.history] == [progress.step / 3]
    assert progress.best == progress.history[0]
    assert (tmp_path / "model.safetensors").exists()
    losses = [float(row["loss"]) for row in rows(tmp_path / "steps.csv")]
    assert progress.history[0]["train_loss"] == pytest.approx(sum(losses) / progress.step)
    assert machine.seconds(run) <= 155.0


def test_a_machine_that_becomes_slow_is_noticed(tmp_path: Path, data: DataSet, machine: Machine) -> None:
    run = machine.run(tmp_path, data, max_time=250.0, schedule="cosine")

    def slower(*_: object) -> None:
        if run.state.progress.step == 15:
            machine.step, machine.image = 12.0, 0.5

    with mock.patch.object(run.display, "step", slower):
        run.fit(Interrupt())
    assert 0.8 * 250 < machine.seconds(run) <= 250
    assert course(run)[-1] < 0.05


def test_what_ends_first_ends_the_run_and_its_schedule(tmp_path: Path, data: DataSet, machine: Machine) -> None:
    settings: dict[str, Any] = {"schedule": "trapezoid", "warmup_epochs": 2.0, "cooldown_epochs": 4.0, "epochs": 8}
    by_epochs = machine.run(tmp_path / "a", data, max_time=1e5, **settings)
    by_epochs.fit(Interrupt())
    planned = [learning_rate(TrainConfig(lr=1.0, **settings), step, 3) for step in range(24)]
    assert course(by_epochs) == pytest.approx(planned)
    machine.step = 10.0
    by_time = machine.run(tmp_path / "b", data, max_time=200.0, **settings)
    by_time.fit(Interrupt())
    rates = course(by_time)
    assert 10 < len(rates) < 20
    assert rates[-1] < 0.2
    assert rates.count(1.0) == pytest.approx(len(rates) / 4, abs=2)  # the shape is that of the run of 8 epochs
    assert machine.seconds(by_time) <= 200.0


def test_no_validation_takes_the_time_of_the_last_steps(tmp_path: Path, data: DataSet, machine: Machine) -> None:
    machine.step, machine.image = 10.0, 10.0  # a validation takes longer than an epoch
    run = machine.run(tmp_path, data, max_time=1700.0, schedule="cosine")
    run.fit(Interrupt())
    assert len(run.state.progress.history) >= 2
    assert course(run)[-1] < 0.1
    assert machine.seconds(run) <= 1700.0


def test_where_time_is_short_fewer_images_are_rotated_and_more_steps_made(
    tmp_path: Path, data: DataSet, machine: Machine
) -> None:
    """With all of them, there would be no time for a second step."""
    machine.step, machine.image = 2.0, 1.0
    as_they_are, rotated = images_to_test(data, order=1)
    max_time = REPORT_SECONDS + SET_UP + len(data.valid) * 5 + as_they_are + rotated
    run = machine.run(tmp_path, data, max_time=max_time)
    run.fit(Interrupt())
    assert 0 < run.budget.rotated(run.state.progress) <= 0.1 * max_time < rotated
    assert run.state.progress.step > 5
    assert machine.seconds(run) <= max_time


def test_time_that_is_too_short_is_said_and_still_gives_a_model(
    tmp_path: Path, data: DataSet, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    run = machine.run(tmp_path, data, max_time=5.0)
    run.fit(Interrupt())
    assert run.state.progress.step == 1
    assert run.state.best_weights
    assert "warning" in capsys.readouterr().err


def stop_after(run: Run, step: int) -> None:
    interrupt = Interrupt()

    def ask(*_: object) -> None:
        interrupt.requested = run.state.progress.step == step - 1

    with mock.patch.object(run.display, "step", ask), pytest.raises(KeyboardInterrupt, match=f"after step {step},"):
        run.fit(interrupt)


def test_a_resumed_run_has_the_rest_of_the_time(tmp_path: Path, data: DataSet, machine: Machine) -> None:
    settings: dict[str, Any] = {"max_time": 150.0, "schedule": "cosine"}
    stop_after(machine.run(tmp_path, data, **settings), 8)
    machine.now += 1e6  # of doing nothing
    again = machine.run(tmp_path, data, **settings)
    again.fit(Interrupt())
    assert 0.85 * 150 < machine.seconds(again) <= 150
    rates = course(again)
    assert rates[-1] < 0.05
    assert abs(rates[8] - rates[7]) < 0.2
    # When its time is over, it makes no more steps; with more time, it goes on.
    over = machine.run(tmp_path, data, **settings)
    over.fit(Interrupt())
    assert over.state.progress.step == len(rates)
    longer = machine.run(tmp_path, data, **settings | {"max_time": 220.0})
    longer.fit(Interrupt())
    assert 0.85 * 220 < machine.seconds(longer) <= 220
    epochs = [row["epoch"] for row in longer.state.progress.history]
    assert epochs == sorted(set(epochs))


def test_a_run_that_is_cut_before_its_first_validation_still_gives_a_model(
    tmp_path: Path, data: DataSet, machine: Machine
) -> None:
    with mock.patch("gevit.training.stopping.VALIDATION_SHARE", 0.0):  # as if a validation took most of the time left
        stop_after(machine.run(tmp_path, data, max_time=600.0), 4)
    assert not last_checkpoint(tmp_path).facts["progress"]["history"]
    cut = machine.run(tmp_path, data, max_time=600.0, epochs=1)
    cut.fit(Interrupt())
    assert [row["step"] for row in cut.state.progress.history] == [4]
    assert cut.state.best_weights
    assert len(rows(tmp_path / "metrics.csv")) == 1


def test_without_a_budget_the_clock_changes_nothing(tmp_path: Path, data: DataSet, machine: Machine) -> None:
    courses = []
    for speed in (1.0, 1e5):
        machine.step = speed
        run = machine.run(tmp_path / f"{speed}", data, epochs=2, schedule="cosine")
        run.fit(Interrupt())
        courses.append(course(run))
    assert courses[0] == courses[1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_by_the_clock_is_that_of_a_run_of_as_many_epochs(schedule: str) -> None:
    edges: dict[str, Any] = {"warmup_epochs": 1.0, "cooldown_epochs": 3.0 if schedule == "trapezoid" else 0.0}
    planned, timed = (TrainConfig(schedule=schedule, **edges, **end) for end in ({"epochs": 9}, {"max_time": 1.0}))
    for step in range(90):
        by_clock = learning_rate(timed, step, 10, share_of_time=step / 90)
        assert by_clock == pytest.approx(learning_rate(planned, step, 10), rel=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warm_up_and_cool_down_that_do_not_fit_shrink(schedule: str) -> None:
    edges: dict[str, Any] = {"warmup_epochs": 50.0, "cooldown_epochs": 50.0 if schedule == "trapezoid" else 0.0}
    config = TrainConfig(schedule=schedule, max_time=1.0, lr=1.0, **edges)
    rates = [learning_rate(config, step, 10, share_of_time=step / 40) for step in range(41)]
    assert all(0 <= rate <= 1 for rate in rates)
    assert max(rates) > 0.9
    if schedule == "trapezoid":
        assert rates[-1] == 0.0
    assert learning_rate(config, 0, 10, share_of_time=1.0) >= 0  # the time was over before the first step
