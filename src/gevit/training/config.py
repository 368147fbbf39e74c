"""What a run is: one flat record, written on the command line or in a YAML file.

A setting is declared once, here: type, default, help, group of flags, check, and whether a resume may change it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gevit.data.archive import name_of
from gevit.rendering.words import METRICS

LARGEST_FILE = 20_000  # bytes; the settings of a run take about 1,000
LONGEST_VALUE = 80  # characters of a value that an error shows
EPOCHS = 20  # of a run that has no other end
# Where things lie: no part of the experiment, and different on each process.
PLACES = ("out", "data_root")
PRECISIONS = ("float32", "bf16-mixed", "16-mixed")
RATES = {"muon": 2e-2, "adam": 1e-3, "adamw": 1e-3, "sgd": 1e-2}  # learning rates of those that have no other


class Check(NamedTuple):
    """What a value must be: a test, and its words."""

    holds: Callable[[Any], bool]
    words: str


COUNT = Check(lambda value: 1 <= value <= 10**9, "at least 1 and at most 1e9")
COUNT_OR_0 = Check(lambda value: 0 <= value <= 10**9, "at least 0 and at most 1e9")
POSITIVE = Check(lambda value: 0 < value <= 1e6, "greater than 0 and at most 1e6")
NOT_NEGATIVE = Check(lambda value: 0 <= value <= 1e6, "at least 0 and at most 1e6")
RATE = Check(lambda value: 0 <= value < 1, "at least 0 and less than 1")
TIME = Check(lambda value: 0 < value <= 1e8, "a time longer than nothing, such as 90s, 45m or 1h30m")
SEED = Check(lambda value: 0 <= value < 2**63, "at least 0 and less than 2^63")


def _setting(
    group: str,
    default: Any,
    help: str,
    check: Check | None = None,
    choices: tuple[str, ...] = (),
    may_change: bool = False,
) -> Any:
    metadata = {"group": group, "help": help, "check": check, "choices": choices, "may_change": may_change}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class TrainConfig:
    """Every setting of a training run.

    >>> TrainConfig(model="d4_sa", optimizer="adam").peak_lr
    0.001
    """

    model: str = _setting("run", "r4_sa", "model name, see gevit.list_models()")
    data: str = _setting("run", "digits", "data set (see `gevit data list`), or folder or archive (zip, tar) of images")
    data_root: str | None = _setting(
        "run", None, "where data sets are; default: $GEVIT_DATA or the user's cache", may_change=True
    )
    out: str | None = _setting("run", None, "folder of the run; default: runs/MODEL-DATA", may_change=True)

    preset: str | None = _setting(
        "network", None, "architecture: rotmnist, cifar10, pcam, nano, tiny or small; default: made for the data"
    )
    encoding: str = _setting("network", "ge", "positional encoding: ge, gsa or relative")
    neighborhood: int | None = _setting("network", 5, "odd side of the neighbourhood, or 'global'", COUNT)
    restrict: str | None = _setting(
        "network", None, "subgroup of the late feature maps, e.g. c4 for a d4 model, or c4@2: from stage 2 on"
    )
    initialisation: str | None = _setting(
        "network",
        None,
        "how attention starts; default: as in the paper for its architectures, else like a convolution",
        choices=("paper", "convolution"),
    )
    pooling: str = _setting("network", "max_mean", "invariant head", choices=("max_mean", "sum_max"))
    backend: str = _setting(
        "network",
        "auto",
        "attention backend",
        choices=("auto", "reference", "factored", "native", "triton"),
        may_change=True,
    )
    dropout: float | None = _setting(
        "network", None, "rate of every dropout that the architecture has; default: its own", RATE
    )
    start_from: str | None = _setting(
        "network",
        None,
        "initialise with the weights of a trained model: its folder, its file, or a pretrained one by name: "
        "MODEL, or MODEL:DATA",
    )

    image_size: int | None = _setting("images", None, "side that images are resized to; default: the data set's", COUNT)
    skip_corrupt: bool = _setting("images", False, "skip images of a folder that cannot be read, instead of stopping")
    limit_train: int | None = _setting("images", None, "use only this many training images", COUNT)
    limit_valid: int | None = _setting("images", None, "use only this many validation images", COUNT)
    limit_test: int | None = _setting("images", None, "use only this many test images", COUNT)
    rotate: bool = _setting("images", False, "augment: rotate half of the training images by random angles")
    flip: bool = _setting("images", False, "augment: mirror half of the training images")
    brightness: float = _setting("images", 0.0, "augment: brighter or darker by up to this share", RATE)
    contrast: float = _setting("images", 0.0, "augment: more or less contrast by up to this share", RATE)
    stain: float = _setting(
        "images", 0.0, "augment: more or less of each stain of a slide, or of each channel; 0.05 to 0.2 is usual", RATE
    )
    balance: str = _setting(
        "images",
        "none",
        "for unequal classes: weight losses by the inverse frequency of the class, or sample all classes alike",
        choices=("none", "weights", "sampling"),
    )
    workers: int = _setting("images", 0, "processes that load images ahead of time", COUNT_OR_0, may_change=True)

    epochs: int | None = _setting(
        "optimization",
        None,
        f"passes through the training images; default: {EPOCHS}, or as many as --max-time has room for",
        COUNT,
        may_change=True,
    )
    max_time: float | None = _setting(
        "optimization",
        None,
        "time for everything from the start to the report, such as 90s, 45m or 1h30m; the schedule ends with it, and "
        "no two runs are the same to the bit",
        TIME,
        may_change=True,
    )
    batch_size: int = _setting("optimization", 16, "images a step, over all devices", COUNT)
    accumulate: int = _setting(
        "optimization", 1, "parts that a step's batch is computed in, to save memory", COUNT, may_change=True
    )
    optimizer: str = _setting(
        "optimization",
        "muon",
        "optimizer; muon learns from the fewest images",
        choices=tuple(RATES),
    )
    lr: float | None = _setting(
        "optimization",
        None,
        f"learning rate (its peak); default: {', '.join(f'{rate:g} for {name}' for name, rate in RATES.items())}",
        POSITIVE,
        may_change=True,
    )
    schedule: str = _setting(
        "optimization",
        "cosine",
        "course of the learning rate",
        choices=("constant", "cosine", "one_cycle", "trapezoid"),
        may_change=True,
    )
    warmup_epochs: float = _setting(
        "optimization", 0.0, "epochs of linear warm-up (of the rise, for one_cycle)", NOT_NEGATIVE, may_change=True
    )
    cooldown_epochs: float = _setting(
        "optimization", 0.0, "epochs at the end in which trapezoid falls to 0", NOT_NEGATIVE, may_change=True
    )
    weight_decay: float = _setting("optimization", 1e-4, "weight decay", NOT_NEGATIVE, may_change=True)
    momentum: float = _setting("optimization", 0.9, "momentum of sgd and muon", RATE)
    label_smoothing: float = _setting("optimization", 0.0, "label smoothing", RATE)
    clip_norm: float | None = _setting("optimization", None, "largest norm of the gradient", POSITIVE, may_change=True)
    ema: float = _setting(
        "optimization", 0.0, "decay of the moving average of the weights that is validated and kept; 0: none", RATE
    )

    select: str = _setting(
        "optimization",
        "accuracy",
        "metric on the validation images by which the epoch is chosen",
        choices=tuple(METRICS),
    )

    seed: int = _setting("machine", 0, "seed of everything random", SEED)
    precision: str = _setting("machine", "float32", "arithmetic; mixed: products in 16 bits", choices=PRECISIONS)
    accelerator: str = _setting("machine", "auto", "device", choices=("auto", "cpu", "gpu", "mps"), may_change=True)
    devices: int | None = _setting(
        "machine", None, "processes a machine; default: 1 on the CPU, all GPUs", COUNT, may_change=True
    )
    nodes: int = _setting("machine", 1, "machines", COUNT, may_change=True)
    eval_batch_size: int | None = _setting(
        "machine",
        None,
        "images at a time in validation and test; default: as many as a device trains on at once",
        COUNT,
        may_change=True,
    )
    checkpoint_seconds: float = _setting(
        "machine", 30.0, "time between checkpoints; 0: after every step", NOT_NEGATIVE, may_change=True
    )
    wandb: bool = _setting("machine", False, "log to Weights & Biases too", may_change=True)

    def __post_init__(self) -> None:
        for name, entry in SETTINGS.items():
            value = _typed(name, getattr(self, name))
            object.__setattr__(self, name, value)
            choices, check = entry.metadata["choices"], entry.metadata["check"]
            if choices and value is not None and value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {_shown(value)}")
            if check and value is not None and not check.holds(value):
                raise ValueError(f"{name} must be {check.words}, got {_shown(value)}")
        if self.epochs is None and self.max_time is None:
            object.__setattr__(self, "epochs", EPOCHS)
        if self.lr is None:
            object.__setattr__(self, "lr", RATES[self.optimizer])
        if self.epochs is not None and self.warmup_epochs + self.cooldown_epochs > self.epochs:
            raise ValueError(
                f"warmup_epochs and cooldown_epochs must be at most epochs ({self.epochs}) together, got "
                f"{self.warmup_epochs} and {self.cooldown_epochs}"
            )
        if self.cooldown_epochs and self.schedule != "trapezoid":
            raise ValueError(f"cooldown_epochs is for the schedule trapezoid, and this one is {self.schedule}")

    @property
    def peak_lr(self) -> float:
        """The learning rate, which every run has."""
        assert self.lr is not None
        return self.lr

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return Path(self.out) if self.out else Path("runs") / f"{self.model}-{name_of(Path(self.data))}"

    def to_yaml(self) -> str:
        """The settings as YAML."""
        import yaml

        text: str = yaml.safe_dump(dataclasses.asdict(self), sort_keys=False)
        return text


SETTINGS = {entry.name: entry for entry in dataclasses.fields(TrainConfig)}
_KINDS = typing.get_type_hints(TrainConfig)


def kind_of(name: str) -> type:
    """The type of a setting's value, None aside.

    >>> kind_of("clip_norm")
    <class 'float'>
    """
    kind = _KINDS[name]
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    found: type = next(option for option in options if option is not type(None))
    return found


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Settings of a file, overridden by those of the command line, and what was adapted to them, in words.

    Fewer epochs than the warm-up and cool-down of the file need shrink these in proportion.

    >>> merged({"epochs": 20, "warmup_epochs": 2, "cooldown_epochs": 8}, {"epochs": 5})[1]
    'warmup_epochs 0.5 and cooldown_epochs 2, in proportion to epochs 5 instead of 20'
    """
    settings = {**base, **given}
    periods = [name for name in ("warmup_epochs", "cooldown_epochs") if base.get(name)]
    if "epochs" not in given or not periods or any(name in given for name in periods):
        return settings, ""
    before, after = (_typed("epochs", of.get("epochs", EPOCHS)) for of in (base, settings))
    length = {name: _typed(name, base[name]) for name in periods}
    if not before or not after or sum(length.values()) <= after or before < 1 or after < 1:
        return settings, ""
    settings |= {name: value * after / before for name, value in length.items()}
    changes = " and ".join(f"{name} {settings[name]:g}" for name in periods)
    return settings, f"{changes}, in proportion to epochs {after} instead of {before}"


def read_yaml(path: Path) -> dict[str, Any]:
    """Settings from a YAML file, with the names checked."""
    import yaml

    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; expected a YAML file of settings")
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"{path} is too large for a file of settings: more than {LARGEST_FILE:,} bytes")
    try:
        text = content.decode()
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            # An alias stands for a copy, and a few copies of copies for gigabytes; deep nesting takes minutes to read.
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > 2 or isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{path} has aliases (*name) or nested values; write settings as 'name: value' lines")
        try:
            settings = yaml.safe_load(text)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:  # of Python's types
            raise ValueError(
                f"{path} has a value that is not of the type that its form or tag says ({_short(str(error))}); write "
                "settings as 'name: value' lines"
            ) from error
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{path} is not a YAML file: {_short(str(error.problem))}{line}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML file: {_short(' '.join(str(error).split()))}") from error
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path} must hold 'name: value' lines, found a {type(settings).__name__}")
    cleaned = {str(name).replace("-", "_"): value for name, value in settings.items()}
    for name in cleaned:
        if name not in SETTINGS:
            near = difflib.get_close_matches(name[:LONGEST_VALUE], SETTINGS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(SETTINGS)}"
            raise ValueError(f"{path}: unknown setting {_shown(name)}{hint}")
    return cleaned


def _typed(name: str, value: Any) -> Any:
    """The value as the setting's type; YAML reads 1e-3 as a string and 1 as an int."""
    wanted = kind_of(name)
    if _KINDS[name] is not wanted and (value is None or (name == "neighborhood" and value == "global")):
        return None
    if name == "max_time" and isinstance(value, str):
        return seconds(value)
    if isinstance(value, bool) == (wanted is bool):
        try:
            if wanted is float and isinstance(value, (int, float, str)) and math.isfinite(number := float(value)):
                return number
            if wanted is int and isinstance(value, str):
                return int(value)
        except (ValueError, OverflowError):
            pass
        else:
            if wanted is not float and isinstance(value, wanted):
                return value
    raise ValueError(f"{name} must be of type {wanted.__name__}, got {_shown(value)}")


def seconds(text: str) -> float:
    """A time as people write it.

    >>> seconds("1h30m"), seconds("45m"), seconds("2.5m"), seconds("90")
    (5400.0, 2700.0, 150.0, 90.0)
    """
    number = r"(\d{1,9}(?:\.\d{1,9})?)"
    pattern = rf"(?:{number}h)?(?:{number}m)?(?:{number}s)?|{number}"
    parts = re.fullmatch(pattern, text.lower().replace(" ", ""), re.ASCII)
    if not parts or not any(parts.groups()):
        raise ValueError(f"max_time must be {TIME.words}, got {_shown(text)}")
    return sum(float(part) * unit for part, unit in zip(parts.groups(), (3600, 60, 1, 1), strict=True) if part)


def _shown(value: Any) -> str:
    return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
