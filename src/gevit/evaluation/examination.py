"""A model examined: how exactly it is equivariant, layer by layer, and what it says of images as they turn.

Numbers and images, no page: `gevit.evaluation.examination_page` writes that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gevit.data import Split
from gevit.data.dataset import choose
from gevit.equivariance import RelativeError, Report, measure, measure_layers, worst_of
from gevit.equivariance.comparison import NothingToShow, compare_translation
from gevit.equivariance.measuring import TRANSLATIONS
from gevit.evaluation.evaluate import equivariance_rows, logits_by_angle
from gevit.groups import Dihedral
from gevit.models.base import EquivariantModel, count_parameters, info_of
from gevit.models.info import ModelInfo

QUARTER_TURNS_AND_FLIPS = Dihedral(4)
FULL_TURN = tuple(15.0 * k for k in range(24))
# Of the images, whose feature maps are all held in memory.
MEASURED_IMAGES = 4
MOST_MISTAKES = 24
# What rounding may come to in a deep network, far below the error of any that is not equivariant.
ROUNDING = {torch.float64: 1e-9}
ROUNDING_OF_OTHERS = 1e-4
# What to know of transformations that are no elements of the model's group.
OUTSIDE = "not in the model's group"
ROLLED = "over the border: approximate"
SHIFTED = "exact: first block, no border near"

Images = Float[Tensor, "n channels side side"]


@dataclass(frozen=True)
class TurningImage:
    """An image, and what a model says of it as it turns.

    Attributes:
        name: of the file, or its number in a set.
        pixels: the image before it turns, in [0, 1].
        probabilities: of every class at every angle.
        label: the right class, where it is known.
    """

    name: str
    pixels: Float[Tensor, "channels side side"]
    probabilities: Float[Tensor, "angles classes"]
    label: int | None = None

    @cached_property
    def predicted(self) -> list[int]:
        """The most probable class at every angle."""
        found: list[int] = self.probabilities.argmax(1).tolist()
        return found

    @property
    def is_steady(self) -> bool:
        """Whether the most probable class is the same at all angles."""
        return len(set(self.predicted)) == 1

    @property
    def spread(self) -> float:
        """By how much the probability of a class changes over the turn, at most."""
        return float((self.probabilities.amax(0) - self.probabilities.amin(0)).max())


@dataclass(frozen=True)
class TurningSet:
    """Images with known classes, and what a model makes of them as all of them turn.

    Attributes:
        title: which images they are.
        right: whether the model is right about every image, at every angle.
        mistakes: images that it is wrong about at some angle, some of them: those first whose answer changes most.
        doubts: why the images may flatter the model.
    """

    title: str
    right: Bool[Tensor, "n angles"]
    mistakes: tuple[TurningImage, ...]
    doubts: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many images there are."""
        return len(self.right)

    @property
    def accuracies(self) -> list[float]:
        """The share of right answers at every angle."""
        found: list[float] = self.right.double().mean(0).tolist()
        return found

    @property
    def always_right(self) -> int:
        """How many images the model is right about at all angles."""
        return int(self.right.all(1).sum())

    @property
    def never_right(self) -> int:
        """How many images the model is wrong about at all angles."""
        return int((~self.right).all(1).sum())

    @property
    def changing(self) -> int:
        """How many images the model is right about at some angles and wrong about at others."""
        return self.count - self.always_right - self.never_right


@dataclass(frozen=True)
class Examination:
    """What was found out about a model.

    Attributes:
        info: which model it is, its classes, its normalisation.
        weights: where its weights are from, in words.
        dtype: its precision.
        parameters: how many weights it has.
        measured_images: how many images the errors below were measured on.
        logits: errors of the logits: elements of the model's group, and translations that roll the image.
        layers: errors of the feature maps, by layer.
        beyond: errors of the logits under quarter turns and flips that are not in the model's group.
        shift: error of the first block's feature maps under a shift on an empty canvas, which no border disturbs;
            None for models for which that cannot be done.
        angles: by which images were rotated, in degrees counter-clockwise.
        images: what the model says of them as they turn.
        labelled: images with known classes as they turn, if any were given.
    """

    info: ModelInfo
    weights: str
    dtype: torch.dtype
    parameters: int
    measured_images: int
    logits: Report
    layers: dict[str, Report]
    beyond: tuple[RelativeError, ...]
    shift: RelativeError | None
    angles: tuple[float, ...]
    images: tuple[TurningImage, ...]
    labelled: TurningSet | None

    @cached_property
    def maps(self) -> Report:
        """Errors of the feature maps: of each element the worst of all layers."""
        return worst_of(self.layers.values())

    @property
    def is_equivariant(self) -> bool:
        """Whether the errors of the group's quarter turns and flips are rounding errors."""
        rounding = ROUNDING.get(self.dtype, ROUNDING_OF_OTHERS)
        return self.logits.worst <= rounding and self.maps.worst <= rounding

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All transformations with their errors as plain types: of the logits, of the feature maps, or of both."""
        rows = equivariance_rows(self.logits, self.maps)
        rows += [{"name": error.name, "note": OUTSIDE, "logits": _numbers(error)} for error in self.beyond]
        rows += [{"name": error.name, "note": ROLLED, "logits": _numbers(error)} for error in self.logits.translations]
        if self.shift is not None:
            rows.append({"name": self.shift.name, "note": SHIFTED, "feature_maps": _numbers(self.shift)})
        return rows

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain types, without the pixels."""
        answer: dict[str, Any] = {
            "model": self.info.name,
            "weights": self.weights,
            "group": str(self.logits.group),
            "parameters": self.parameters,
            "dtype": str(self.dtype).removeprefix("torch."),
            "elements": self.rows[: self.logits.group.order],
            "others": self.rows[self.logits.group.order :],
            "layers": {name: [_numbers(error) for error in report] for name, report in self.layers.items()},
            "classes": list(self.info.classes),
            "angles": list(self.angles),
            "images": [_turning_to_json(image) for image in self.images],
        }
        if self.labelled:
            answer["labelled"] = {
                "data": self.labelled.title,
                "warnings": list(self.labelled.doubts),
                "images": self.labelled.count,
                "accuracy": self.labelled.accuracies,
                "always_right": self.labelled.always_right,
                "changing": self.labelled.changing,
                "never_right": self.labelled.never_right,
                "mistakes": [_turning_to_json(image) for image in self.labelled.mistakes],
            }
        return answer


@dataclass(frozen=True)
class LabelledImages:
    """Images with known classes to examine a model on: what they are, pixels in [0, 1], labels, names.

    `doubts` are reasons why they may flatter the model.
    """

    title: str
    images: Images
    labels: Int[Tensor, " n"]
    names: Sequence[str]
    doubts: tuple[str, ...] = ()

    @staticmethod
    def of(title: str, split: Split, doubts: tuple[str, ...] = ()) -> LabelledImages:
        """All images of a split, under the names that it gives them."""
        count = len(split)
        names = [split.name_of(index) for index in range(count)]
        return LabelledImages(title, split.images(torch.arange(count)), split.labels, names, doubts)

    def some(self, most: int) -> tuple[list[str], Images]:
        """Names and pixels of up to `most` of them, the same share of every class."""
        chosen = choose(self.labels, most)
        return [self.names[index] for index in chosen.tolist()], self.images[chosen]


def examine(
    model: EquivariantModel,
    images: Images,
    names: Sequence[str],
    labelled: LabelledImages | None = None,
    angles: Sequence[float] = FULL_TURN,
    weights: str = "",
    batch_size: int = 64,
    progress: Callable[[float], object] | None = None,
) -> Examination:
    """Measure the equivariance of a model, and turn images before it.

    Args:
        model: a classifier with its `info`, in evaluation mode.
        images: at least one, pixels in [0, 1], of the model's size and channels; the first few measure equivariance.
        names: what to call them.
        labelled: images with known classes.
        angles: by which to turn the images, in degrees counter-clockwise; none to measure equivariance alone.
        weights: where the weights are from, in words; if not given, the data they were trained on.
        batch_size: images at a time.
        progress: told the share of the work that is done, from 0 to 1, after each batch. What it raises ends the
            examination.
    """
    info, parameter, group = info_of(model), next(model.parameters()), model.group
    if angles and not info.num_classes:
        raise ValueError("this model gives features and has no classes (num_classes=0): there is no answer to turn")
    some = images[:MEASURED_IMAGES]
    names_of_group = {group.name(element) for element in range(group.order)}
    order = QUARTER_TURNS_AND_FLIPS.order
    is_beyond = any(QUARTER_TURNS_AND_FLIPS.name(element) not in names_of_group for element in range(order))
    turned = len(images) + (len(labelled.images) if labelled else 0)
    # Each measurement takes an image as it is and as every element moves it; that of the logits, translated ones too.
    of_each = 2 * (1 + group.order) + len(TRANSLATIONS) + is_beyond * (1 + order)
    passes = of_each * len(some) + 2 + len(angles) * turned  # 2: the first image, and the same shifted

    def ready(pixels: Tensor) -> Tensor:
        return info.normalize(pixels.to(parameter.dtype))

    def turning(pixels: Images) -> Float[Tensor, "n angles classes"]:
        logits = logits_by_angle(model, pixels, ready, angles, batch_size)
        return torch.stack(logits, 1).double().softmax(-1)

    with _watched(model, passes, progress):
        x = ready(some).to(parameter.device)
        logits = measure(model, x, group)
        layers = measure_layers(model.forward_features, x, group)
        beyond = measure(model, x, QUARTER_TURNS_AND_FLIPS, translations=()) if is_beyond else ()
        try:
            shift = compare_translation(model, x[0]).error
        except NothingToShow:
            shift = None
        return Examination(
            info=info,
            weights=weights or f"trained on {info.data or 'unknown data'}",
            dtype=parameter.dtype,
            parameters=count_parameters(model),
            measured_images=len(some),
            logits=logits,
            layers=layers,
            beyond=tuple(error for error in beyond if error.name not in names_of_group),
            shift=shift,
            angles=tuple(angles),
            images=tuple(map(TurningImage, names, images, turning(images))) if angles else (),
            labelled=_turning_set(labelled, turning(labelled.images)) if labelled and angles else None,
        )


@contextlib.contextmanager
def _watched(model: EquivariantModel, passes: int, progress: Callable[[float], object] | None) -> Iterator[None]:
    """Tell `progress` of the images that pass the model, which all come through its lifting."""
    done = 0

    def count(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal done
        done += len(inputs[0])
        if progress:
            progress(min(1.0, done / passes))

    handle = model.lifting.register_forward_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _turning_set(given: LabelledImages, probabilities: Float[Tensor, "n angles classes"]) -> TurningSet:
    right = probabilities.argmax(-1) == given.labels[:, None]
    # Those whose answer changes most often come first, then those that are wrong most often.
    changes = (right != right.roll(1, 1)).sum(1)
    order = sorted(range(len(right)), key=lambda n: (-int(changes[n]), int(right[n].sum())))
    mistakes = [
        TurningImage(given.names[n], given.images[n], probabilities[n], int(given.labels[n]))
        for n in order
        if not right[n].all()
    ]
    return TurningSet(given.title, right, tuple(mistakes[:MOST_MISTAKES]), given.doubts)


def _turning_to_json(image: TurningImage) -> dict[str, Any]:
    return {"name": image.name, "label": image.label, "probabilities": image.probabilities.tolist()}


def _numbers(error: RelativeError) -> dict[str, float]:
    return {"worst": error.worst, "mean": error.mean}
