"""Models: a registry of names, the group transformer, and the reader of the authors' weights."""

from gevit.models import official
from gevit.models.presets import PRESETS, Preset
from gevit.models.registry import create_model, list_models
from gevit.models.transformer import GroupTransformer

__all__ = ["PRESETS", "GroupTransformer", "Preset", "create_model", "list_models", "official"]
