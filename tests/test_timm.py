"""Models under names of timm, which is stood in for: it keeps functions by their names and calls them as timm does."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gevit
from gevit.layers import StochasticDepth

Create = Callable[..., nn.Module]


@pytest.fixture
def create(monkeypatch: pytest.MonkeyPatch) -> Iterator[Create]:
    """`timm.create_model`."""
    entries: dict[str, Create] = {}

    def register_model(entry: Create) -> Create:
        assert sys.modules[entry.__module__]  # where timm looks for the configurations of weights
        assert entry.__name__ not in entries
        entries[entry.__name__] = entry
        return entry

    timm, models = types.ModuleType("timm"), types.ModuleType("timm.models")
    models.register_model = register_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.models", models)
    monkeypatch.delitem(sys.modules, "gevit.timm_models", raising=False)
    importlib.import_module("gevit.timm_models")

    def create_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        return entries[name](
            pretrained=pretrained, pretrained_cfg=None, pretrained_cfg_overlay=None, cache_dir=None, **options
        )

    yield create_model
    sys.modules.pop("gevit.timm_models", None)


def test_a_model_by_its_name_in_timm(create: Create) -> None:
    model = create("gevit_d4_sa_tiny", num_classes=3, in_chans=5, drop_path_rate=0.3)
    assert model.eval()(torch.randn(2, 5, 16, 16)).shape == (2, 3)
    assert max(part.rate for part in model.modules() if isinstance(part, StochasticDepth)) == pytest.approx(0.3)
    maps = create("gevit_r4_sa_small", features_only=True, out_indices=(-1,))
    assert [x.shape[1] for x in maps.eval()(torch.randn(1, 3, 32, 32))] == maps.feature_info.channels()  # type: ignore[operator, union-attr]


def test_pretrained_weights_are_those_of_gevit(create: Create) -> None:
    x = torch.rand(1, 3, 16, 16)
    ours = gevit.create_model("d4_sa", preset="tiny", pretrained="eurosat")
    assert create("gevit_d4_sa_tiny", pretrained=True, pretrained_data="eurosat")(x).equal(ours(x))
    with pytest.raises(ValueError, match="no pretrained weights"):
        create("gevit_r16_sa_small", pretrained=True)


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_without_timm_one_is_told_what_to_install() -> None:
    with pytest.raises(ImportError, match="timm"):
        importlib.import_module("gevit.timm_models")
