"""`gevit equivariance`: how exactly models are equivariant, and what they say of images as these turn."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gevit.cli.arguments import (
    add_model_source,
    add_random_weights,
    as_input,
    check_file,
    check_picture,
    fitted,
    positive_integer,
    trained_or_random,
)
from gevit.cli.labelled_data import add_labelled_data, open_labelled_data

if TYPE_CHECKING:
    from torch import Tensor

    from gevit.evaluation.examination import Examination, LabelledImages
    from gevit.models.base import EquivariantModel

DEFAULT = "r4_sa"
ANGLES = 24
LABELLED = 100  # images, each at every angle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit equivariance`."""
    parser.description = (
        "Measure how exactly the logits of models are invariant, and their feature maps equivariant, on digits or on "
        "your images: with the weights of a checkpoint, pretrained or random ones. With --image, --data or --html also "
        "what the models say of the images as these turn."
    )
    add_model_source(parser, several=True)
    add_random_weights(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--images", type=positive_integer, default=4, metavar="N", help="how many: of --data, or else digits"
    )
    which.add_argument(
        "--image", nargs="+", metavar="FILE", help="image files, folders or archives of them, or quoted globs"
    )
    add_labelled_data(parser, required=False, limit=LABELLED)
    parser.add_argument(
        "--angles", type=positive_integer, default=ANGLES, metavar="N", help="how many, evenly around the circle"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a report to this page, which needs no other file"
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw feature maps to this .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and print, write and draw what is asked for."""
    from gevit.environment import needs
    from gevit.files import write_aside
    from gevit.rendering.tables import make_console
    from gevit.rendering.words import printable

    if args.html:
        with needs("Jinja2, Pillow and matplotlib"):  # which is known before anything is computed
            import jinja2  # noqa: F401
            import matplotlib  # noqa: F401
            import PIL  # noqa: F401
        check_file("--html", args.html)
    if args.figure:
        check_picture("--figure", args.figure)
    models = _models(args)
    images = [_images(args, model) for model in models.values()]
    examinations = [_examine(args, model, *given) for model, given in zip(models.values(), images, strict=True)]
    console = make_console(stderr=args.json)
    if args.json:
        print(json.dumps([examination.to_json() for examination in examinations], indent=2))
    else:
        for examination in examinations:
            _print(examination)
    if args.html:
        from gevit.evaluation.examination_page import page

        with write_aside(args.html) as aside:
            # The name of a file may be no text.
            aside.write_text(
                page(examinations, shlex.join(["gevit", *sys.argv[1:]])), encoding="utf-8", errors="backslashreplace"
            )
        console.print(printable(f"report: {args.html}"), soft_wrap=True, markup=False)
    if args.figure:
        from gevit.equivariance.figures import feature_map_figure, save

        _, pixels, _ = images[0]
        [image] = as_input(next(iter(models.values())), pixels[:1])
        save(feature_map_figure(models, image), args.figure)
        console.print(printable(f"feature maps: {args.figure}"), soft_wrap=True, markup=False)
    return 0


def _models(args: argparse.Namespace) -> dict[str, EquivariantModel]:
    """The models that the flags name, by their names."""
    from gevit.models.base import info_of

    if args.checkpoint:
        if args.model and len(args.model) > 1:
            raise ValueError(f"--checkpoint holds one model, got {len(args.model)} names with --model: leave them out")
        model = trained_or_random(args, args.model and args.model[0])
        return {info_of(model).name: model}
    return {name: trained_or_random(args, name) for name in args.model or [DEFAULT]}


def _examine(
    args: argparse.Namespace,
    model: EquivariantModel,
    names: list[str],
    pixels: Tensor,
    labelled: LabelledImages | None,
) -> Examination:
    from rich.progress import Progress

    from gevit.evaluation.examination import examine
    from gevit.models.base import info_of
    from gevit.rendering.tables import make_console

    info = info_of(model)
    is_turned = args.html or args.image or args.data
    angles = [360 * k / args.angles for k in range(args.angles)] if is_turned else []
    weights = "" if args.checkpoint or args.pretrained else f"random, seed {args.seed}"
    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"examining {info.name}", total=1.0)
        return examine(
            model, pixels, names, labelled, angles, weights, progress=lambda share: bar.update(task, completed=share)
        )


def _images(args: argparse.Namespace, model: EquivariantModel) -> tuple[list[str], Tensor, LabelledImages | None]:
    """Names and pixels of the images to turn, and those with known classes, all as large as the model takes them.

    Files that are named are turned, else some of the images with known classes, and only without either digits.
    """
    import torch

    from gevit.data import load_digits
    from gevit.data.decode import read_image
    from gevit.evaluation.examination import LabelledImages
    from gevit.evaluation.predict import find_images
    from gevit.models.base import info_of

    info = info_of(model)
    labelled = None
    if args.data:
        scored = open_labelled_data(args, info)
        labelled = LabelledImages.of(scored.title, scored.split, scored.doubts)
    if args.image:
        paths = find_images(args.image)
        pixels = torch.stack([read_image(path, info.image_size, info.in_channels) for path in paths])
        return [str(path) for path in paths], pixels, labelled
    if labelled:
        return *labelled.some(args.images), labelled
    digits, labels = load_digits()
    count = min(args.images, len(digits))
    spread = [k * (len(digits) - 1) // max(1, count - 1) for k in range(count)]
    return [f"digit {labels[k]}" for k in spread], fitted(model, digits[spread].float() / 255), None


def _print(examination: Examination) -> None:
    from gevit.evaluation.examination_page import angle_table, image_table
    from gevit.evaluation.presentation import equivariance_table
    from gevit.rendering.tables import make_console

    facts = examination.to_json()
    title = f"{facts['model']}: {facts['parameters']:,} parameters, weights {facts['weights']}, {facts['dtype']}"
    tables = [equivariance_table(examination.rows, f"relative equivariance error of {title}")]
    if examination.images:
        tables.append(image_table(examination))
    if examination.labelled:
        tables.append(angle_table(examination, examination.labelled))
    console = make_console()
    for table in tables:
        console.print(table.to_rich())
