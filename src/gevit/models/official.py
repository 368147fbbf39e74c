"""Reads weights in the layout of the authors' public code.

Their network is one `nn.Sequential`, in the order of our body, so a layer's index there is its position here. Their
code labels elements so that, for `ge`, offsets and element tables agree with ours as they are; the GSA-Nets code
turns offsets the other way, so its element vectors are reordered by inverses.

Two habits of the authors' code are part of what its weights compute and are kept: the head sums over space before the
maximum over the group, and a 2x2 max-pool drops the last row and column of odd sizes (which breaks equivariance in
`pcam` at 96x96). `build_model(...).load_state_dict(official.load(...).state_dict())` has the weights without them.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gevit._checks import check_choice
from gevit.layers import Block, GroupAttention, LiftingAttention
from gevit.linear import Norm, Pointwise
from gevit.models.presets import PRESETS
from gevit.models.registry import SELF_ATTENTION, build_model
from gevit.models.transformer import GroupTransformer

# Buffers of the authors' modules: tables that follow from the group.
_TABLE = re.compile(r"(^|\.)(group\._\w+|row_indices|col_indices|g_indices|inf_outside)$")


def load(
    path_or_state_dict: str | Path | Mapping[str, Tensor],
    name: str,
    preset: str = "rotmnist",
    neighborhood: int | None = 5,
    encoding: str = "ge",
) -> GroupTransformer:
    """Build a model by name with weights of the authors' code, in evaluation mode; it gives the authors' logits.

    Args:
        path_or_state_dict: a `.safetensors` file, a `.pt` file of tensors alone, or a state dict; names may have
            the prefixes `param/` (other entries are then ignored) or `module.`.
        name: the model, e.g. `"r4_sa"`.
        preset: the architecture.
        neighborhood: side of the neighbourhood the weights were trained with; None for global attention.
        encoding: `"ge"` for weights of the GE-ViT code, `"gsa"` for weights of the GSA-Nets code.
    """
    if encoding not in ("ge", "gsa"):
        raise ValueError(f"the authors' code has the encodings 'ge' and 'gsa', got {encoding!r}")
    check_choice("model of the authors' code", name, SELF_ATTENTION)
    check_choice("preset of the authors' code", preset, [key for key, value in PRESETS.items() if not value.stem])
    options: dict[str, Any] = {"neighborhood": neighborhood, "encoding": encoding, "pooling": "sum_max"}
    with torch.random.fork_rng(devices=[]):  # random weights that are soon overwritten
        model = build_model(name, preset, **options, truncate=True)
    assert isinstance(model, GroupTransformer)
    if model.group.reflections and model.group.rotations > 1:
        warnings.warn(
            f"the authors' tables for {model.group} are not those of a group, so weights trained with them give "
            "other logits here; fine-tune them, or train from scratch",
            stacklevel=2,
        )
    found = _read(path_or_state_dict)
    expected = _layout(model)
    _check(found, expected)
    with torch.no_grad():
        for key, parameter in expected.items():
            tensor = found[key].reshape(parameter.shape)
            if encoding == "gsa" and key.endswith("group_embedding.weight"):
                tensor = tensor[model.group.inverse]
            parameter.copy_(tensor)
    return model.eval()


def _read(source: str | Path | Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors: Any
    if isinstance(source, Mapping):
        tensors = source
    elif not Path(source).is_file():
        raise ValueError(f"no checkpoint at {str(source)!r}; give a .safetensors or .pt file, or a state dict")
    else:
        try:
            is_safe = Path(source).suffix == ".safetensors"
            tensors = load_file(source) if is_safe else torch.load(source, map_location="cpu", weights_only=True)
        except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ValueError(
                f"{source} is damaged, or holds more than tensors; nothing else is read from a file. "
                "Where it was made, save the state dict alone"
            ) from error
    if not isinstance(tensors, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in tensors.items()
    ):
        raise ValueError(f"expected a state dict, tensors by name, got {type(tensors).__name__} of other things")
    if any(key.startswith("param/") for key in tensors):
        tensors = {key: value for key, value in tensors.items() if key.startswith("param/")}
    names = {key: key.removeprefix("param/").removeprefix("module.") for key in tensors}
    return {names[key]: value for key, value in tensors.items() if not _TABLE.search(names[key])}


def _check(found: Mapping[str, Tensor], expected: Mapping[str, nn.Parameter]) -> None:
    """Compare names, shapes and types; a 1x1 convolution's shape may have trailing ones."""
    problems = [f"missing: {key}" for key in expected if key not in found]
    problems += [f"not expected: {key}" for key in found if key not in expected]
    for key in expected.keys() & found.keys():
        theirs, ours = tuple(found[key].shape), tuple(expected[key].shape)
        if theirs[: len(ours)] != ours or not set(theirs[len(ours) :]) <= {1}:
            problems.append(f"wrong shape: {key} is {list(theirs)}, expected {list(ours)}")
        if not found[key].is_floating_point():
            problems.append(f"wrong type: {key} is {found[key].dtype}, expected floating-point numbers")
    if problems:
        shown = "\n  ".join(problems[:10]) + (f"\n  and {len(problems) - 10} more" if len(problems) > 10 else "")
        raise ValueError(
            "this checkpoint does not fit the model; check name, preset, neighborhood and encoding:\n  " + shown
        )


def _layout(model: GroupTransformer) -> dict[str, nn.Parameter]:
    """Our parameters under the authors' names."""
    layout: dict[str, nn.Parameter] = {}

    def add(prefix: str, module: nn.Module) -> None:
        infix = "layer_norm." if isinstance(module, (nn.GroupNorm, nn.LayerNorm)) else ""
        for key, parameter in module.named_parameters(recurse=False):
            layout[f"{prefix}.{infix}{key}"] = parameter

    def add_attention(prefix: str, attention: LiftingAttention | GroupAttention) -> None:
        for ours, theirs in (("query", "query"), ("key", "key"), ("value", "value"), ("out", "wout")):
            add(f"{prefix}.{theirs}", getattr(attention, ours))
        for ours, theirs in (("row", "row_embedding"), ("column", "col_embedding")):
            for index, layer in enumerate(getattr(attention.positions, ours)):
                add(f"{prefix}.{theirs}.{index}", layer)
        if attention.positions.element is not None:
            layout[f"{prefix}.group_embedding.weight"] = attention.positions.element

    lifting, norm, _ = model.lifting
    assert isinstance(lifting, LiftingAttention)
    add_attention("lifting_self_attention", lifting)
    add("lifting_normalization", norm)
    for index, layer in enumerate(model.body.values()):
        prefix = f"transformer.{index}"
        if isinstance(layer, Block):
            for position, part in enumerate(layer.attention):
                if isinstance(part, GroupAttention):
                    add_attention(f"{prefix}.attention.{position}", part)
                else:
                    add(f"{prefix}.attention.{position}", part)
            add(f"{prefix}.shortcut.0", layer.shortcut[0])
            for position, part in enumerate(layer.mlp):
                add(f"{prefix}.mlp.{position}", part)
        elif isinstance(layer, (Norm, Pointwise)):
            add(prefix, layer)
    return layout
