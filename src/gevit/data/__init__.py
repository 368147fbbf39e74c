"""Data sets: named ones, and folders of images. `digits` needs no download: it comes with the package.

>>> from gevit.data import open_dataset
>>> digits = open_dataset("digits")
>>> len(digits.train), len(digits.valid), len(digits.test)
(4000, 500, 500)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gevit.data.catalog import list_datasets, open_dataset
    from gevit.data.dataset import DataSet, Split
    from gevit.data.digits import load_digits, normalize_digits

__all__ = ["DataSet", "Split", "list_datasets", "load_digits", "normalize_digits", "open_dataset"]

# Loaded at first use, so that the command line declares its flags without waiting for torch.
_HOMES = {
    "DataSet": "dataset",
    "Split": "dataset",
    "list_datasets": "catalog",
    "load_digits": "digits",
    "normalize_digits": "digits",
    "open_dataset": "catalog",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"gevit.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'gevit.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
