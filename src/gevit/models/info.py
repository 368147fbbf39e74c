"""What is known of a model besides its weights: how to build it, and how to use it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What it takes to rebuild a model and to use it.

    Attributes:
        name: one of `gevit.list_models()`.
        preset: the architecture.
        in_channels: channels of its images.
        num_classes: number of classes.
        neighborhood: odd side of the neighbourhood, None for global attention.
        encoding: the positional encoding.
        pooling: the invariant pooling.
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
    neighborhood: int | None = 5
    encoding: str = "ge"
    pooling: str = "max_mean"
    classes: tuple[str, ...]
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data: str = ""
    trained: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, values, wanted in (
            ("classes", self.classes, self.num_classes),
            ("mean", self.mean, self.in_channels),
            ("std", self.std, self.in_channels),
        ):
            if len(values) != wanted:
                raise ValueError(f"{what} must have {wanted} entries for this model, got {len(values)}: {values}")
        if not all(spread > 0 for spread in self.std):
            raise ValueError(f"std must be positive, got {self.std}")

    def normalize(self, images: Tensor) -> Tensor:
        """Pixels in [0, 1], `[..., channels, height, width]`, as the model takes them: (x - mean) / std."""
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std

    def to_json(self) -> str:
        """As JSON, with the version of the format."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> ModelInfo:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        del content["format"]
        for name in ("classes", "mean", "std"):
            content[name] = tuple(content[name])
        return ModelInfo(**content)
