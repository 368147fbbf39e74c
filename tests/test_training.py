from __future__ import annotations

import argparse
import dataclasses
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.optim import SGD

from gevit.data import DataSet, Split, load_digits
from gevit.data.dataset import MemorySplit
from gevit.data.digits import digit_set
from gevit.training import checkpoint as checkpoints
from gevit.training import command
from gevit.training.batches import StepBatches, turn
from gevit.training.checkpoint import Checkpoint, load_checkpoint, newest_good_checkpoint, save_checkpoint
from gevit.training.config import TrainConfig, read_yaml
from gevit.training.events import EventFile
from gevit.training.folder import FIXED, resumed_config
from gevit.training.interrupt import Interrupt
from gevit.training.log import Row, RunLog
from gevit.training.loop import NonFiniteError, Run
from gevit.training.schedule import learning_rate
from gevit.training.setup import make_fabric, make_optimizer
from gevit.training.state import RunState
from tests.running import assert_same_run, assert_same_tensors, last_checkpoint, rows

OPTIMIZERS = [*TrainConfig.__dataclass_fields__["optimizer"].metadata["choices"]]


@pytest.fixture(scope="module")
def data() -> DataSet:
    images, labels = load_digits()
    train, valid, test = (
        MemorySplit(images[first::step], labels[first::step]) for first, step in ((0, 417), (1, 1250), (2, 1250))
    )
    return digit_set("digits", train, valid, test, "a few digits")


def make_run(folder: Path, data: DataSet, **settings: Any) -> Run:
    config = TrainConfig(
        **{"model": "z2_cnn", "batch_size": 4, "epochs": 1, "accelerator": "cpu", "out": str(folder), **settings}
    )
    return Run(config, make_fabric(config), data)


def fitted(folder: Path, data: DataSet, **settings: Any) -> Run:
    run = make_run(folder, data, **settings)
    run.fit(Interrupt())
    return run


# The learning rate


def rates(**settings: Any) -> list[float]:
    config = TrainConfig(**{"lr": 0.5, "epochs": 10, **settings})
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
@pytest.mark.parametrize("warmup", [0.0, 0.01, 10.0])
def test_every_rate_is_positive_and_at_most_the_peak(schedule: str, warmup: float) -> None:
    assert all(0 < rate <= 0.5 for rate in rates(schedule=schedule, warmup_epochs=warmup))


# Batches


class Numbered(MemorySplit):
    """Images that show their own number."""

    def __init__(self, count: int) -> None:
        numbers = torch.arange(count)
        super().__init__(numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2), numbers % 10)


def numbers(batch: tuple[torch.Tensor, torch.Tensor]) -> list[int]:
    return (batch[0][:, 0, 0, 0] * 255).round().int().tolist()


def batches_of(split: Split, **settings: Any) -> StepBatches:
    return StepBatches(split, lambda images: images, **{"batch_size": 4, "seed": 0, **settings})


def test_an_epoch_shows_each_image_at_most_once_in_an_order_of_its_own() -> None:
    batches = batches_of(Numbered(22))
    assert batches.steps_per_epoch == 5
    epochs = [[n for step in range(5 * e, 5 * e + 5) for n in numbers(batches[step])] for e in range(3)]
    assert all(len(set(epoch)) == 20 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert set().union(*epochs) == set(range(22))


def test_labels_belong_to_their_images() -> None:
    batch = batches_of(Numbered(22))[3]
    assert batch[1].tolist() == [number % 10 for number in numbers(batch)]


def test_a_step_is_a_function_of_seed_and_step_alone(data: DataSet) -> None:
    once, again = (batches_of(data.train, rotate=True, flip=True) for _ in range(2))
    forwards = [once[step] for step in range(6)]
    backwards = [again[step] for step in reversed(range(6))][::-1]
    for (images, labels), (same_images, same_labels) in zip(forwards, backwards, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)
    assert not torch.equal(once[0][0], batches_of(data.train, rotate=True, flip=True, seed=1)[0][0])


@pytest.mark.parametrize("world_size", [2, 4])
def test_all_shares_together_are_the_batch_of_one_process(data: DataSet, world_size: int) -> None:
    options = {"rotate": True, "flip": True}
    whole = batches_of(data.train, **options)
    shares = [batches_of(data.train, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for step in range(4):
        images, labels = (torch.cat(parts) for parts in zip(*(share[step] for share in shares), strict=True))
        torch.testing.assert_close(images, whole[step][0], rtol=0, atol=1e-6)
        assert torch.equal(labels, whole[step][1])


def test_flip_mirrors_about_half_of_the_images() -> None:
    pixels = torch.zeros(200, 1, 2, 2, dtype=torch.uint8)
    pixels[..., 0] = 255
    images, _ = batches_of(MemorySplit(pixels, torch.zeros(200).long()), batch_size=200, flip=True)[0]
    mirrored = images[:, 0, 0, 1] == 1
    assert torch.equal(images[mirrored], images[~mirrored][:1].flip(-1).expand_as(images[mirrored]))
    assert 70 < int(mirrored.sum()) < 130


@pytest.mark.parametrize("shape", [(28, 28), (7, 7)])
@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_quarter_turns_are_those_of_rot90(shape: tuple[int, int], quarters: int) -> None:
    images = torch.rand(2, 3, *shape)
    turned = turn(images, torch.full((2,), quarters * math.pi / 2))
    torch.testing.assert_close(turned, torch.rot90(images, quarters, (-2, -1)), rtol=0, atol=1e-5)


def test_half_a_turn_of_an_oblong_image() -> None:
    images = torch.rand(1, 1, 6, 10)
    torch.testing.assert_close(turn(images, torch.tensor([math.pi])), images.flip(-1, -2), rtol=0, atol=1e-5)


# A step


def test_the_moving_average_is_that_of_a_hand_computation() -> None:
    model = nn.Linear(3, 2)
    state = RunState(model, SGD(model.parameters(), 0.1), ema_decay=0.6)
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
    made = make_optimizer(config, nn.Linear(1, 1))
    assert type(made).__name__.lower() == optimizer
    assert made.defaults["weight_decay"] == 0.25
    assert made.defaults["lr"] == 0.125
    assert made.defaults.get("momentum", 0.5) == 0.5


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # some processors lack it, and torch takes another way
@pytest.mark.parametrize("settings", [{"model": "z2_cnn"}, {"model": "r4_sa", "neighborhood": 3, "batch_size": 12}])
def test_bfloat16_trains(tmp_path: Path, data: DataSet, settings: dict[str, Any]) -> None:
    run = fitted(tmp_path, data, precision="bfloat16", **settings)
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
    with pytest.raises(NonFiniteError, match=r"step 1 \(learning rate 0.001\).*--lr"):
        run.fit(Interrupt())
    assert_same_tensors(before, dict(run.state.model.named_parameters()))


def test_a_validation_loss_that_is_no_number_is_never_the_best() -> None:
    model = nn.Linear(1, 1)
    state = RunState(model, SGD(model.parameters(), 0.1), 0.0)
    for loss, is_best in ((math.nan, True), (2.0, True), (math.nan, False), (2.5, False), (1.5, True)):
        assert state.keep_best({"valid_accuracy": 0.1, "valid_loss": loss}) is is_best
    assert not state.keep_best({"valid_accuracy": 0.0, "valid_loss": 0.1})


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
        monkeypatch.setattr("gevit.training.interrupt.SAME_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_request_to_stop_leaves_a_checkpoint_of_that_step(tmp_path: Path, data: DataSet) -> None:
    interrupt = Interrupt()
    interrupt.requested = True
    with pytest.raises(KeyboardInterrupt, match=r"after step 1 of 3.*--resume"):
        make_run(tmp_path, data, checkpoint_seconds=1e9).fit(interrupt)
    assert last_checkpoint(tmp_path).facts["progress"]["step"] == 1


# Checkpoints


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_brings_back_the_whole_state(tmp_path: Path, data: DataSet, optimizer: str, ema: float) -> None:
    settings = {"optimizer": optimizer, "ema": ema}
    run = fitted(tmp_path, data, **settings)
    restored = make_run(tmp_path, data, **settings)
    restored.restore()
    before, after = run.state.checkpoint(), restored.state.checkpoint()
    assert_same_tensors(before.tensors, after.tensors)
    assert before.facts == after.facts
    assert {name.split("/")[0] for name in before.tensors} == {"model", "best", "optimizer"} | (
        {"average"} if ema else set()
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "ema": 0.9},
        {"optimizer": "adamw", "accumulate": 2},
        {"optimizer": "sgd", "flip": True},
        {"optimizer": "muon", "model": "z2_sa", "neighborhood": 3},
    ],
)
def test_going_on_is_going_straight(tmp_path: Path, data: DataSet, settings: dict[str, Any]) -> None:
    settings = settings | {"epochs": 2, "rotate": True, "schedule": "cosine"}
    fitted(tmp_path / "straight", data, **settings)
    interrupt = Interrupt()
    for _ in range(6):  # after every single step
        run = make_run(tmp_path / "halting", data, **settings)
        run.restore()
        interrupt.requested = True
        with pytest.raises(KeyboardInterrupt):
            run.fit(interrupt)
    assert_same_run(tmp_path / "straight", tmp_path / "halting")


SOME = Checkpoint({"model/w": torch.arange(1000.0), "model/n": torch.tensor(3), "model/e": torch.empty(0)}, {"a": [1]})


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (1, 5, 10, 1000):
        save_checkpoint(tmp_path, step, SOME)
    assert [path.name for path in checkpoints.checkpoint_paths(tmp_path)] == [
        "step-000001000.safetensors",
        "step-000000010.safetensors",
    ]
    loaded = load_checkpoint(checkpoints.checkpoint_paths(tmp_path)[0])
    assert_same_tensors(loaded.tensors, SOME.tensors)
    assert loaded.facts == SOME.facts


@pytest.mark.parametrize("place", [0.0, 0.01, 0.1, 0.5, 0.9999])
def test_one_changed_bit_is_noticed_wherever_it_is(tmp_path: Path, place: float) -> None:
    path = save_checkpoint(tmp_path, 1, SOME)
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=path.name):
        load_checkpoint(path)


@pytest.mark.parametrize("length", [0, 4, 100, 2000, -1])
def test_a_file_cut_short_is_noticed(tmp_path: Path, length: int) -> None:
    path = save_checkpoint(tmp_path, 1, SOME)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=path.name):
        load_checkpoint(path)


def test_other_files_are_no_checkpoints_and_are_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-000000001.safetensors"

    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'unpickled')!r}, 'w')",)

    torch.save({"bomb": Bomb()}, path)
    with pytest.raises(ValueError, match="not a checkpoint"):
        load_checkpoint(path)
    assert not (tmp_path / "unpickled").exists()
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="digest"):
        load_checkpoint(path)
    monkeypatch.setattr(checkpoints, "FORMAT", 2)
    save_checkpoint(tmp_path, 1, SOME)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="another version"):
        load_checkpoint(path)


def test_the_newest_whole_checkpoint_is_used_and_the_others_are_named(tmp_path: Path) -> None:
    assert newest_good_checkpoint(tmp_path) == (None, [])
    good, bad = (save_checkpoint(tmp_path, step, SOME) for step in (1, 2))
    bad.write_bytes(b"")
    found, faults = newest_good_checkpoint(tmp_path)
    assert found is not None
    assert [bad.name in fault for fault in faults] == [True]
    good.unlink()
    assert newest_good_checkpoint(tmp_path)[0] is None


def test_damaged_checkpoints_never_push_out_new_ones(tmp_path: Path) -> None:
    for step in (10, 11):
        save_checkpoint(tmp_path, step, SOME).write_bytes(b"")
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, SOME)
        found, _ = newest_good_checkpoint(tmp_path)
        assert found is not None
    assert len(checkpoints.checkpoint_paths(tmp_path)) == 2


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, data: DataSet) -> None:
    fitted(tmp_path, data)
    with pytest.raises(ValueError, match=r"do not fit z2_sa with 10 classes.*another --out"):
        make_run(tmp_path, data, model="z2_sa", neighborhood=3).restore()


# Logs


def test_rows_after_the_checkpoint_are_taken_back(tmp_path: Path) -> None:
    def row(step: int) -> Row:
        return dict.fromkeys(("epoch", "lr", "loss", "accuracy", "gradient_norm", "images_per_second"), 0.5) | {
            "step": step
        }

    with RunLog(tmp_path, "run", {}, 0, wandb=False) as log:
        for step in (1, 2, 3, 4):
            log.step(row(step))
    with (tmp_path / "steps.csv").open("a") as file:
        file.write("5,1,0.")  # the power went off here
    with RunLog(tmp_path, "run", {}, 2, wandb=False) as log:
        log.step(row(3))
    assert [entry["step"] for entry in rows(tmp_path / "steps.csv")] == ["1", "2", "3"]
    with RunLog(tmp_path, "run", {}, 0, wandb=False):
        pass
    assert rows(tmp_path / "steps.csv") == []


def test_tensorboard_shows_a_resumed_run_as_one(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    for first, value in ((1, 1.0), (3, 2.0)):
        events = EventFile(tmp_path, first)
        for step in (first, first + 1, first + 2, first + 3):
            events.add({"train/loss": value}, step)
        events.close()
        next(tmp_path.glob("events.*")).rename(tmp_path / f"events.out.tfevents.{first:010d}")
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in shown] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]


# Settings


def test_every_setting_has_a_flag_and_every_flag_a_help() -> None:
    named = [name for names in command.GROUPS.values() for name in names]
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(TrainConfig))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    assert {"--" + name.replace("_", "-") for name in named} <= flags
    assert all(action.help for action in parser._actions)
    assert set(named) >= FIXED


def test_flags_that_are_not_given_say_nothing() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert vars(parser.parse_args(["--lr", "1e-2", "--no-flip"])) == {
        "config": None,
        "resume": False,
        "json": False,
        "lr": "1e-2",
        "flip": False,
    }


def test_settings_survive_their_file(tmp_path: Path) -> None:
    config = TrainConfig(lr=1e-5, neighborhood=None, flip=True, clip_norm=2.0, out="a: b #c", data="0123")
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert TrainConfig(**read_yaml(tmp_path / "config.yaml")) == config


@pytest.mark.usefixtures("unchecked_shapes")
def test_yaml_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("lr: 1e-3\nweight-decay: 0\nneighborhood: global\nepochs: 5\nrotate: yes\n")
    config = TrainConfig(**read_yaml(path))
    assert (config.lr, config.weight_decay, config.neighborhood, config.epochs, config.rotate) == (
        1e-3,
        0.0,
        None,
        5,
        True,
    )
    path.write_text("")
    assert read_yaml(path) == {}


@pytest.mark.parametrize(("text", "message"), [
    ("epoch: 3", "unknown setting 'epoch'; did you mean 'epochs'"),
    ("zzz: 3", "unknown setting 'zzz'; known are model, data"),
    ("- 3", "'name: value' lines, found a list"),
    ("a: [", "not a YAML file"),
    ("!!python/object/apply:os.system ['true']", "not a YAML file"),
])  # fmt: skip
def test_bad_files_of_settings(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_yaml(path)


@pytest.mark.parametrize(("settings", "message"), [
    ({"epochs": 2.5}, "epochs must be of type int, got 2.5"),
    ({"epochs": "many"}, "epochs must be of type int, got 'many'"),
    ({"epochs": True}, "epochs must be of type int, got True"),
    ({"epochs": None}, "epochs must be of type int, got None"),
    ({"lr": "fast"}, "lr must be of type float, got 'fast'"),
    ({"lr": "nan"}, "lr must be"),
    ({"lr": math.inf}, "lr must be"),
    ({"rotate": "yes"}, "rotate must be of type bool, got 'yes'"),
    ({"model": 5}, "model must be of type str, got 5"),
    ({"epochs": 0}, "epochs must be at least 1, got 0"),
    ({"lr": -1.0}, "lr must be greater than 0, got -1.0"),
    ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"optimizer": "lion"}, "optimizer must be one of .*adamw.*, got 'lion'"),
    ({"warmup_epochs": 3.0, "epochs": 2}, r"must be at most epochs \(2\)"),
])  # fmt: skip
@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_resumed_run_keeps_what_must_stay_and_takes_what_may_change(tmp_path: Path) -> None:
    saved = TrainConfig(model="d4_sa", lr=0.1, epochs=3, out=str(tmp_path))
    (tmp_path / "config.yaml").write_text(saved.to_yaml())
    assert resumed_config(tmp_path, {}) == saved
    assert resumed_config(tmp_path, {"lr": "0.2", "epochs": "9"}) == dataclasses.replace(saved, lr=0.2, epochs=9)
    assert resumed_config(tmp_path, {"model": "d4_sa", "batch_size": "8"}) == saved
    for name in FIXED:
        other = {"model": "z2_sa", "data": "x", "preset": "pcam", "encoding": "gsa", "pooling": "sum_max", "ema": "0.5",
                 "optimizer": "sgd", "skip_corrupt": True}.get(name, "77")  # fmt: skip
        with pytest.raises(ValueError, match=rf"has {name} = .*another run with another --out"):
            resumed_config(tmp_path, {name: other})
