"""Vision transformers that are equivariant to translations, rotations and reflections of the plane.

>>> import gevit, torch
>>> model = gevit.create_model("d4_sa").eval()
>>> images = torch.randn(2, 1, 28, 28)
>>> gevit.equivariance.assert_equivariant(model, images, gevit.groups.Dihedral(4), tolerance=1e-4)
"""

import importlib.util
from typing import TYPE_CHECKING

from gevit._version import __version__ as __version__

if TYPE_CHECKING:
    from gevit import attention, data, equivariance, groups, models
    from gevit.hub import from_pretrained
    from gevit.layers import GroupAttention, LiftingAttention
    from gevit.models import list_models
    from gevit.orbit import Orbit
    from gevit.persistence import load, save
    from gevit.pretrained import create_model, list_pretrained


__all__ = [
    "GroupAttention",
    "LiftingAttention",
    "Orbit",
    "attention",
    "create_model",
    "data",
    "equivariance",
    "from_pretrained",
    "groups",
    "list_models",
    "list_pretrained",
    "load",
    "models",
    "save",
]

# Loaded at first use, so that the command line answers `--help` without waiting for torch.
_HOMES = {
    "GroupAttention": "gevit.layers",
    "LiftingAttention": "gevit.layers",
    "Orbit": "gevit.orbit",
    "create_model": "gevit.pretrained",
    "from_pretrained": "gevit.hub",
    "list_models": "gevit.models",
    "list_pretrained": "gevit.pretrained",
    "load": "gevit.persistence",
    "save": "gevit.persistence",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if not name.startswith("_") and importlib.util.find_spec(f"gevit.{name}"):
        return importlib.import_module(f"gevit.{name}")
    raise AttributeError(f"module 'gevit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
