"""5,000 real MNIST digits (500 a class, 28x28), embedded in the package.

They are a sample of the MNIST training set (Y. LeCun, C. Cortes; CC BY-SA 3.0).
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

MEAN, STD = 0.1307, 0.3081


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
