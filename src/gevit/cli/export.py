"""`gevit export`: a model as a file for other runtimes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gevit.cli.arguments import add_model_source, add_random_weights, check_file, positive_integer, trained_or_random

# Of the formats, the usual endings of their files.
ENDINGS = {"onnx": ".onnx", "torch-export": ".pt2"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit export`."""
    parser.description = (
        "Write a model to a file for other runtimes: ONNX, or torch.export. It takes any number of normalised images "
        "of one size and gives logits; classes and normalisation are in its metadata. Then the file is run, and its "
        "logits are compared with the model's."
    )
    add_model_source(parser)
    add_random_weights(parser)
    target = parser.add_argument_group("what to write")
    target.add_argument("--format", choices=list(ENDINGS), help="default: torch-export for .pt2, else onnx")
    target.add_argument("--out", type=Path, required=True, metavar="FILE", help="usually ends in .onnx or .pt2")
    target.add_argument(
        "--size", type=positive_integer, nargs="+", metavar="N", help="side of the images, or height and width"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Write the file and compare what it gives."""
    from gevit.export import compare, export
    from gevit.rendering.tables import make_console
    from gevit.rendering.words import printable

    if args.size and len(args.size) > 2:
        raise ValueError(f"--size takes one side, or height and width; got {len(args.size)} numbers")
    if not (args.model or args.checkpoint):
        raise ValueError("which model? give --checkpoint PATH, or --model NAME, with --pretrained for trained weights")
    usual = next((format for format, ending in ENDINGS.items() if args.out.suffix == ending), None)
    format = args.format or usual or "onnx"
    if usual not in (None, format):
        raise ValueError(
            f"--format {format}, but {args.out.name} would be taken for {usual}; leave --format out, or name the file "
            f"{args.out.stem}{ENDINGS[format]}"
        )
    check_file("--out", args.out)
    model = trained_or_random(args, args.model)
    size = tuple(args.size) if args.size and len(args.size) == 2 else args.size[0] if args.size else None
    export(model, args.out, format, size)
    difference, equivariance = compare(model, args.out, format, size)
    facts = {
        "file": str(args.out),
        "format": format,
        "bytes": args.out.stat().st_size,
        "difference": difference,
        "equivariance_error": equivariance,
    }
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        line = (
            f"{args.out}: {format}, {facts['bytes'] / 1e6:.1f} MB; its logits differ from the model's by "
            f"{difference:.1e}; equivariance error {equivariance:.1e}"
        )
        make_console().print(printable(line), soft_wrap=True, markup=False)
    return 0
