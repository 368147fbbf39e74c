"""The learning rate as a function of the step alone, so that resuming needs no state."""

from __future__ import annotations

import math

from gevit.training.config import TrainConfig

# A one-cycle run starts and ends at these fractions of its peak.
ONE_CYCLE_START, ONE_CYCLE_END = 1 / 25, 1 / 10_000


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate of a step, counted from 0.

    `constant`: the peak throughout; `cosine`: half a cosine from the peak to 0; `one_cycle`: half a cosine up, half a
    cosine down to (nearly) 0; `trapezoid`: the peak, then a straight fall to 0 in the last `cooldown_epochs`, so that a
    run may be made longer or ended early and lose nothing. All rise linearly for `warmup_epochs` first, except
    `one_cycle`, which rises by its half cosine for `warmup_epochs`, or 0.3 of the run if that is 0.

    >>> config = TrainConfig(lr=1.0, epochs=10, schedule="cosine", warmup_epochs=2.0)
    >>> [round(learning_rate(config, step, 10), 3) for step in (0, 10, 20, 60, 99)]
    [0.05, 0.55, 1.0, 0.5, 0.0]
    """
    total = config.epochs * steps_per_epoch
    warmup = config.warmup_epochs * steps_per_epoch
    if config.schedule == "one_cycle":
        warmup = warmup or 0.3 * total
        if step < warmup:
            return config.lr * _between(ONE_CYCLE_START, 1.0, step / warmup)
        return config.lr * _between(1.0, ONE_CYCLE_END, (step - warmup) / (total - warmup))
    if step < warmup:
        return config.lr * (step + 1) / warmup if warmup > 1 else config.lr
    if config.schedule == "cosine":
        return config.lr * _between(1.0, 0.0, (step - warmup) / (total - warmup))
    if config.schedule == "trapezoid" and config.cooldown_epochs:
        return config.lr * min(1.0, (total - step) / (config.cooldown_epochs * steps_per_epoch))
    return config.lr


def _between(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2
