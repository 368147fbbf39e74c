"""Putting a run together: processes, data, model."""

from __future__ import annotations

import atexit
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision, Precision
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from gevit.data import DataSet, open_dataset
from gevit.data.catalog import CATALOG
from gevit.data.dataset import Split, choose
from gevit.layers import GroupAttention, LiftingAttention
from gevit.models import PRESETS, list_models
from gevit.models.base import EquivariantModel, info_of
from gevit.models.cpvt import SelfAttention
from gevit.models.info import ModelInfo
from gevit.models.registry import SELF_ATTENTION, build
from gevit.persistence import load
from gevit.pretrained import pretrained_path
from gevit.training.augmentation import Augmentation
from gevit.training.batches import For, StepBatches, seed_for
from gevit.training.config import TrainConfig

SMALL_IMAGE = 40
WORDS = {"train": "training", "valid": "validation", "test": "test"}

Outcome = TypeVar("Outcome")


def make_fabric(config: TrainConfig) -> Fabric:
    """Devices and processes; those that torchrun started, if it did."""
    atexit.register(_leave_the_others)
    devices, nodes = config.devices, config.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    try:
        return Fabric(
            accelerator=config.accelerator,
            devices=devices or "auto",
            num_nodes=nodes,
            strategy="ddp" if (devices or 1) * nodes > 1 else "auto",
            plugins=[_precision(config)],
        )
    except (RuntimeError, MisconfigurationException) as error:
        raise ValueError(
            f"cannot train with accelerator {config.accelerator!r}, devices {config.devices}, nodes {config.nodes} "
            f"and precision {config.precision!r} here: {error}"
        ) from error


def _leave_the_others() -> None:
    """Close the connections to the other processes: threads that still hold them as Python ends may abort it."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _precision(config: TrainConfig) -> Precision:
    """Arithmetic, as asked: Fabric by itself would train in bfloat16 on a CPU where float16 is meant."""
    if config.precision == "float32":
        return Precision()
    device = "cpu"
    if config.accelerator != "cpu" and torch.accelerator.is_available():  # a build for GPUs may find none
        device = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    return MixedPrecision(config.precision, device)  # type: ignore[arg-type]


def loss_scaler(fabric: Fabric) -> torch.amp.GradScaler | None:
    """What keeps gradients within the range of float16, where those are trained with."""
    scaler: torch.amp.GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)
    return scaler


def on_every_process(fabric: Fabric, action: Callable[[], Outcome]) -> Outcome:
    """Do it everywhere; what fails on one process fails on all, so that none waits for the others."""
    failed: Exception | None = None
    try:
        outcome = action()
    except (OSError, ValueError, TypeError, ImportError) as error:
        failed = error
    messages = [str(failed) if failed else ""]
    if fabric.world_size > 1:
        messages *= fabric.world_size
        torch.distributed.all_gather_object(messages, messages[0])
    if failed:
        raise failed
    for rank, message in enumerate(messages):
        if message:
            raise ValueError(f"process {rank} of this run says: {message}")
    return outcome


def on_first_process(fabric: Fabric, action: Callable[[], Outcome]) -> Outcome:
    """Do it on the first process alone, and give its outcome to all."""
    outcome = on_every_process(fabric, lambda: action() if fabric.is_global_zero else None)
    return fabric.broadcast(outcome)  # type: ignore[return-value]


def same_everywhere(fabric: Fabric, digest: str) -> str:
    """The digest of the data, which must be the same on every process."""
    of_the_first = fabric.broadcast(digest)

    def check() -> None:
        if digest != of_the_first:
            raise ValueError("the images or labels here are not those of the first process; give all the same data")

    on_every_process(fabric, check)
    return digest


def open_data(config: TrainConfig) -> tuple[DataSet, str, str]:
    """The data set, cut to the limits, what to call it, and the digest of the whole.

    What is left of a split does not depend on the seed.

    >>> open_data(TrainConfig(data="digits", limit_train=64, limit_test=10))[1]
    'digits, 64 of 4,000 training images and 10 of 500 test images'
    """
    data = open_dataset(config.data, config.data_root, image_size=config.image_size, skip_corrupt=config.skip_corrupt)
    limits = {"train": config.limit_train, "valid": config.limit_valid, "test": config.limit_test}
    cuts = {name: limit for name, limit in limits.items() if limit and limit < len(data.split(name))}
    words = [f"{cut:,} of {len(data.split(name)):,} {WORDS[name]} images" for name, cut in cuts.items()]
    parts: dict[str, Any] = {
        name: data.split(name).subset(choose(data.split(name).labels, cut)) for name, cut in cuts.items()
    }
    label = ", ".join([data.label, *words[:-2], " and ".join(words[-2:])]) if words else data.label
    return dataclasses.replace(data, **parts), label, data.digest


def describe_model(config: TrainConfig, data: DataSet, origin: str) -> ModelInfo:
    """What is to be trained; `origin` is the digest of the data before they are cut."""
    return ModelInfo(
        name=config.model,
        preset=config.preset or preset_for(config, data.image_size),
        in_channels=data.channels,
        num_classes=len(data.classes),
        neighborhood=config.neighborhood,
        encoding=config.encoding,
        pooling=config.pooling,
        restrict=config.restrict,
        classes=data.classes,
        image_size=data.image_size,
        mean=data.mean,
        std=data.std,
        data=data.name,
        trained={"data_digest": origin},
    )


def preset_for(config: TrainConfig, image_size: int) -> str:
    """The architecture that was made for such images: the paper's for its data sets, else `tiny`.

    The baselines have no such architecture: they take what the paper's for images of this size says of dropout.
    """
    if config.data in CATALOG:  # a folder may have any name
        if config.data in PRESETS:
            return config.data
        if image_size <= SMALL_IMAGE:
            return "rotmnist"
    if config.model in SELF_ATTENTION:
        return "tiny"
    return "rotmnist" if image_size <= SMALL_IMAGE else "pcam"


def make_model(config: TrainConfig, info: ModelInfo) -> EquivariantModel:
    """A model with its first weights, drawn from the run's seed."""
    torch.manual_seed(seed_for(config.seed, For.WEIGHTS))
    model = build(info, config.backend, config.initialisation)
    if config.dropout is not None:
        for layer in model.modules():
            if isinstance(layer, nn.Dropout) and layer.p:
                layer.p = config.dropout
            elif isinstance(layer, (LiftingAttention, GroupAttention, SelfAttention)) and layer.dropout:
                layer.dropout = config.dropout
    return model


def make_batches(config: TrainConfig, images: Split, info: ModelInfo, rank: int, world_size: int) -> StepBatches:
    """The batches of each step, as far as they are this process's; workers get these images and no others."""
    augmentation = Augmentation(config.rotate, config.flip, config.brightness, config.contrast, config.stain)
    return StepBatches(
        images,
        info.normalize,
        config.batch_size,
        config.seed,
        augmentation if augmentation != Augmentation() else None,
        balanced=config.balance == "sampling",
        rank=rank,
        world_size=world_size,
    )


def take_weights(model: EquivariantModel, source: str, preset: str) -> list[str]:
    """Copy the weights of a trained model as far as they fit; returns the names of those that do not.

    A model of another group fits but for the vectors of its elements, one of other classes but for its last map.

    Args:
        model: takes the weights.
        source: a folder or file that `gevit.load` reads, or the name of a model whose weights come with the package,
            `r4_sa`, with the data that they were trained on, `d4_sa:eurosat`, where there are several.
        preset: the architecture of the pretrained model.
    """
    name, _, data = source.partition(":")
    trained = load(_pretrained(name, preset, data or True) if name in list_models() else source)
    info = info_of(trained)
    if info.preset != preset:
        raise ValueError(
            f"{source} has the architecture {info.preset!r}, trained on images of {info.image_size}x{info.image_size}, "
            f"and this run has {preset!r}; give --preset {info.preset} --image-size {info.image_size}"
        )
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


def check_image_size(model: EquivariantModel, data: DataSet) -> None:
    """Refuse images that the network would crop to nothing."""
    least, size = model.smallest_image, data.image_size
    if size < least:
        raise ValueError(
            f"the images of {data.name} are {size}x{size}, and this network takes {least}x{least} or larger; "
            f"give --image-size {least} or more, or --preset nano"
        )


def _pretrained(name: str, preset: str, pretrained: bool | str) -> Path:
    try:
        return pretrained_path(name, preset, pretrained)
    except ValueError as error:
        raise ValueError(f"{error}. This run has the architecture {preset!r}; choose another with --preset") from error
