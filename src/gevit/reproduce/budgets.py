"""How the runs of a study are trained: the one place where recipes are.

`paper` is the setting of the paper and, where the paper is silent, of its authors' code. `cpu` is one recipe for all
runs (the slowest have fewer images), so small that a study takes a few hours on two cores. `smoke` proves that the
machinery runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gevit.reproduce.study import Cell, Study
from gevit.training.config import TrainConfig

BUDGETS = ("smoke", "cpu", "paper")
Settings = Mapping[str, Any]

SMOKE: Settings = {
    "data": "digits-upright",
    "epochs": 1,
    "batch_size": 2,
    "limit_train": 4,
    "limit_valid": 2,
    "limit_test": 2,
}
CPU: Settings = {
    "data": "rotmnist-rebuilt",
    "epochs": 3,
    "batch_size": 16,
    "optimizer": "muon",
    "lr": 5e-2,
    "schedule": "cosine",
    "warmup_epochs": 0.25,
    "weight_decay": 0.01,
    "dropout": 0.0,
    "limit_train": 3000,
    "limit_valid": 500,
    "limit_test": 5000,
}
PAPER: Settings = {
    "data": "rotmnist",
    "epochs": 300,
    "batch_size": 8,
    "optimizer": "adam",
    "lr": 1e-3,
    "schedule": "constant",
    "weight_decay": 1e-4,
}
PAPER_SGD: Settings = {
    "optimizer": "sgd",
    "lr": 1e-2,
    "momentum": 0.9,
    "schedule": "cosine",
    "warmup_epochs": 10.0,
    "weight_decay": 1e-4,
}

RECIPES: Mapping[str, Mapping[str, Settings]] = {
    "smoke": {
        "rotmnist": SMOKE,
        "cifar10": {**SMOKE, "preset": "cifar10"},
        "pcam": SMOKE,  # the architecture of the digits: that of pcam needs larger images
        "sizes": SMOKE,
        "upright": SMOKE,
    },
    "cpu": {
        "rotmnist": CPU,
        "cifar10": {**CPU, "data": "cifar10", "lr": 2e-2},
        "pcam": {**CPU, "data": "pcam", "lr": 2e-2},
        # A few images need more passes.
        "sizes": {**CPU, "epochs": 10},
        "upright": {**CPU, "data": "digits-upright"},
    },
    "paper": {
        "rotmnist": PAPER,
        "cifar10": {**PAPER_SGD, "data": "cifar10", "epochs": 350, "batch_size": 24},
        "pcam": {**PAPER_SGD, "data": "pcam", "epochs": 100, "batch_size": 16},
        "sizes": PAPER,
        "upright": {**PAPER, "data": "digits-upright"},
    },
}
# What runs get instead, by the cost of their cells.
COSTLY: Mapping[str, tuple[Settings, ...]] = {
    "cpu": (
        {},
        {"limit_train": 1000, "limit_valid": 250, "limit_test": 2000},
        {"limit_train": 500, "limit_valid": 250, "limit_test": 1000},
    )
}


def config_of(study: Study, budget: str, cell: Cell, seed: int = 0) -> TrainConfig:
    """The run of a cell."""
    settings = {**RECIPES[budget][study.experiment], **cell.settings}
    if budget in COSTLY:
        settings |= COSTLY[budget][cell.cost]
    return TrainConfig(**settings, seed=seed)


def seeds_of(study: Study, budget: str) -> int:
    """How often a run is repeated, unless it is said otherwise."""
    return study.seeds if budget == "cpu" else 1
