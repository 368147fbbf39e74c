"""Attention as a layer and as an operator of PyTorch."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gevit
from gevit.attention import torch_op
from gevit.groups import Cyclic, Dihedral
from tests.attention_problems import FAST, assert_gradients_agree, make_problem, relative


@pytest.mark.parametrize("backend", FAST)
def test_operator_is_well_formed(backend: str) -> None:
    """PyTorch's own check of schema, fake implementation and autograd registration."""
    problem = make_problem(size=(4, 3))
    arguments = (*problem[:3], *problem.positions, torch.zeros(1, dtype=torch.long), 0.5, 0.0, backend)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    verdicts = torch.library.opcheck(torch.ops.gevit.attend.default, arguments, test_utils=checks)
    assert verdicts == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.parametrize("backend", FAST)
def test_export(backend: str) -> None:
    """torch.export sees the layer as shapes and one opaque operator."""
    layer = gevit.GroupAttention(Cyclic(4), 6, 12, heads=3, backend=backend).eval()
    x = torch.randn(2, 6, 4, 7, 7)
    exported = torch.export.export(layer, (x,))
    assert "gevit.attend" in str(exported.graph)
    torch.testing.assert_close(exported.module()(x), layer(x))


COMPILE = """
import sys, torch, gevit
layer = gevit.GroupAttention(gevit.groups.Cyclic(4), 6, 12, heads=3, backend=sys.argv[1]).eval()
compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
x = torch.randn(2, 6, 4, 7, 7, requires_grad=True)
torch.testing.assert_close(compiled(x), layer(x))
(found,) = torch.autograd.grad(compiled(x).square().sum(), x)
(wanted,) = torch.autograd.grad(layer(x).square().sum(), x)
torch.testing.assert_close(found, wanted)
"""


@pytest.mark.parametrize("backend", FAST)
def test_compile_keeps_one_graph(backend: str) -> None:
    """In a process of its own, without the run-time checks of shapes that the tests have."""
    answer = subprocess.run([sys.executable, "-c", COMPILE, backend], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def _ddp_worker(rank: int, store: str, results: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    layer = gevit.GroupAttention(Cyclic(4), 6, 12, heads=2)
    x = torch.randn(4, 6, 4, 5, 5)
    parallel = nn.parallel.DistributedDataParallel(layer)
    parallel(x[2 * rank : 2 * rank + 2]).square().mean().backward()
    torch.save([p.grad for p in layer.parameters()], f"{results}.{rank}")
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel(tmp_path: Path) -> None:
    """Two processes with half a batch each have the gradients of one with the whole."""
    torch.multiprocessing.spawn(_ddp_worker, (str(tmp_path / "store"), str(tmp_path / "grads")), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    torch.manual_seed(0)
    layer = gevit.GroupAttention(Cyclic(4), 6, 12, heads=2)
    layer(torch.randn(4, 6, 4, 5, 5)).square().mean().backward()
    wanted = [p.grad for p in layer.parameters()]
    largest = max(g.abs().max().item() for g in wanted if g is not None)
    for rank in range(2):
        for mine, theirs in zip(torch.load(tmp_path / f"grads.{rank}"), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
@pytest.mark.parametrize("backend", FAST)
def test_a_thousand_steps_do_not_grow_memory(backend: str) -> None:
    layer = gevit.GroupAttention(Cyclic(4), 6, 12, heads=2, neighborhood=3, dropout=0.1, backend=backend)
    x = torch.randn(1, 6, 4, 4, 4)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for step in range(1200):
        if step == 200:
            before = resident()
        layer.zero_grad()
        layer(x).sum().backward()
    assert resident() - before < 4 * 2**20


def test_half_precision_is_computed_in_single() -> None:
    layer = gevit.GroupAttention(Cyclic(4), 6, 12, heads=2).bfloat16()
    x = torch.randn(2, 6, 4, 5, 5)
    half = layer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    wanted = layer.float()(x.bfloat16().float())
    assert relative(half.float(), wanted) < 2e-2
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(x)
    assert relative(mixed.float(), layer(x)) < 2e-2


@pytest.mark.parametrize("training", [False, True])
def test_projections_in_chunks(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    """Projecting a few images at a time, again in the backward pass, is what projecting all of them once is."""
    layer = gevit.GroupAttention(Dihedral(2), 6, 12, heads=2, neighborhood=3, dropout=0.2).train(training)
    x = torch.randn(5, 6, 4, 5, 4, requires_grad=True)
    plain = copy.deepcopy(layer)
    plain.backend = "reference"
    monkeypatch.setattr(torch_op, "CHUNK_NUMBERS", 1)
    out = layer(x)
    grads = torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])
    if training:  # another mask for each image, also of other chunks
        same = layer(x[:1].expand(5, -1, -1, -1, -1))
        assert len({tuple(image.flatten().tolist()) for image in same}) == 5
    else:
        torch.testing.assert_close(out, plain(x), rtol=1e-5, atol=1e-5)
        wanted = torch.autograd.grad(plain(x).sin().sum(), [x, *plain.parameters()])
        assert_gradients_agree(list(grads), list(wanted), 1e-4)


def test_layer_trains_under_every_backend() -> None:
    """A few steps of a small network take the same path, to rounding, whatever the backend."""
    losses = {}
    for backend in ("reference", "factored", "auto"):
        torch.manual_seed(0)
        layer = nn.Sequential(
            gevit.LiftingAttention(Cyclic(4), 1, 8, heads=2, neighborhood=3, backend=backend),
            nn.SiLU(),
            gevit.GroupAttention(Cyclic(4), 8, 8, heads=2, neighborhood=3, backend=backend),
        )
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        x, y = torch.randn(2, 1, 6, 6), torch.randn(2, 8, 4, 6, 6)
        for _ in range(5):
            loss = (layer(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[backend] = float(loss.detach())
    assert losses["factored"] == pytest.approx(losses["reference"], rel=1e-5)
    assert losses["auto"] == pytest.approx(losses["reference"], rel=1e-5)
