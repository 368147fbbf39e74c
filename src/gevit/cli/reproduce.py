"""`gevit reproduce`: the paper's tables, and what goes past them."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from gevit.reproduce.budgets import BUDGETS, seeds_of
from gevit.reproduce.studies import STUDIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit reproduce`."""
    parser.description = (
        "Run a table of the paper again, cell by cell, and write it with the paper's numbers beside ours. "
        "Stop it whenever you like: the same command goes on where it was."
    )
    parser.epilog = "studies: " + "; ".join(f"{name}: {make('paper').title}" for name, make in STUDIES.items())
    parser.add_argument("study", choices=list(STUDIES), metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument(
        "--budget",
        choices=BUDGETS,
        default="cpu",
        help="smoke: a minute, proves that it runs; cpu: hours on two cores; paper: the paper's setting, for GPUs",
    )
    parser.add_argument(
        "--seeds", type=int, default=argparse.SUPPRESS, metavar="N", help="repeat every run with seeds 0 to N-1"
    )
    parser.add_argument("--data-root", metavar="DIR", help="where data sets are; default: $GEVIT_DATA or the cache")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where results are kept")
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="where runs are kept")
    parser.add_argument("--draw-only", action="store_true", help="run nothing; draw from the results that are there")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(args: argparse.Namespace) -> int:
    """Run what is missing, draw, and say where the table is."""
    from gevit.reproduce.runner import Workplace, run_study

    study = STUDIES[args.study](args.budget)
    seeds = getattr(args, "seeds", seeds_of(study, args.budget))
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    place = Workplace(args.results, args.runs, args.data_root, shlex.join(["gevit", *sys.argv[1:]]))
    folder = place.folder(study, args.budget)
    if not args.draw_only:
        run_study(study, args.budget, seeds, place, _say)

    from gevit.rendering.tables import make_console
    from gevit.reproduce.draw import draw, study_table
    from gevit.reproduce.summary import Summary

    summary = Summary.read(study, args.budget, folder)
    draw(summary, folder)
    if args.json:
        print(json.dumps(summary.to_json(), indent=2, ensure_ascii=False))
        return 0
    make_console().print(study_table(summary).to_rich())
    print(f"table and plot: {folder}")
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
