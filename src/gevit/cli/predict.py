"""`gevit predict`: the classes of image files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gevit.cli.arguments import add_model_source, add_orbit, load_classifier, positive_integer
from gevit.rendering.tables import Table, make_console
from gevit.rendering.words import percent, printable

if TYPE_CHECKING:
    from gevit.evaluation.predict import Prediction

# How many files a warning names.
NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit predict`."""
    parser.description = (
        "The most probable classes of image files; exit code 1 if some of them cannot be read. In a terminal a table; "
        "into a pipe or file one line a file: its name, the class and its probability, separated by tabs."
    )
    add_model_source(parser)
    add_orbit(parser)
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="image files, folders or archives (zip, tar) of them, or quoted globs"
    )
    parser.add_argument("--top", type=positive_integer, default=1, metavar="K", help="how many classes for each file")
    parser.add_argument("--batch-size", type=positive_integer, default=64, metavar="N", help="images at a time")
    parser.add_argument(
        "--invert", action="store_true", help="take the negative of every image, such as digits in black on white"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array, one file a line")


def run(args: argparse.Namespace) -> int:
    """Predict and report; returns the exit code: 1 if a file cannot be read."""
    from rich.progress import track

    from gevit.evaluation.predict import expected_images, find_images, predict
    from gevit.models.base import info_of

    files = _take_files(args)
    model = load_classifier(args)
    paths = find_images(files)
    console = make_console(stderr=True)
    answers = track(
        predict(model, paths, args.top, args.batch_size, args.invert),
        "predicting",
        total=len(paths),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    predictions = list(answers)
    readable = [prediction for prediction in predictions if not prediction.error]
    expected = expected_images(info_of(model))
    if args.json:
        print("[\n" + ",\n".join(json.dumps(prediction.to_json()) for prediction in predictions) + "\n]")
    elif readable and sys.stdout.isatty():
        make_console().print(_table(readable, expected).to_rich())
    else:
        for prediction in readable:
            print(_line(prediction))
    inverted = [printable(prediction.path) for prediction in readable if prediction.looks_inverted]
    if inverted:
        more = f" and {len(inverted) - NAMED} more" if len(inverted) > NAMED else ""
        print(
            f"gevit predict: warning: {len(inverted)} of {len(readable)} images look inverted to this model, which "
            f"expects {printable(expected)}: {', '.join(inverted[:NAMED])}{more}; try them "
            f"{'without' if args.invert else 'with'} --invert",
            file=sys.stderr,
        )
    unreadable = [prediction for prediction in predictions if prediction.error]
    for prediction in unreadable:
        print(f"gevit predict: cannot read {printable(f'{prediction.path}: {prediction.error}')}", file=sys.stderr)
    return int(bool(unreadable))


def _take_files(args: argparse.Namespace) -> list[str]:
    """The files to predict: also one that follows `--pretrained`, whose own word, the name of data, may be left out."""
    from gevit.pretrained import list_pretrained

    files, word = args.files, args.pretrained
    is_data = not isinstance(word, str) or word in {row.data for row in list_pretrained()}
    if not is_data and (Path(word).exists() or set(word) & set("./*?[")):
        files, args.pretrained = [word, *files], True
    if not files:
        raise ValueError("which images? give files, folders of them, or quoted globs")
    return list(files)


def _line(prediction: Prediction) -> str:
    pairs = zip(prediction.classes, prediction.probabilities, strict=True)
    return "\t".join([printable(prediction.path), *(f"{printable(name)}\t{share:.4f}" for name, share in pairs)])


def _table(predictions: Sequence[Prediction], expected: str) -> Table:
    rows = [
        ("" if place else str(prediction.path), name, percent(prediction.probabilities[place]))
        for prediction in predictions
        for place, name in enumerate(prediction.classes)
    ]
    notes = [f"The model expects {expected}."]
    return Table(("file", "class", "probability"), rows, alignment="llr", notes=notes)
