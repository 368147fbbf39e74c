"""Vision transformers that are equivariant to translations, rotations and reflections of the plane.

>>> import gevit, torch
>>> model = gevit.create_model("d4_sa").eval()
>>> images = torch.randn(2, 1, 28, 28)
>>> gevit.equivariance.assert_equivariant(model, images, gevit.groups.Dihedral(4), tolerance=1e-4)
"""

from gevit import equivariance, groups, models
from gevit.layers import GroupAttention, LiftingAttention
from gevit.models import create_model, list_models

__all__ = [
    "GroupAttention",
    "LiftingAttention",
    "create_model",
    "equivariance",
    "groups",
    "list_models",
    "models",
]
