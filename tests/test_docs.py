"""The examples in docstrings and in the README run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import gevit

MODULES = [
    info.name
    for info in pkgutil.walk_packages(gevit.__path__, "gevit.")
    if "._kernel_" not in info.name and not info.name.endswith(("__main__", ".worker"))
]


@pytest.mark.parametrize("name", ["gevit", *MODULES])
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_readme_examples() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        if "checkpoint.safetensors" not in block and "runs/" not in block:  # files that only the reader has
            exec(block, names)
    assert "network" in names
