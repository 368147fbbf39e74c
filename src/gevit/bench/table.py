"""A report as tables on the terminal."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from gevit.bench.report import Ratio, Report, Result


def show(report: Report, console: Console) -> None:
    """Print the machine, the table of cases, and how the encodings compare."""
    machine = report.machine
    console.print(
        f"{machine.cpu}, {machine.threads} threads, {machine.capability}, torch {machine.torch}, "
        f"gevit {machine.gevit}; sgemm {machine.sgemm_gflops:.0f} GFlop/s",
        highlight=False,
    )
    console.print(case_table(report))
    for ratio in report.ratios():
        if ratio.against == "ge":
            console.print(
                f"{ratio.case.title}, {ratio.case.backend}: {ratio.speedup:.2f}x the speed of ge, "
                f"{ratio.memory_ratio:.2f}x less memory",
                highlight=False,
            )
    if report.interrupted:
        console.print("interrupted: the cases above were finished before", style="yellow")


def case_table(report: Report) -> Table:
    """One section a case, one row a backend."""
    ratios = {ratio.case: ratio for ratio in report.ratios() if ratio.against == "reference"}
    table = Table(
        caption="step: the fastest; peak: memory above that of the imported package; x: how many times faster, or "
        "smaller, than the reference; attention: of the first group layer alone; sgemm: its share of that rate",
    )
    table.add_column("case", min_width=20)
    table.add_column("backend", max_width=24)
    for name in ("step", "images/s", "x", "peak MiB", "x", "attention", "sgemm"):
        table.add_column(name, justify="right", no_wrap=True)
    section = None
    for result in report.results:
        family = replace(result.case, backend="")
        if family == section:
            title = ""
        else:
            table.add_section()
            section, title = family, result.case.title
        table.add_row(title, *_row(result, ratios.get(result.case)))
    return table


def _row(result: Result, ratio: Ratio | None) -> list[str]:
    if result.status != "measured":
        return [f"{result.case.backend}\n{result.status}: {result.reason}"]
    return [
        result.case.backend,
        duration(result.seconds),
        f"{result.images_per_second:.3g}",
        f"{ratio.speedup:.1f}" if ratio else "",
        f"{result.peak_mib:.0f}",
        f"{ratio.memory_ratio:.1f}" if ratio else "",
        duration(result.attention_seconds),
        f"{result.sgemm_share:.0%}",
    ]


def duration(seconds: float | None) -> str:
    """Seconds for people: `12.3 ms`, `4.56 s`; nothing for None."""
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
