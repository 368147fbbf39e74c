"""The models as those of timm: after `import gevit.timm_models`, `timm.create_model("gevit_d4_sa_tiny")` builds one.

Those with a stem are there, for every group: `gevit_MODEL_PRESET`. Arguments are spelled as in timm: `in_chans`,
`num_classes`, `drop_path_rate`, `features_only`, `out_indices`; `pretrained=True` loads weights that come with gevit,
where there are any, and `pretrained_data` says which. The other options are those of `gevit.create_model`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from gevit.environment import needs
from gevit.models import PRESETS
from gevit.models.registry import SELF_ATTENTION
from gevit.models.transformer import GroupTransformer
from gevit.pretrained import create_model

with needs("timm", extra="timm"):
    from timm.models import register_model  # type: ignore[import-not-found, unused-ignore]

# What timm hands to every model, and ours have no use for: where weights are downloaded from.
_DOWNLOADS = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


def _entry(name: str, preset: str) -> Callable[..., nn.Module]:
    def build(
        pretrained: bool = False,
        in_chans: int | None = None,
        drop_path_rate: float | None = None,
        pretrained_data: str | None = None,
        **options: Any,
    ) -> nn.Module:
        kept = {option: value for option, value in options.items() if option not in _DOWNLOADS}
        weights = (pretrained_data or True) if pretrained else False
        model: nn.Module = create_model(name, preset, in_channels=in_chans, pretrained=weights, **kept)
        if drop_path_rate is not None:
            transformer = next(part for part in model.modules() if isinstance(part, GroupTransformer))
            transformer.set_drop_path(drop_path_rate)
        return model

    build.__name__ = f"gevit_{name}_{preset}"
    build.__doc__ = f"`gevit.create_model({name!r}, {preset!r})`."
    return build


for _name in SELF_ATTENTION:
    for _preset, _architecture in PRESETS.items():
        if _architecture.stem:
            register_model(_entry(_name, _preset))
