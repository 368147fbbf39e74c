"""Trained models as files: the weights (`.safetensors`), and beside them what it takes to use them (`.json`).

Under the names that the Hugging Face hub wants (`gevit.hub`) they are the same two files. The weights file carries a
digest of both, so that two files that do not belong together, or that were damaged or edited, are noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from gevit._checks import check_choice
from gevit.files import write_aside
from gevit.models.base import EquivariantModel
from gevit.models.info import FORMAT, ModelInfo
from gevit.models.registry import build, list_models
from gevit.orbit import Orbit

WEIGHTS = "model.safetensors"
HUB_CONFIG = "config.json"
_DIGEST = "gevit_sha256"
_LARGEST_INFO = 2**24


def save(model: nn.Module, info: ModelInfo, path: str | Path) -> None:
    """Write the weights of `model` to `path` (`.safetensors`) and `info` to the `.json` beside it.

    A model that could not be loaded again, because `info` describes another one, is refused.
    """
    if isinstance(model, Orbit):
        raise ValueError(
            "an Orbit has no weights of its own: save the model inside, orbit.model, and put it into an Orbit again "
            f"when it is loaded: gevit.Orbit(gevit.load(path), gevit.groups.{model.group})"
        )
    save_pair(model, info, *_pair(path))


def save_pair(model: nn.Module, info: ModelInfo, weights_path: Path, info_path: Path) -> None:
    """The same for two files of any name."""
    state = _state(model)
    described = _blank(info, "auto", state)
    _check_fit(state, described.state_dict(), "the model to save is not the one that info describes")
    _check_recipe(model, described)
    text = info.to_json().encode()
    # Both are on disk before the first of them takes the place of an earlier one.
    with write_aside(weights_path) as weights_aside, write_aside(info_path) as info_aside:
        weights_aside.write_bytes(to_bytes(state, metadata={"format": "pt", _DIGEST: _digest(text, state)}))
        info_aside.write_bytes(text)


def load(path: str | Path, backend: str = "auto") -> EquivariantModel:
    """Read a model that `save` wrote, in evaluation mode; what is known of it is its `info`, a `ModelInfo`.

    It is as precise as it was saved, float32 usually.

    Args:
        path: the `.safetensors` file, the `.json` beside it, the folder of a run, or one that `save_pretrained` wrote.
        backend: how attention is computed, see `gevit.attention`.

    >>> import tempfile
    >>> info = ModelInfo(name="z2_sa", preset="rotmnist", in_channels=1, num_classes=2, classes=("a", "b"),
    ...                  image_size=28, mean=(0.5,), std=(0.25,))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(build(info), info, f"{folder}/model.safetensors")
    ...     load(folder).info.classes
    ('a', 'b')
    """
    weights_path, info_path = _pair(path)
    text, info = _read_info(info_path)
    metadata, state = _read_weights(weights_path)
    if _DIGEST not in metadata:
        raise ValueError(
            f"{weights_path} was not written by gevit.save; weights of the authors' code are read by "
            "gevit.models.official.load"
        )
    if metadata[_DIGEST] != _digest(text, state):
        raise ValueError(
            f"{weights_path.name} and {info_path.name} in {weights_path.parent} do not belong together, or one of them "
            "was changed or damaged; take both from where they were saved, or save the model again"
        )
    model = _blank(info, backend, state)
    _check_fit(state, model.state_dict(), f"the weights in {weights_path} are not those of {info.name!r} here")
    model.load_state_dict(state)
    model.info = info
    model.origin = weights_path
    return model.eval()


def is_as_loaded(model: EquivariantModel) -> bool:
    """Whether weights and `info` are still those of the file that the model was loaded from."""
    if model.origin is None or not all(path.is_file() for path in _pair(model.origin)):
        return False
    weights_path, info_path = _pair(model.origin)
    metadata, _ = _read_weights(weights_path)
    text, info = _read_info(info_path)
    return info == model.info and metadata.get(_DIGEST) == _digest(text, _state(model))


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}


def _pair(path: str | Path) -> tuple[Path, Path]:
    """The weights file and the JSON file."""
    path = Path(path)
    if not path.exists() and not path.suffix:
        raise ValueError(f"there is no {path}; expected the folder of a run, or a .safetensors file")
    if path.is_dir():
        path = path / WEIGHTS
    if path.name == HUB_CONFIG and not path.with_suffix(".safetensors").exists():
        path = path.with_name(WEIGHTS)
    hub_config = path.with_name(HUB_CONFIG)
    if path.name == WEIGHTS and hub_config.is_file() and not path.with_suffix(".json").exists():
        return path, hub_config
    if path.suffix not in (".safetensors", ".json"):
        raise ValueError(f"expected a .safetensors file, the .json beside it, or a folder with {WEIGHTS}, got {path}")
    return path.with_suffix(".safetensors"), path.with_suffix(".json")


def _blank(info: ModelInfo, backend: str, state: Mapping[str, Tensor]) -> EquivariantModel:
    """A model of this kind, in the precision of the state."""
    # Its first weights are random and soon overwritten: the caller's random numbers stay as they are.
    with torch.random.fork_rng(devices=[]):
        model = build(info, backend)
    precisions = [tensor.dtype for tensor in state.values() if tensor.is_floating_point()]
    return model.to(precisions[0]) if precisions else model


def _digest(text: bytes, state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text)
    for key in sorted(state):
        digest.update(key.encode())
        digest.update(state[key].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_info(path: Path) -> tuple[bytes, ModelInfo]:
    if _existing(path).stat().st_size > _LARGEST_INFO:
        raise ValueError(f"{path} does not describe a model: it is larger than {_LARGEST_INFO:,} bytes")
    text = path.read_bytes()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # of the JSON, or of the characters in it
        raise ValueError(f"{path} is damaged: {error}; take it from where it was saved") from error
    version = content.get("format") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise ValueError(f"{path} does not describe a model: expected an object with a number 'format'")
    if version > FORMAT:
        raise ValueError(
            f"{path} has format {version}, written by a newer gevit; this one reads up to {FORMAT}: "
            "pip install --upgrade gevit"
        )
    try:
        info = ModelInfo.from_json(text.decode())
        check_choice("model", info.name, list_models())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a model: {error}") from error
    return text, info


def _read_weights(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(_existing(path), framework="pt") as file:
            names = file.keys()
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or cut short ({path.stat().st_size:,} bytes): {error}; "
            "take it from where it was saved, or save the model again"
        ) from error


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(
            f"there is no {path}; a model is saved as two files, NAME.safetensors and NAME.json, or "
            f"{WEIGHTS} and {HUB_CONFIG}"
        )
    return path


def _check_recipe(model: nn.Module, described: EquivariantModel) -> None:
    """What leaves no trace in the weights: encodings with the same parameters, poolings, neighbourhoods."""
    made, told = getattr(model, "recipe", None) or {}, described.recipe or {}
    wrong = [f"{name} is {value!r}, not {told[name]!r}" for name, value in made.items() if told[name] != value]
    if wrong:
        raise ValueError(
            f"the model to save is not the one that info describes: its {', its '.join(wrong)}; "
            "model.describe() has what describes it"
        )


def _check_fit(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], problem: str) -> None:
    """Names, shapes and number types must be those wanted."""
    faults = [f"missing {key}" for key in wanted if key not in state]
    faults += [f"not expected {key}" for key in state if key not in wanted]
    faults += [
        f"{key} is {_kind(state[key])}, expected {_kind(value)}"
        for key, value in wanted.items()
        if key in state and _kind(state[key]) != _kind(value)
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(f"{problem}: {'; '.join(faults[:3])}{more}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
