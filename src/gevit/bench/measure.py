"""Measurements of one process: a case, or the machine itself."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import gevit
from gevit.attention import attend
from gevit.bench import memory
from gevit.bench.arithmetic import Attention
from gevit.bench.cases import Case
from gevit.encoding import Positions, global_neighborhood
from gevit.layers import Block, GroupAttention, LiftingAttention, MaxPool
from gevit.models import GroupTransformer

# A step slower than this is not repeated: what it pays once is small against it.
SLOW_SECONDS = 20.0


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


def measure_machine() -> dict[str, Any]:
    """What arithmetic this machine is capable of."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "sgemm_gflops": max(_sgemm_gflops(size) for size in (1024, 1536, 2048)),
    }


def measure_case(case: Case, seconds: float) -> dict[str, Any]:
    """Time of a case, repeated for so many seconds, and the memory that this process takes for it."""
    before = memory.resident()
    torch.manual_seed(0)
    model = build(case)
    order = model.group.order
    layers = _attention_layers(model, case.size)
    if case.backend == "reference":
        numbers = [case.batch * _reference_numbers(layer, side) for layer, side in layers]
        need = memory.reference_need(numbers, case.mode == "train")
        if reason := memory.refusal(need, memory.available()):
            return {"status": "skipped", "reason": reason, "group_order": order, "figures": None}

    times = _repeat(_step(model, case), seconds)
    peak = memory.peak() - before  # of the steps: read before attention is measured by itself
    layer, side = next((layer, side) for layer, side in layers if isinstance(layer, GroupAttention))
    attention = min(_repeat(_attention_call(layer, side, case), seconds))
    figures = {
        "seconds": min(times),
        "seconds_median": statistics.median(times),
        "repeats": len(times),
        "images_per_second": case.batch / min(times),
        "peak_mib": peak / 2**20,
        "attention_seconds": attention,
        "attention_gflops": 2 * _multiply_adds(layer, side, case) / attention / 1e9,
    }
    return {"status": "measured", "reason": None, "group_order": order, "figures": figures}


def _step(model: GroupTransformer, case: Case) -> Callable[[], object]:
    images = torch.randn(case.batch, model.preset.in_channels, case.size, case.size)
    if case.mode == "infer":
        model.eval()
        return torch.no_grad()(lambda: model(images))

    labels = torch.randint(model.preset.num_classes, (case.batch,))
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-3, weight_decay=1e-4)

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


def _multiply_adds(layer: GroupAttention, side: int, case: Case) -> int:
    positions: Positions = layer.positions(side, side)
    work = Attention(
        batch=case.batch,
        heads=layer.heads,
        side=side,
        neighborhood=layer.neighborhood or global_neighborhood(side, side),
        order=layer.group.order,
        channels=layer.head_channels,
        space_channels=positions.space.shape[1],
        distinct_offsets=positions.space.shape[0],
        own_query=positions.own_query,
    )
    return work.forward + (work.backward if case.mode == "train" else 0)


def _reference_numbers(layer: GroupAttention | LiftingAttention, side: int) -> int:
    """For one image: at every offset, a coefficient for each (h, h~, h^) and a key vector for each h^."""
    positions: Positions = layer.positions(side, side)
    reach = global_neighborhood(side, side)
    neighborhood = min(layer.neighborhood or reach, reach)
    keys = positions.element_index.shape[2]
    numbers = positions.element_index.numel() + keys * layer.head_channels
    return layer.heads * numbers * (side * neighborhood) ** 2


def _attention_layers(model: GroupTransformer, size: int) -> list[tuple[GroupAttention | LiftingAttention, int]]:
    """The attention layers and the side of the images they see."""
    layers: list[tuple[GroupAttention | LiftingAttention, int]] = []
    side = size
    for layer in (model.lifting, *model.body.values()):
        for inner in layer.modules():
            if isinstance(inner, GroupAttention | LiftingAttention):
                layers.append((inner, side))
        if isinstance(layer, Block):
            side -= 2 * layer.crop
        elif isinstance(layer, MaxPool):
            side = max(1, side // 2)
    return layers


def _repeat(step: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each repeat after a warm-up; a slow step's warm-up is the measurement."""
    warm_up = _timed(step)
    if warm_up > SLOW_SECONDS:
        return [warm_up]
    times = [_timed(step)]
    while sum(times) < seconds:
        times.append(_timed(step))
    return times


def _timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _sgemm_gflops(size: int) -> float:
    """The rate of multiplying two square matrices, in GFlop/s."""
    left, right = torch.randn(2, size, size)
    return 2 * size**3 / min(_repeat(lambda: left @ right, 0.5)) / 1e9
