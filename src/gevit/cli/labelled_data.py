"""The flags of images with known classes that a trained model is tested on, and what they name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gevit.cli.arguments import positive_integer
from gevit.rendering.words import printable

if TYPE_CHECKING:
    from gevit.data import DataSet, Split
    from gevit.models.info import ModelInfo


def add_labelled_data(parser: argparse.ArgumentParser, required: bool, limit: int | None = None) -> None:
    """Add `--data NAME`, and which of its images; `limit` is how many if the flag `--limit` does not say."""
    data = parser.add_argument_group("images with known classes")
    data.add_argument("--data", required=required, metavar="NAME", help="data set, or a folder or archive of images")
    data.add_argument("--data-root", type=Path, metavar="DIR", help="where the named data sets are")
    data.add_argument("--skip-corrupt", action="store_true", help="leave out files that cannot be decoded")
    data.add_argument("--split", choices=["train", "valid", "test"], default="test", help="which images")
    data.add_argument(
        "--limit",
        type=positive_integer,
        default=limit,
        metavar="N",
        help="only N images, the same share of every class",
    )


def open_labelled_data(args: argparse.Namespace, info: ModelInfo) -> tuple[DataSet, Split, list[str]]:
    """The data set and the images of it that the flags name, as the model takes them, and why they may flatter it.

    The warnings are printed, too.
    """
    from gevit.data.dataset import choose
    from gevit.evaluation.matching import open_matching

    data = open_matching(info, args.data, args.data_root, args.skip_corrupt)
    warnings = _doubts(info, data, args.split)
    for warning in warnings:
        print(printable(f"gevit {args.command}: warning: {warning}"), file=sys.stderr)
    split = data.split(args.split)
    return data, split.subset(choose(split.labels, args.limit)) if args.limit else split, warnings


def _doubts(info: ModelInfo, data: DataSet, split: str) -> list[str]:
    """Why the numbers may flatter the model."""
    from gevit.data.dataset import is_other_data

    trained_on = info.trained.get("data_digest")  # models of earlier versions do not know
    known = isinstance(trained_on, str)  # and those of others may say anything
    if data.name != info.data or split not in data.drawn or not (known and is_other_data(trained_on, data.digest)):
        return []
    return [
        f"the folder {data.name} has changed since the model was trained on it, and its splits are drawn whenever it "
        f"is opened: these are not the {split} images of then, and may include images that it was trained on; "
        "to keep them apart, put the images into folders train, valid and test, and train again"
    ]
