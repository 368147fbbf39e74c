"""Every command that draws progress, in a terminal of its own: wide, narrow, without colours, without anything."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from gevit.training.config import TrainConfig
from gevit.training.display import Display
from tests.running import TRAIN, Life, write_digits

COLOUR = re.compile(r"\x1b\[(\d+;)*(3|9)\d(;\d+)*m")
XTERM = {"TERM": "xterm-256color"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_digits(folder / "data")
    (folder / "photos").mkdir()
    for name in ("one.png", "two [red].png"):
        Image.new("L", (22, 22)).save(folder / "photos" / name)
    return folder


def screen(arguments: tuple[str, ...], home: Path, columns: int, environment: dict[str, str]) -> str:
    life = Life(arguments, home, environment=environment, columns=columns)
    assert life.end() == 0, life.output
    assert "Traceback" not in life.output
    return life.output


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    shown = screen((*TRAIN, "--epochs", "1", "--out", "run"), home, 120, XTERM)
    assert "epoch 1/1" in shown  # the bar, beside the line of the epoch
    assert "images/s" in shown
    return home / "run"


DATA = ("--data-root", "data")
COMMANDS = {
    "train": (*TRAIN, "--epochs", "1", "--out", "narrow"),
    "resume": ("train", "--out", "run", "--resume", "--epochs", "2"),
    "evaluate": ("evaluate", "--checkpoint", "run", "--data", "rotmnist-rebuilt", *DATA, "--angles", "2"),
    "predict": ("predict", "--checkpoint", "run", "photos"),
    "equivariance": ("equivariance", "--checkpoint", "run", "--image", "photos", "--angles", "2"),
    "reproduce": ("reproduce", "reflections", "--budget", "smoke"),
    "bench": (
        *("bench", "--model", "z2_sa", "--size", "22", "--batch", "1"),
        *("--backend", "factored", "--mode", "infer", "--seconds", "0.01"),
    ),
    "data list": ("data", "list", *DATA),
    "data preview": ("data", "preview", "rotmnist-rebuilt", *DATA),
    "data verify": ("data", "verify", *DATA),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_in_a_narrow_terminal(home: Path, run: Path, command: str) -> None:
    screen(COMMANDS[command], home, 40, XTERM)


def test_without_colours(home: Path, run: Path) -> None:
    evaluate = COMMANDS["evaluate"]
    assert COLOUR.search(screen(evaluate, home, 100, XTERM))
    assert not COLOUR.search(screen(evaluate, home, 100, XTERM | {"NO_COLOR": "1"}))


def test_in_a_terminal_that_can_do_nothing(home: Path, run: Path) -> None:
    for arguments in ((*TRAIN, "--epochs", "1", "--out", "dumb"), COMMANDS["evaluate"]):
        assert "\x1b[" not in screen(arguments, home, 80, {"TERM": "dumb"})


@pytest.mark.parametrize("columns", [20, 40, 80, 120])
def test_the_bar_keeps_to_its_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, width=columns, force_terminal=True, color_system=None, soft_wrap=True)
    monkeypatch.setattr("gevit.training.display.Console", lambda **_: console)
    row = {"step": 3, "epoch": 1, "loss": 2.3, "images_per_second": 1234.0}
    outcome = row | {"train_loss": 2.3, "train_accuracy": 0.1, "seconds": 1.0}
    outcome |= {"valid_loss": 2.3} | dict.fromkeys(("valid_accuracy", "valid_balanced_accuracy", "valid_macro_f1"), 0.1)
    display = Display(TrainConfig(epochs=2), visible=True)
    for before in (None, outcome):  # a run from the start, and one that goes on
        display.go_on(2, before, math.inf)
        with display:
            display.step(row, 12)
            display.validation(10)(5)
            display.epoch(outcome, outcome, is_best=True)
    with display.bar("testing", 10) as advance:
        advance(10)
    bars = [line for line in re.split(r"[\r\n]|\x1b\[\d*[A-Z]", drawn.getvalue()) if "ETA" in line]
    assert bars
    assert all(len(re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", line).rstrip()) <= columns for line in bars)


def test_the_line_of_an_epoch_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, width=80, force_terminal=True, color_system=None, soft_wrap=True)
    monkeypatch.setattr("gevit.training.display.Console", lambda **_: console)
    losses = dict.fromkeys(("train_loss", "valid_loss", "train_accuracy"), 0.98765)
    metrics = dict.fromkeys(("valid_accuracy", "valid_balanced_accuracy", "valid_macro_f1"), 0.98765)
    row = losses | metrics | {"epoch": 100, "seconds": 1234.0, "images_per_second": 12.0}
    Display(TrainConfig(epochs=100), visible=True).epoch(row, row, is_best=True)
    assert len(drawn.getvalue().rstrip("\n")) <= 80
    assert drawn.getvalue().count("98.77%") == 2
