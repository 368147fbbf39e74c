"""Data. `digits` needs no download: real handwritten digits that come with the package."""

from gevit.data.digits import load_digits, normalize_digits

__all__ = ["load_digits", "normalize_digits"]
