"""Who is asked what: the models of a kind of image, side by side, and images to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gevit.data import DataSet, open_dataset
from gevit.data.catalog import CATALOG
from gevit.data.storage import data_root
from gevit.groups import Cyclic, Group
from gevit.models.attention_maps import attention_layers
from gevit.models.base import EquivariantModel, count_parameters, info_of
from gevit.models.info import ModelInfo
from gevit.persistence import load
from gevit.pretrained import Pretrained, list_pretrained
from gevit.rendering.words import percent

SAMPLES = 12
LARGEST_IMAGE = 256  # that a model is shown here: an answer should take milliseconds

EQUIVARIANT, TWIN, PLAIN, YOURS = "equivariant", "twin", "plain", "yours"


@dataclass(frozen=True)
class Contender:
    """A model, and the part it plays.

    Attributes:
        role: `equivariant`; `twin`, the same network with the encoding of GSA-Nets; `plain`, without the symmetry;
            or `yours`.
        model: in evaluation mode, with its `info`.
    """

    role: str
    model: EquivariantModel

    @property
    def info(self) -> ModelInfo:
        """What is known of it."""
        return info_of(self.model)

    @property
    def acting(self) -> Group:
        """The group by which its maps are moved; those of a plain model, which are images, by quarter turns."""
        return self.model.group if self.model.group.order > 1 else Cyclic(4)

    def has_in_group(self, angle: float, flip: bool) -> bool:
        """Whether its group has this move."""
        group = self.model.group
        steps = angle * group.rotations / 360
        return steps == round(steps) and (group.reflections or not flip)

    @property
    def is_equivariant(self) -> bool:
        """Whether its layers commute with its group, by construction."""
        return "gsa" not in self.info.encoding

    def describe(self) -> dict[str, Any]:
        """For the page."""
        info, accuracy = self.info, self.info.trained.get("test_accuracy")
        return {
            "role": self.role,
            "name": info.name,
            "encoding": info.encoding if isinstance(info.encoding, str) else ", ".join(info.encoding),
            "group": str(self.model.group),
            "order": self.model.group.order,
            "parameters": count_parameters(self.model),
            "data": info.data,
            "accuracy": percent(accuracy) if isinstance(accuracy, float) else None,
            "layers": ["lifting", *self.model.body],
            "attention": layers_with_attention(self.model, self.acting),
            "elements": [self.acting.name(element) for element in range(self.acting.order)],
        }


@dataclass(frozen=True)
class Scene:
    """A kind of image.

    Attributes:
        name: by which the page asks for it.
        title: for people.
        contenders: models that take the same images and know the same classes.
        data: the set that its samples are from; None if there are none.
        opening: the sample to begin with.
        training: how its models were trained, for a fair comparison.
        wanted: the named set that would have samples.
    """

    name: str
    title: str
    contenders: Sequence[Contender]
    data: DataSet | None = None
    opening: int = 0
    training: str = ""
    wanted: str = ""

    @property
    def info(self) -> ModelInfo:
        """Of the first model; the others take the same images."""
        return self.contenders[0].info

    @cached_property
    def samples(self) -> tuple[Float[Tensor, "n channels side side"], Int[Tensor, " n"]]:
        """Some test images of each class, and their classes."""
        if self.data is None:
            size = self.info.image_size
            return torch.empty(0, self.info.in_channels, size, size), torch.empty(0, dtype=torch.long)
        split = self.data.test
        of_each = max(1, SAMPLES // len(self.data.classes))
        members = [(split.labels == label).nonzero().flatten()[:of_each] for label in split.labels.unique()]
        chosen = torch.cat(members)[: 2 * SAMPLES]
        return split.images(chosen), split.labels[chosen]

    def summary(self) -> dict[str, Any]:
        """The scene in a list: its name, its models, and where its images are from."""
        models = [{"role": one.role, "name": one.info.name} for one in self.contenders]
        return {"name": self.name, "title": self.title, "models": models, "data": self.data and self.data.name}

    def describe(self) -> dict[str, Any]:
        """For the page."""
        info = self.info
        return self.summary() | {
            "classes": list(info.classes),
            "size": info.image_size,
            "channels": info.in_channels,
            "opening": self.opening,
            "training": self.training,
            "wanted": self.wanted if self.data is None else "",
            "models": [contender.describe() for contender in self.contenders],
        }


@dataclass(frozen=True)
class Shipped:
    """A scene whose models come with the package; those that are missing are left out."""

    title: str
    data: str
    models: tuple[tuple[str, str, str, str], ...]  # role, model, preset, data
    opening: int
    training: str

    def weights(self) -> dict[str, Pretrained]:
        """The weights that are there, by role."""
        shipped = {(row.model, row.preset, row.data): row for row in list_pretrained()}
        return {role: shipped[key] for role, *rest in self.models if (key := tuple(rest)) in shipped}

    def summary(self, name: str) -> dict[str, Any]:
        """As that of the scene, before it is loaded."""
        models = [{"role": role, "name": row.model} for role, row in self.weights().items()]
        return {"name": name, "title": self.title, "models": models, "data": self.data if self._has_data() else None}

    def open(self, name: str) -> Scene:
        """Load it, with samples if its data set is here."""
        contenders = [Contender(role, load(row.path)) for role, row in self.weights().items()]
        data = open_dataset(self.data) if self._has_data() else None
        return Scene(name, self.title, contenders, data, self.opening, self.training, self.data)

    def _has_data(self) -> bool:
        entry = CATALOG[self.data]
        return entry.embedded or entry.is_present(data_root())


SHIPPED = {
    "digits": Shipped(
        "Digits",
        "digits-upright",
        (
            (EQUIVARIANT, "r4_sa", "nano", "digits-upright"),
            (TWIN, "r4_sa", "nano", "digits-upright-gsa"),
            (PLAIN, "z2_sa", "nano", "digits-upright"),
        ),
        opening=4,
        training="All three were trained alike: the same 4,000 upright digits, settings and seed. None of them has "
        "ever seen a rotated digit.",
    ),
    "satellite": Shipped(
        "Satellite images",
        "eurosat",
        ((EQUIVARIANT, "d4_sa", "tiny", "eurosat"), (PLAIN, "z2_sa", "tiny", "eurosat")),
        opening=3,
        training="Not trained alike: the equivariant model was trained longer, in the end on rotated images too. "
        "Compare how the answers move, not how often they are right.",
    ),
    "cells": Shipped(
        "Blood cells",
        "redcells",
        ((EQUIVARIANT, "d4_sa", "tiny", "redcells"), (PLAIN, "z2_sa", "tiny", "redcells")),
        opening=2,
        training="Both were trained alike: the same cells, half of them rotated by any angle, settings and seed. The "
        "plain model has learned from rotated cells, and still its answer moves.",
    ),
}


def layers_with_attention(model: EquivariantModel, acting: Group) -> list[str]:
    """The layers whose attention lives on the group that acts, or on none."""
    layers = attention_layers(model).items()
    return [name for name, layer in layers if layer.group.order in (1, acting.order)]


def check_model(model: EquivariantModel) -> EquivariantModel:
    """Refuse a model that the lab cannot show."""
    info = info_of(model)
    if not info.num_classes:
        raise ValueError("this model gives features and has no classes (num_classes=0): the lab shows classifiers")
    if info.image_size > LARGEST_IMAGE:
        raise ValueError(
            f"this model takes images of {info.image_size}x{info.image_size} pixels; the lab shows up to "
            f"{LARGEST_IMAGE}x{LARGEST_IMAGE}"
        )
    return model
