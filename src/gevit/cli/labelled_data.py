"""The flags of images with known classes that a trained model is tested on, and what they name."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gevit.cli.arguments import positive_integer
from gevit.rendering.words import printable

if TYPE_CHECKING:
    from gevit.evaluation.matching import ScoredImages
    from gevit.models.info import ModelInfo


def add_labelled_data(parser: argparse.ArgumentParser, required: bool, limit: int | None = None) -> None:
    """Add `--data NAME`, and which of its images; `limit` is how many if the flag `--limit` does not say."""
    data = parser.add_argument_group("images with known classes")
    data.add_argument("--data", required=required, metavar="NAME", help="data set, or a folder or archive of images")
    data.add_argument("--data-root", type=Path, metavar="DIR", help="where the named data sets are")
    data.add_argument("--skip-corrupt", action="store_true", help="leave out files that cannot be decoded")
    data.add_argument(
        "--split",
        choices=["train", "valid", "test", "all"],
        default="test",
        help="which images; all: those of a folder that the model was not trained on, also of some classes only",
    )
    data.add_argument(
        "--limit",
        type=positive_integer,
        default=limit,
        metavar="N",
        help="only N images, the same share of every class",
    )


def open_labelled_data(args: argparse.Namespace, info: ModelInfo) -> ScoredImages:
    """The images that the flags name, as the model takes them; why they may flatter it is printed, too."""
    from gevit.data.dataset import choose
    from gevit.evaluation.matching import open_images

    images = open_images(info, args.data, args.split, args.data_root, args.skip_corrupt)
    for doubt in images.doubts:
        print(printable(f"gevit {args.command}: warning: {doubt}"), file=sys.stderr)
    if not args.limit:
        return images
    return dataclasses.replace(images, split=images.split.subset(choose(images.split.labels, args.limit)))
