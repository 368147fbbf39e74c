"""Equivariance as something one measures, asserts and draws."""

from gevit.equivariance.measure import (
    EquivarianceError,
    RelativeError,
    Report,
    assert_equivariant,
    measure,
)

__all__ = ["EquivarianceError", "RelativeError", "Report", "assert_equivariant", "measure"]
