"""What a run is: one flat record, written on the command line or in a YAML file."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def _setting(default: Any, help: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True)
class TrainConfig:
    """Every setting of a training run.

    >>> TrainConfig(model="d4_sa", epochs=5).lr
    0.001
    """

    model: str = _setting("r4_sa", "model name, see gevit.list_models()")
    data: str = _setting("digits", "data set (see `gevit data list`) or a folder of images")
    data_root: str | None = _setting(None, "where data sets are; default: $GEVIT_DATA or the user's cache")
    out: str | None = _setting(None, "folder of the run; default: runs/MODEL-DATA")

    preset: str | None = _setting(None, "architecture: rotmnist, cifar10, pcam or nano; default: by the data")
    encoding: str = _setting("ge", "positional encoding", ("ge", "gsa", "relative"))
    neighborhood: int | None = _setting(5, "odd side of the neighbourhood, or 'global'")
    pooling: str = _setting("max_mean", "invariant head", ("max_mean", "sum_max"))
    backend: str = _setting("auto", "attention backend", ("auto", "reference", "factored", "native"))
    dropout: float | None = _setting(None, "rate of every dropout that the architecture has; default: its own")
    start_from: str | None = _setting(
        None, "begin with the weights of a trained model: its folder, its file, or the name of a pretrained one"
    )

    image_size: int | None = _setting(None, "side that images are resized to; default: the data set's")
    skip_corrupt: bool = _setting(False, "skip images of a folder that cannot be read, instead of stopping")
    limit_train: int | None = _setting(None, "use only this many training images")
    limit_valid: int | None = _setting(None, "use only this many validation images")
    limit_test: int | None = _setting(None, "use only this many test images")
    rotate: bool = _setting(False, "augment: turn half of the training images by random angles")
    flip: bool = _setting(False, "augment: mirror half of the training images")
    workers: int = _setting(0, "processes that load images ahead of time")

    epochs: int = _setting(20, "passes through the training images")
    batch_size: int = _setting(8, "images a step, over all devices")
    accumulate: int = _setting(1, "parts that a step's batch is computed in, to save memory")
    optimizer: str = _setting("adam", "optimizer; muon learns from the fewest images", ("adam", "adamw", "sgd", "muon"))
    lr: float = _setting(1e-3, "learning rate (its peak)")
    schedule: str = _setting(
        "constant", "course of the learning rate", ("constant", "cosine", "one_cycle", "trapezoid")
    )
    warmup_epochs: float = _setting(0.0, "epochs of linear warm-up (of the rise, for one_cycle)")
    cooldown_epochs: float = _setting(0.0, "epochs at the end in which trapezoid falls to 0")
    weight_decay: float = _setting(1e-4, "weight decay")
    momentum: float = _setting(0.9, "momentum of sgd and muon")
    label_smoothing: float = _setting(0.0, "label smoothing")
    clip_norm: float | None = _setting(None, "largest norm of the gradient")
    ema: float = _setting(0.0, "decay of the moving average of the weights that is validated and kept; 0: none")

    seed: int = _setting(0, "seed of everything random")
    precision: str = _setting("float32", "arithmetic", ("float32", "bfloat16"))
    accelerator: str = _setting("auto", "device", ("auto", "cpu", "gpu", "mps"))
    devices: int | None = _setting(None, "processes a machine; default: 1 on the CPU, all GPUs")
    nodes: int = _setting(1, "machines")
    checkpoint_seconds: float = _setting(30.0, "time between checkpoints; 0: after every step")
    wandb: bool = _setting(False, "log to Weights & Biases too")

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(TrainConfig).items():
            object.__setattr__(self, name, _typed(name, getattr(self, name), kind))
        for entry in dataclasses.fields(self):
            choices, value = entry.metadata["choices"], getattr(self, entry.name)
            if choices and value not in choices:
                raise ValueError(f"{entry.name} must be one of {', '.join(choices)}, got {value!r}")
        for name in ("epochs", "batch_size", "accumulate", "nodes", "limit_train", "limit_valid", "limit_test"):
            _require(self, name, lambda value: value >= 1, "at least 1")
        for name in ("devices", "image_size"):
            _require(self, name, lambda value: value >= 1, "at least 1")
        for name in ("workers", "seed", "warmup_epochs", "cooldown_epochs", "weight_decay", "checkpoint_seconds"):
            _require(self, name, lambda value: value >= 0, "at least 0")
        for name in ("lr", "clip_norm"):
            _require(self, name, lambda value: value > 0, "greater than 0")
        for name in ("momentum", "label_smoothing", "ema", "dropout"):
            _require(self, name, lambda value: 0 <= value < 1, "at least 0 and less than 1")
        if self.warmup_epochs + self.cooldown_epochs > self.epochs:
            raise ValueError(
                f"warmup_epochs and cooldown_epochs must be at most epochs ({self.epochs}) together, got "
                f"{self.warmup_epochs} and {self.cooldown_epochs}"
            )
        if self.cooldown_epochs and self.schedule != "trapezoid":
            raise ValueError(f"cooldown_epochs is for the schedule trapezoid, and this one is {self.schedule}")

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return Path(self.out) if self.out else Path("runs") / f"{self.model}-{Path(self.data).resolve().name}"

    def to_yaml(self) -> str:
        """The settings as YAML."""
        import yaml

        text: str = yaml.safe_dump(dataclasses.asdict(self), sort_keys=False)
        return text


def read_yaml(path: Path) -> dict[str, Any]:
    """Settings from a YAML file, with the names checked."""
    import yaml

    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML file: {error}") from error
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path} must hold 'name: value' lines, found a {type(settings).__name__}")
    known = [entry.name for entry in dataclasses.fields(TrainConfig)]
    cleaned = {str(name).replace("-", "_"): value for name, value in settings.items()}
    for name in cleaned:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise ValueError(f"{path}: unknown setting {name!r}{hint}")
    return cleaned


def _typed(name: str, value: Any, kind: Any) -> Any:
    """The value as the field's type; YAML reads 1e-3 as a string and 1 as an int."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return None
    if name == "neighborhood" and value == "global":
        return None
    wanted = next(option for option in options if option is not type(None))
    if wanted is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    elif isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    if wanted is int and isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    raise ValueError(f"{name} must be of type {wanted.__name__}, got {value!r}")


def _require(config: TrainConfig, name: str, holds: Any, what: str) -> None:
    value = getattr(config, name)
    if value is not None and not holds(value):
        raise ValueError(f"{name} must be {what}, got {value}")
