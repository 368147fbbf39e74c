"""`gevit bench`: time and peak memory of the attention backends, side by side.

Every case (a model, what it is fed, a backend) runs in a process of its own. This module holds the flags and
the flow of the command; everything else is imported when it runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.cli.arguments import check_file, check_picture, neighborhood, positive_integer

if TYPE_CHECKING:
    from gevit.bench.cases import Case

CASE_FLAGS = ("model", "preset", "neighborhood", "encoding", "batch", "size", "mode", "backend")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit bench`."""
    parser.description = (
        "Measure time and peak memory of the attention backends, each case in a process of its own: "
        "a suite of cases, or every combination of the values given to the flags of a case."
    )
    suite = parser.add_argument_group("suite", argument_default=argparse.SUPPRESS)
    suite.add_argument(
        "--suite", choices=["quick", "full"], help="quick: a minute or two (the default); full: everything"
    )

    case = parser.add_argument_group(
        "cases, instead of a suite; all flags but --mode take several values",
        argument_default=argparse.SUPPRESS,
    )

    def several(flag: str, help: str, **options: Any) -> None:
        case.add_argument(flag, nargs="+", action="extend", help=help, **options)

    several("--model", "such as r4_sa (the default) or d4_sa", metavar="NAME")
    several("--preset", "rotmnist (the default), cifar10, pcam, nano, tiny or small", metavar="NAME")
    several("--neighborhood", "an odd side (default: 5), or 'global'", type=neighborhood, metavar="N")
    several("--encoding", "ge (the default), gsa or relative", metavar="NAME")
    several("--batch", "images in a step (default: 8)", type=positive_integer, metavar="N")
    several("--size", "side of the images (default: the preset's)", type=positive_integer, metavar="N")
    several("--backend", "default: all of the device", choices=["reference", "factored", "native", "triton"])
    case.add_argument("--mode", choices=["train", "infer", "both"], help="default: both")

    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: a GPU of NVIDIA or AMD")
    parser.add_argument("--threads", type=positive_integer, default=2, metavar="N", help="of every measurement")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=2.0,
        metavar="S",
        help="how long a case is repeated, at least once",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--out", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="write the JSON to this file, too"
    )
    parser.add_argument(
        "--chart",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="draw to this .png, .svg or .pdf",
    )


def run(args: argparse.Namespace) -> int:
    """Measure and report; returns the exit code: 1 if a case failed, 130 after Ctrl-C.

    Flags that make no sense raise `ValueError` before anything is measured.
    """
    from gevit.bench import measure, runner, table
    from gevit.rendering.tables import make_console

    _check_device(args.device)
    cases = _cases(args)
    for case in cases:
        measure.build(case)
    out, chart_file = getattr(args, "out", None), getattr(args, "chart", None)
    if out:
        check_file("--out", out)
    if chart_file:
        check_picture("--chart", chart_file)

    report = runner.run_cases(cases, args.threads, args.seconds, args.device)
    if args.json:
        print(report.to_json())
    else:
        table.show(report, make_console())
    if out:
        report.save(out)
    if chart_file:
        from gevit.bench import chart

        chart.save(chart.draw(report), chart_file)
    if report.interrupted:
        return 130
    return int(any(result.status == "failed" for result in report.results))


def _cases(args: argparse.Namespace) -> list[Case]:
    from gevit.bench.cases import BACKENDS, GPU_BACKENDS, MODES, SUITES, family

    given = {flag: getattr(args, flag) for flag in CASE_FLAGS if hasattr(args, flag)}
    backends = GPU_BACKENDS if args.device == "cuda" else BACKENDS
    if not given:
        return SUITES[getattr(args, "suite", "quick")](backends)
    if hasattr(args, "suite"):
        flags = ", ".join(f"--{flag}" for flag in given)
        raise ValueError(f"a suite has cases of its own: leave out {flags}, or leave out --suite")
    if wrong := set(given.setdefault("backend", backends)) - set(backends):
        raise ValueError(f"backend {', '.join(wrong)} is not for --device {args.device}; valid: {', '.join(backends)}")
    mode = given.pop("mode", "both")
    return list(dict.fromkeys(family(**given, mode=MODES if mode == "both" else [mode])))


def _check_device(device: str) -> None:
    """Find out before the run whether there is such a device."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--device cuda needs a GPU, and torch {torch.__version__} finds none; leave it out for the CPU"
        )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text!r}")
    return seconds
