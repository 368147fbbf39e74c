from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gevit.cli import main
from gevit.cli import train as command
from gevit.training.config import EPOCHS, SETTINGS, TrainConfig, read_yaml
from gevit.training.run_folder import FIXED, check_folder, resumed_config


def test_every_setting_has_a_flag_in_its_group_with_a_help() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    groups = {action.dest: group.title for group in parser._action_groups for action in group._group_actions}
    flags = {option for action in parser._actions for option in action.option_strings}
    for name, entry in SETTINGS.items():
        assert "--" + name.replace("_", "-") in flags
        assert groups[name] == entry.metadata["group"]
    assert all(action.help for action in parser._actions)


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
    *((text, "a.yaml has a value that is not of the type that its form or tag says") for text in (
        'seed: !!bool "abc"', 'seed: !!float ""', "!!timestamp x: 3", "seed: 2001-99-99", "seed: 0b_")),
    ("!!python/object/apply:os.system ['true']", "not a YAML file"),
    ("lr: " + "[" * 9_000, "nested"),
    ("a: &a [x, x]\nlr: [*a, *a]", "alias"),
    ("lr: 1" + " " * 200_000, "too large"),
])  # fmt: skip
def test_bad_files_of_settings(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read_yaml(path)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_short_file_that_stands_for_a_long_text_is_not_printed_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 8)]
    path = tmp_path / "bomb.yaml"
    for text in ("\n".join([*lines, "lr: *a7"]), "lr: [" + "lol," * 9999 + "]", "x" * 9999 + ": 1"):
        path.write_text(text)
        assert main(["train", "--config", str(path)]) == 2
        said = capsys.readouterr().err
        assert len(said) < 1000
        assert said.count("\n") == 1


@pytest.mark.parametrize(("settings", "message"), [
    ({"cooldown_epochs": 1.0}, "cooldown_epochs is for the schedule trapezoid, and this one is cosine"),
    ({"epochs": 2.5}, "epochs must be of type int, got 2.5"),
    ({"epochs": "many"}, "epochs must be of type int, got 'many'"),
    ({"epochs": True}, "epochs must be of type int, got True"),
    ({"batch_size": None}, "batch_size must be of type int, got None"),
    ({"max_time": "soon"}, "max_time must be .*45m.*, got 'soon'"),
    ({"max_time": "1h30"}, "max_time must be .*1h30m.*, got '1h30'"),
    ({"max_time": ""}, "max_time must be .*, got ''"),
    ({"max_time": "0s"}, "max_time must be a time longer than nothing.*, got 0.0"),
    ({"max_time": -5}, "max_time must be .*, got -5.0"),
    ({"max_time": True}, "max_time must be of type float, got True"),
    ({"balance": "yes"}, "balance must be one of none, weights, sampling, got 'yes'"),
    ({"brightness": 1.0}, "brightness must be at least 0 and less than 1, got 1.0"),
    ({"contrast": -0.1}, "contrast must be at least 0 and less than 1, got -0.1"),
    ({"stain": "nan"}, "stain must be"),
    ({"select": "f1"}, "select must be one of .*macro_f1.*, got 'f1'"),
    ({"lr": "fast"}, "lr must be of type float, got 'fast'"),
    ({"lr": "nan"}, "lr must be"),
    ({"lr": math.inf}, "lr must be"),
    ({"rotate": "yes"}, "rotate must be of type bool, got 'yes'"),
    ({"model": 5}, "model must be of type str, got 5"),
    ({"epochs": 0}, "epochs must be at least 1 .*, got 0"),
    ({"epochs": "9" * 5000}, r"epochs must be of type int, got '9+\.\.\."),
    ({"weight_decay": 1e300}, "weight_decay must be at least 0 and at most 1e6"),
    ({"data": "\x1b[31m", "epochs": "\x1b[31m"}, r"got '\\x1b"),
    ({"lr": -1.0}, "lr must be greater than 0 .*, got -1.0"),
    ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
    ({"seed": -1}, "seed must be at least 0 .*, got -1"),
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
    assert resumed_config(tmp_path, {}) == (saved, "")
    assert resumed_config(tmp_path, {"lr": "0.2", "epochs": "9"})[0] == dataclasses.replace(saved, lr=0.2, epochs=9)
    assert resumed_config(tmp_path, {"model": "d4_sa", "batch_size": "16"})[0] == saved
    for name in FIXED:
        other = {"model": "z2_sa", "data": "x", "preset": "pcam", "encoding": "gsa", "pooling": "sum_max", "ema": "0.5",
                 "optimizer": "sgd", "skip_corrupt": True, "rotate": True, "flip": True, "momentum": "0.5",
                 "label_smoothing": "0.5", "dropout": "0.5", "precision": "bf16-mixed",
                 "select": "macro_f1", "balance": "weights", "brightness": "0.5", "contrast": "0.5",
                 "stain": "0.5", "initialisation": "paper"}.get(name, "77")  # fmt: skip
        with pytest.raises(ValueError, match=rf"has {name} = .*another run with another --out"):
            check_folder(resumed_config(tmp_path, {name: other})[0], resume=True)
    check_folder(resumed_config(tmp_path, {"lr": "0.2", "epochs": "9"})[0], resume=True)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_resumed_run_is_judged_by_its_merged_settings(tmp_path: Path) -> None:
    saved = TrainConfig(schedule="trapezoid", epochs=40, out=str(tmp_path))
    (tmp_path / "config.yaml").write_text(saved.to_yaml())
    assert trained(["--out", str(tmp_path), "--resume", "--cooldown-epochs", "25"]) == dataclasses.replace(
        saved, cooldown_epochs=25.0
    )


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("45m", 2700.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1H 2M 3S", 3723.0),
        ("0.5h", 1800.0),
        ("75", 75.0),
    ],
)
def test_times_as_people_write_them(tmp_path: Path, text: str, seconds: float) -> None:
    (tmp_path / "a.yaml").write_text(f"max-time: {text}\n")
    config = trained(["--config", str(tmp_path / "a.yaml")])
    assert config.max_time == trained(["--max-time", text]).max_time == seconds
    assert config.epochs is None
    (tmp_path / "b.yaml").write_text(config.to_yaml())
    assert trained(["--config", str(tmp_path / "b.yaml")]) == config


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_run_has_an_end(tmp_path: Path) -> None:
    assert TrainConfig().epochs == TrainConfig(epochs=None).epochs == EPOCHS
    both = trained(["--max-time", "1m", "--epochs", "3", "--warmup-epochs", "1"])
    assert (both.max_time, both.epochs) == (60.0, 3)
    (tmp_path / "config.yaml").write_text(TrainConfig(max_time=60.0, warmup_epochs=30.0, out=str(tmp_path)).to_yaml())
    assert resumed_config(tmp_path, {"max_time": "2m"})[0].max_time == 120.0
    assert resumed_config(tmp_path, {"epochs": "40"})[0].epochs == 40


def trained(flags: list[str]) -> TrainConfig:
    """The settings that a command line comes to."""
    with mock.patch("gevit.training.loop.train", return_value={}) as train:
        assert main(["train", *flags]) == 0
    config = train.call_args.args[0]
    assert isinstance(config, TrainConfig)
    return config


@pytest.mark.usefixtures("unchecked_shapes")
def test_fewer_epochs_shrink_the_warm_up_and_cool_down_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("schedule: trapezoid\nepochs: 10\nwarmup-epochs: 1\ncooldown_epochs: 5\n")
    short = trained(["--config", str(path), "--epochs", "2"])
    assert (short.warmup_epochs, short.cooldown_epochs) == (0.2, 1.0)
    assert "cooldown_epochs 1" in capsys.readouterr().err
    fits = trained(["--config", str(path), "--epochs", "7"])
    assert (fits.warmup_epochs, fits.cooldown_epochs) == (1.0, 5.0)
    assert not capsys.readouterr().err
    assert main(["train", "--config", str(path), "--epochs", "2", "--cooldown-epochs", "5"]) == 2


@pytest.mark.usefixtures("unchecked_shapes")
def test_only_a_run_that_is_there_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--out", "nowhere", "--resume"]) == 2
    assert "no run in nowhere" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
