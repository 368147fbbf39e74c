"""How the runs of a study are trained: the one place where recipes are.

`paper` is the setting of the paper for rotMNIST. For CIFAR-10 and PatchCamelyon it is that of its authors' code, though
the paper says that one setting was used throughout: the code has an architecture for each, and trains it so.
`cpu` is one recipe, with the same images for every row of a table: enough that networks have learned. Most rows take
minutes, the slowest (R16, 23x23) hours on two cores. `smoke` proves that the machinery runs.
"""

from __future__ import annotations

import dataclasses
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
# Like the recipe of the pretrained r4_sa (nine epochs of rotated images at 5e-2), for five epochs: learning rate and
# augmentation were chosen on validation images with z2_sa.
CONVERGED: Settings = {
    "data": "rotmnist-rebuilt",
    "epochs": 5,
    "batch_size": 16,
    "optimizer": "muon",
    "lr": 2e-2,
    "schedule": "trapezoid",
    "warmup_epochs": 0.25,
    "cooldown_epochs": 3.0,
    "weight_decay": 0.01,
    "clip_norm": 1.0,
    "ema": 0.998,
    "dropout": 0.0,
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

# Networks that begin with convolutions, on real images; the same for every budget but `smoke`.
REAL: Settings = {
    "batch_size": 16,
    "optimizer": "muon",
    "lr": 2e-2,
    "schedule": "cosine",
    "warmup_epochs": 0.2,
    "weight_decay": 0.01,
    "clip_norm": 1.0,
}
REAL_IMAGES: Mapping[str, Settings] = {
    "satellites": {**REAL, "data": "eurosat"},
    "cells": {**REAL, "data": "redcells", "select": "macro_f1"},
    "tissue": {**REAL, "data": "pcam", "preset": "tiny"},
    "photographs": {**REAL, "data": "cifar10", "preset": "tiny"},
    "galaxies": {**REAL, "data": "galaxies"},
    "labels": {**REAL, "data": "eurosat", "limit_valid": 100},
    "finetuning": {**REAL, "data": "redcells", "select": "macro_f1", "limit_train": 500, "limit_valid": 500},
}
# The same network on digits, small enough to train until it has learned what so many images can teach it.
NANO: Mapping[str, Settings] = {
    "sizes": {**REAL, "data": "rotmnist-rebuilt", "preset": "nano", "limit_valid": 500, "limit_test": 10_000},
    "upright": {**REAL, "data": "digits-upright", "preset": "nano", "epochs": 6},
}

RECIPES: Mapping[str, Mapping[str, Settings]] = {
    "smoke": {
        "rotmnist": SMOKE,
        "encodings": SMOKE,
        "converged": SMOKE,
        "cifar10": {**SMOKE, "preset": "cifar10"},
        "pcam": {**SMOKE, "preset": "pcam", "image_size": 48},
        "sizes": {**SMOKE, "preset": "nano"},
        "upright": {**SMOKE, "preset": "nano"},
        **{name: {**SMOKE, "preset": "tiny", "image_size": 16} for name in REAL_IMAGES},
    },
    "cpu": {
        "rotmnist": {**CPU, "lr": 2e-2, "limit_test": 10_000},
        "encodings": CPU,
        "converged": CONVERGED,
        "cifar10": {**CPU, "data": "cifar10", "lr": 2e-2, "epochs": 1, "limit_train": None},
        "pcam": {**CPU, "data": "pcam", "batch_size": 8, "epochs": 8},
        **NANO,
        **REAL_IMAGES,
    },
    "paper": {
        "rotmnist": PAPER,
        "encodings": PAPER,
        "converged": PAPER,
        "cifar10": {**PAPER_SGD, "data": "cifar10", "epochs": 350, "batch_size": 24},
        "pcam": {**PAPER_SGD, "data": "pcam", "epochs": 100, "batch_size": 16},
        **NANO,
        **REAL_IMAGES,
    },
}


def config_of(study: Study, budget: str, cell: Cell, seed: int = 0) -> TrainConfig:
    """The run of a cell."""
    return TrainConfig(**_given(study, budget, cell), seed=seed)


def yaml_of(study: Study, budget: str, run: Cell) -> str:
    """A run as a file for `gevit train --config`, with the cells of the table that it fills on top."""
    import yaml

    cells = [
        f"# {cell.row}, {cell.column}" + ("" if cell.paper is None else f"; in the paper {cell.paper:.2f}%")
        for cell in study.cells
        if cell.key == run.key
    ]
    given = {*_given(study, budget, run), "seed"}
    settings = {
        name: value for name, value in dataclasses.asdict(config_of(study, budget, run)).items() if name in given
    }
    return "\n".join([f"# {study.title}", *cells, yaml.safe_dump(settings, sort_keys=False)])


def seeds_of(study: Study, budget: str) -> int:
    """How often a run is repeated, unless it is said otherwise."""
    return study.seeds if budget == "cpu" else 1


def _given(study: Study, budget: str, cell: Cell) -> dict[str, Any]:
    """What the recipe and the cell set; the rest are defaults."""
    return {**RECIPES[budget][study.recipe], **cell.settings}
