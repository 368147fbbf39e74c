"""5,000 real MNIST digits (500 a class, 28x28), embedded in the package.

They are a sample of the MNIST training set (Y. LeCun, C. Cortes; CC BY-SA 3.0). The data set `digits` rotates each of
them by an angle of its own, uniform in [0, 360) degrees; `digits-upright` has them as they were written. Both split
them 4,000/500/500 with every class alike; angles and split are the same every time.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from gevit.data.dataset import DataSet, MemorySplit, stratified_split
from gevit.data.rotation import rotate_digits

MEAN, STD = 0.1307, 0.3081
NAMES = tuple("0123456789")
SEED = 0
PUBLISHED = {"digits.npz": "11def57eb666ead6d8efa9a9ff9c2218"}


def load_digits() -> tuple[UInt8[Tensor, "5000 1 28 28"], Int[Tensor, 5000]]:
    """Images as bytes and their labels, ordered by class.

    >>> images, labels = load_digits()
    >>> images.shape, labels[::1000].tolist()
    (torch.Size([5000, 1, 28, 28]), [0, 2, 4, 6, 8])
    """
    with (
        resources.files("gevit.data").joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        images, labels = arrays["images"], arrays["labels"]
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long()


def normalize_digits(images: UInt8[Tensor, "*n 1 28 28"]) -> Float[Tensor, "*n 1 28 28"]:
    """Bytes to floats with the mean and spread of MNIST, (x / 255 - 0.1307) / 0.3081."""
    return (images.float() / 255 - MEAN) / STD


def read(folder: Path) -> DataSet:
    """The rotated and split digits; `folder` is not looked at, they are in the package."""
    images, labels = load_digits()
    angles = np.random.default_rng(SEED).uniform(0, 360, len(images))
    rotated = torch.from_numpy(rotate_digits(images[:, 0].numpy(), angles)).unsqueeze(1)
    note = "5,000 MNIST digits embedded in gevit, each rotated by a uniform angle, split 4,000/500/500 by class"
    return digit_set("digits", *_split(rotated, labels), note)


def read_upright(folder: Path) -> DataSet:
    """The split digits, not rotated."""
    note = "5,000 upright MNIST digits embedded in gevit, split 4,000/500/500 by class"
    return digit_set("digits-upright", *_split(*load_digits()), note)


def digit_set(name: str, train: MemorySplit, valid: MemorySplit, test: MemorySplit, note: str) -> DataSet:
    """A data set of 28x28 grey digits, with the normalisation usual for MNIST."""
    return DataSet(name, NAMES, 1, 28, (MEAN,), (STD,), train, valid, test, note)


def _split(
    images: UInt8[Tensor, "5000 1 28 28"], labels: Int[Tensor, 5000]
) -> tuple[MemorySplit, MemorySplit, MemorySplit]:
    train, valid, test = (
        MemorySplit(images[part], labels[part]) for part in stratified_split(labels, (0.1, 0.1), SEED)
    )
    return train, valid, test
