"""Models by name."""

from __future__ import annotations

import dataclasses

from gevit._checks import check_choice, check_count
from gevit.groups import Cyclic, Dihedral, Group
from gevit.models.presets import PRESETS
from gevit.models.transformer import GroupTransformer

_SELF_ATTENTION: dict[str, Group] = {
    "z2_sa": Cyclic(1),
    "r4_sa": Cyclic(4),
    "r8_sa": Cyclic(8),
    "r12_sa": Cyclic(12),
    "r16_sa": Cyclic(16),
    "d1_sa": Dihedral(1),
    "d4_sa": Dihedral(4),
    "d8_sa": Dihedral(8),
}


def list_models() -> list[str]:
    """The names that `create_model` knows.

    >>> list_models()[:2]
    ['z2_sa', 'r4_sa']
    """
    return list(_SELF_ATTENTION)


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
) -> GroupTransformer:
    """Build a model by name.

    Args:
        name: one of `list_models()`: `z2_sa` (translations only), `r4_sa` ... (rotations), `d4_sa` ... (rotations
            and reflections).
        preset: the architecture: `"rotmnist"`, `"cifar10"` or `"pcam"`.
        in_channels: channels of the images, if other than the preset's.
        num_classes: number of classes, if other than the preset's.
        neighborhood: odd side of the square around a pixel that it attends to; None for the whole image.
        encoding: `"ge"` (the paper), `"gsa"` (GSA-Nets, not equivariant) or `"relative"` (|H| times fewer terms).
        pooling: `"max_mean"` (the paper) or `"sum_max"` (the authors' code).
        backend: how attention is computed, see `gevit.attention`.
        pretrained: whether to load trained weights.

    >>> model = create_model("r4_sa")
    >>> sum(p.numel() for p in model.parameters())
    44428
    """
    check_choice("model", name, list_models())
    architecture = PRESETS[check_choice("preset", preset, PRESETS)]
    if pretrained:
        raise ValueError(f"there are no pretrained weights for {name!r} yet; use pretrained=False")
    if in_channels is not None:
        architecture = dataclasses.replace(architecture, in_channels=check_count("in_channels", in_channels))
    if num_classes is not None:
        architecture = dataclasses.replace(architecture, num_classes=check_count("num_classes", num_classes))
    return GroupTransformer(
        _SELF_ATTENTION[name],
        architecture,
        neighborhood=neighborhood,
        encoding=encoding,
        pooling=pooling,
        backend=backend,
    )
