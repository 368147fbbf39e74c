"""Time and memory of a case, or the arithmetic of the machine, measured in this process.

Every measurement has a process to itself, `python -m gevit.bench.measure`: JSON on stdin asks, JSON on stdout answers.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import gevit
from gevit.attention import attend
from gevit.bench import costs
from gevit.bench.cases import Case
from gevit.layers import GroupAttention
from gevit.models import GroupTransformer

# A step slower than this is not repeated: what it pays once is small against it.
SLOW_SECONDS = 20.0
# Share of the available memory that a case may take.
LARGEST_SHARE = 0.8


def build(case: Case) -> GroupTransformer:
    """The model of a case; raises `ValueError` where there can be none."""
    model = gevit.create_model(
        case.model,
        preset=case.preset,
        neighborhood=case.neighborhood,
        encoding=case.encoding,
        backend=case.backend,
    )
    if not isinstance(model, GroupTransformer):
        raise ValueError(f"{case.model} has no group attention, whose backends are compared here")
    if case.size < model.smallest_image:
        raise ValueError(
            f"size must be at least {model.smallest_image} for the crops of {case.preset}, got {case.size}"
        )
    return model


def measure_machine(device: str = "cpu") -> dict[str, Any]:
    """What arithmetic this machine, or its GPU, is capable of."""
    with torch.device(device):
        rates = [_sgemm_gflops(size) for size in ((1024, 1536, 2048) if device == "cpu" else (4096, 8192))]
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "sgemm_gflops": max(rates),
        "device": None if device == "cpu" else torch.cuda.get_device_name(),
    }


def measure_case(case: Case, seconds: float, device: str = "cpu") -> dict[str, Any]:
    """Time of a case, repeated for so many seconds, and the memory that this process takes for it."""
    on_cpu = device == "cpu"
    before = resident() if on_cpu else torch.cuda.memory_allocated()
    torch.manual_seed(0)
    model = build(case).to(device)
    order = model.group.order
    layers = costs.attention_layers(model, case.size)
    if case.backend == "reference":
        need = costs.reference_bytes(layers, case)
        if need > LARGEST_SHARE * (available() if on_cpu else torch.cuda.mem_get_info()[0]):
            reason = f"needs about {need / 2**30:.0f} GB"
            return {"status": "skipped", "reason": reason, "group_order": order, "figures": None}

    with torch.device(device):
        step = _step(model, case)
    times = _repeat(step, seconds)
    held = (
        peak() if on_cpu else torch.cuda.max_memory_allocated()
    ) - before  # of the steps: read before attention is measured by itself
    layer, side = next((layer, side) for layer, side in layers if isinstance(layer, GroupAttention))
    with torch.device(device):
        call = _attention_call(layer, side, case)
    attention = min(_repeat(call, seconds))
    figures = {
        "seconds": min(times),
        "seconds_median": statistics.median(times),
        "repeats": len(times),
        "images_per_second": case.batch / min(times),
        "peak_mib": held / 2**20,
        "attention_seconds": attention,
        "attention_gflops": 2 * costs.multiply_adds(layer, side, case) / attention / 1e9,
    }
    return {"status": "measured", "reason": None, "group_order": order, "figures": figures}


def _step(model: GroupTransformer, case: Case) -> Callable[[], object]:
    images = torch.randn(case.batch, model.preset.in_channels, case.size, case.size)
    if case.mode == "infer":
        model.eval()
        return torch.no_grad()(lambda: model(images))

    labels = torch.randint(model.preset.num_classes, (case.batch,))
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-3, weight_decay=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(images), labels))
        optimizer.step()

    return step


def _attention_call(layer: GroupAttention, side: int, case: Case) -> Callable[[], object]:
    """The attention of this layer alone: the operation, on random numbers of the layer's shapes."""
    shape = (case.batch, layer.head_channels, layer.heads, layer.group.order, side, side)
    query, key, value, upstream = (torch.randn(shape) for _ in range(4))
    positions = layer.positions(side, side)
    positions = positions._replace(space=positions.space.detach(), element=positions.element.detach())
    leaves = (query, key, value, positions.space, positions.element)
    train = case.mode == "train"
    for leaf in leaves:
        leaf.requires_grad_(train)

    def call() -> tuple[Tensor, ...]:
        out = attend(
            query,
            key,
            value,
            positions,
            scale=1 / math.sqrt(layer.in_channels),
            dropout=layer.dropout if train else 0.0,
            backend=case.backend,
        )
        return torch.autograd.grad(out, leaves, upstream) if train else (out,)

    return call


def _repeat(step: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each repeat after a warm-up; a slow step's warm-up is the measurement.

    On a GPU it is not: kernels are compiled in it.
    """
    warm_up = _timed(step)
    if warm_up > SLOW_SECONDS and not torch.cuda.is_initialized():
        return [warm_up]
    times = [_timed(step)]
    while sum(times) < seconds:
        times.append(_timed(step))
    return times


def _timed(step: Callable[[], object]) -> float:
    """A GPU works on while Python goes ahead: time begins and ends when it has nothing left to do."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else bool
    wait()
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start


def _sgemm_gflops(size: int) -> float:
    """The rate of multiplying two square matrices, in GFlop/s."""
    left, right = torch.randn(2, size, size)
    return 2 * size**3 / min(_repeat(lambda: left @ right, 0.5)) / 1e9


# ---- memory of this process and of the machine, in bytes ----


def resident() -> int:
    """The memory this process holds now (where the system does not tell: the most it has held)."""
    return _read("/proc/self/status", "VmRSS") or peak()


def peak() -> int:
    """The most memory this process has held.

    `getrusage` is the second choice: on Linux a process inherits the peak of the one that started it.
    """
    if known := _read("/proc/self/status", "VmHWM"):
        return known
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available() -> int:
    """The memory that a new process can have without swapping."""
    return _read("/proc/meminfo", "MemAvailable") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read(path: str, field: str) -> int | None:
    """A field of a `/proc` file, which counts in KiB."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure the case of a request, or the machine where it has none; on the CPU unless it names a device."""
    torch.set_num_threads(request["threads"])
    device = request.get("device", "cpu")
    if request["case"] is None:
        return measure_machine(device)
    return measure_case(Case(**request["case"]), request["seconds"], device)


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
