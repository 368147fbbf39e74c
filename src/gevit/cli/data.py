"""`gevit data`: list, prepare, verify and preview data sets. Everything heavy is imported when the command runs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from gevit.cli.arguments import check_file, positive_integer
from gevit.data.catalog import CATALOG, list_datasets
from gevit.rendering.words import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `gevit data` and their flags."""
    parser.description = "Data sets: list them, get them, check their files, look at them."
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")

    listing = actions.add_parser("list", help="the named data sets, and which are there")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")

    getting = actions.add_parser("prepare", help="download a data set, or import its official file")
    getting.add_argument("name", choices=list_datasets())
    getting.add_argument(
        "--file", type=Path, metavar="PATH", help="official file (or the folder of them) to use instead of a download"
    )

    checking = actions.add_parser("verify", help="compare files with their checksums; exit code 1 if one is bad")
    checking.add_argument("name", nargs="?", choices=list_datasets(), help="default: all that are there")
    checking.add_argument("--json", action="store_true", help="print JSON instead of a table")

    looking = actions.add_parser("preview", help="draw a contact sheet of a data set")
    looking.add_argument("name", help=f"{', '.join(CATALOG)}, or a path to a folder or archive of images")
    looking.add_argument("--split", default="train", help="train (the default), valid or test")
    looking.add_argument(
        "--rows",
        type=positive_integer,
        default=8,
        metavar="N",
        help="images in the row of a class; with more than 20 classes, N rows of N images (default: 8)",
    )
    looking.add_argument("--out", type=Path, default=Path("sheet.png"), metavar="FILE", help="default: sheet.png")
    looking.add_argument("--image-size", type=int, metavar="N", help="scale the images of a folder to this side")
    looking.add_argument("--skip-corrupt", action="store_true", help="leave out files that cannot be decoded")

    for action in (listing, getting, checking, looking):
        action.add_argument(
            "--data-root", type=Path, metavar="DIR", help="where data is stored; default: $GEVIT_DATA or ~/.cache/gevit"
        )


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    return {"list": _list, "prepare": _prepare, "verify": _verify, "preview": _preview}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from gevit.data.storage import data_root

    root = data_root(args.data_root)
    if args.json:
        sets = [
            {
                "name": entry.name,
                "images": entry.images,
                "classes": entry.classes,
                "shape": entry.shape,
                "present": entry.is_present(root),
                "source": entry.source,
            }
            for entry in CATALOG.values()
        ]
        print(json.dumps({"root": str(root), "datasets": sets}, indent=2))
        return 0
    from gevit.rendering.tables import Table, make_console

    header = ("name", "images", "classes", "size", "present", "source")
    rows = [
        (
            entry.name,
            f"{entry.images:,}",
            str(entry.classes),
            entry.shape,
            "yes" if entry.is_present(root) else "no",
            entry.source,
        )
        for entry in CATALOG.values()
    ]
    make_console().print(Table(header, rows, alignment="lrrlll", title=f"data in {root}").to_rich())
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from gevit.data.catalog import prepare

    print(printable(prepare(args.name, args.data_root, args.file)))
    return 0


def _verify(args: argparse.Namespace) -> int:
    from gevit.data.catalog import BAD, kept_datasets, verify

    names = [args.name] if args.name else kept_datasets(args.data_root)
    findings = [finding for name in names for finding in verify(name, args.data_root)]
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            detail = f" ({finding.detail})" if finding.detail else ""
            print(printable(f"{finding.dataset}: {finding.file}: {finding.status}{detail}"))
    return int(any(finding.status in BAD for finding in findings))


def _preview(args: argparse.Namespace) -> int:
    from gevit.data.catalog import open_dataset
    from gevit.data.preview import check_sheet, contact_sheet, save_sheet

    check_file("--out", args.out)
    check_sheet(args.out)
    dataset = open_dataset(args.name, args.data_root, image_size=args.image_size, skip_corrupt=args.skip_corrupt)
    save_sheet(contact_sheet(dataset, args.split, args.rows), args.out)
    print(printable(f"{args.out}: {dataset.note}"))
    return 0
