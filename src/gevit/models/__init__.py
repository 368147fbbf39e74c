"""Models: a registry of names, the group transformer, the baselines, and the reader of the authors' weights."""

from gevit.models import official
from gevit.models.base import EquivariantModel
from gevit.models.features import FeatureMaps
from gevit.models.presets import PRESETS, Preset, Stage
from gevit.models.registry import build_model, list_models
from gevit.models.transformer import GroupTransformer

__all__ = [
    "PRESETS",
    "EquivariantModel",
    "FeatureMaps",
    "GroupTransformer",
    "Preset",
    "Stage",
    "build_model",
    "list_models",
    "official",
]
