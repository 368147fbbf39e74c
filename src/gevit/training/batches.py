"""The batch of a step: a function of the step alone, as is everything random in a run.

Random numbers are a function of (seed, what for, counters), so there is no state of theirs to save or restore.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from gevit.data import Split
from gevit.training.augmentation import Augmentation


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
        augmentation: what happens to images at random; None for nothing.
        balanced: draw as many images of every class in an epoch, those of rare classes repeatedly.
        rank: which share.
        world_size: how many shares.
    """

    def __init__(
        self,
        split: Split,
        normalize: Callable[[Tensor], Tensor],
        batch_size: int,
        seed: int,
        augmentation: Augmentation | None = None,
        balanced: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.split = split
        self.normalize = normalize
        self.batch_size = batch_size
        self.seed = seed
        self.augmentation, self.balanced = augmentation, balanced
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
            generator = generator_for(self.seed, For.ORDER, epoch)
            labels = self.split.labels
            order = balanced_order(labels, generator) if self.balanced else shuffled(len(labels), generator)
            self._order = (epoch, order)
        indices = self._order[1][position * self.batch_size :][: self.batch_size][self.share]
        images = self.split.images(indices)
        if self.augmentation:
            generator = generator_for(self.seed, For.AUGMENTATION, step)
            images = self.augmentation(images, self.share, self.batch_size, generator)
        return self.normalize(images), self.split.labels[indices]


def shuffled(count: int, generator: torch.Generator) -> Int[Tensor, " count"]:
    """The numbers below `count` in random order."""
    return torch.randperm(count, generator=generator)


def balanced_order(labels: Int[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """As many indices as there are images, in random order: of every class as many, give or take one.

    Images of rare classes come several times, all of a class equally often, give or take one; of frequent classes, some
    do not come.

    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> labels[balanced_order(labels, torch.Generator())].bincount().tolist()
    [50, 50]
    """
    classes = labels.unique()
    quotas = (torch.arange(len(labels)) % len(classes)).bincount()[shuffled(len(classes), generator)]
    chosen = []
    for label, quota in zip(classes, quotas.tolist(), strict=True):
        members = (labels == label).nonzero().flatten()
        rounds = [members[shuffled(len(members), generator)] for _ in range(-(-quota // len(members)))]
        chosen.append(torch.cat(rounds)[:quota])
    return torch.cat(chosen)[shuffled(len(labels), generator)]


def class_weights(labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, " classes"]:
    """Weights in inverse proportion to how often a class comes, with a mean of 1 over the images.

    >>> class_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 2.0000])
    """
    counts = labels.bincount(minlength=classes)
    return len(labels) / (len(labels.unique()) * counts.clamp(min=1))


def check_batch_size(size: int, images: int, processes: int, accumulate: int) -> None:
    """Every step must have its whole batch, in equal parts."""
    if size > images:
        raise ValueError(
            f"batch_size is {size}, but there are only {images} training images; give --batch-size {images} or less"
        )
    if size % (processes * accumulate):
        raise ValueError(
            f"batch_size must be a multiple of processes x accumulate = {processes} x {accumulate}, got {size}"
        )
