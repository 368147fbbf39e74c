"""Equivariance as something one measures, asserts and draws."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gevit.equivariance.measuring import (
        EquivarianceError,
        RelativeError,
        Report,
        assert_equivariant,
        measure,
        measure_layers,
        worst_of,
    )

__all__ = [
    "EquivarianceError",
    "RelativeError",
    "Report",
    "assert_equivariant",
    "measure",
    "measure_layers",
    "worst_of",
]


def __getattr__(name: str) -> object:
    if name in __all__:  # loads torch, which declaring the flags of a command need not wait for
        return getattr(importlib.import_module("gevit.equivariance.measuring"), name)
    raise AttributeError(f"module 'gevit.equivariance' has no attribute {name!r}")
