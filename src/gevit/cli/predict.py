"""`gevit predict`: the classes of image files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gevit.cli.model_source import add_model_source, load_from

if TYPE_CHECKING:
    from rich.table import Table

    from gevit.evaluation.predict import Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit predict`."""
    parser.description = "The most probable classes of image files; exit code 1 if some of them cannot be read."
    add_model_source(parser)
    parser.add_argument("files", nargs="+", metavar="FILE", help="image files, folders of them, or quoted globs")
    parser.add_argument("--top", type=int, default=1, metavar="K", help="how many classes for each file")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images at a time")
    parser.add_argument("--json", action="store_true", help="print a JSON array, one file a line")


def run(args: argparse.Namespace) -> int:
    """Predict and report; returns the exit code: 1 if a file cannot be read."""
    from rich.console import Console
    from rich.progress import track

    from gevit.evaluation.predict import find_images, predict

    for name in ("top", "batch_size"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    model = load_from(args)
    paths = find_images(args.files)
    answers = track(
        predict(model, paths, args.top, args.batch_size),
        "predicting",
        total=len(paths),
        console=Console(stderr=True),
        transient=True,
    )
    predictions = list(answers)
    if args.json:
        print("[\n" + ",\n".join(json.dumps(prediction.to_json()) for prediction in predictions) + "\n]")
    elif any(not prediction.error for prediction in predictions):
        Console().print(_table(predictions))
    unreadable = [prediction for prediction in predictions if prediction.error]
    for prediction in unreadable:
        print(f"gevit predict: cannot read {prediction.path}: {prediction.error}", file=sys.stderr)
    return int(bool(unreadable))


def _table(predictions: Sequence[Prediction]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from gevit.rendering.words import percent

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("file", overflow="fold")
    table.add_column("class")
    table.add_column("probability", justify="right")
    for prediction in predictions:
        for place, name in enumerate(prediction.classes):
            file = "" if place else escape(str(prediction.path))
            table.add_row(file, escape(name), percent(prediction.probabilities[place]))
    return table
