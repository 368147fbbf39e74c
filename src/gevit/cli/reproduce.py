"""`gevit reproduce`: the tables of the paper, and studies beyond it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from gevit.cli.arguments import positive_integer
from gevit.files import write_aside
from gevit.rendering.words import printable
from gevit.reproduce.budgets import BUDGETS, seeds_of, yaml_of
from gevit.reproduce.studies import STUDIES
from gevit.reproduce.study import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit reproduce`."""
    parser.description = (
        "Reproduce a table of the paper: train and test the model of every cell, and write the table with the paper's "
        "numbers beside ours. Stop it at any time: the same command resumes it."
    )
    parser.epilog = "studies: " + "; ".join(f"{name}: {make('paper').title}" for name, make in STUDIES.items())
    parser.add_argument("study", choices=list(STUDIES), metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument(
        "--budget",
        choices=BUDGETS,
        default="cpu",
        help="smoke: seconds, shows that it runs; cpu: hours on two cores; paper: the paper's settings, for GPUs",
    )
    parser.add_argument(
        "--seeds",
        type=positive_integer,
        default=argparse.SUPPRESS,
        metavar="N",
        help="repeat every run with seeds 0 to N-1",
    )
    for part in ("row", "column"):
        parser.add_argument(
            f"--{part}s",
            nargs="+",
            default=(),
            metavar=part.upper(),
            help=f"run only these {part}s, by their names in the table; all are drawn",
        )
    parser.add_argument("--data-root", metavar="DIR", help="where data sets are; default: $GEVIT_DATA or the cache")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where results are kept")
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="where runs are kept")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--draw-only", action="store_true", help="train nothing; draw the results that are there")
    instead.add_argument(
        "--configs",
        type=Path,
        metavar="DIR",
        help="train nothing; write the settings of each run to DIR, as YAML files for `gevit train --config`",
    )
    parser.add_argument("--json", action="store_true", help="print the table (or the names of the files) as JSON")


def run(args: argparse.Namespace) -> int:
    """Run what is missing, draw, and say where the table is."""
    from gevit.reproduce.runner import Workplace, run_study

    study = STUDIES[args.study](args.budget)
    if (args.rows or args.columns) and args.draw_only:
        raise ValueError("--rows and --columns say what is run, and with --draw-only nothing is; leave them out")
    chosen = study.only(args.rows, args.columns)
    if args.configs:
        paths = [str(path) for path in _write_configs(chosen, args.budget, args.configs)]
        print(json.dumps(paths, indent=2) if args.json else "\n".join(map(printable, paths)))
        return 0
    seeds = getattr(args, "seeds", seeds_of(study, args.budget))
    place = Workplace(args.results, args.runs, args.data_root, shlex.join(["gevit", *sys.argv[1:]]))
    folder = place.folder(study, args.budget)
    if not args.draw_only and not run_study(chosen, args.budget, seeds, place, _say):
        return 0  # all runs are being made by other processes

    from gevit.rendering.tables import make_console
    from gevit.reproduce.draw import draw, study_table
    from gevit.reproduce.summary import Summary

    summary = Summary.read(study, args.budget, folder)
    draw(summary, folder)
    if args.json:
        print(json.dumps(summary.to_json(), indent=2, ensure_ascii=False))
        return 0
    make_console().print(study_table(summary).to_rich())
    print(f"table and plot: {printable(folder)}")
    return 0


def _write_configs(study: Study, budget: str, folder: Path) -> Iterator[Path]:
    for cell in study.runs:
        path = folder / f"{cell.key}.yaml"
        with write_aside(path) as aside:
            aside.write_text(yaml_of(study, budget, cell), encoding="utf-8")
        yield path


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
