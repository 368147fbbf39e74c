"""Fills docs/performance.md, tables and charts, from what `gevit bench` measured: no number is typed by hand.

gevit bench --suite full --out benchmarks/results/full.json
python benchmarks/performance_page.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gevit.bench import chart
from gevit.bench.cases import BACKENDS, MODES
from gevit.bench.report import Report, Result
from gevit.rendering.words import step_time

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "full.json"
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"

# The models, and images in a step, of the table that compares all backends.
STEPS = {("r4_sa", 8), ("r8_sa", 2), ("d4_sa", 2)}
SMALL_BATCH = 2  # of the sweeps; larger ones show the memory of large problems


def main() -> None:
    report = Report.from_json(RESULTS.read_text())
    parts = {
        "machine": machine(report),
        "steps": steps(report),
        "charts": charts(report),
        "memory": large_problems(report),
        "sgemm": shares(report),
        "encodings": encodings(report),
    }
    page = PAGE.read_text()
    for name, text in parts.items():
        page = fill(page, name, text)
    PAGE.write_text(page)


def fill(page: str, name: str, text: str) -> str:
    """Replace what stands between the two comments that name a part."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}{text}\n{end}{after}"


def machine(report: Report) -> str:
    where = report.machine
    return (
        f"Measured on {where.date[:10]}: {where.cpu}, {where.threads} threads, {where.capability}, "
        f"torch {where.torch}, gevit {where.gevit}. The machine multiplies float32 matrices at "
        f"{report.sgemm_gflops:.0f} GFlop/s."
    )


def steps(report: Report) -> str:
    results = {result.case: result for result in report.results}
    ratios = {ratio.case: ratio for ratio in report.ratios() if ratio.against == "reference"}
    rows = []
    for case in results:
        if case.backend != "reference" or case.neighborhood != 5 or (case.model, case.batch) not in STEPS:
            continue
        tried = [results[replace(case, backend=backend)] for backend in BACKENDS]
        ratio = ratios.get(tried[-1].case)
        rows.append(
            [
                f"`{case.model}` {case.mode}, batch {case.batch}",
                *[_time(result) for result in tried],
                f"**{ratio.speedup:.0f}x**" if ratio else "",
                *[_memory(result) for result in tried],
                f"**{ratio.memory_ratio:.0f}x**" if ratio else "",
            ]
        )
    head = [
        "case",
        *BACKENDS,
        "native is faster",
        *[f"{backend}, MiB" for backend in BACKENDS],
        "and smaller",
    ]
    return _table(head, rows)


def charts(report: Report) -> str:
    names = []
    for mode in MODES:
        figure = chart.draw_sweeps(report, mode)
        if figure:
            names.append(f"performance_{mode}.png")
            chart.save(figure, IMAGES / names[-1])
    return "\n\n".join(f"![Time and memory against the group and the neighbourhood](images/{name})" for name in names)


def large_problems(report: Report) -> str:
    rows = [
        [f"`{case.architecture}`", case.work, f"{figures.peak_mib:.0f} MiB", step_time(figures.seconds)]
        for result in report.results
        if (case := result.case).backend == "native" and case.mode == "train" and case.batch > SMALL_BATCH
        if (figures := result.figures)
    ]
    return _table(["model, encoding, neighbourhood", "images", "peak memory", "training step"], rows)


def shares(report: Report) -> str:
    native = {
        result.case: result.figures
        for result in report.results
        if result.figures and result.case.backend == "native" and result.case.batch == SMALL_BATCH
    }
    rows = []
    for case, backward in native.items():
        forward = native.get(replace(case, mode="infer"))
        if case.mode == "train" and forward:
            numbers = [
                [
                    step_time(figures.attention_seconds),
                    f"{figures.attention_gflops:.0f}",
                    f"{figures.sgemm_share:.0%}",
                ]
                for figures in (forward, backward)
            ]
            rows.append([f"`{case.architecture}`", *numbers[0], *numbers[1]])
    return _table(["layer", "forward", "GFlop/s", "share", "forward and backward", "GFlop/s", "share"], rows)


def encodings(report: Report) -> str:
    rows = [
        [
            f"`{ratio.case.model}` {ratio.case.mode}, batch {ratio.case.batch}",
            f"{ratio.speedup:.2f}x",
            f"{ratio.memory_ratio:.2f}x",
        ]
        for ratio in report.ratios()
        if ratio.against == "ge"
    ]
    return _table(["case", "`relative` is faster than `ge`", "and smaller"], rows)


def _time(result: Result) -> str:
    return step_time(result.figures.seconds) if result.figures else f"{result.status}: {result.reason}"


def _memory(result: Result) -> str:
    return f"{result.figures.peak_mib:.0f}" if result.figures else ""


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
