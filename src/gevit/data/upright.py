"""`digits-upright`: the embedded digits as they were written, unturned, with the split of `digits`."""

from __future__ import annotations

from pathlib import Path

from gevit.data.dataset import DataSet
from gevit.data.digits import digit_set, load_digits, split_digits


def read(folder: Path) -> DataSet:
    """The split digits; `folder` is not looked at, they are in the package."""
    return digit_set(
        "digits-upright",
        *split_digits(*load_digits()),
        "5,000 upright MNIST digits embedded in gevit, split 4,000/500/500 by class",
    )
