"""Putting a run together: devices, data, model, optimizer."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from gevit.data import DataSet, open_dataset
from gevit.data.dataset import choose
from gevit.layers import GroupAttention, LiftingAttention
from gevit.models import PRESETS, list_models
from gevit.models.base import EquivariantModel
from gevit.models.cpvt import SelfAttention
from gevit.models.info import ModelInfo
from gevit.models.registry import build
from gevit.persistence import load
from gevit.pretrained import pretrained_path
from gevit.training.config import TrainConfig
from gevit.training.muon import Muon, hidden_matrices
from gevit.training.randomness import For, seed_for

SMALL_IMAGE = 40


def make_fabric(config: TrainConfig) -> Fabric:
    """Devices and processes; those that torchrun started, if it did."""
    devices, nodes = config.devices, config.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    precision = {"float32": "32-true", "bfloat16": "bf16-mixed"}[config.precision]
    try:
        return Fabric(
            accelerator=config.accelerator,
            devices=devices or "auto",
            num_nodes=nodes,
            strategy="ddp" if (devices or 1) * nodes > 1 else "auto",
            precision=precision,  # type: ignore[arg-type]
        )
    except (RuntimeError, MisconfigurationException) as error:
        raise ValueError(
            f"cannot train with accelerator {config.accelerator!r}, devices {config.devices}, nodes {config.nodes} "
            f"and precision {config.precision!r} here: {error}"
        ) from error


def open_data(config: TrainConfig) -> DataSet:
    """The data set, cut to the limits; what is left of a split does not depend on the run's seed."""
    data = open_dataset(config.data, config.data_root, image_size=config.image_size, skip_corrupt=config.skip_corrupt)
    limits: dict[str, Any] = {"train": config.limit_train, "valid": config.limit_valid, "test": config.limit_test}
    parts: dict[str, Any] = {
        name: data.split(name).subset(choose(data.split(name).labels, limit)) for name, limit in limits.items() if limit
    }
    return dataclasses.replace(data, **parts)


def describe_model(config: TrainConfig, data: DataSet) -> ModelInfo:
    """What is to be trained."""
    is_whole = not (config.limit_train or config.limit_valid or config.limit_test)
    return ModelInfo(
        name=config.model,
        preset=config.preset or preset_for(data),
        in_channels=data.channels,
        num_classes=len(data.classes),
        neighborhood=config.neighborhood,
        encoding=config.encoding,
        pooling=config.pooling,
        classes=data.classes,
        image_size=data.image_size,
        mean=data.mean,
        std=data.std,
        data=data.name,
        trained={"data_digest": data.digest} if is_whole else {},
    )


def preset_for(data: DataSet) -> str:
    """The architecture that was made for such images: that of the named set, else by their size."""
    if data.name in PRESETS:
        return data.name
    return "rotmnist" if data.image_size <= SMALL_IMAGE else "pcam"


def make_model(config: TrainConfig, info: ModelInfo) -> EquivariantModel:
    """A model with its first weights, drawn from the run's seed."""
    torch.manual_seed(seed_for(config.seed, For.WEIGHTS))
    model = build(info, config.backend)
    if config.dropout is not None:
        for layer in model.modules():
            if isinstance(layer, nn.Dropout) and layer.p:
                layer.p = config.dropout
            elif isinstance(layer, (LiftingAttention, GroupAttention, SelfAttention)) and layer.dropout:
                layer.dropout = config.dropout
    return model


def take_weights(model: EquivariantModel, source: str, preset: str) -> list[str]:
    """Copy the weights of a trained model as far as they fit; returns the names of those that do not.

    A model of another group fits but for the vectors of its elements, one of other classes but for its last map.

    Args:
        model: takes the weights.
        source: a folder or file that `gevit.load` reads, or the name of a model whose weights come with the package.
        preset: the architecture of the pretrained model.
    """
    trained = load(pretrained_path(source, preset) if source in list_models() else source)
    same_group = str(trained.group) == str(model.group)
    state = model.state_dict()
    fitting = {
        name: tensor
        for name, tensor in trained.state_dict().items()
        if name in state
        and tensor.shape == state[name].shape
        and (same_group or not name.endswith("positions.element"))
    }
    if not fitting:
        raise ValueError(f"no weight of {source} fits the model to be trained; start from one of the same architecture")
    model.load_state_dict(fitting, strict=False)
    return [name for name in state if name not in fitting]


def make_optimizer(config: TrainConfig, model: EquivariantModel) -> Optimizer:
    """The optimizer; its learning rate is set at every step."""
    if config.optimizer == "sgd":
        return SGD(model.parameters(), config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if config.optimizer == "muon":
        return Muon(*hidden_matrices(model), config.lr, config.momentum, config.weight_decay)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[config.optimizer]
    return kind(model.parameters(), config.lr, weight_decay=config.weight_decay)
