"""Models by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gevit._checks import check_choice, check_count, check_num_classes
from gevit.groups import Cyclic, Dihedral, Group
from gevit.models.base import EquivariantModel
from gevit.models.cnn import alpha_p4_cnn, p4_cnn, z2_cnn
from gevit.models.cpvt import cpvt
from gevit.models.info import ModelInfo
from gevit.models.presets import PRESETS, Preset
from gevit.models.transformer import GroupTransformer

SELF_ATTENTION: dict[str, Group] = {
    "z2_sa": Cyclic(1),
    "r4_sa": Cyclic(4),
    "r8_sa": Cyclic(8),
    "r12_sa": Cyclic(12),
    "r16_sa": Cyclic(16),
    "d1_sa": Dihedral(1),
    "d4_sa": Dihedral(4),
    "d8_sa": Dihedral(8),
}

_BASELINES: dict[str, Callable[[Preset], EquivariantModel]] = {
    "z2_cnn": z2_cnn,
    "p4_cnn": p4_cnn,
    "alpha_p4_cnn": alpha_p4_cnn,
    "cpvt": cpvt,
}


def list_models() -> list[str]:
    """The names that `create_model` knows.

    >>> list_models()[:2]
    ['z2_sa', 'r4_sa']
    """
    return [*SELF_ATTENTION, *_BASELINES]


def build_model(
    name: str,
    preset: str = "rotmnist",
    in_channels: int | None = None,
    num_classes: int | None = None,
    neighborhood: int | Sequence[int | None] | None = 5,
    encoding: str | Sequence[str] = "ge",
    pooling: str = "max_mean",
    backend: str = "auto",
    restrict: str | None = None,
    initialisation: str | None = None,
    truncate: bool = False,
) -> EquivariantModel:
    """Build a model by name, with random weights.

    The arguments are those of `gevit.create_model`, and `truncate`, which only the authors' weights want (see
    `GroupTransformer`).
    """
    check_choice("model", name, list_models())
    architecture = PRESETS[check_choice("preset", preset, PRESETS)]
    if in_channels is not None:
        architecture = dataclasses.replace(architecture, in_channels=check_count("in_channels", in_channels))
    if num_classes is not None:
        architecture = dataclasses.replace(architecture, num_classes=check_num_classes(num_classes))
    described: dict[str, Any] = {
        "neighborhood": neighborhood,
        "encoding": encoding,
        "pooling": pooling,
        "restrict": restrict,
        "truncate": truncate,
    }
    others: dict[str, Any] = {"backend": backend, "initialisation": initialisation}  # no part of what the model is
    if name in _BASELINES:
        if architecture.stem:
            raise ValueError(f"preset {preset!r} is an architecture of the self-attention models, which {name} is not")
        _check_defaults(name, {**described, **others})
        model: EquivariantModel = _BASELINES[name](architecture)
    else:
        model = GroupTransformer(SELF_ATTENTION[name], architecture, **described, **others)
    hashable = {option: _hashable(value) for option, value in described.items()}
    model.recipe = {"name": name, "preset": preset, **hashable}
    return model


def build(info: ModelInfo, backend: str = "auto", initialisation: str | None = None) -> EquivariantModel:
    """The model that is described, with random weights."""
    return build_model(info.name, info.preset, **info.options, backend=backend, initialisation=initialisation)


def _hashable(value: object) -> object:
    """One for each stage is a tuple in `ModelInfo`."""
    return value if isinstance(value, str) or not isinstance(value, Sequence) else tuple(value)


def _check_defaults(name: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        default = inspect.signature(build_model).parameters[option].default
        if value != default:
            raise ValueError(
                f"{option}={value!r} is an option of the self-attention models, which {name} is not; "
                f"leave it at its default, {default!r}"
            )
