"""Reference material that is not in the repository: the paper, outputs of the authors' code, samples of real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def reference(folder: str, *names: str) -> Path:
    """Where something lies under $GEVIT_REFERENCE, or under `shared` beside the repository; skips if it is missing."""
    root = Path(os.environ.get("GEVIT_REFERENCE") or Path(__file__).parents[2] / "shared")
    path = root.joinpath(folder, *names)
    if not path.exists():
        pytest.skip(f"there is no {path}; set GEVIT_REFERENCE to the folder that holds {folder}/")
    return path
