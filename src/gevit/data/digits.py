"""5,000 real MNIST digits (500 a class, 28x28), embedded in the package.

They are a sample of the MNIST training set (Y. LeCun, C. Cortes; CC BY-SA 3.0). The data set `digits` turns each of
them by an angle of its own, uniform in [0, 360) degrees, and splits them 4,000/500/500 with every class alike; angles
and split are the same every time.
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
    """The turned and split digits; `folder` is not looked at, they are in the package."""
    images, labels = load_digits()
    angles = np.random.default_rng(SEED).uniform(0, 360, len(images))
    turned = torch.from_numpy(rotate_digits(images[:, 0].numpy(), angles)).unsqueeze(1)
    return digit_set(
        "digits",
        *split_digits(turned, labels),
        "5,000 MNIST digits embedded in gevit, each turned by a uniform angle, split 4,000/500/500 by class",
    )


def split_digits(
    images: UInt8[Tensor, "5000 1 28 28"], labels: Int[Tensor, 5000]
) -> tuple[MemorySplit, MemorySplit, MemorySplit]:
    """Train, valid and test: 4,000/500/500 with every class alike, the same every time."""
    train, valid, test = (
        MemorySplit(images[part], labels[part]) for part in stratified_split(labels, (0.1, 0.1), SEED)
    )
    return train, valid, test


def digit_set(name: str, train: MemorySplit, valid: MemorySplit, test: MemorySplit, note: str) -> DataSet:
    """A data set of 28x28 grey digits, with the normalisation usual for MNIST."""
    return DataSet(name, NAMES, 1, 28, (MEAN,), (STD,), train, valid, test, note)
