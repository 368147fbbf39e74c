"""What is known of a model besides its weights: how to build it, and how to use it."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gevit._checks import check_choice, check_count, check_neighborhood, check_num_classes
from gevit.encoding import ENCODINGS
from gevit.layers import POOLINGS
from gevit.models.presets import PRESETS

FORMAT = 1

# Far beyond any model here; a file that says more would only take memory.
_LARGEST = {"in_channels": 10_000, "num_classes": 100_000, "neighborhood": 255, "image_size": 100_000}


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What it takes to rebuild a model and to use it. Fields of a wrong type or out of range are refused.

    Attributes:
        name: one of `gevit.list_models()`.
        preset: the architecture.
        in_channels: channels of its images.
        num_classes: number of classes; 0 for a model that gives features instead of logits.
        neighborhood: odd side of the neighbourhood, None for global attention; or one for each stage.
        encoding: the positional encoding, or one for each stage.
        pooling: the invariant pooling.
        restrict: the subgroup of late feature maps, None for the whole group.
        truncate: whether max-pools drop the last row and column of odd sides, as the authors' code does.
        classes: the names of the classes, in the order of the logits.
        image_size: side of the images it was trained on.
        mean: per channel, subtracted from pixels in [0, 1].
        std: per channel, divided by.
        data: the data set it was trained on.
        trained: facts about the training: epoch, accuracy, seed, command; anything that JSON can say.
    """

    name: str
    preset: str
    in_channels: int
    num_classes: int
    neighborhood: int | tuple[int | None, ...] | None = 5
    encoding: str | tuple[str, ...] = "ge"
    pooling: str = "max_mean"
    restrict: str | None = None
    truncate: bool = False
    classes: tuple[str, ...]
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data: str = ""
    trained: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        encodings, neighborhoods = _several(self.encoding), _several(self.neighborhood)
        for name in ("name", "preset", "pooling", "data"):
            _check_text(name, getattr(self, name))
        check_choice("preset", self.preset, PRESETS)
        check_choice("pooling", self.pooling, POOLINGS)
        for encoding in encodings:
            _check_text("encoding", encoding)
            check_choice("encoding", encoding, ENCODINGS)
        if self.restrict is not None:
            _check_text("restrict", self.restrict)
        if not isinstance(self.truncate, bool):
            raise TypeError(f"truncate must be true or false, got {self.truncate!r:.80}")
        for neighborhood in neighborhoods:
            _check_at_most("neighborhood", check_neighborhood(neighborhood) or 0)
        _check_at_most("num_classes", check_num_classes(self.num_classes))
        for name in ("in_channels", "image_size"):
            _check_at_most(name, check_count(name, getattr(self, name)))
        for name, wanted in (("classes", self.num_classes), ("mean", self.in_channels), ("std", self.in_channels)):
            values = getattr(self, name)
            if not isinstance(values, tuple):
                raise TypeError(f"{name} must be a tuple (in JSON, a list), got {values!r:.80}")
            if len(values) != wanted:
                raise ValueError(f"{name} must have {wanted} entries for this model, got {len(values)}")
        for label in self.classes:
            _check_text("classes", label)
        for name in ("mean", "std"):
            for value in getattr(self, name):
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise ValueError(f"{name} must hold finite numbers, got {value!r:.80}")
        if not all(spread > 0 for spread in self.std):
            raise ValueError(f"std must be positive, got {self.std}")
        if not isinstance(self.trained, dict):
            raise TypeError(f"trained must be an object of facts by name, got {self.trained!r:.80}")

    @property
    def options(self) -> dict[str, Any]:
        """What `build_model` takes besides name and preset."""
        names = ("in_channels", "num_classes", "neighborhood", "encoding", "pooling", "restrict", "truncate")
        return {name: getattr(self, name) for name in names}

    def with_classes(self, num_classes: int) -> ModelInfo:
        """The same with so many other classes, named by number; what is known of its training is dropped."""
        names = tuple(str(number) for number in range(num_classes))
        return dataclasses.replace(self, num_classes=num_classes, classes=names, data="", trained={})

    def normalize(self, images: Tensor) -> Tensor:
        """Pixels in [0, 1], `[..., channels, height, width]`, as the model takes them: (x - mean) / std."""
        if not images.is_floating_point():
            raise TypeError(f"pixels in [0, 1] are floating-point numbers, got {images.dtype}; convert x.float() / 255")
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std

    def denormalize(self, images: Tensor) -> Tensor:
        """Undo `normalize`: pixels again."""
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return images * std + mean

    def to_json(self) -> str:
        """As JSON, with the version of the format."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> ModelInfo:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        del content["format"]
        fields = {field.name: field for field in dataclasses.fields(ModelInfo)}
        for name in content.keys() - fields.keys():
            raise ValueError(f"unknown field {name!r:.80}; valid: {', '.join(fields)}")
        for name, field_ in fields.items():
            optional = field_.default is not dataclasses.MISSING or field_.default_factory is not dataclasses.MISSING
            if name not in content and not optional:
                raise ValueError(f"the field {name!r} is missing")
        for name in ("classes", "mean", "std", "neighborhood", "encoding"):
            if isinstance(content.get(name), list):
                content[name] = tuple(content[name])
        return ModelInfo(**content)


def _several(value: object) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _check_at_most(name: str, value: int) -> None:
    if value > _LARGEST[name]:
        raise ValueError(f"{name} must be at most {_LARGEST[name]:,}, got {value}")


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, got {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must be text that UTF-8 can write, got {value!r:.80}") from error
