from __future__ import annotations

import os
from collections.abc import Iterator

import jaxtyping
import pytest
import torch

# Triton's kernels run on the CPU here. It decides when it reads them; what compiles them has a process of its own.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """The tests check shape annotations at run time; users do not, and get the library's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
