from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from PIL import Image

import gevit
from gevit.cli import main
from gevit.data import load_digits
from gevit.equivariance import measure
from gevit.models.info import ModelInfo


def test_equivariance_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "new" / "maps.png"
    assert main(["equivariance", "--model", "d1_sa", "--images", "1", "--figure", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "44,388 parameters" in printed
    assert "flip" in printed
    assert str(picture) in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(picture.parent.iterdir()) == [picture]


def test_equivariance_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["equivariance", "--model", "r4_sa", "d1_sa", "--images", "1", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["model"], len(first["elements"])) == ("r4_sa", 4)
    assert (second["model"], second["group"]) == ("d1_sa", "Dihedral(1)")
    assert 0 < first["elements"][1]["logits"]["worst"] < 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "r5_sa"], "unknown model 'r5_sa'"),
        (["--neighborhood", "4"], "neighborhood must be odd"),
        (["--neighborhood", "4"], "'global'"),
        (["--encoding", "x"], "unknown encoding 'x'"),
        (["--checkpoint", "missing.safetensors"], "there is no missing"),
        (["--pretrained", "--encoding", "gsa"], "--encoding is for random weights"),
        (["--checkpoint", "x", "--model", "r4_sa", "d4_sa"], "--checkpoint holds one model, got 2 names"),
        (["--figure", "/dev/null/x.png", "--model", "z2_sa"], "x.png"),
    ],
)
def test_errors_are_one_line_and_no_traceback(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["equivariance", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("gevit equivariance: error: ")
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--neighborhood", "wide"], "expected an odd integer or 'global', got 'wide'"),
        (["--neighborhood", "-3"], "expected"),
        (["--images", "0"], "argument --images: expected a positive integer, got '0'"),
        (["--images", "9" * 20], "argument --images: expected at most 9223372036854775807, got 99"),
        (["--seed", "9" * 20], "argument --seed: expected a number from -9223372036854775807 to 9223372036854775807"),
    ],
)
def test_bad_flags_exit_with_usage(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["equivariance", *flags])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "--modle", "r4_sa"], "did you mean --model?"),
        (["bench", "--modell=r4_sa"], "did you mean --model?"),
        (["figures", "--list"], "see `gevit figures --help`"),
        (["train", "--zzzzzz"], "see `gevit train --help`"),
        (["--foo"], "see `gevit --help`"),
    ],
)
def test_unknown_flags_are_one_line_that_says_what_to_do(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    [line] = capsys.readouterr().err.splitlines()
    assert words[-1].partition("=")[0] in line or words[1] in line
    assert line.endswith(hint)


def test_ctrl_c_before_the_command_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gevit.cli.parse", interrupted)
    assert main(["bench"]) == 130
    assert capsys.readouterr().err == "gevit: interrupted\n"


def test_names_that_the_encoding_of_the_output_lacks(tmp_path: Path) -> None:
    Image.new("L", (28, 28)).save(tmp_path / "é.png")
    command = [sys.executable, "-m", "gevit", "predict", "--model", "r4_sa", "--preset", "nano", "--pretrained"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, str(tmp_path / "é.png")], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert r"\xe9.png" in done.stdout


def test_equivariance_of_trained_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    info = ModelInfo(
        name="d1_sa",
        preset="rotmnist",
        in_channels=1,
        num_classes=2,
        neighborhood=3,
        encoding="gsa",
        classes=("a", "b"),
        image_size=22,
        mean=(0.5,),
        std=(0.5,),
        data="[bold]photos\x1b[31m",
    )
    model = gevit.create_model("d1_sa", num_classes=2, neighborhood=3, encoding="gsa").eval()
    gevit.save(model, info, tmp_path / "model.safetensors")
    arguments = ["equivariance", "--checkpoint", str(tmp_path), "--images", "1"]
    assert main([*arguments, "--json"]) == 0
    [answer] = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["group"]) == ("d1_sa", "Dihedral(1)")
    digit = torch.nn.functional.interpolate(load_digits()[0][:1].float() / 255, (22, 22), mode="bilinear")
    wanted = measure(model, (digit - 0.5) / 0.5, model.group)
    assert answer["elements"][1]["logits"]["worst"] == pytest.approx(wanted[1].worst, rel=1e-3)
    assert main(arguments) == 0
    assert "[bold]photos\\x1b[31m" in capsys.readouterr().out


def test_equivariance_of_pretrained_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["equivariance", "--model", "r4_sa", "d4_sa", "--pretrained", "--images", "1", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["group"], second["group"]) == ("Cyclic(4)", "Dihedral(4)")
    assert max(row["logits"]["worst"] for row in first["elements"] + second["elements"]) < 1e-5


def test_installed_command_and_version() -> None:
    script = Path(sys.executable).with_name("gevit")
    answer = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("gevit 0.")


@pytest.mark.parametrize(
    "words", ["CUDA out of memory. Tried to allocate", "DefaultCPUAllocator: can't allocate memory"]
)
def test_out_of_memory_says_what_to_do(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("gevit.cli.data.run", side_effect=RuntimeError(words)):
        assert main(["data", "list"]) == 2
    assert "out of memory; use smaller batches or images" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback_and_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("gevit.cli.data.run", side_effect=RuntimeError("unsupported memory format option")):
        assert main(["data", "list"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "memory format" in said
    assert "bug" in said.splitlines()[-1]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_debug_shows_where_an_error_comes_from(
    place: int, error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "list"]
    with mock.patch("gevit.cli.data.run", side_effect=error("wrong")):
        for arguments, shown in (([*words[:place], "--debug", *words[place:]], True), (words, False)):
            assert main(arguments) == (130 if error is KeyboardInterrupt else 2)
            said = capsys.readouterr().err
            assert ("Traceback" in said) == shown
            assert "wrong" in said.splitlines()[-1]


def test_a_package_that_is_missing_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("lightning", "gevit.training."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    assert main(["train", "--data", "digits"]) == 2
    said = capsys.readouterr().err
    assert "lightning" in said
    assert "pip install 'gevit[train]'" in said
    assert said.count("\n") == 1


def test_what_a_file_is_called_does_not_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("gevit.cli.data.run", side_effect=ValueError("no \x1b[31m[red]file\udcff")):
        assert main(["data", "list"]) == 2
    assert "no \\x1b[31m[red]file\\udcff" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in `gevit pretrained --json | head -1`; here it is gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gevit", "pretrained", "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
