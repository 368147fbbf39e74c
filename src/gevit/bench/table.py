"""A report as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from gevit.bench.cases import Case
from gevit.bench.report import Ratio, Report, Result
from gevit.rendering.tables import Table
from gevit.rendering.words import step_time

NOTES = """\
step: the fastest; x: how many times faster, or smaller, than the reference
peak: memory above that of the imported package; on a GPU, that of tensors
attention: the first group-attention layer alone; sgemm: its share of that rate"""


def show(report: Report, console: Console) -> None:
    """Print the machine, a table for each case, and how the encodings compare."""
    machine = report.machine
    lines = [
        machine.device or f"{machine.cpu}, {machine.threads} threads, {machine.capability}",
        f"torch {machine.torch}, gevit {machine.gevit}, sgemm {report.sgemm_gflops:.0f} GFlop/s",
    ]
    console.print("\n".join(lines), highlight=False, markup=False)
    for table in case_tables(report):
        console.print(table.to_rich())
    console.print(NOTES, style="dim", highlight=False)
    for ratio in report.ratios():
        if ratio.against == "ge":
            case = f"{ratio.case.architecture} {ratio.case.mode}, {ratio.case.work}, {ratio.case.backend}"
            text = f"{ratio.speedup:.2f}x as fast as ge, with {1 / ratio.memory_ratio:.2f}x the memory"
            console.print(f"{case}: {text}", highlight=False)
    if report.interrupted:
        console.print("interrupted: these cases were measured before", style="yellow")


def case_tables(report: Report) -> list[Table]:
    """A table for each case, with one row for each backend."""
    ratios = {ratio.case: ratio for ratio in report.ratios() if ratio.against == "reference"}
    cases: dict[Case, list[Result]] = {}
    for result in report.results:
        cases.setdefault(replace(result.case, backend=""), []).append(result)
    return [_case_table(case, results, ratios) for case, results in cases.items()]


def _case_table(case: Case, results: Sequence[Result], ratios: Mapping[Case, Ratio]) -> Table:
    return Table(
        ("backend", "step", "img/s", "x", "peak MiB", "x", "attention", "sgemm"),
        [_row(result, ratios.get(result.case)) for result in results],
        title=f"{case.architecture} {case.mode}, {case.work}",
        notes=[
            f"{result.case.backend} {result.status}: {result.reason}" for result in results if result.figures is None
        ],
    )


def _row(result: Result, ratio: Ratio | None) -> list[str]:
    figures = result.figures
    if figures is None:
        return [result.case.backend, result.status, *[""] * 6]
    return [
        result.case.backend,
        step_time(figures.seconds),
        f"{figures.images_per_second:.3g}",
        f"{ratio.speedup:.1f}" if ratio else "",
        f"{figures.peak_mib:.0f}",
        f"{ratio.memory_ratio:.1f}" if ratio else "",
        step_time(figures.attention_seconds),
        f"{figures.sgemm_share:.0%}",
    ]
