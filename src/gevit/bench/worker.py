"""The process that one measurement has to itself: JSON on stdin asks, JSON on stdout answers."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from gevit.bench import measure
from gevit.bench.cases import Case


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure the case of a request, or the machine where it has none."""
    torch.set_num_threads(request["threads"])
    if request["case"] is None:
        return measure.measure_machine()
    return measure.measure_case(Case(**request["case"]), request["seconds"])


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
