"""Models by name, with random weights or with those that come with the package."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gevit._checks import check_choice
from gevit.models.base import EquivariantModel, info_of
from gevit.models.presets import PRESETS
from gevit.models.registry import build_model, list_models
from gevit.persistence import load


def create_model(
    name: str,
    preset: str = "rotmnist",
    in_channels: int | None = None,
    num_classes: int | None = None,
    neighborhood: int | Sequence[int | None] | None = 5,
    encoding: str | Sequence[str] = "ge",
    pooling: str = "max_mean",
    backend: str = "auto",
    pretrained: bool = False,
    restrict: str | None = None,
) -> EquivariantModel:
    """Build a classifier of images by name, with random or pretrained weights.

    Args:
        name: one of `gevit.list_models()`. The transformers are `z2_sa` (equivariant to translations), `r4_sa` to
            `r16_sa` (also to that many rotations) and `d1_sa` to `d8_sa` (also to reflections); each is a
            `GroupTransformer`. The baselines are `z2_cnn` (a plain CNN), `p4_cnn` (group convolutions),
            `alpha_p4_cnn` (attentive group convolutions) and `cpvt` (a plain vision transformer).
        preset: the architecture. The paper's are named after the data sets they were made for: `"rotmnist"`,
            `"cifar10"` and `"pcam"`. `"nano"` (digits and thumbnails), `"tiny"` (32 to 128 pixels) and `"small"` (up to
            512) begin with group convolutions, are many times as fast and learn from fewer images; they are for the
            transformers `*_sa` only.
        in_channels: channels of the images, if other than the preset's.
        num_classes: number of classes, if other than the preset's.
        neighborhood: side of the square of pixels that each pixel attends to, an odd number, None for the whole image;
            or one for each stage of the architecture.
        encoding: the positional encoding: `"ge"` (the paper), `"gsa"` (GSA-Nets, not equivariant) or `"relative"`
            (equivariant, and faster on large groups); or one for each stage.
        pooling: how feature maps become logits: `"max_mean"` (the paper) or `"sum_max"` (the authors' code).
        backend: how attention is computed, see `gevit.attention`. This and the three before it are options of the
            transformers `*_sa`: a baseline takes only their defaults.
        pretrained: load the weights that come with the package, in evaluation mode. Options other than theirs are
            refused. Their classes, normalisation and training are in `model.info`.
        restrict: the subgroup that feature maps live on from the last stage on, such as `"c4"`, or from stage 2 on,
            `"c4@2"`; the model is equivariant to that subgroup (see `GroupTransformer`).

    >>> model = create_model("r4_sa")
    >>> sum(p.numel() for p in model.parameters())
    44428
    """
    options: dict[str, Any] = {
        "in_channels": in_channels,
        "num_classes": num_classes,
        "neighborhood": neighborhood,
        "encoding": encoding,
        "pooling": pooling,
        "restrict": restrict,
    }
    if not pretrained:
        return build_model(name, preset, **options, backend=backend)
    check_choice("model", name, list_models())
    check_choice("preset", preset, PRESETS)
    model = load(pretrained_path(name, preset), backend)
    for option, trained in info_of(model).options.items():
        value, default = options[option], inspect.signature(create_model).parameters[option].default
        if value not in (trained, default):
            raise ValueError(f"the pretrained {name} has {option}={trained!r}, not {value!r}; leave {option} out")
    return model


def pretrained_path(name: str, preset: str = "rotmnist") -> Path:
    """Where the weights are that come with the package for this model and architecture."""
    folder = Path(str(resources.files("gevit.models"))) / "pretrained"
    path = folder / f"{name}_{preset}.safetensors"
    if not path.is_file():
        names = sorted(file.stem for file in folder.glob("*.safetensors"))
        raise ValueError(
            f"there are no pretrained weights of {name!r} for {preset!r}; "
            f"there are: {', '.join(names) or 'none in this installation'} (model_preset)"
        )
    return path
