"""Attention as a layer and as an operator of PyTorch."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import gevit
from gevit.attention import Projections, attend_projected, torch_op
from gevit.encoding import PositionalEncoding
from gevit.groups import Cyclic, Dihedral
from tests.attention_problems import FAST, assert_gradients_agree, make_problem, relative


def small_layer(backend: str, dropout: float = 0.0) -> gevit.GroupAttention:
    torch.manual_seed(0)
    return gevit.GroupAttention(Cyclic(2), 6, 12, heads=2, neighborhood=3, dropout=dropout, backend=backend)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("projected", [False, True])
def test_operator_is_well_formed(backend: str, projected: bool) -> None:
    """PyTorch's own check of schema, fake implementation and autograd registration."""
    problem = make_problem(size=(4, 3))
    sources: tuple[Tensor, ...] = problem[:3]
    maps: list[Tensor | None] = [None] * 4
    if projected:
        sources = (torch.randn(2, 5, 4, 4, 3, requires_grad=True),) * 3
        maps = [torch.randn(shape, requires_grad=True) for shape in ((3, 14, 5), (3, 14), (6, 14), (6,))]
    seed = torch.zeros((), dtype=torch.long)
    options = (problem.positions.own_query, 2, 0.5, 0.0, backend, True)
    arguments = (*sources, *maps, *problem.positions[:4], seed, *options)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    verdicts = torch.library.opcheck(torch.ops.gevit.attend.default, arguments, test_utils=checks)
    assert verdicts == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("backend", FAST)
def test_export(backend: str) -> None:
    """An exported layer has one opaque operator, or all that `factored` is; it takes any batch and can be trained."""
    layer = small_layer(backend).eval()
    batch = torch.export.Dim("batch")
    exported = torch.export.export(layer, (torch.randn(2, 6, 2, 5, 5),), dynamic_shapes=({0: batch},))
    assert str(exported.graph).count("torch.ops.gevit.attend.default") == (0 if backend == "factored" else 1)
    for images in (1, 5):
        x = torch.randn(images, 6, 2, 5, 5, requires_grad=True)
        found, wanted = exported.module()(x), layer(x)
        assert relative(found, wanted) < 1e-5
        (grad,), (wanted_grad,) = (torch.autograd.grad(out.square().sum(), x) for out in (found, wanted))
        assert relative(grad, wanted_grad) < 1e-5


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("encoding", ["ge", "relative"])
def test_export_to_onnx(tmp_path: Path, encoding: str) -> None:
    """Standard operators alone, for batches of any size."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer = gevit.GroupAttention(
        Cyclic(2), 6, 12, heads=2, neighborhood=3, encoding=encoding, backend="factored"
    ).eval()
    batch, path = torch.export.Dim("batch"), str(tmp_path / "layer.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own doing
        program = torch.onnx.export(layer, (torch.randn(2, 6, 2, 5, 5),), dynamo=True, dynamic_shapes=({0: batch},))
    assert program is not None
    program.save(path)
    session = onnxruntime.InferenceSession(path)
    x = torch.randn(5, 6, 2, 5, 5)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert relative(torch.from_numpy(found), layer(x)) < 1e-5


def test_reference_can_be_exported() -> None:
    layer = small_layer("reference").eval()
    exported = torch.export.export(
        layer, (torch.randn(2, 6, 2, 5, 5),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    x = torch.randn(5, 6, 2, 5, 5)
    assert relative(exported.module()(x), layer(x)) < 1e-5


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_trace(backend: str, tmp_path: Path) -> None:
    """torch.jit.trace records the operator: the trace can be saved, and takes batches of any size."""
    layer, path = small_layer(backend).eval(), str(tmp_path / "layer.pt")
    x = torch.randn(5, 6, 2, 5, 5)
    with torch.no_grad():
        torch.jit.trace(layer, (x[:2],)).save(path)
        assert relative(torch.jit.load(path)(x), layer(x)) < 1e-5


class TestDerivatives:
    """Derivatives of any order, and those of torch.func, agree with those of the equation."""

    @pytest.mark.parametrize("backend", FAST)
    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_gradients_of_gradients(self, backend: str, dropout: float) -> None:
        x = torch.randn(3, 6, 2, 4, 4, dtype=torch.double, requires_grad=True)

        def derivatives(backend: str) -> list[Tensor]:
            layer = small_layer(backend, dropout).double()
            maps = (layer.query, layer.key, layer.value, layer.out)
            assert layer.positions.element is not None
            inputs = [x, layer.positions.element, *[each.weight for each in maps]]
            torch.manual_seed(1)
            found = list(torch.autograd.grad(layer(x).square().sum(), inputs, create_graph=True))
            total = sum((g / g.detach().norm()).sin().sum() for g in found)
            return [*found, *torch.autograd.grad(total, inputs)]

        for mine, theirs in zip(derivatives(backend), derivatives("reference"), strict=True):
            assert relative(mine, theirs) < 1e-8

    @pytest.mark.parametrize("backend", FAST)
    @pytest.mark.filterwarnings("ignore:There is a performance drop")
    def test_func(self, backend: str) -> None:
        layer = small_layer(backend)
        parameters = {name: p.detach() for name, p in layer.named_parameters()}
        x = torch.randn(3, 6, 2, 4, 4)

        def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(layer, parameters, (x,)).sin().sum()
            return out

        wanted = torch.autograd.grad(layer(x).sin().sum(), list(layer.parameters()))
        found = torch.func.grad(loss)(parameters, x)
        assert_gradients_agree(list(found.values()), list(wanted), 1e-4)
        one = torch.func.vmap(torch.func.grad(lambda p, image: loss(p, image[None])), in_dims=(None, 0))
        assert_gradients_agree([g.sum(0) for g in one(parameters, x).values()], list(wanted), 1e-4)
        assert relative(torch.func.vmap(lambda image: layer(image[None])[0])(x), layer(x)) < 1e-5

    @pytest.mark.parametrize("backend", FAST)
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, on its first use of forward mode
    def test_forward_mode_is_refused_by_name(self, backend: str) -> None:
        layer, x = small_layer(backend), torch.randn(1, 6, 2, 4, 4)
        with pytest.raises(NotImplementedError, match=r"no forward-mode derivatives .*use backend='reference'"):
            torch.func.jvp(layer, (x,), (x,))


COMPILE = """
import copy, sys, torch, gevit
side = {"local": 3, "global": None}[sys.argv[2]]
group, options = gevit.groups.Cyclic(4), {"heads": 3, "neighborhood": side, "dropout": 0.2, "backend": sys.argv[1]}
model = torch.nn.Sequential(
    gevit.LiftingAttention(group, 2, 8, **options), torch.nn.SiLU(), gevit.GroupAttention(group, 8, 6, **options)
)
compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
images = torch.randn(2, 2, 5, 7)
for network in (model, compiled):
    torch.manual_seed(0)
    network.train()(images).square().sum().backward()
wanted = {name: weight.grad for name, weight in model.named_parameters()}
largest = max(float(grad.abs().max()) for grad in wanted.values())
for name, weight in compiled._orig_mod.named_parameters():
    torch.testing.assert_close(weight.grad, wanted[name], rtol=1e-3, atol=1e-5 * largest, msg=name)
with torch.no_grad():
    for size in ((5, 7), (7, 5), (2, 9)) if side else ((5, 7),):  # global attention is compiled for each size anew
        images = torch.randn(2, 2, *size)
        torch.testing.assert_close(compiled.eval()(images), model.eval()(images), rtol=1e-4, atol=1e-4)
"""


def compiles(backend: str, reach: str) -> None:
    answer = subprocess.run([sys.executable, "-c", COMPILE, backend, reach], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("backend", FAST)
def test_compile_keeps_one_graph(backend: str) -> None:
    """In training, with dropout, and in evaluation. In a process of its own, without the run-time checks of shapes that
    the tests have.
    """
    compiles(backend, "local")


def test_compile_keeps_one_graph_of_global_attention() -> None:
    """Whose offsets are tabulated for the size of the image."""
    compiles("auto", "global")


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
def test_many_steps_do_not_grow_memory(backend: str) -> None:
    layer = small_layer(backend, dropout=0.1)
    x = torch.randn(1, 6, 2, 4, 4)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for step in range(260):
        if step == 60:
            before = resident()
        layer.zero_grad()
        layer(x).sum().backward()
    assert resident() - before < 2 * 2**20


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


def test_what_is_wrapped_around_a_projection_or_hooked_to_it_is_called() -> None:
    """Adapters, pruning and hooks change or watch what a projection gives, not its weights."""

    class Adapter(nn.Module):
        def __init__(self, base: nn.Module, channels: int) -> None:
            super().__init__()
            self.base, self.change = base, nn.Parameter(torch.full((channels, 1, 1, 1), 0.5))

        def forward(self, x: Tensor) -> Tensor:
            changed: Tensor = self.base(x) + self.change
            return changed

    group, x = Cyclic(4), torch.randn(2, 6, 4, 5, 5, dtype=torch.float64)
    layer = gevit.GroupAttention(group, 6, 8, heads=3, dropout=0.3).double()
    for name in ("query", "key", "value", "out"):
        other = copy.deepcopy(layer)
        seen: list[int] = []
        getattr(other, name).register_forward_hook(lambda *_, seen=seen: seen.append(1))
        torch.manual_seed(0)
        wanted = layer(x)
        torch.manual_seed(0)
        torch.testing.assert_close(other(x), wanted, rtol=1e-10, atol=1e-10)
        assert seen == [1]
        seen.clear()
        watched = copy.deepcopy(layer)
        getattr(watched, name).register_full_backward_hook(lambda *_, seen=seen: seen.append(1))
        watched(x.clone().requires_grad_()).sum().backward()
        assert seen == [1]
        replaced = copy.deepcopy(layer).eval()
        forward = getattr(replaced, name).forward
        getattr(replaced, name).forward = lambda x, forward=forward: 2 * forward(x)
        assert relative(replaced(x), layer.eval()(x)) > 1e-3
        layer.train()
        adapter = Adapter(getattr(other, name), getattr(other, name).out_features)
        setattr(other, name, adapter.double())
        other(x).square().sum().backward()
        assert adapter.change.grad is not None
        gevit.equivariance.assert_equivariant(other.eval(), x, group)


def test_a_pruned_projection_trains() -> None:
    layer, x = gevit.GroupAttention(Cyclic(4), 6, 8, heads=3), torch.randn(1, 6, 4, 5, 5)
    prune.l1_unstructured(layer.query, "weight", 0.5)
    for _ in range(2):
        layer(x).square().sum().backward()
    assert (layer.query.weight == 0).sum() == layer.query.weight.numel() // 2


@pytest.mark.parametrize("backend", ["reference", "factored", "native"])
def test_attention_is_computed_in_single_precision_under_autocast(backend: str) -> None:
    problem = make_problem()
    plain = problem.attend(backend)
    with torch.autocast("cpu", torch.bfloat16):
        cast = problem.attend(backend)
        maps = gevit.GroupAttention(Cyclic(4), 6, 8, heads=3).attention_of_pixel(torch.randn(1, 6, 4, 5, 5), (1, 1))
    assert cast.dtype == maps.dtype == torch.float32
    assert relative(cast, plain) < 1e-6


def test_gradients_are_as_precise_where_backward_is_called_under_autocast() -> None:
    """Those of attention; what autograd does around it is PyTorch's."""
    layer, x = gevit.GroupAttention(Cyclic(4), 6, 8, heads=3, backend="factored"), torch.randn(2, 6, 4, 5, 5)
    weights = [layer.query.weight, layer.key.weight, layer.value.weight, layer.out.weight]
    wanted = torch.autograd.grad(layer(x).square().sum(), weights)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(layer(x).square().sum(), weights)
    for one, other in zip(found, wanted, strict=True):
        assert relative(one, other) < 1e-5


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": torch.randn(1, 7, 2, 4, 4)},
            "weight does not fit the other inputs: expected [3, projected, 7], got [3, 4, 6]",
        ),
        ({"x": torch.ones(1, 6, 2, 4, 4, dtype=torch.int32)}, "x must be a floating-point tensor"),
        ({"bias": torch.zeros(3, 2)}, "bias does not fit the other inputs: expected [3, 4], got [3, 2]"),
        ({"out_weight": torch.zeros(5, 3)}, "out_weight does not fit the other inputs: expected [out, 4], got [5, 3]"),
        ({"out_bias": torch.zeros(1)}, "out_bias does not fit the other inputs: expected [5], got [1]"),
        ({"heads": 3}, "heads must divide the 4 projected channels, got 3"),
        ({"backend": "natve"}, "unknown backend 'natve'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"further": 10**6}, "offset_index must be from 0 to"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    """Before the kernel reads memory that is not there."""
    maps = {"weight": torch.randn(3, 4, 6), "bias": torch.zeros(3, 4), "out_weight": torch.randn(5, 4)}
    given: dict[str, Any] = {
        "x": torch.randn(1, 6, 2, 4, 4),
        **maps,
        "out_bias": torch.zeros(5),
        "heads": 2,
        "scale": 1.0,
    }
    given |= change
    positions = PositionalEncoding(Cyclic(2), 3, 1)(4, 4)
    positions = positions._replace(
        offset_index=positions.offset_index + given.pop("further", 0),
        element_index=torch.zeros(2, 2, 2, dtype=torch.long),
    )
    projections = Projections(*[given.pop(name) for name in Projections._fields])
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        attend_projected(given.pop("x"), projections, positions, **given)


def test_second_derivatives_under_autocast_have_all_their_digits() -> None:
    layer, x = small_layer("auto"), torch.randn(1, 6, 2, 4, 4)

    def second(autocast: bool) -> list[Tensor]:
        image = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(layer(image).square().sum(), image, create_graph=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return list(torch.autograd.grad(grad.square().sum(), [layer.query.weight, layer.out.weight]))

    assert_gradients_agree(second(True), second(False), 1e-5)
