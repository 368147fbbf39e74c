"""`gevit pretrained`: the weights that come with the package."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit pretrained`."""
    parser.description = "List the weights that come with the package: --model MODEL --preset PRESET --pretrained DATA."
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """List them."""
    from dataclasses import asdict

    from gevit.pretrained import list_pretrained
    from gevit.rendering.tables import make_console

    weights = list_pretrained()
    if args.json:
        print(json.dumps([asdict(row) | {"path": str(row.path)} for row in weights], indent=2))
    else:
        make_console().print(weights.to_table().to_rich())
    return 0
