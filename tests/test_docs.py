"""The examples in docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

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
