from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

# Triton's kernels run on the CPU here. It decides when it reads them; what compiles them has a process of its own.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def disk_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file comes into its place."""

    def fail(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """The tests check shape annotations at run time; users do not, and get the library's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches instead of pictures."""
    from matplotlib.figure import Figure

    from tests.studies import sketch

    monkeypatch.setattr(Figure, "savefig", sketch)
