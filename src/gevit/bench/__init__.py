"""`gevit bench`: time and peak memory of the attention backends, side by side.

Every case (a model, what it is fed, a backend) runs in a process of its own. This module holds the flags and the flow of
the command; everything else is imported when it runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gevit.bench.cases import Case

__all__ = ["add_arguments", "run"]

CHART_FORMATS = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit bench`."""
    parser.description = (
        "Measure time and peak memory of the attention backends, each case in a process of its own: "
        "a suite of cases, or every combination of the values given to the flags of a case."
    )
    parser.add_argument(
        "--suite", choices=["quick", "full"], help="quick: a minute or two (default); full: everything"
    )

    case = parser.add_argument_group("a case (instead of --suite; all but --mode take several values)")
    several = {"nargs": "+", "action": "extend"}
    case.add_argument("--model", **several, metavar="NAME", help="default r4_sa")
    case.add_argument("--preset", **several, metavar="NAME", help="default rotmnist")
    case.add_argument(
        "--neighborhood",
        **several,
        type=_neighborhood,
        metavar="N",
        help="an odd number or 'global'; default 5",
    )
    case.add_argument("--encoding", **several, metavar="NAME", help="ge, gsa or relative; default ge")
    case.add_argument("--batch", **several, type=_count, metavar="N", help="images in a step; default 8")
    case.add_argument(
        "--size", **several, type=_count, metavar="N", help="side of the images; default the preset's"
    )
    case.add_argument("--mode", choices=["train", "infer", "both"], help="default both")
    case.add_argument(
        "--backend", **several, choices=["reference", "factored", "native"], help="default all three"
    )

    parser.add_argument("--threads", type=_count, default=2, metavar="N", help="default 2")
    parser.add_argument(
        "--seconds", type=_seconds, default=2.0, metavar="S", help="how long a case is repeated; default 2"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the JSON to a file, too")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw a chart: .png, .svg or .pdf")


def run(args: argparse.Namespace) -> int:
    """Measure and report; returns the exit code: 1 if a case failed, 2 for bad flags, 130 after Ctrl-C."""
    from rich.console import Console

    from gevit.bench import measure, runner, table

    try:
        cases = _cases(args)
        for case in cases:
            measure.build(case)
        _check_files(args)
    except (ValueError, ImportError) as error:
        print(f"gevit bench: error: {error}", file=sys.stderr)
        return 2

    report = runner.run_cases(cases, args.threads, args.seconds)
    if args.out:
        report.save(args.out)
    if args.json:
        print(report.to_json())
    else:
        table.show(report, Console())
    if args.chart:
        from gevit.bench import chart

        chart.save(report, args.chart)
    if report.interrupted:
        return 130
    return int(any(result.status == "failed" for result in report.results))


def _cases(args: argparse.Namespace) -> list[Case]:
    from gevit.bench.cases import BACKENDS, MODES, SUITES, family

    names = ("model", "preset", "neighborhood", "encoding", "batch", "size", "mode", "backend")
    given = [f"--{name}" for name in names if getattr(args, name) is not None]
    if args.suite and given:
        raise ValueError(f"--suite has cases of its own; leave out {', '.join(given)}, or --suite")
    if not given:
        return SUITES[args.suite or "quick"]()
    found = family(
        models=args.model or ["r4_sa"],
        batches=args.batch or [8],
        backends=args.backend or BACKENDS,
        modes=MODES if args.mode in (None, "both") else [args.mode],
        presets=args.preset or ["rotmnist"],
        # 0 stands for the whole image until here, as None stands for a flag that was not given
        neighborhoods=[n or None for n in args.neighborhood or [5]],
        encodings=args.encoding or ["ge"],
        sizes=args.size or [None],
    )
    return list(dict.fromkeys(found))


def _check_files(args: argparse.Namespace) -> None:
    """Find out before the run what would stop its results from being written."""
    for path in (args.out, args.chart):
        if path and not path.parent.is_dir():
            raise ValueError(f"there is no directory {path.parent} to write {path.name} to")
    if args.chart and args.chart.suffix not in CHART_FORMATS:
        raise ValueError(f"--chart writes {', '.join(CHART_FORMATS)}, got {args.chart.name!r}")
    if args.chart:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise ImportError("--chart needs matplotlib: pip install 'gevit[figures]'") from error


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _neighborhood(text: str) -> int:
    return 0 if text == "global" else _count(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text!r}")
    return seconds
