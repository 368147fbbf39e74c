"""Runs cases, each in a fresh process, so that its peak memory is its own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from gevit._version import __version__
from gevit.bench.cases import Case
from gevit.bench.report import Figures, Machine, Report, Result
from gevit.environment import cpu_model


def run_cases(cases: Sequence[Case], threads: int, seconds: float, device: str = "cpu") -> Report:
    """Measure the machine, then every case; progress shows on stderr, and Ctrl-C ends with what there is."""
    results: list[Result] = []
    with _progress(len(cases)) as show:
        show(0, "how fast this machine multiplies matrices")
        machine, sgemm_gflops = _machine(threads, device)
        try:
            for number, case in enumerate(cases):
                show(number, f"{case.architecture} {case.mode}, {case.work}, {case.backend}")
                results.append(run_case(case, threads, seconds, sgemm_gflops, device))
        except KeyboardInterrupt:
            pass
    return Report(machine, sgemm_gflops, len(results) < len(cases), tuple(results))


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """Yields a function that is told how many are done and what is next; shows one live line, or else a line each."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield lambda done, what: console.print(f"{done}/{total} {what}", highlight=False, soft_wrap=True)
        return
    # The count stays in view on a narrow terminal, and what is measured fills the rest of the line.
    rest = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    columns = (SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), rest)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, what: progress.update(task, completed=done, description=what)


def run_case(case: Case, threads: int, seconds: float, sgemm_gflops: float, device: str = "cpu") -> Result:
    """Measure one case."""
    try:
        found = ask({"case": asdict(case), "threads": threads, "seconds": seconds, "device": device})
    except ChildProcessError as error:
        return Result(case, "failed", str(error), None, None)
    if figures := found["figures"]:
        found["figures"] = Figures(**figures, sgemm_share=figures["attention_gflops"] / sgemm_gflops)
    return Result(case, **found)


def _machine(threads: int, device: str) -> tuple[Machine, float]:
    """What runs here, and how fast it multiplies matrices (on the CPU with so many threads), in GFlop/s."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    found = ask({"case": None, "threads": threads, "device": device})
    versions = (found["capability"], found["torch"], __version__)
    return Machine(cpu_model(), threads, *versions, date, found.get("device")), found["sgemm_gflops"]


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a fresh process and wait for its answer; raises `ChildProcessError` if there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "gevit.bench.measure"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
    )
    if done.returncode < 0:
        hint = " (out of memory?)" if done.returncode == -signal.SIGKILL else ""
        raise ChildProcessError(f"killed by {signal.Signals(-done.returncode).name}{hint}")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ChildProcessError(lines[-1] if lines else f"ended with code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
