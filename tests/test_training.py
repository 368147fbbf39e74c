from __future__ import annotations

import dataclasses
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from gevit import create_model
from gevit.data import DataSet
from gevit.data.dataset import MemorySplit
from gevit.environment import joined
from gevit.evaluation import evaluate as evaluation
from gevit.evaluation.metrics import Evaluation, tally
from gevit.models.info import ModelInfo
from gevit.persistence import save
from gevit.training.checkpoint import Progress, RunState
from gevit.training.config import TrainConfig
from gevit.training.loop import NonFiniteError, train
from gevit.training.optimizer import learning_rate, make_optimizer
from gevit.training.run_folder import FIXED, LOCK, held
from gevit.training.setup import describe_model, open_data, preset_for, take_weights
from gevit.training.stopping import Interrupt
from tests.running import (
    OPTIMIZERS,
    assert_same_run,
    assert_same_tensors,
    few_digits,
    fitted,
    held_elsewhere,
    last_checkpoint,
    make_run,
    rows,
)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return few_digits()


# The learning rate


def rates(**settings: Any) -> list[float]:
    config = TrainConfig(**{"lr": 0.5, "epochs": 10, "schedule": "constant", **settings})
    return [learning_rate(config, step, steps_per_epoch=10) for step in range(100)]


def test_a_constant_rate_is_constant_after_its_linear_rise() -> None:
    assert rates() == [0.5] * 100
    warmed = rates(warmup_epochs=2.0)
    assert warmed[20:] == [0.5] * 80
    torch.testing.assert_close(torch.tensor(warmed[:20]), 0.5 * torch.arange(1, 21) / 20)


@pytest.mark.parametrize("warmup", [0.0, 3.0])
def test_cosine_goes_down_from_the_peak_to_nearly_nothing(warmup: float) -> None:
    falling = rates(schedule="cosine", warmup_epochs=warmup)[int(10 * warmup) :]
    assert falling[0] == pytest.approx(0.5)
    assert falling == sorted(falling, reverse=True)
    assert 0 < falling[-1] < 0.5 * 1e-3
    assert falling[len(falling) // 2] == pytest.approx(0.25)


@pytest.mark.parametrize(("warmup", "top"), [(0.0, 30), (5.0, 50)])
def test_one_cycle_goes_up_then_down(warmup: float, top: int) -> None:
    cycle = rates(schedule="one_cycle", warmup_epochs=warmup)
    assert cycle[0] == pytest.approx(0.5 / 25)
    assert cycle.index(max(cycle)) == top
    assert max(cycle) == pytest.approx(0.5)
    assert cycle[: top + 1] == sorted(cycle[: top + 1])
    assert cycle[top:] == sorted(cycle[top:], reverse=True)
    assert 0 < cycle[-1] < 0.5 * 2e-3


def test_a_trapezoid_falls_straight_in_its_last_epochs() -> None:
    course = rates(schedule="trapezoid", warmup_epochs=1.0, cooldown_epochs=4.0)
    assert course[:60] == [*rates(warmup_epochs=1.0)[:60]]
    torch.testing.assert_close(torch.tensor(course[60:]), 0.5 * torch.arange(40, 0, -1) / 40)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one_cycle", "trapezoid"])
@pytest.mark.parametrize("warmup", [0.0, 0.01, 0.12, 10.0])
def test_every_rate_is_positive_and_at_most_the_peak(schedule: str, warmup: float) -> None:
    assert all(0 < rate <= 0.5 for rate in rates(schedule=schedule, warmup_epochs=warmup))


# A step


def test_the_moving_average_is_that_of_a_hand_computation() -> None:
    model = nn.Linear(3, 2)
    state = RunState(model, SGD(model.parameters(), 0.1), ema_decay=0.6, data="")
    assert state.average is not None
    expected = torch.zeros(2, 3)
    for step in range(20):
        with torch.no_grad():
            model.weight.normal_()
        state.average.update_parameters(model)
        weight = 1.0 if step == 0 else max(0.4, 9 / (10 + step))
        expected = expected + weight * (model.weight.detach() - expected)
    assert isinstance(state.kept_model, nn.Linear)
    assert state.kept_model is not model
    torch.testing.assert_close(state.kept_model.weight, nn.Parameter(expected))


def test_the_average_is_what_is_validated_and_kept(tmp_path: Path, data: DataSet) -> None:
    run = fitted(tmp_path, data, ema=0.9)
    assert run.state.average is not None
    assert_same_tensors(run.state.best_weights, run.state.average.module.state_dict())


def test_the_average_of_a_model_with_batch_norm_has_statistics_that_fit_it() -> None:
    linear, norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
    model = nn.Sequential(linear, norm)
    # An average over many more steps than the ten or so of a batch norm's own.
    state = RunState(model, SGD(model.parameters(), 0.1), ema_decay=0.995, data="")
    assert state.average is not None
    images = torch.randn(8, 4) + 2
    for _ in range(1500):  # weights that jump about a centre, as those of a training run at a large learning rate do
        with torch.no_grad():
            linear.weight.copy_(torch.ones(3, 4) + 0.5 * torch.randn(3, 4))
        model(images)
        state.average.update_parameters(model)
    kept: Any = state.kept_model
    needed = kept[0](images).mean(0)
    error, present = ((mean - needed).abs().mean() for mean in (kept[1].running_mean, norm.running_mean))
    assert error < 0.5 * present
    assert kept[1].num_batches_tracked == norm.num_batches_tracked == 1500


@pytest.mark.parametrize("accumulate", [2, 4])
def test_a_batch_in_parts_gives_the_same_step(tmp_path: Path, data: DataSet, accumulate: int) -> None:
    options = {"model": "z2_sa", "neighborhood": 3, "dropout": 0.0, "optimizer": "sgd", "lr": 1e-5}
    whole, parts = (fitted(tmp_path / str(n), data, accumulate=n, **options) for n in (1, accumulate))
    losses = [[float(row["loss"]) for row in rows(run.folder / "steps.csv")] for run in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    first = [float(rows(run.folder / "steps.csv")[0]["gradient_norm"]) for run in (whole, parts)]
    assert first[0] == pytest.approx(first[1], rel=1e-3)


def test_label_smoothing_reaches_the_loss(tmp_path: Path, data: DataSet) -> None:
    run = make_run(tmp_path, data, dropout=0.0, label_smoothing=0.3)
    images, labels = run.batches[0]
    run.state.model.train()
    with torch.no_grad():
        expected = F.cross_entropy(run.state.model(images), labels, label_smoothing=0.3).item()
    run.fit(Interrupt())
    assert float(rows(tmp_path / "steps.csv")[0]["loss"]) == pytest.approx(expected, rel=1e-5)


def test_clip_norm_bounds_the_change_of_the_weights(tmp_path: Path, data: DataSet) -> None:
    settings = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 12}
    run = make_run(tmp_path, data, clip_norm=1e-3, **settings)
    before = nn.utils.parameters_to_vector(run.state.model.parameters()).detach().clone()
    run.fit(Interrupt())
    after = nn.utils.parameters_to_vector(run.state.model.parameters()).detach()
    assert (after - before).norm().item() == pytest.approx(0.1 * 1e-3, rel=1e-2)
    assert float(rows(tmp_path / "steps.csv")[0]["gradient_norm"]) > 1e-3  # as it was before clipping


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_settings_reach_the_optimizer(optimizer: str) -> None:
    config = TrainConfig(optimizer=optimizer, weight_decay=0.25, momentum=0.5, lr=0.125)
    made = make_optimizer(config, create_model("z2_cnn"))
    assert type(made).__name__.lower() == optimizer
    assert made.defaults["weight_decay"] == 0.25
    assert made.defaults["lr"] == 0.125
    assert made.defaults.get("momentum", 0.5) == 0.5


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # some processors lack it, and torch takes another way
@pytest.mark.parametrize("settings", [{"model": "z2_cnn"}, {"model": "r4_sa", "neighborhood": 3, "batch_size": 12}])
def test_bfloat16_trains(tmp_path: Path, data: DataSet, settings: dict[str, Any]) -> None:
    run = fitted(tmp_path, data, precision="bf16-mixed", **settings)
    assert all(math.isfinite(float(row["loss"])) for row in rows(tmp_path / "steps.csv"))
    assert {tensor.dtype for tensor in run.state.model.parameters()} == {torch.float32}


def test_the_same_seed_gives_the_same_run_and_another_one_does_not(tmp_path: Path, data: DataSet) -> None:
    settings = {"model": "z2_sa", "neighborhood": 3, "rotate": True, "flip": True}
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        torch.manual_seed(len(name))  # nothing depends on the state that the caller's randomness is in
        fitted(tmp_path / name, data, seed=seed, **settings)
    assert_same_run(tmp_path / "one", tmp_path / "same")
    one, other = (last_checkpoint(tmp_path / name).tensors for name in ("one", "other"))
    assert not any(torch.equal(one[name], other[name]) for name in one if name.endswith("classes.weight"))


def test_workers_get_the_training_images_alone(tmp_path: Path, data: DataSet) -> None:
    batches = pickle.dumps(make_run(tmp_path, data).batches)
    assert len(pickle.dumps(data.train)) < len(batches) < len(pickle.dumps(data.train)) + len(pickle.dumps(data.test))


def test_workers_change_nothing(tmp_path: Path, data: DataSet) -> None:
    for workers in (0, 1):
        fitted(tmp_path / str(workers), data, workers=workers, rotate=True)
    assert_same_run(tmp_path / "0", tmp_path / "1")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_gradient_stops_before_the_weights_change(tmp_path: Path, data: DataSet, bad: float) -> None:
    run = make_run(tmp_path, data)
    parameter = next(run.state.model.parameters())
    parameter.register_hook(lambda gradient: gradient * bad)
    before = {name: tensor.clone() for name, tensor in run.state.model.named_parameters()}
    with pytest.raises(NonFiniteError, match=r"step 1 \(learning rate 0.02\).*--lr"):
        run.fit(Interrupt())
    assert_same_tensors(before, dict(run.state.model.named_parameters()))


def test_a_validation_loss_that_is_no_number_is_never_the_best() -> None:
    model = nn.Linear(1, 1)
    state = RunState(model, SGD(model.parameters(), 0.1), 0.0, "")
    for loss, is_best in ((math.nan, True), (2.0, True), (math.nan, False), (2.5, False), (1.5, True)):
        assert state.keep_best({"valid_accuracy": 0.1, "valid_loss": loss}) is is_best
    assert not state.keep_best({"valid_accuracy": 0.0, "valid_loss": 0.1})


# What four epochs are made out to confuse, and their losses: each is the best by another figure.
EPOCHS = {
    "accuracy": ([[18, 0, 0], [1, 0, 0], [1, 0, 0]], 3.0),
    "balanced_accuracy": ([[6, 6, 6], [0, 1, 0], [0, 0, 1]], 2.0),
    "macro_f1": ([[14, 2, 2], [0, 1, 0], [0, 1, 0]], 2.0),
    "loss": ([[0, 9, 9], [1, 0, 0], [1, 0, 0]], 1.0),
}


@pytest.mark.parametrize("select", EPOCHS)
def test_the_epoch_is_chosen_by_the_figure_that_was_asked_for(tmp_path: Path, data: DataSet, select: str) -> None:
    results = [tally(torch.tensor(confusion), loss) for confusion, loss in EPOCHS.values()]
    run = make_run(tmp_path, data, epochs=4, batch_size=12, select=select)
    with mock.patch.object(run, "_validate", side_effect=results):
        run.fit(Interrupt())
    assert run.state.progress.best is not None
    assert run.state.progress.best["epoch"] == 1 + list(EPOCHS).index(select)
    assert [float(row[f"valid_{select}"]) for row in rows(tmp_path / "metrics.csv")] == pytest.approx(
        [getattr(result, select) for result in results]
    )


@pytest.mark.parametrize(("settings", "message"), [
    ({"batch_size": 13}, "batch_size is 13, but there are only 12 training images"),
    ({"batch_size": 4, "accumulate": 3}, r"multiple of processes x accumulate = 1 x 3, got 4"),
])  # fmt: skip
def test_batches_that_cannot_be(tmp_path: Path, data: DataSet, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_run(tmp_path, data, **settings)


# Stopping


def test_one_signal_asks_and_the_next_insists(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert not interrupt.requested
        for _ in range(2):  # a launcher passes on what came from the terminal
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested
        monkeypatch.setattr("gevit.training.stopping.SAME_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_request_to_stop_leaves_a_checkpoint_of_that_step(tmp_path: Path, data: DataSet) -> None:
    interrupt = Interrupt()
    interrupt.requested = True
    with pytest.raises(KeyboardInterrupt, match=r"after step 1 of 3.*--resume"):
        make_run(tmp_path, data, checkpoint_seconds=1e6).fit(interrupt)
    assert last_checkpoint(tmp_path).facts["progress"]["step"] == 1


def test_the_command_that_goes_on_can_be_copied(tmp_path: Path, data: DataSet) -> None:
    run, interrupt = make_run(tmp_path / "a run", data), Interrupt()
    interrupt.requested = True
    with pytest.raises(KeyboardInterrupt, match=f"go on with: gevit train --out '{tmp_path}/a run' --resume$"):
        run.fit(interrupt)
    assert run.way_on(" --lr 1") == f"`gevit train --out '{tmp_path}/a run' --resume --lr 1`"


def test_a_request_after_the_last_step_is_heard_before_the_test(tmp_path: Path, data: DataSet) -> None:
    interrupt, run = Interrupt(), make_run(tmp_path, data)

    def ask(*_: object) -> Evaluation:
        interrupt.requested = True
        return tally(torch.eye(10).long(), loss=1.0)

    with mock.patch.object(run, "_validate", ask), pytest.raises(KeyboardInterrupt, match="after step 3 of 3"):
        run.fit(interrupt)
    assert last_checkpoint(tmp_path).facts["progress"]["step"] == 3


# The folder of a run


@pytest.mark.skipif(os.name != "posix", reason="locks are POSIX ones")
def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    config = TrainConfig(out=str(tmp_path / "run"))
    with held_elsewhere(config.folder), pytest.raises(OSError, match="another process"), held(config, resume=False):
        pass
    with held(config, resume=False):
        pass


def test_only_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    for name in (".gevit-0123456789abcdef.safetensors", ".notes.2024.txt", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".gevit-fedcba9876543210.safetensors").touch()
    with held(TrainConfig(out=str(tmp_path)), resume=True):
        pass
    assert {path.name for path in tmp_path.rglob(".*")} == {".hidden", ".notes.2024.txt"}


SMALL: dict[str, Any] = {"model": "z2_cnn", "limit_train": 16, "limit_valid": 10, "limit_test": 10, "epochs": 1}


@pytest.fixture
def reported() -> Iterator[mock.Mock]:
    """In place of the report, which takes longer than these runs."""
    with mock.patch("gevit.training.finish.write_report") as write:
        yield write


def test_the_folder_is_held_until_the_report_is_written(tmp_path: Path, reported: mock.Mock) -> None:
    config = TrainConfig(**SMALL, out=str(tmp_path / "run"))
    said: list[str] = []
    script = (
        "import sys; from gevit.files import locked; from pathlib import Path; locked(Path(sys.argv[1])).__enter__()"
    )

    def write(folder: Path, record: object) -> None:
        other = subprocess.run([sys.executable, "-c", script, str(folder / LOCK)], capture_output=True, text=True)
        said.append(other.stderr)

    reported.side_effect = write
    train(config)
    assert "another process" in said[0]


def test_a_run_in_a_thread_is_the_run_in_the_main_one(tmp_path: Path, reported: mock.Mock) -> None:
    outcomes: list[dict[str, Any]] = []
    configs = [TrainConfig(**SMALL, out=str(tmp_path / name)) for name in ("main", "thread")]
    train(configs[0])
    thread = threading.Thread(target=lambda: outcomes.append(train(configs[1])))
    thread.start()
    thread.join()
    assert outcomes
    assert_same_run(configs[0].folder, configs[1].folder)


def test_a_limited_run_says_how_much_of_the_data_it_had(tmp_path: Path, reported: mock.Mock) -> None:
    train(TrainConfig(**SMALL, out=str(tmp_path / "run")))
    title = reported.call_args.args[1].title
    assert all(words in title for words in ("z2_cnn", "digits", "16 of 4,000 training", "10 of 500 test"))
    assert open_data(TrainConfig(limit_train=10**6))[1] == "digits"


def test_a_limited_run_knows_the_data_that_it_was_cut_from() -> None:
    """Those may change, and then have other test images."""
    whole = open_data(TrainConfig())[0]
    for config in (TrainConfig(limit_train=10), TrainConfig(limit_valid=10), TrainConfig(limit_test=10)):
        data, _, origin = open_data(config)
        assert data.digest != origin == whole.digest
        assert describe_model(config, data, origin).trained["data_digest"] == whole.digest


def test_the_name_of_a_folder_does_not_choose_the_architecture() -> None:
    for folder in ("photos", "pictures/small", "nano", "pictures/rotmnist", "digits/"):
        assert preset_for(TrainConfig(data=folder, model="r4_sa"), 28) == "tiny"
    for named, preset in (
        ("digits", "rotmnist"),
        ("rotmnist-rebuilt", "rotmnist"),
        ("pcam", "pcam"),
        ("eurosat", "tiny"),
    ):
        assert preset_for(TrainConfig(data=named, model="r4_sa"), 64 if named == "eurosat" else 28) == preset


@pytest.mark.parametrize("out", ["file", "file/run"])
def test_a_folder_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    config = TrainConfig(data="digits", out=str(tmp_path / out))
    with (
        mock.patch("gevit.training.loop.open_data") as opened,
        pytest.raises(ValueError, match=rf"there can be no folder .*{out}, as .*file is a file; name another"),
    ):
        train(config)
    opened.assert_not_called()


@pytest.mark.parametrize("fault", ["images too small", "crash in the first step"])
def test_a_run_that_makes_no_step_does_not_claim_its_folder(tmp_path: Path, fault: str) -> None:
    settings: dict[str, Any] = SMALL | {"model": "z2_sa", "out": str(tmp_path / "run"), "neighborhood": 3}
    if fault == "images too small":
        with pytest.raises(ValueError, match="--image-size"):
            train(TrainConfig(**settings, image_size=9))
        assert not (tmp_path / "run").exists()
    else:
        crash = mock.patch("gevit.training.optimizer.Muon.step", side_effect=RuntimeError("crash"))
        with crash, pytest.raises(RuntimeError, match="crash"):
            train(TrainConfig(**settings))
    with mock.patch("gevit.training.finish.finish", return_value={"model": "tested"}):
        assert train(TrainConfig(**(settings | {"batch_size": 4})))


def test_every_batch_of_an_evaluation_fits_where_training_does(tmp_path: Path, reported: mock.Mock) -> None:
    sizes: set[int] = set()
    predict = evaluation.predict_logits

    def watched(model: nn.Module, images: torch.Tensor, *more: Any) -> torch.Tensor:
        sizes.add(len(images))
        return predict(model, images, *more)

    with mock.patch("gevit.evaluation.evaluate.predict_logits", watched):
        train(TrainConfig(**SMALL, batch_size=8, accumulate=4, out=str(tmp_path / "default")))
        assert max(sizes) == 2
        train(TrainConfig(**SMALL, batch_size=8, eval_batch_size=5, out=str(tmp_path / "given")))
    assert max(sizes) == 5


def test_runs_in_folders_of_the_same_name_are_different_runs_at_wandb(
    tmp_path: Path, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = mock.Mock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for folder in ("a", "b", "a"):  # the third one goes on with the first
        run = make_run(tmp_path / folder / "run", data, wandb=True)
        run.restore()
        run.config = dataclasses.replace(run.config, epochs=2)
        run.note_origin("", {})
        interrupt = Interrupt()
        interrupt.requested = True
        with pytest.raises(KeyboardInterrupt):
            run.fit(interrupt)
    first, second, third = (call.kwargs["id"] for call in wandb.init.call_args_list)
    assert first == third != second


# Going on


def exchanged(data: DataSet, split: str, what: str) -> DataSet:
    """The same data, but for two images or two labels of a split."""
    images, labels = data.split(split).images(torch.arange(len(data.split(split)))), data.split(split).labels.clone()
    pixels = (255 * images).round().to(torch.uint8)
    chosen = pixels if what == "images" else labels
    chosen[[0, -1]] = chosen[[-1, 0]]
    parts: dict[str, Any] = {split: MemorySplit(pixels, labels)}
    return dataclasses.replace(data, **parts)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("what", ["images", "labels"])
def test_data_that_changed_are_refused(tmp_path: Path, data: DataSet, split: str, what: str) -> None:
    fitted(tmp_path, data)
    make_run(tmp_path, exchanged(exchanged(data, split, what), split, what)).restore()
    with pytest.raises(ValueError, match="images or labels are not those"):
        make_run(tmp_path, exchanged(data, split, what)).restore()


def test_a_run_of_an_earlier_version_whose_digests_were_others_goes_on(tmp_path: Path, data: DataSet) -> None:
    with mock.patch.object(DataSet, "digest", "a1b2"):
        run = fitted(tmp_path, data)
    other = make_run(tmp_path, data)
    other.restore()
    assert_same_tensors(other.state.model.state_dict(), run.state.model.state_dict())


def test_the_advice_after_a_loss_that_is_not_finite_can_be_taken(tmp_path: Path, data: DataSet) -> None:
    for good_steps in (0, 1):  # before there is a run to go on with, and after
        norms = [torch.tensor(1.0)] * good_steps + [torch.tensor(math.nan)]
        gradient = mock.patch("torch.nn.utils.clip_grad_norm_", side_effect=norms)
        with gradient, pytest.raises(NonFiniteError) as raised:
            make_run(tmp_path, data).fit(Interrupt())
        named = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", str(raised.value))}
        assert {"clip_norm", "lr"} <= named
        assert ("resume" in named) == (good_steps == 1)
        assert not named & FIXED


# Dropout


@pytest.mark.parametrize("model", ["r4_sa", "cpvt", "z2_cnn"])
def test_dropout_reaches_every_dropout_that_there_is_and_no_other(tmp_path: Path, data: DataSet, model: str) -> None:
    def rates(**settings: Any) -> list[float]:
        layers: list[Any] = list(make_run(tmp_path, data, model=model, **settings).state.model.modules())
        found = [layer.p if isinstance(layer, nn.Dropout) else getattr(layer, "dropout", None) for layer in layers]
        return [rate for rate in found if isinstance(rate, float)]

    usual = rates()
    assert any(usual)
    assert rates(dropout=0.45) == [0.45 if rate else 0.0 for rate in usual]
    assert not any(rates(dropout=0.0))


def test_a_device_that_is_not_there(tmp_path: Path, data: DataSet) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ValueError, match="cannot train with accelerator 'gpu'"):
        make_run(tmp_path, data, accelerator="gpu")


# Starting from trained weights


def test_a_run_starts_from_the_weights_of_another(tmp_path: Path, data: DataSet) -> None:
    first = fitted(tmp_path / "first", data, model="z2_sa", neighborhood=3)
    trained = first.state.best_weights
    second = make_run(tmp_path / "second", data, model="z2_sa", neighborhood=3, seed=5, start_from=str(first.folder))
    assert_same_tensors(second.state.model.state_dict(), trained)
    other = make_run(tmp_path / "third", data, model="z2_sa", neighborhood=3, seed=5)
    assert any(not torch.equal(tensor, trained[name]) for name, tensor in other.state.model.state_dict().items())


def test_a_run_of_another_group_takes_all_but_the_vectors_of_the_elements() -> None:
    r4, d4 = create_model("r4_sa", pretrained=True), create_model("d4_sa")
    anew = take_weights(d4, "r4_sa", "rotmnist")
    assert anew == [name for name in d4.state_dict() if name.endswith("positions.element")]
    r4_weights = r4.state_dict()
    assert all(torch.equal(tensor, r4_weights[name]) for name, tensor in d4.state_dict().items() if name not in anew)


def test_vectors_of_as_many_other_elements_are_not_taken(tmp_path: Path) -> None:
    r8, d4 = create_model("r8_sa"), create_model("d4_sa")
    digits = tuple("0123456789")
    info = ModelInfo(
        name="r8_sa",
        preset="rotmnist",
        in_channels=1,
        num_classes=10,
        classes=digits,
        image_size=28,
        mean=(0.5,),
        std=(1.0,),
    )
    save(r8, info, tmp_path / "model.safetensors")
    anew = take_weights(d4, str(tmp_path), "rotmnist")
    assert anew == [name for name in d4.state_dict() if name.endswith("positions.element")]


def test_other_classes_begin_with_a_map_of_their_own() -> None:
    assert take_weights(create_model("r4_sa", num_classes=3), "r4_sa", "rotmnist") == ["body.classes.weight"]


def test_weights_for_images_of_another_size(tmp_path: Path, data: DataSet) -> None:
    trained = fitted(tmp_path / "trained", data, model="z2_sa", neighborhood=3)
    for source in ("r4_sa", str(trained.folder)):
        with pytest.raises(ValueError, match="--preset"):
            make_run(tmp_path / "large", data.resized(64), model="r4_sa", start_from=source)
    assert not (tmp_path / "large").exists()


def test_weights_that_cannot_be_started_from() -> None:
    with pytest.raises(ValueError, match="no weight of r4_sa fits"):
        take_weights(create_model("z2_cnn"), "r4_sa", "rotmnist")
    with pytest.raises(ValueError, match="no pretrained weights of 'cpvt'"):
        take_weights(create_model("cpvt"), "cpvt", "rotmnist")
    with pytest.raises(ValueError, match="there is no nowhere"):
        take_weights(create_model("r4_sa"), "nowhere", "rotmnist")


def test_a_resumed_run_does_not_need_what_it_started_from(tmp_path: Path, data: DataSet) -> None:
    first = fitted(tmp_path / "first", data, model="z2_sa", neighborhood=3)
    settings = {"model": "z2_sa", "neighborhood": 3, "start_from": str(first.folder)}
    second = fitted(tmp_path / "second", data, **settings)
    shutil.rmtree(first.folder)
    again = make_run(tmp_path / "second", data, **settings)
    again.restore()
    assert_same_tensors(again.state.model.state_dict(), second.state.model.state_dict())


def test_a_run_keeps_what_all_its_processes_ran_on(tmp_path: Path, data: DataSet) -> None:
    run = make_run(tmp_path, data)
    run.note_origin("gevit train", {"commit": "1a"})
    run.state.progress = Progress(**run.state.checkpoint().facts["progress"])
    for commit in ("2b", "2b"):  # a process that resumes the run, and another one
        run.note_origin("gevit train --resume", {"commit": commit})
    assert run.state.progress.command == "gevit train"
    assert joined(run.state.progress.environments) == {"commit": "1a, 2b"}


def test_the_command_of_a_report_repeats_the_run(tmp_path: Path, data: DataSet) -> None:
    run = fitted(tmp_path, data, epochs=1)
    run.note_origin("gevit train --epochs 1", {})
    assert run.state.progress.command.startswith("gevit train --config")  # the beginning is not known any more
    run.state.progress.command = "gevit train --epochs 1"
    run.note_origin("gevit train --resume", {})
    assert run.state.progress.command == "gevit train --epochs 1"
    longer = make_run(tmp_path, data, epochs=2)
    longer.state.progress.command = "gevit train --epochs 1"
    longer.note_origin("gevit train --resume --epochs 2", {})
    assert longer.state.progress.command == f"gevit train --config {tmp_path / 'config.yaml'} --out NEW"


def test_a_report_does_not_outlive_its_weights(tmp_path: Path, data: DataSet) -> None:
    run = fitted(tmp_path, data, epochs=1)
    (tmp_path / "report.json").write_text("{}")
    run._save_best()
    assert not (tmp_path / "report.json").exists()


def test_an_interrupted_test_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gevit.training.finish.finish", interrupted)
    limits: dict[str, Any] = {"limit_train": 10, "limit_valid": 10, "batch_size": 5}
    config = TrainConfig(data="digits", preset="nano", epochs=1, out=str(tmp_path), **limits)
    with pytest.raises(KeyboardInterrupt, match=f"--out {tmp_path} --resume` tests it"):
        train(config)
