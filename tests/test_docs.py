"""What README, documentation and docstrings show works: examples run, commands are understood, links lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import gevit
from gevit.cli import parse
from gevit.models.info import ModelInfo
from tests.test_official import authors_state

MODULES = [
    info.name
    for info in pkgutil.walk_packages(gevit.__path__, "gevit.")
    if "._kernel_" not in info.name and not info.name.endswith(("__main__", ".timm_models"))
]
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", ["gevit", *MODULES])
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.fixture
def readers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the examples take for granted: a trained network, and weights of the authors."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    info = ModelInfo(
        name="d4_sa",
        preset="tiny",
        in_channels=3,
        num_classes=2,
        classes=("cat", "dog"),
        image_size=64,
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
    )
    Path("runs/d4_sa-photos").mkdir(parents=True)
    model = gevit.create_model("d4_sa", preset="tiny", num_classes=2).eval()
    gevit.save(model, info, "runs/d4_sa-photos/model.safetensors")
    save_file(authors_state(gevit.create_model("r4_sa")), "checkpoint.safetensors")


@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")  # of exporters, about themselves
@pytest.mark.usefixtures("readers_files", "unchecked_shapes")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_examples_run(page: Path) -> None:
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in _blocks(page, "python"):
            exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_understood(page: Path) -> None:
    """Every line of `gevit ...` has a command and flags that there are; nothing is run."""
    lines = [line.strip() for block in _blocks(page, "") for line in block.splitlines()]
    for line in lines:
        command = line.split("  #")[0]
        if command.startswith("gevit ") and "|" not in command:
            try:
                parse(shlex.split(command.replace(" ...", ""))[1:])
            except SystemExit:
                pytest.fail(f"{page.name}: {line}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def _blocks(page: Path, language: str) -> list[str]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]
