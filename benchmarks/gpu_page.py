"""Fills what docs/performance.md says of GPUs: what the compiled kernels take, and the calculated roofline.

python benchmarks/triton_resources.py --out benchmarks/results/triton_resources.json
python benchmarks/gpu_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gevit.bench.cases import family
from gevit.bench.costs import attention_layers, attention_of
from gevit.bench.measure import build
from gevit.bench.roofline import GPUS, Work, backward_work, forward_work
from gevit.layers import GroupAttention
from gevit.rendering.tables import Table
from gevit.rendering.words import step_time
from performance_page import PAGE, ROOT, fill

RESOURCES = ROOT / "benchmarks" / "results" / "triton_resources.json"
SHOWN = "ge, dropout"  # of the variants


def main() -> None:
    page = PAGE.read_text()
    page = fill(page, "resources", resources(json.loads(RESOURCES.read_text())))
    PAGE.write_text(fill(page, "roofline", roofline()))


def resources(found: dict[str, Any]) -> str:
    """One variant in full, and the most of all."""
    rows: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for case in found["cases"]:
        if case["variant"] == SHOWN:
            row = rows.setdefault((case["kernel"], str(case["width"])), {})
            row.setdefault(case["target"], []).append(case)
    targets = list(dict.fromkeys(case["target"] for case in found["cases"]))
    table = Table(
        ("kernel", "width", *["registers", "spilled", "shared"] * len(targets)),
        [[*name, *[number for target in targets for number in _most(row[target])]] for name, row in rows.items()],
        groups=("", "", *[target for target in targets for _ in range(3)]),
    )
    registers, spilled, shared = _most(found["cases"])
    rest = (
        f"All {len(found['cases'])} cases, triton {found['triton']}: at most {registers} registers a thread, "
        f"{spilled} bytes spilled, {shared} bytes of shared memory, {sum(case['atomics'] for case in found['cases'])} "
        "atomic operations."
    )
    return f"{table.to_markdown()}\n\n{rest}"


def _most(cases: Iterable[dict[str, Any]]) -> list[str]:
    cases = list(cases)
    return [str(max(case[name] for case in cases)) for name in ("registers", "spilled_bytes", "shared_bytes")]


def roofline() -> str:
    """The first group-attention layer of some models."""
    rows = []
    for case in (
        *family(["r4_sa", "r8_sa", "d4_sa"], mode=["train"], backend=["triton"]),
        *family(["r8_sa"], encoding=["relative"], mode=["train"], backend=["triton"]),
        *family(["r4_sa"], neighborhood=[9], mode=["train"], backend=["triton"]),
    ):
        layers = attention_layers(build(case), case.size)
        sizes = next(attention_of(layer, side, case) for layer, side in layers if isinstance(layer, GroupAttention))
        for name, work in (("forward", forward_work(sizes)), ("backward", backward_work(sizes))):
            rows.append([f"{case.architecture}, {name}", *_row(work)])
    header = ("first layer, batch 8", "MB", "GFlop needed", "GFlop done", *["needed", "done"] * len(GPUS))
    groups = ("", "", "", "", *[gpu.name for gpu in GPUS for _ in range(2)])
    return Table(header, rows, groups=groups).to_markdown()


def _row(work: Work) -> list[str]:
    times = [work.seconds(gpu, operations) for gpu in GPUS for operations in (work.needed, work.done)]
    amounts = [f"{work.bytes / 1e6:.0f}", f"{work.needed / 1e9:.1f}", f"{work.done / 1e9:.1f}"]
    return [*amounts, *map(step_time, times)]


if __name__ == "__main__":
    main()
