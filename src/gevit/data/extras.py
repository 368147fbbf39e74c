"""Packages that only the data sets need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Say how to install `package` if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"this data needs {package} ({error}); pip install 'gevit[train]'") from error
