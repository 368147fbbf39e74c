"""Randomness as a function of (seed, what for, counters): nothing to save, nothing to restore."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class For(IntEnum):
    """What random numbers are drawn for; each purpose has streams of its own."""

    WEIGHTS = 0
    ORDER = 1
    AUGMENTATION = 2
    DROPOUT = 3


def seed_for(seed: int, purpose: For, *counters: int) -> int:
    """A 63-bit seed that is as good as independent for every different argument.

    >>> seed_for(0, For.ORDER, 1) != seed_for(0, For.ORDER, 2)
    True
    """
    return int(np.random.SeedSequence([seed, purpose, *counters]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_for(seed: int, purpose: For, *counters: int) -> torch.Generator:
    """A generator seeded with `seed_for`."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *counters))
