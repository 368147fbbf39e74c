"""A report as a table on the terminal."""

from __future__ import annotations

from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from gevit.bench.report import Ratio, Report, Result

NOTES = """\
step: the fastest; x: how many times faster, or smaller, than the reference
peak: memory above that of the imported package
attention: the first group-attention layer alone; sgemm: its share of that rate"""


def show(report: Report, console: Console) -> None:
    """Print the machine, the table of cases, and how the encodings compare."""
    machine = report.machine
    lines = [
        f"{machine.cpu}, {machine.threads} threads, {machine.capability}",
        f"torch {machine.torch}, gevit {machine.gevit}, sgemm {report.sgemm_gflops:.0f} GFlop/s",
    ]
    console.print("\n".join(lines), highlight=False)
    console.print(case_table(report))
    console.print(NOTES, style="dim", highlight=False)
    for ratio in report.ratios():
        if ratio.against == "ge":
            case = f"{ratio.case.architecture} {ratio.case.mode}, {ratio.case.work}, {ratio.case.backend}"
            text = f"{ratio.speedup:.2f}x as fast as ge, with {1 / ratio.memory_ratio:.2f}x the memory"
            console.print(f"{case}: {text}", highlight=False)
    if report.interrupted:
        console.print("interrupted: these cases were measured before", style="yellow")


def case_table(report: Report) -> Table:
    """One section for each case, one row for each backend."""
    ratios = {ratio.case: ratio for ratio in report.ratios() if ratio.against == "reference"}
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("case", width=24)
    for name in ("step", "img/s", "x", "peak MiB", "x", "attention", "sgemm"):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    section = None
    for result in report.results:
        case = replace(result.case, backend="")
        if case != section:
            section = case
            table.add_section()
            table.add_row(f"{case.architecture} {case.mode}\n{case.work}", style="bold")
        table.add_row(*_row(result, ratios.get(result.case)))
    return table


def _row(result: Result, ratio: Ratio | None) -> list[str]:
    backend = f"  {result.case.backend}"
    figures = result.figures
    if figures is None:
        return [f"{backend}\n  {result.status}: {result.reason}"]
    return [
        backend,
        duration(figures.seconds),
        f"{figures.images_per_second:.3g}",
        f"{ratio.speedup:.1f}" if ratio else "",
        f"{figures.peak_mib:.0f}",
        f"{ratio.memory_ratio:.1f}" if ratio else "",
        duration(figures.attention_seconds),
        f"{figures.sgemm_share:.0%}",
    ]


def duration(seconds: float) -> str:
    """Seconds for people, such as `12.3 ms` or `4.56 s`."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
