"""Models by name, with random weights or with those that come with the package."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, overload

from gevit._checks import check_choice
from gevit.models.base import EquivariantModel, info_of
from gevit.models.features import FeatureMaps
from gevit.models.info import ModelInfo
from gevit.models.presets import PRESETS
from gevit.models.registry import build_model, list_models
from gevit.persistence import load
from gevit.rendering.tables import Table
from gevit.rendering.words import percent

FOLDER = Path(str(resources.files("gevit.models"))) / "pretrained"


@overload
def create_model(
    name: str,
    preset: str = ...,
    in_channels: int | None = ...,
    num_classes: int | None = ...,
    neighborhood: int | Sequence[int | None] | None = ...,
    encoding: str | Sequence[str] = ...,
    pooling: str = ...,
    backend: str = ...,
    pretrained: bool | str | None = ...,
    restrict: str | None = ...,
    initialisation: str | None = ...,
    features_only: Literal[False] = ...,
) -> EquivariantModel: ...


@overload
def create_model(
    name: str,
    preset: str = ...,
    in_channels: int | None = ...,
    num_classes: int | None = ...,
    neighborhood: int | Sequence[int | None] | None = ...,
    encoding: str | Sequence[str] = ...,
    pooling: str = ...,
    backend: str = ...,
    pretrained: bool | str | None = ...,
    restrict: str | None = ...,
    initialisation: str | None = ...,
    *,
    features_only: Literal[True],
    out_indices: Sequence[int] | None = ...,
) -> FeatureMaps: ...


def create_model(
    name: str,
    preset: str = "rotmnist",
    in_channels: int | None = None,
    num_classes: int | None = None,
    neighborhood: int | Sequence[int | None] | None = 5,
    encoding: str | Sequence[str] = "ge",
    pooling: str = "max_mean",
    backend: str = "auto",
    pretrained: bool | str | None = False,
    restrict: str | None = None,
    initialisation: str | None = None,
    features_only: bool = False,
    out_indices: Sequence[int] | None = None,
) -> EquivariantModel | FeatureMaps:
    """Build a classifier of images by name, with random or pretrained weights.

    Args:
        name: one of `gevit.list_models()`. The transformers are `z2_sa` (equivariant to translations), `r4_sa` to
            `r16_sa` (also to that many rotations) and `d1_sa` to `d8_sa` (also to reflections); each is a
            `GroupTransformer`. The baselines are `z2_cnn` (a plain CNN), `p4_cnn` (group convolutions),
            `alpha_p4_cnn` (attentive group convolutions) and `cpvt` (a plain vision transformer).
        preset: the architecture. The paper's are named after the data sets they were made for: `"rotmnist"`,
            `"cifar10"` and `"pcam"`. `"nano"` (digits and thumbnails), `"tiny"` (32 to 128 pixels) and `"small"` (up to
            512) begin with group convolutions, are many times as fast and learn from fewer images; they are for the
            transformers `*_sa` only.
        in_channels: channels of the images, if other than the preset's.
        num_classes: number of classes, if other than the preset's. With 0 the model gives invariant features instead of
            logits, `[batch, model.num_features]`.
        neighborhood: side of the square of pixels that each pixel attends to, an odd number, None for the whole image;
            or one for each stage of the architecture.
        encoding: the positional encoding: `"ge"` (the paper), `"gsa"` (GSA-Nets, not equivariant) or `"relative"`
            (equivariant, and faster on large groups); or one for each stage.
        pooling: how feature maps become logits: `"max_mean"` (the paper) or `"sum_max"` (the authors' code).
        backend: how attention is computed, see `gevit.attention`. `neighborhood`, `encoding`, `pooling`, `backend`,
            `restrict` and `initialisation` are options of the transformers `*_sa`: a baseline takes only their
            defaults.
        pretrained: load weights that come with the package, in evaluation mode: those trained on the data set of this
            name, such as `"eurosat"`, or True for the default ones (see `gevit.list_pretrained`). Their classes,
            normalisation and training are in `model.info`. Another `num_classes` gives them a new classifier, with
            random weights, to be trained. Options that are left at their defaults are theirs; others are refused.
            False or None for random weights.
        restrict: the subgroup that feature maps live on from the last stage on, such as `"c4"`, or from stage 2 on,
            `"c4@2"`; the model is equivariant to that subgroup (see `GroupTransformer`).
        initialisation: how the attention of random weights starts: `"paper"`, or `"convolution"`, each head at a pixel
            and an element, which learns faster; None for `"paper"` in the paper's architectures, else `"convolution"`.
        features_only: give the feature maps of each resolution instead of logits, see `gevit.models.FeatureMaps`.
        out_indices: with `features_only`, which of them.

    >>> model = create_model("r4_sa")
    >>> sum(p.numel() for p in model.parameters())
    44428
    """
    options: dict[str, Any] = {
        "in_channels": in_channels,
        "num_classes": 0 if features_only else num_classes,
        "neighborhood": neighborhood,
        "encoding": encoding,
        "pooling": pooling,
        "restrict": restrict,
    }
    if pretrained is None or pretrained is False:
        model = build_model(name, preset, **options, backend=backend, initialisation=initialisation)
    elif initialisation is not None:
        raise ValueError(
            f"initialisation={initialisation!r} is for random weights, and pretrained={pretrained!r} loads trained "
            "ones; leave one of them out"
        )
    else:
        model = _load_pretrained(name, preset, pretrained, options, backend)
    if out_indices is not None and not features_only:
        raise ValueError("out_indices says which feature maps are wanted: give features_only=True too")
    return FeatureMaps(model, out_indices) if features_only else model


def _load_pretrained(
    name: str, preset: str, pretrained: bool | str, options: dict[str, Any], backend: str
) -> EquivariantModel:
    check_choice("model", name, list_models())
    check_choice("preset", preset, PRESETS)
    model = load(pretrained_path(name, preset, pretrained), backend)
    trained_options = info_of(model).options
    for option, value in options.items():
        trained, default = trained_options[option], inspect.signature(build_model).parameters[option].default
        if value in (trained, default):
            continue
        if option != "num_classes":
            raise ValueError(f"the pretrained {name} has {option}={trained!r}, not {value!r}; leave {option} out")
        model.reset_classifier(value)
    return model


@dataclass(frozen=True)
class Pretrained:
    """Weights that come with the package.

    Attributes:
        model: what `create_model` takes as `name`.
        preset: what it takes as `preset`.
        data: what it takes as `pretrained`: the data set they were trained on, and what sets them apart where there are
            several, such as `digits-upright-gsa`.
        classes: the names of the classes.
        accuracy: the share of the test images that is right; None if it is not known.
        size: of the file, in bytes.
        path: the file. Its card ends in `.md` instead.
    """

    model: str
    preset: str
    data: str
    classes: tuple[str, ...]
    accuracy: float | None
    size: int
    path: Path

    @staticmethod
    def at(path: Path) -> Pretrained:
        """The weights in `MODEL_PRESET_DATA.safetensors`, or in `MODEL_PRESET.safetensors`, the default ones."""
        info = ModelInfo.from_json(path.with_suffix(".json").read_text("utf-8"))
        data = path.stem.removeprefix(f"{info.name}_{info.preset}").removeprefix("_") or info.data
        accuracy = info.trained.get("test_accuracy")
        return Pretrained(info.name, info.preset, data, info.classes, accuracy, path.stat().st_size, path)

    @property
    def is_default(self) -> bool:
        """Whether `pretrained=True` means these weights, even if there are others of the model and preset."""
        return self.path.stem == f"{self.model}_{self.preset}"


class PretrainedList(list[Pretrained]):
    """Weights that come with the package; printed, a table."""

    def to_table(self) -> Table:
        """One row each."""
        header = ("model", "preset", "data", "classes", "test accuracy", "size")
        rows = [
            (
                row.model,
                row.preset,
                row.data,
                str(len(row.classes)),
                "not known" if row.accuracy is None else percent(row.accuracy),
                f"{row.size / 1000:,.0f} kB",
            )
            for row in self
        ]
        return Table(header, rows, alignment="lllrrr", title="weights that come with the package")

    def __str__(self) -> str:
        return self.to_table().to_markdown()


def list_pretrained() -> PretrainedList:
    """The weights that come with the package: model, preset, data, classes, accuracy and size of each.

    >>> [row.data for row in list_pretrained() if row.model == "r4_sa" and row.preset == "rotmnist"]
    ['rotmnist-rebuilt']
    """
    return PretrainedList(Pretrained.at(path) for path in sorted(FOLDER.glob("*.safetensors")))


def pretrained_path(name: str, preset: str = "rotmnist", pretrained: bool | str = True) -> Path:
    """Where the weights are that come with the package for this model and architecture.

    Args:
        name: the model.
        preset: the architecture.
        pretrained: the data set they were trained on. True for the default ones, or the only ones if there are none.
    """
    shipped = list_pretrained()
    fitting = [row for row in shipped if (row.model, row.preset) == (name, preset)]
    if isinstance(pretrained, str):
        found, trained_on = [row for row in fitting if row.data == pretrained], f" trained on {pretrained!r}"
    else:
        found, trained_on = [row for row in fitting if row.is_default] or fitting, ""
    if len(found) > 1:
        raise ValueError(
            f"there are several pretrained weights of {name!r} for {preset!r}; say which, by the data they were "
            f"trained on: {', '.join(row.data for row in found)}"
        )
    if not found:
        names = [f"{row.model} {row.preset} {row.data}" for row in shipped]
        raise ValueError(
            f"there are no pretrained weights of {name!r} for {preset!r}{trained_on}; there are: "
            f"{', '.join(names) or 'none in this installation'} (model, preset, data)"
        )
    return found[0].path
