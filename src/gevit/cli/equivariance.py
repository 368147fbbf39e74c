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
    which.add_argument("--images", type=positive_integer, default=4, metavar="N", help="how many digits")
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
    models = _models(args)
    console = make_console(stderr=args.json)
    examinations = [_examine(args, model) for model in models.values()]
    if not args.json:
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
        model = next(iter(models.values()))
        _save_figure(models, as_input(model, _images(args, model)[1][:1])[0], args.figure)
        console.print(printable(f"feature maps: {args.figure}"), soft_wrap=True, markup=False)
    if args.json:
        print(json.dumps([examination.to_json() for examination in examinations], indent=2))
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


def _examine(args: argparse.Namespace, model: EquivariantModel) -> Examination:
    from rich.progress import Progress

    from gevit.evaluation.examination import examine
    from gevit.models.base import info_of
    from gevit.rendering.tables import make_console

    info = info_of(model)
    names, pixels = _images(args, model)
    labelled = _labelled(args, model) if args.data else None
    is_turned = args.html or args.image or args.data
    angles = [360 * k / args.angles for k in range(args.angles)] if is_turned else []
    weights = "" if args.checkpoint or args.pretrained else f"random, seed {args.seed}"
    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"examining {info.name}", total=1.0)
        return examine(
            model, pixels, names, labelled, angles, weights, progress=lambda share: bar.update(task, completed=share)
        )


def _images(args: argparse.Namespace, model: EquivariantModel) -> tuple[list[str], Tensor]:
    """Names and pixels of the images that the flags name, or of digits, as large as the model takes them."""
    import torch

    from gevit.data import load_digits
    from gevit.data.decode import read_image
    from gevit.evaluation.predict import find_images
    from gevit.models.base import info_of

    if args.image:
        info, paths = info_of(model), find_images(args.image)
        return [str(path) for path in paths], torch.stack(
            [read_image(path, info.image_size, info.in_channels) for path in paths]
        )
    digits, labels = load_digits()
    spread = [k * (len(digits) - 1) // max(1, args.images - 1) for k in range(args.images)]
    return [f"digit {labels[k]}" for k in spread], fitted(model, digits[spread].float() / 255)


def _labelled(args: argparse.Namespace, model: EquivariantModel) -> LabelledImages:
    import torch

    from gevit.evaluation.examination import LabelledImages
    from gevit.models.base import info_of

    data, split, _ = open_labelled_data(args, info_of(model))
    everything = torch.arange(len(split))
    return LabelledImages(
        f"{data.label}, {args.split}",
        split.images(everything),
        split.labels,
        [split.name_of(k) for k in range(len(split))],
    )


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


def _save_figure(models: dict[str, EquivariantModel], image: Tensor, path: Path) -> None:
    try:
        from gevit.equivariance.figures import feature_map_figure, save

        figure = feature_map_figure(models, image)
    except ImportError as error:
        raise ImportError(f"drawing needs matplotlib ({error}); pip install 'gevit[figures]'") from error
    save(figure, path)
