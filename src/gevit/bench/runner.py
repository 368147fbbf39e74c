"""Runs cases, each in a fresh process, so that its peak memory is its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gevit.bench.cases import Case
from gevit.bench.report import Figures, Machine, Report, Result
from gevit.environment import cpu_model


class WorkerError(RuntimeError):
    """A measuring process that ended without an answer."""


def run_cases(cases: Sequence[Case], threads: int, seconds: float) -> Report:
    """Measure the machine, then every case; progress shows on stderr, and Ctrl-C ends with what there is."""
    machine, sgemm_gflops = _machine(threads)
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        try:
            for case in cases:
                description = f"{case.architecture} {case.mode}, {case.work}, {case.backend}"
                progress.update(task, description=description)
                results.append(run_case(case, threads, seconds, sgemm_gflops))
                progress.advance(task)
        except KeyboardInterrupt:
            pass
    return Report(machine, sgemm_gflops, len(results) < len(cases), tuple(results))


def run_case(case: Case, threads: int, seconds: float, sgemm_gflops: float) -> Result:
    """Measure one case."""
    try:
        found = ask({"case": asdict(case), "threads": threads, "seconds": seconds})
    except WorkerError as error:
        return Result(case, "failed", str(error), None, None)
    if figures := found["figures"]:
        found["figures"] = Figures(**figures, sgemm_share=figures["attention_gflops"] / sgemm_gflops)
    return Result(case, **found)


def _machine(threads: int) -> tuple[Machine, float]:
    """What runs here, and how fast it multiplies matrices with so many threads, in GFlop/s."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    found = ask({"case": None, "threads": threads})
    version = metadata.version("gevit")
    return Machine(cpu_model(), threads, found["capability"], found["torch"], version, date), found["sgemm_gflops"]


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a fresh worker process and wait for its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "gevit.bench.worker"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
    )
    if done.returncode < 0:
        hint = " (out of memory?)" if done.returncode == -signal.SIGKILL else ""
        raise WorkerError(f"killed by {signal.Signals(-done.returncode).name}{hint}")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise WorkerError(lines[-1] if lines else f"ended with code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
