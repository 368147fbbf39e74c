"""What a run found: results, the ratios between them, and their form as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gevit.bench.cases import Case
from gevit.files import write_aside


@dataclass(frozen=True)
class Figures:
    """What was measured of a case.

    Attributes:
        seconds: the fastest step.
        seconds_median: the median step.
        repeats: number of steps timed.
        images_per_second: at the fastest step.
        peak_mib: peak memory of the process, above what it held after importing the package; on a GPU, of its tensors.
        attention_seconds: attention in the first group-attention layer alone, in training with its gradient.
        attention_gflops: the rate at which that does the arithmetic it needs, in GFlop/s.
        sgemm_share: that rate as a share of the machine's rate of multiplying float32 matrices.
    """

    seconds: float
    seconds_median: float
    repeats: int
    images_per_second: float
    peak_mib: float
    attention_seconds: float
    attention_gflops: float
    sgemm_share: float


@dataclass(frozen=True)
class Result:
    """A case and what came of it.

    Attributes:
        case: what was to be measured.
        status: `"measured"`, `"skipped"` or `"failed"`.
        reason: why it was skipped or failed.
        group_order: |H|; None if it failed.
        figures: what was measured, if it was.
    """

    case: Case
    status: str
    reason: str | None
    group_order: int | None
    figures: Figures | None


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
        device: the GPU that everything was measured on; None for the processor.
    """

    cpu: str
    threads: int
    capability: str
    torch: str
    gevit: str
    date: str
    device: str | None = None


@dataclass(frozen=True)
class Report:
    """A run.

    Attributes:
        machine: where and when.
        sgemm_gflops: rate at which the machine multiplies float32 matrices, in GFlop/s.
        interrupted: whether Ctrl-C ended it early.
        results: in the order they were measured.
    """

    machine: Machine
    sgemm_gflops: float
    interrupted: bool
    results: tuple[Result, ...]

    def ratios(self) -> Iterator[Ratio]:
        """All ratios within the run: every backend against the reference, `relative` against `ge`."""
        measured = {result.case: result.figures for result in self.results if result.figures}
        for case, figures in measured.items():
            twins = {"reference": replace(case, backend="reference")}
            if case.encoding == "relative":
                twins["ge"] = replace(case, encoding="ge")
            for against, twin in twins.items():
                other = measured.get(twin)
                if other and twin != case:
                    speedup = other.seconds / figures.seconds
                    yield Ratio(case, against, speedup, other.peak_mib / figures.peak_mib)

    def to_json(self) -> str:
        """One JSON object, with a flat record for each case and each ratio."""
        content = {
            "machine": asdict(self.machine),
            "sgemm_gflops": self.sgemm_gflops,
            "interrupted": self.interrupted,
            "cases": [_flat_result(result) for result in self.results],
            "ratios": [_flat_ratio(ratio) for ratio in self.ratios()],
        }
        return json.dumps(content, indent=2)

    @staticmethod
    def from_json(text: str) -> Report:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        machine = Machine(**content["machine"])
        results = tuple(_result(record) for record in content["cases"])
        return Report(machine, content["sgemm_gflops"], content["interrupted"], results)

    def save(self, path: Path) -> None:
        """Write the JSON, whole or not at all."""
        with write_aside(path) as aside:
            aside.write_text(self.to_json() + "\n", encoding="utf-8")


def _flat_result(result: Result) -> dict[str, Any]:
    figures = asdict(result.figures) if result.figures else dict.fromkeys(_names(Figures))
    about = {"status": result.status, "reason": result.reason, "group_order": result.group_order}
    return {**asdict(result.case), **about, **figures}


def _result(record: dict[str, Any]) -> Result:
    case = Case(**{name: record[name] for name in _names(Case)})
    figures = {name: record[name] for name in _names(Figures)}
    measured = Figures(**figures) if record["status"] == "measured" else None
    return Result(case, record["status"], record["reason"], record["group_order"], measured)


def _flat_ratio(ratio: Ratio) -> dict[str, Any]:
    flat = asdict(ratio)
    return {**flat.pop("case"), **flat}


def _names(record: type[Case] | type[Figures]) -> list[str]:
    return [field.name for field in fields(record)]
