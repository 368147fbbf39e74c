"""Runs cases, each in a fresh process, so that its peak memory is its own."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gevit.bench.cases import Case
from gevit.bench.report import Machine, Report, Result


class WorkerError(RuntimeError):
    """A measuring process that ended without an answer."""


def run_cases(cases: Sequence[Case], threads: int, seconds: float) -> Report:
    """Measure the machine, then every case; progress shows on stderr, and Ctrl-C ends with what there is."""
    machine = measure_machine(threads)
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        try:
            for case in cases:
                progress.update(task, description=f"{case.title}, {case.backend}")
                results.append(run_case(case, machine, seconds))
                progress.advance(task)
        except KeyboardInterrupt:
            pass
    return Report(machine, tuple(results), interrupted=len(results) < len(cases))


def run_case(case: Case, machine: Machine, seconds: float) -> Result:
    """Measure one case in a process of its own."""
    try:
        found = ask({"case": asdict(case), "threads": machine.threads, "seconds": seconds})
    except WorkerError as error:
        return Result(case, "failed", str(error))
    result = Result(case, **found)
    if result.attention_gflops is None:
        return result
    return replace(result, sgemm_share=result.attention_gflops / machine.sgemm_gflops)


def measure_machine(threads: int) -> Machine:
    """What runs here, and how fast it multiplies matrices with so many threads."""
    found = ask({"case": None, "threads": threads})
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Machine(cpu=_cpu(), threads=threads, gevit=metadata.version("gevit"), date=date, **found)


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


def _cpu() -> str:
    """The model of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
