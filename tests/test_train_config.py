from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gevit.cli import train as command
from gevit.training.config import TrainConfig, read_yaml
from gevit.training.folder import FIXED, check_folder, resumed_config


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
    ({"cooldown_epochs": 1.0}, "cooldown_epochs is for the schedule trapezoid, and this one is constant"),
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
                 "optimizer": "sgd", "skip_corrupt": True, "rotate": True, "flip": True, "momentum": "0.5",
                 "label_smoothing": "0.5", "dropout": "0.5", "precision": "bfloat16"}.get(name, "77")  # fmt: skip
        with pytest.raises(ValueError, match=rf"has {name} = .*another run with another --out"):
            check_folder(resumed_config(tmp_path, {name: other}), resume=True)
    check_folder(resumed_config(tmp_path, {"lr": "0.2", "epochs": "9"}), resume=True)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_resumed_run_is_judged_by_its_merged_settings(tmp_path: Path) -> None:
    saved = TrainConfig(schedule="trapezoid", epochs=40, out=str(tmp_path))
    (tmp_path / "config.yaml").write_text(saved.to_yaml())
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--out", str(tmp_path), "--resume", "--cooldown-epochs", "25"])
    with mock.patch("gevit.training.loop.train", return_value={}) as train:
        assert command.run(args) == 0
    assert train.call_args.args[0] == dataclasses.replace(saved, cooldown_epochs=25.0)
