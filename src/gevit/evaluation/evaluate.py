"""A model on a set of images: its scores, its accuracy against rotation angle, its equivariance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gevit.data import Split
from gevit.data.rotation import rotate
from gevit.equivariance import Report, measure
from gevit.evaluation.metrics import Evaluation, score
from gevit.models.base import EquivariantModel, in_evaluation_mode
from gevit.orbit import Orbit

Normalize = Callable[[Tensor], Tensor]
Progress = Callable[[int], object]


def evaluate(
    model: nn.Module, split: Split, normalize: Normalize, batch_size: int = 64, progress: Progress | None = None
) -> Evaluation:
    """Score a model, in evaluation mode, on all images of a split.

    Args:
        model: gives logits.
        split: images and labels.
        normalize: from pixels in [0, 1] to what the model takes.
        batch_size: images at a time.
        progress: told the number of images of each batch that is done.
    """
    if not len(split):
        raise ValueError("there are no images to evaluate")
    logits = [
        predict_logits(model, normalize(split.images(indices)), progress)
        for indices in torch.arange(len(split)).split(batch_size)
    ]
    return score(torch.cat(logits), split.labels)


def accuracy_by_angle(
    model: nn.Module,
    images: Float[Tensor, "n channels side side"],
    labels: Int[Tensor, " n"],
    normalize: Normalize,
    angles: Iterable[float] = range(0, 360, 15),
    batch_size: int = 64,
    progress: Progress | None = None,
) -> dict[float, float]:
    """The accuracy with all images rotated about their centre by each of these angles, in degrees counter-clockwise.

    Args:
        model: gives logits.
        images: pixels in [0, 1].
        labels: their classes.
        normalize: from pixels in [0, 1] to what the model takes.
        angles: in degrees.
        batch_size: images at a time.
        progress: told the number of images of each batch that is done.
    """
    angles = list(map(float, angles))
    logits = logits_by_angle(model, images, normalize, angles, batch_size, progress)
    return {angle: float((at.argmax(1) == labels).double().mean()) for angle, at in zip(angles, logits, strict=True)}


def logits_by_angle(
    model: nn.Module,
    images: Float[Tensor, "n channels side side"],
    normalize: Normalize,
    angles: Iterable[float],
    batch_size: int = 64,
    progress: Progress | None = None,
) -> list[Float[Tensor, "n classes"]]:
    """The logits of all images rotated about their centre by each of these angles; arguments as above."""
    return [
        torch.cat(
            [predict_logits(model, normalize(rotate(batch, angle)), progress) for batch in images.split(batch_size)]
        )
        for angle in angles
    ]


def equivariance_of(
    model: EquivariantModel | Orbit, images: Float[Tensor, "n channels side side"]
) -> tuple[Report, ...]:
    """How exactly the logits are invariant, and all feature maps equivariant, under the model's own group.

    An `Orbit`, which is invariant whatever the maps inside are, has a report of its logits alone.

    Args:
        model: in evaluation mode.
        images: a few, as the model takes them, on any device.
    """
    images = _as_weights(model, images)
    logits = measure(model, images, model.group)
    return (logits,) if isinstance(model, Orbit) else (logits, measure(model.forward_features, images, model.group))


def equivariance_rows(logits: Report, maps: Report | None = None) -> list[dict[str, Any]]:
    """The errors of each element of the group as plain types, those of the logits beside those of the maps, if any."""
    reports = {"logits": logits} | ({"feature_maps": maps} if maps else {})
    return [
        {
            "element": element,
            "name": logits[element].name,
            "exact": logits[element].exact,
            **{
                what: {"worst": report[element].worst, "mean": report[element].mean} for what, report in reports.items()
            },
        }
        for element in range(len(logits))
    ]


def predict_logits(
    model: nn.Module, images: Float[Tensor, "n channels height width"], progress: Progress | None = None
) -> Float[Tensor, "n classes"]:
    """Logits, on the CPU, of images as the model takes them, without gradients and in evaluation mode.

    They are computed where the model is and as precisely as its weights are: `model.to(...)` decides.
    """
    with torch.inference_mode(), in_evaluation_mode(model):
        logits: Tensor = model(_as_weights(model, images)).cpu()
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # 16 bits are too few for probabilities
    broken = int((~logits.isfinite()).any(1).sum())
    if broken:
        raise ValueError(f"the model gives logits that are not finite for {broken} of {len(images)} images")
    if progress:
        progress(len(images))
    return logits


def _as_weights(model: nn.Module, images: Tensor) -> Tensor:
    """The images on the device and in the precision of the model; as they are if it has no weights."""
    return images.to(next(model.parameters(), images))
