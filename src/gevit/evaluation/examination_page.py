"""An examination as a page of HTML, and as tables for the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gevit.data.preview import as_colours
from gevit.data.rotation import rotate
from gevit.environment import environment
from gevit.evaluation import presentation
from gevit.evaluation.examination import Examination, TurningImage, TurningSet
from gevit.models.info import ModelInfo
from gevit.rendering import charts
from gevit.rendering.pages import render
from gevit.rendering.tables import Table
from gevit.rendering.words import percent, relative_error

LARGEST_PICTURE = 96  # pixels to a side
MOST_PICTURES = 8  # of an image as it turns
MOST_CURVES = 4  # classes drawn around an image, in colours that can be told apart
VISIBLE = 0.1  # the probability that a class must reach somewhere to be drawn
SMALLEST_BAR = {torch.float64: -16}  # errors of 10 to this power have no bar
SMALLEST_BAR_OF_OTHERS = -8


@dataclass(frozen=True)
class Curve:
    """A class around an image: its probability at every angle, as points of a polar plot of radius 1."""

    name: str
    share: str
    points: str


@dataclass(frozen=True)
class Picture:
    """An image at one angle: what the model saw, and what it said."""

    angle: str
    source: str
    answer: str
    share: str
    is_right: bool


def page(examinations: Sequence[Examination], command: str = "") -> str:
    """The examinations as one page, which needs no other file.

    Args:
        examinations: one for each model.
        command: how to make the page again, if that is known.
    """
    names = " and ".join(one.info.name for one in examinations)
    return render(
        "examination.html",
        title=f"{names}, examined",
        models=[_model_facts(one) for one in examinations],
        command=command,
        environment=environment(),
    )


def image_table(examination: Examination) -> Table:
    """What the model says of each image, and how far that changes as it turns."""
    rows = []
    for image in examination.images:
        upright = image.predicted[0]
        others = sum(answer != upright for answer in image.predicted)
        rows.append(
            (
                image.name,
                examination.info.classes[upright],
                percent(float(image.probabilities[0, upright])),
                _range(image, upright),
                f"{others} of {len(image.predicted)}",
            )
        )
    header = ("image", "class", "probability", "over the turn", "angles with another class")
    return Table(header, rows, alignment="llrrr", title="the images as they turn")


def angle_table(examination: Examination, labelled: TurningSet) -> Table:
    """Accuracy against the angle."""
    return presentation.angle_table(_by_angle(examination, labelled), labelled.count)


def headlines(examination: Examination) -> Table:
    """The numbers that come first: what each is, the number, and what to know about it."""
    group, labelled, images = examination.logits.group, examination.labelled, examination.images
    rows = []
    if group.order > 1:
        rows += [
            (
                "error of the logits",
                relative_error(examination.logits.worst),
                f"worst over the quarter turns and flips of {group}",
            ),
            (
                "error of the feature maps",
                relative_error(examination.maps.worst),
                "worst over these, and over all layers",
            ),
        ]
    if examination.beyond:
        beyond = max(examination.beyond)
        rows.append(("beyond its group", relative_error(beyond), f"error of the logits, worst at {beyond.name}"))
    if images:
        steady = sum(image.is_steady for image in images)
        rows.append(("steady answers", f"{steady} of {len(images)}", "images with one class over the full turn"))
    if labelled:
        accuracies = _by_angle(examination, labelled)
        least = min(accuracies, key=lambda angle: accuracies[angle])
        where = f"rotated by {least:g}°" if len(set(accuracies.values())) > 1 else "at every angle"
        rows += [
            ("accuracy upright", percent(labelled.accuracies[0]), f"{labelled.count:,} images"),
            ("lowest accuracy", percent(accuracies[least]), where),
            ("answers that change", f"{labelled.changing:,}", "images, right at some angles and wrong at others"),
        ]
    rows.append(("parameters", f"{examination.parameters:,}", f"weights {examination.weights}"))
    return Table(("", "", ""), rows, alignment="lrl")


def _model_facts(one: Examination) -> dict[str, object]:
    labelled = one.labelled
    return {
        "examination": one,
        "verdict": _verdict(one),
        "headlines": headlines(one),
        "transformations": presentation.equivariance_table(one.rows),
        "layers": _layer_rows(one),
        "has_approximate": _approximate(one),
        "images": [_image_facts(one, image) for image in one.images],
        "angle_chart": _angle_chart(one, labelled) if labelled else "",
        "angles": angle_table(one, labelled) if labelled else None,
        "mistakes": [_mistake_facts(one, image) for image in labelled.mistakes] if labelled else [],
    }


def _verdict(one: Examination) -> str:
    group = one.logits.group
    if group.order == 1:
        return "This model promises nothing about rotations and reflections, only about translations."
    promise = f"This model is built on {group}, {group.order} transformations of the plane."
    if one.is_equivariant:
        return f"{promise} Those that move pixels to pixels change its answers by rounding errors alone."
    return f"{promise} It is not equivariant: its errors are larger than those of rounding."


def _layer_rows(one: Examination) -> list[tuple[str, list[tuple[str, float]]]]:
    """For each layer its errors, worst and mean over exact elements and worst over the others, with lengths of bars."""
    rows = []
    for name, report in one.layers.items():
        errors = [report.worst, report.mean, *([max(e for e in report if not e.exact)] if _approximate(one) else [])]
        rows.append((name, [(relative_error(error), _bar(error, one.dtype)) for error in errors]))
    return rows


def _approximate(one: Examination) -> bool:
    return not all(error.exact for error in one.logits)


def _bar(error: float, dtype: torch.dtype) -> float:
    """The length of the bar of an error, on a logarithmic scale that ends at 1."""
    smallest = SMALLEST_BAR.get(dtype, SMALLEST_BAR_OF_OTHERS)
    return min(1.0, max(0.0, 1 - math.log10(error) / smallest)) if error > 0 else 0.0


def _image_facts(one: Examination, image: TurningImage) -> dict[str, object]:
    drawn = [label for label in _by_height(image)[:MOST_CURVES] if float(image.probabilities[:, label].max()) > VISIBLE]
    return {
        "name": image.name,
        "steady": image.is_steady,
        "spread": percent(image.spread),
        "curves": [
            Curve(one.info.classes[label], _range(image, label), _around(one.angles, image.probabilities[:, label]))
            for label in drawn
        ],
        "table": Table(
            ("rotated by", *(one.info.classes[label] for label in drawn)),
            [
                (f"{angle:g}°", *(percent(share) for share in shares))
                for angle, shares in zip(one.angles, image.probabilities[:, drawn].tolist(), strict=True)
            ],
        ),
        "pictures": _pictures(one, image),
    }


def _mistake_facts(one: Examination, image: TurningImage) -> dict[str, object]:
    label = image.label
    assert label is not None
    wrong = [answer != label for answer in image.predicted]
    taken_for = Counter(answer for answer in image.predicted if answer != label)
    return {
        "name": image.name,
        "source": _sources(image.pixels[None], one.info)[0],
        "label": one.info.classes[label],
        "wrong": wrong,
        "count": sum(wrong),
        "taken_for": [(one.info.classes[answer], count) for answer, count in taken_for.most_common()],
        "spoken": ", ".join(f"{angle:g}°" for angle, is_wrong in zip(one.angles, wrong, strict=True) if is_wrong),
    }


def _by_height(image: TurningImage) -> list[int]:
    order: list[int] = image.probabilities.amax(0).argsort(descending=True).tolist()
    return order


def _range(image: TurningImage, label: int) -> str:
    """The lowest and the highest probability of a class."""
    low, high = (percent(float(end)) for end in image.probabilities[:, label].aminmax())
    return low if low == high else f"{low} to {high}"


def _around(angles: Sequence[float], shares: Float[Tensor, " angles"]) -> str:
    """The corners of a curve: 0° is on top, and it goes counter-clockwise, as the images turn."""
    turns = [math.radians(angle) for angle in angles]
    pairs = zip(turns, shares.tolist(), strict=True)
    return " ".join(f"{-share * math.sin(turn):.4f},{-share * math.cos(turn):.4f}" for turn, share in pairs)


def _pictures(one: Examination, image: TurningImage) -> list[Picture]:
    step = max(1, len(one.angles) // MOST_PICTURES)
    shown = range(0, len(one.angles), step)[:MOST_PICTURES]
    sources = _sources(torch.cat([rotate(image.pixels[None], one.angles[k]) for k in shown]), one.info)
    wanted = image.predicted[0] if image.label is None else image.label
    return [
        Picture(
            f"{one.angles[k]:g}°",
            source,
            one.info.classes[image.predicted[k]],
            percent(float(image.probabilities[k].max())),
            image.predicted[k] == wanted,
        )
        for k, source in zip(shown, sources, strict=True)
    ]


def _sources(images: Float[Tensor, "n channels side side"], info: ModelInfo) -> list[str]:
    """Images as they are shown, small ones as they are."""
    colours = as_colours(images, info.mean, info.std)
    if colours.shape[-1] > LARGEST_PICTURE:
        colours = F.interpolate(colours, (LARGEST_PICTURE, LARGEST_PICTURE), mode="bilinear", antialias=True)
    pixels = (colours * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return [charts.inline_png(image) for image in pixels]


def _by_angle(one: Examination, labelled: TurningSet) -> dict[float, float]:
    return dict(zip(one.angles, labelled.accuracies, strict=True))


def _angle_chart(one: Examination, labelled: TurningSet) -> str:
    figure = presentation.angle_figure(_by_angle(one, labelled), labelled.count)
    return charts.inline_svg(figure, "accuracy against rotation angle")
