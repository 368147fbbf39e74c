"""The batch of a step: a function of the step alone, as is everything random in a run.

Random numbers are a function of (seed, what for, counters), so there is no state of theirs to save or restore.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from gevit.data import Split
from gevit.data.rotation import rotate_each


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


Batch = tuple[Float[Tensor, "batch channels height width"], Int[Tensor, " batch"]]


class StepBatches(Dataset[Batch]):
    """Maps a step to this process's share of its batch, augmented and normalised.

    Every process works out the whole batch's order and random angles and takes its own slice, so that the same images
    meet the same angles however many processes share a batch. An incomplete last batch of an epoch is dropped; the
    order differs from epoch to epoch, so no image is left out for long.

    Args:
        split: the training images.
        normalize: from pixels in [0, 1] to what the network sees.
        batch_size: images a step, over all processes.
        seed: of order and augmentation.
        rotate: rotate half of the images by random angles; the others stay as sharp as they were.
        flip: mirror half of the images.
        rank: which share.
        world_size: how many shares.
    """

    def __init__(
        self,
        split: Split,
        normalize: Callable[[Tensor], Tensor],
        batch_size: int,
        seed: int,
        rotate: bool = False,
        flip: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.split = split
        self.normalize = normalize
        self.batch_size = batch_size
        self.seed = seed
        self.rotate, self.flip = rotate, flip
        share = batch_size // world_size
        self.share = slice(rank * share, (rank + 1) * share)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        return len(self.split) // self.batch_size

    def __getitem__(self, step: int) -> Batch:
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, torch.randperm(len(self.split), generator=generator_for(self.seed, For.ORDER, epoch)))
        indices = self._order[1][position * self.batch_size :][: self.batch_size][self.share]
        return self.normalize(self._augment(self.split.images(indices), step)), self.split.labels[indices]

    def _augment(self, images: Tensor, step: int) -> Tensor:
        if not (self.rotate or self.flip):
            return images
        generator = generator_for(self.seed, For.AUGMENTATION, step)
        mirrored, turned, angles = torch.rand((3, self.batch_size), generator=generator)[:, self.share]
        if self.flip:
            images = _where(mirrored < 0.5, images.flip(-1), images)
        if self.rotate:
            images = _where(turned < 0.5, rotate_each(images, 2 * math.pi * angles), images)
        return images


def _where(chosen: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, 1, 1, 1), one, other)


def check_batch_size(size: int, images: int, processes: int, accumulate: int) -> None:
    """Every step must have its whole batch, in equal parts."""
    if size > images:
        raise ValueError(f"batch_size is {size}, but there are only {images} training images")
    if size % (processes * accumulate):
        raise ValueError(
            f"batch_size must be a multiple of processes x accumulate = {processes} x {accumulate}, got {size}"
        )
