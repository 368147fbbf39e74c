"""`gevit evaluate`: a trained model on a data set."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gevit.cli.arguments import (
    add_model_source,
    add_orbit,
    check_file,
    check_picture,
    load_classifier,
    positive_integer,
)
from gevit.cli.labelled_data import add_labelled_data, open_labelled_data

ANGLE_IMAGES = 500
EQUIVARIANCE_IMAGES = 4
CONFUSIONS = 5
ANSWER, CHARTS = "evaluation.json", ("angle.png", "angle.svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit evaluate`."""
    parser.description = (
        "Accuracy of a trained model with its 95% interval, scores of each class, accuracy against rotation angle, "
        "and how exactly the model is equivariant."
    )
    add_model_source(parser)
    add_orbit(parser)
    add_labelled_data(parser, required=True)
    parser.add_argument(
        "--angles",
        type=int,
        default=8,
        metavar="N",
        help=f"rotate up to {ANGLE_IMAGES} of the images by N angles, evenly around the circle; 0 for none",
    )
    parser.add_argument("--batch-size", type=positive_integer, default=64, metavar="N", help="images at a time")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json, angle.png and angle.svg here")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate and report; returns the exit code."""
    from rich.markup import escape
    from rich.progress import Progress

    from gevit.data.dataset import choose
    from gevit.evaluation import presentation
    from gevit.evaluation.evaluate import accuracy_by_angle, equivariance_of, equivariance_rows, evaluate
    from gevit.models.base import info_of
    from gevit.orbit import Orbit
    from gevit.rendering.tables import make_console
    from gevit.rendering.words import printable

    if args.angles < 0:
        raise ValueError(f"--angles must be at least 0, got {args.angles}")
    if args.out:
        check_file("--out", args.out / ANSWER)
        for name in CHARTS if args.angles else ():
            check_picture("--out", args.out / name)
    model = load_classifier(args)
    info = info_of(model)
    scored = open_labelled_data(args, info)
    split = scored.split
    some = choose(split.labels, ANGLE_IMAGES)
    images, labels = split.images(some), split.labels[some]
    angles = [360 * k / args.angles for k in range(args.angles)]
    orbit = str(model.group) if isinstance(model, Orbit) else None
    title = f"{info.name}{f', averaged over {orbit},' if orbit else ''} on {scored.title}"
    with Progress(console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(printable(title)), total=len(split) + len(angles) * len(images))

        def advance(done: int) -> None:
            bar.advance(task, done)

        result = evaluate(model, split, info.normalize, args.batch_size, advance)
        by_angle = accuracy_by_angle(model, images, labels, info.normalize, angles, args.batch_size, advance)
        errors = equivariance_rows(*equivariance_of(model, info.normalize(images[:EQUIVARIANCE_IMAGES])))

    answer = {
        "model": info.name,
        "orbit": orbit,
        "data": scored.data,
        "split": args.split,
        "classes": info.classes,
        "title": scored.title,
        "warnings": scored.doubts,
        **result.to_json(),
        "by_angle": {"images": len(images), "accuracy": by_angle},
        "equivariance": {"images": len(images[:EQUIVARIANCE_IMAGES]), "elements": errors},
    }
    if args.json:
        print(json.dumps(answer, indent=2))
    else:
        tables = [
            presentation.summary_table(title, result),
            presentation.class_table(info.classes, result),
            presentation.worst_confusions(info.classes, result, CONFUSIONS),
            presentation.angle_table(by_angle, len(images)),
            presentation.equivariance_table(errors),
        ]
        console = make_console()
        for table in tables:
            if table.rows:
                console.print(table.to_rich())
    if args.out:  # after all is printed: a disk that is full must not take the answer with it
        _write(args.out, answer, by_angle, len(images))
    return 0


def _write(folder: Path, answer: dict[str, Any], by_angle: dict[float, float], images: int) -> None:
    from gevit.files import write_aside

    with write_aside(folder / ANSWER) as aside:
        aside.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    if by_angle:
        from gevit.evaluation.presentation import angle_figure
        from gevit.rendering.charts import save

        figure = angle_figure(by_angle, images)
        for name in CHARTS:
            save(figure, folder / name)
