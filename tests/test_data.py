from __future__ import annotations

import torch

from gevit.data import load_digits, normalize_digits


def test_digits() -> None:
    images, labels = load_digits()
    assert images.dtype == torch.uint8
    assert labels.bincount().tolist() == [500] * 10
    normal = normalize_digits(images)
    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1) < 0.02
