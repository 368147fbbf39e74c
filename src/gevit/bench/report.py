"""What a run found: results, the ratios between them, and their form as JSON."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gevit.bench.cases import Case


@dataclass(frozen=True)
class Result:
    """A case and what came of it; what was not measured is None.

    Attributes:
        case: what was to be measured.
        status: `"measured"`, `"skipped"` or `"failed"`.
        reason: why it was skipped or failed.
        group_order: |H| of the model's group.
        seconds: the fastest step.
        seconds_median: the median step.
        repeats: number of steps timed, after one to warm up.
        images_per_second: at the fastest step.
        peak_mib: peak memory of the process, above what it held after importing the package.
        attention_seconds: the attention of the first group-attention layer alone (in training with its gradient).
        attention_gflops: the rate at which that does the arithmetic it needs, in GFlop/s.
        sgemm_share: that rate as a share of the machine's rate of multiplying float32 matrices.
    """

    case: Case
    status: str
    reason: str | None = None
    group_order: int | None = None
    seconds: float | None = None
    seconds_median: float | None = None
    repeats: int | None = None
    images_per_second: float | None = None
    peak_mib: float | None = None
    attention_seconds: float | None = None
    attention_gflops: float | None = None
    sgemm_share: float | None = None


@dataclass(frozen=True)
class Ratio:
    """How a case compares with its twin that has the backend `reference`, or the encoding `ge`.

    Attributes:
        case: the case.
        against: `"reference"` or `"ge"`.
        speedup: time of the twin over time of the case.
        memory_ratio: peak memory of the twin over that of the case.
    """

    case: Case
    against: str
    speedup: float
    memory_ratio: float


@dataclass(frozen=True)
class Machine:
    """Where and when a run was made.

    Attributes:
        cpu: model of the processor.
        threads: threads of every measurement.
        capability: instruction set that torch uses.
        torch: version of torch.
        gevit: version of this package.
        date: ISO date and time of the start.
        sgemm_gflops: rate of multiplying float32 matrices with so many threads, in GFlop/s.
    """

    cpu: str
    threads: int
    capability: str
    torch: str
    gevit: str
    date: str
    sgemm_gflops: float


@dataclass(frozen=True)
class Report:
    """A run: the machine, the results in the order they were measured, and whether it was interrupted."""

    machine: Machine
    results: tuple[Result, ...]
    interrupted: bool = False

    def ratios(self) -> Iterator[Ratio]:
        """All ratios within the run: backends against the reference, the encoding `relative` against `ge`."""
        measured = {result.case: result for result in self.results if result.status == "measured"}
        for case, result in measured.items():
            for against, twin in (
                ("reference", replace(case, backend="reference")),
                ("ge", replace(case, encoding="ge")),
            ):
                other = measured.get(twin)
                if other is None or twin == case or (against == "ge" and case.encoding != "relative"):
                    continue
                assert result.seconds and result.peak_mib and other.seconds and other.peak_mib
                yield Ratio(case, against, other.seconds / result.seconds, other.peak_mib / result.peak_mib)

    def to_json(self) -> str:
        """One JSON object; the fields of a case stand beside those of its result."""
        machine = asdict(self.machine)
        sgemm = machine.pop("sgemm_gflops")
        content = {
            "machine": machine,
            "sgemm_gflops": sgemm,
            "interrupted": self.interrupted,
            "cases": [_flat(result) for result in self.results],
            "ratios": [_flat(ratio) for ratio in self.ratios()],
        }
        return json.dumps(content, indent=2)

    @staticmethod
    def from_json(text: str) -> Report:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        names = {field.name for field in fields(Case)}
        results = []
        for flat in content["cases"]:
            case = Case(**{name: flat.pop(name) for name in names})
            results.append(Result(case, **flat))
        machine = Machine(**content["machine"], sgemm_gflops=content["sgemm_gflops"])
        return Report(machine, tuple(results), content["interrupted"])

    def save(self, path: Path) -> None:
        """Write the JSON aside and rename it, so that no reader sees half a file."""
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            file.write(self.to_json() + "\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)


def _flat(record: Result | Ratio) -> dict[str, Any]:
    flat = asdict(record)
    return {**flat.pop("case"), **flat}
