from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file

from gevit.data import DataSet
from gevit.training import checkpoint as checkpoints
from gevit.training.checkpoint import Checkpoint, load_checkpoint, newest_good_checkpoint, save_checkpoint
from gevit.training.log import EventFile, Row, RunLog
from gevit.training.stopping import Interrupt
from tests.running import (
    OPTIMIZERS,
    assert_same_run,
    assert_same_tensors,
    few_digits,
    fitted,
    make_run,
    rows,
)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return few_digits()


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
    monkeypatch.setattr(checkpoints, "FORMAT", 1)
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


def another_format(path: Path) -> None:
    with mock.patch.object(checkpoints, "FORMAT", 1):
        save_checkpoint(path.parent, int(path.stem.removeprefix("step-")), SOME)


def no_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def refused(*_: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (another_format, "another version of gevit .*resume with that version"),
        (no_file, "expected a file, it is a folder; make it readable"),
        (None, "Permission denied; make it readable"),
    ],
)
def test_a_run_that_others_can_resume_is_not_started_again(
    tmp_path: Path, data: DataSet, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], None] | None, message: str
) -> None:
    fitted(tmp_path, data)
    [path] = checkpoints.checkpoint_paths(tmp_path / "checkpoints")
    if happens:
        happens(path)
    else:
        monkeypatch.setattr(checkpoints, "open_regular", refused)  # for root there are no permissions
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((ValueError, OSError), match=f"{path.name}.*{message}, or start another run with another --out"):
        make_run(tmp_path, data).restore()
    assert sorted(tmp_path.rglob("*")) == before


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
    with pytest.raises(ValueError, match=r"do not fit: the model is not the one .*another --out"):
        make_run(tmp_path, data, model="z2_sa", neighborhood=3).restore()


# Logs


def test_rows_after_the_checkpoint_are_taken_back(tmp_path: Path) -> None:
    def row(step: int) -> Row:
        return dict.fromkeys(("epoch", "lr", "loss", "accuracy", "gradient_norm", "images_per_second"), 0.5) | {
            "step": step
        }

    with RunLog(tmp_path, 0, {}) as log:
        for step in (1, 2, 3, 4):
            log.step(row(step))
    with (tmp_path / "steps.csv").open("a") as file:
        file.write("5,1,0.")  # the power went off here
    with RunLog(tmp_path, 2, {}) as log:
        log.step(row(3))
    assert [entry["step"] for entry in rows(tmp_path / "steps.csv")] == ["1", "2", "3"]
    with RunLog(tmp_path, 0, {}):
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
