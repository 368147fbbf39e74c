"""Models by name, with random weights or with those that come with the package."""

from __future__ import annotations

import inspect
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
    neighborhood: int | None = 5,
    encoding: str = "ge",
    pooling: str = "max_mean",
    backend: str = "auto",
    pretrained: bool = False,
) -> EquivariantModel:
    """Build a model by name.

    Args:
        name: one of `list_models()`: `z2_sa` (translations only), `r4_sa` ... (rotations), `d4_sa` ... (rotations
            and reflections), all of them a `GroupTransformer`; and baselines: `z2_cnn`, `p4_cnn` (group convolutions),
            `alpha_p4_cnn` (attentive ones) and `cpvt` (a vision transformer with conditional positional encoding).
        preset: the architecture: `"rotmnist"`, `"cifar10"`, `"pcam"` (the paper's) or `"nano"` (self-attention after
            a stem of group convolutions, which learns faster from few images).
        in_channels: channels of the images, if other than the preset's.
        num_classes: number of classes, if other than the preset's.
        neighborhood: odd side of the square around a pixel that it attends to; None for the whole image.
        encoding: `"ge"` (the paper), `"gsa"` (GSA-Nets, not equivariant) or `"relative"` (|H| times fewer terms).
        pooling: `"max_mean"` (the paper) or `"sum_max"` (the authors' code).
        backend: how attention is computed, see `gevit.attention`. This and the three before it are options of the
            self-attention models: a baseline takes only their defaults.
        pretrained: load the weights that come with the package, in evaluation mode. They bring their own options, and
            are refused if you ask for others; classes, normalisation and history are the model's `info`.

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
    }
    if not pretrained:
        return build_model(name, preset, **options, backend=backend)
    check_choice("model", name, list_models())
    check_choice("preset", preset, PRESETS)
    model = load(pretrained_path(name, preset), backend)
    for option, value in options.items():
        trained, default = getattr(info_of(model), option), inspect.signature(create_model).parameters[option].default
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
