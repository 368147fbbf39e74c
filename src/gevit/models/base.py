"""The base class of the models in the registry."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gevit._checks import check_dtype, check_image, check_num_classes
from gevit.groups import Group
from gevit.layers import InvariantPooling
from gevit.linear import Dropout, Pointwise
from gevit.models.info import ModelInfo
from gevit.models.presets import Preset


@contextlib.contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards every part is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


class EquivariantModel(nn.Module):
    """A classifier of images: a lifting to the group, a body of named layers on the group, invariant pooling.

    Subclasses fill the body and end with `_end_body`, which adds its last layer, `"classes"`, with one channel for each
    class. A model that knows no rotations or reflections lives on `Cyclic(1)`, the group of one element.

    Args:
        group: the group of the feature maps.
        preset: the data set's part of the architecture: channels, classes, dropout of the image.
        lifting: takes images to signals on the group.
        pooling: `"max_mean"` or `"sum_max"`.

    Attributes:
        info: what is known of a trained model, None for one with random weights.
        recipe: the arguments of `gevit.create_model` that it was made by, if it was; channels and classes aside.
        origin: the file that its weights were read from, if they were.
        num_features: channels of the last map before the classes.
        grad_checkpointing: see `set_grad_checkpointing`.
    """

    info: ModelInfo | None = None
    recipe: dict[str, Any] | None = None
    origin: Path | None = None
    num_features: int
    grad_checkpointing: bool = False

    def __init__(self, group: Group, preset: Preset, lifting: nn.Module, pooling: str = "max_mean") -> None:
        super().__init__()
        self.group = group
        self.preset = preset
        self.input_dropout = Dropout(preset.input_dropout)
        self.lifting = lifting
        self.body = nn.ModuleDict()
        self.pooling = InvariantPooling(pooling)

    def _end_body(self, num_features: int) -> None:
        self.num_features = num_features
        if self.preset.num_classes:
            self.body["classes"] = self._classifier(self.preset.num_classes)

    def _classifier(self, num_classes: int) -> nn.Module:
        return Pointwise(self.num_features, num_classes, bias=False)

    def get_classifier(self) -> nn.Module:
        """The map to the classes; the identity if there are none."""
        return self.body["classes"] if "classes" in self.body else nn.Identity()

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the map to the classes by one with random weights, for so many classes; none at all if 0.

        What is known of a trained model (`info`) stays, but for its classes, which are only numbered now, and for the
        outcome of its training.
        """
        self.preset = dataclasses.replace(self.preset, num_classes=check_num_classes(num_classes))
        if "classes" in self.body:
            del self.body["classes"]
        self._end_body(self.num_features)
        if num_classes:
            self.body["classes"].to(next(self.lifting.parameters())).train(self.training)
        if self.info:
            self.info = self.info.with_classes(num_classes)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch outputs"]:
        """Logits of a batch of images, of any size from `smallest_image` on; without classes, invariant features."""
        # Maps are dropped as the network goes on: only the last one is needed.
        features = collections.deque(self.iterate_features(x), maxlen=1).pop()[1]
        logits: Tensor = self.pooling(features)
        return logits

    def forward_features(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> dict[str, Float[Tensor, "batch _ _ _ _"]]:
        """Every intermediate feature map by name, from `"lifting"` to `"classes"`, if there are any."""
        return dict(self.iterate_features(x))

    def iterate_features(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Iterator[tuple[str, Float[Tensor, "batch _ _ _ _"]]]:
        """The same one by one, as the network goes on."""
        check_image(x, self.preset.in_channels)
        self._check_size(*x.shape[-2:])
        check_dtype(x, next(self.parameters(), x))  # the copies in nn.DataParallel have none
        x = self.input_dropout(x)
        for name, layer in [("lifting", self.lifting), *self.body.items()]:
            x = checkpointed(layer, x) if self.grad_checkpointing and torch.is_grad_enabled() else layer(x)
            yield name, x

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Whether to save memory in training by a second forward pass, with the same gradients.

        Of each layer only the output is kept; what is inside is computed again in the backward pass.
        """
        self.grad_checkpointing = enable

    def _check_size(self, height: int, width: int) -> None:
        if min(height, width) < self.smallest_image:
            raise ValueError(
                f"images must be at least {self.smallest_image}x{self.smallest_image} for this network, "
                f"got {height}x{width}"
            )

    def describe(self) -> ModelInfo:
        """What it takes to build the model again: its `info`, or for random weights one without a normalisation."""
        if self.info:
            return self.info
        if self.recipe is None:
            raise ValueError("only a model that gevit.create_model or gevit.load made knows how to be built again")
        channels, classes = self.preset.in_channels, self.preset.num_classes
        return ModelInfo(
            **self.recipe,
            in_channels=channels,
            num_classes=classes,
            classes=tuple(map(str, range(classes))),
            image_size=self.preset.image_size,
            mean=(0.0,) * channels,
            std=(1.0,) * channels,
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model as the Hugging Face hub has it, see `gevit.hub.save_pretrained`."""
        _hub().save_pretrained(self, folder)

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> EquivariantModel:
        """Read a model from a folder or from the Hugging Face hub, see `gevit.hub.from_pretrained`."""
        model = _hub().from_pretrained(source, **options)
        if not isinstance(model, cls):
            raise ValueError(
                f"{source} holds a {type(model).__name__}, not a {cls.__name__}; use gevit.from_pretrained"
            )
        return model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model to the Hugging Face hub, see `gevit.hub.push_to_hub`."""
        address: str = _hub().push_to_hub(self, repo_id, **options)
        return address

    @property
    def smallest_image(self) -> int:
        """The smallest height and width that the network takes."""
        return 1


def _hub() -> ModuleType:
    # It builds models, and so stands above them: they know it by name alone, and only when it is asked for.
    return importlib.import_module("gevit.hub")


def checkpointed(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output; what its backward pass needs is computed again then, with the same random numbers.

    A compiler decides for itself what to keep.
    """
    if torch.compiler.is_compiling():
        return layer(x)  # type: ignore[no-any-return]
    out: Tensor = checkpoint(
        layer, x, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _frozen_statistics(layer))
    )
    return out


@contextlib.contextmanager
def _frozen_statistics(layer: nn.Module) -> Iterator[None]:
    """Batch norms count a batch once, not again when it is recomputed."""
    norms = [m for m in layer.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    before = [(norm.momentum, norm.get_buffer("num_batches_tracked").clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.get_buffer("num_batches_tracked").copy_(batches)


def count_parameters(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in model.parameters())


def info_of(model: nn.Module) -> ModelInfo:
    """What is known of a model that `load` gave, alone or in an `Orbit`."""
    info = getattr(model, "info", None)
    if not isinstance(info, ModelInfo):
        raise ValueError("only a model that was read with gevit.load knows its classes and its normalisation")
    return info
