"""Every backend of the one attention function against the literal reference."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gevit
from gevit.attention import attend, factored, native, torch_op
from gevit.encoding import PositionalEncoding, Positions
from gevit.groups import Cyclic, Dihedral, Group

needs_kernel = pytest.mark.skipif(not native.is_available(), reason=native.reason())
FAST = ["factored", pytest.param("native", marks=needs_kernel)]
# What is left of agreement after rounding, in the output and in the gradients.
TOLERANCES = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-12, 1e-10)}
ORDERS = st.one_of(st.integers(1, 9).map(Cyclic), st.integers(1, 5).map(Dihedral))


class Problem(NamedTuple):
    """Inputs of `attend`, all of them leaves; query, key and value are not contiguous in memory."""

    query: Tensor
    key: Tensor
    value: Tensor
    positions: Positions

    def inputs(self) -> list[Tensor]:
        parts = [self.query, self.key, self.value, self.positions.space, self.positions.element]
        return [x for x in parts if x.numel() or x.ndim == 6]  # lifting has no element vectors

    def attend(self, backend: str, dropout: float = 0.0, scale: float = 0.4) -> Tensor:
        return attend(*self, scale=scale, dropout=dropout, backend=backend)

    def map(self, function: Callable[[Tensor], Tensor]) -> Problem:
        """The problem with `function` of each of its floating-point inputs."""
        space, element = function(self.positions.space), function(self.positions.element)
        positions = self.positions._replace(space=space, element=element)
        return Problem(function(self.query), function(self.key), function(self.value), positions)


def make_problem(
    group: Group = Cyclic(4),  # noqa: B008
    encoding: str = "ge",
    size: tuple[int, int] = (6, 5),
    neighborhood: int | None = 3,
    batch: int = 2,
    heads: int = 2,
    part: int = 2,
    dtype: torch.dtype = torch.float32,
    magnitude: float = 1.0,
) -> Problem:
    """A problem of lifting (`encoding="lifting"`) or of group attention."""
    lifting = encoding == "lifting"
    channels = 2 * part + (0 if lifting else part + 1)
    order = 1 if lifting else group.order
    positions: Positions = PositionalEncoding(
        group, neighborhood, part, 0 if lifting else part + 1, "ge" if lifting else encoding
    ).to(dtype)(*size)

    def tensor() -> Tensor:
        x = magnitude * torch.randn(batch, channels, heads, order, size[1], size[0], dtype=dtype)
        return x.transpose(-1, -2).requires_grad_()

    problem = Problem(tensor(), tensor(), tensor(), positions)
    return problem._replace(positions=problem.map(lambda x: x.detach().requires_grad_()).positions)


def gradients(problem: Problem, out: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out).sin()
    return list(torch.autograd.grad((out * weight).sum(), problem.inputs()))


def assert_gradients_agree(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    """Relative to each gradient's largest entry; those that are zero but for rounding, relative to the others'."""
    largest = max(g.abs().max().item() for g in wanted if g.numel())
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.isfinite().all()
        assert relative(mine.to(theirs), theirs, floor=1e-2 * largest) < tolerance


def relative(found: Tensor, wanted: Tensor, floor: float = 1e-30) -> float:
    if not wanted.numel():
        return 0.0
    return ((found - wanted).abs().max() / wanted.abs().max().clamp_min(floor)).item()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("backend", FAST)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    group=ORDERS,
    encoding=st.sampled_from(["ge", "gsa", "relative", "lifting"]),
    size=st.tuples(st.sampled_from([1, 2, 3, 5, 7, 16, 17]), st.sampled_from([1, 3, 4, 11, 19])),
    neighborhood=st.sampled_from([1, 3, 5, 7, 25, None]),
    batch=st.integers(1, 2),
    heads=st.sampled_from([1, 2, 3]),
    part=st.integers(1, 5),
)
def test_agrees_with_reference(
    backend: str,
    dtype: torch.dtype,
    group: Group,
    encoding: str,
    size: tuple[int, int],
    neighborhood: int | None,
    batch: int,
    heads: int,
    part: int,
) -> None:
    if group.order**3 * size[0] ** 2 * size[1] ** 2 > 4e6:
        size, neighborhood = (5, 7), 3 if neighborhood is None else min(neighborhood, 3)
    problem = make_problem(group, encoding, size, neighborhood, batch, heads, part, dtype)
    wanted, found = problem.attend("reference"), problem.attend(backend)
    assert found.dtype == dtype
    assert relative(found, wanted) < TOLERANCES[dtype][0]
    assert_gradients_agree(gradients(problem, found), gradients(problem, wanted), TOLERANCES[dtype][1])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("encoding", ["ge", "gsa", "relative", "lifting"])
@pytest.mark.parametrize("neighborhood", [3, None])
def test_gradcheck(backend: str, encoding: str, neighborhood: int | None) -> None:
    problem = make_problem(Dihedral(2), encoding, (3, 2), neighborhood, 1, 1, 1, torch.float64)

    def function(q: Tensor, k: Tensor, v: Tensor, space: Tensor, *element: Tensor) -> Tensor:
        positions = problem.positions._replace(space=space)
        if element:
            positions = positions._replace(element=element[0])
        return attend(q, k, v, positions, scale=0.7, backend=backend)

    assert torch.autograd.gradcheck(function, problem.inputs())


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
@pytest.mark.parametrize("magnitude", [10.0, 100.0])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_large_scores_are_finite_and_right(
    backend: str, encoding: str, magnitude: float, dtype: torch.dtype, rounding: float
) -> None:
    """Scores up to 1e4 or more: factors underflow on their own, and the softmax is nearly one-hot."""
    problem = make_problem(Cyclic(4), encoding, neighborhood=5, magnitude=magnitude, dtype=dtype)
    double = problem.map(lambda x: x.detach().double().requires_grad_())
    wanted, found = double.attend("reference"), problem.attend(backend)
    # A float32 score of 1e4 is known to about 1e-3, a float64 one to 1e-12, and so is the log of a coefficient.
    tolerance = rounding * (magnitude**2 + 10)
    assert relative(found.double(), wanted) < tolerance
    assert_gradients_agree(gradients(problem, found), gradients(double, wanted), 10 * tolerance)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(("dtype", "reach"), [(torch.float32, 400), (torch.float64, 4000)])
def test_opposed_factors_do_not_underflow(backend: str, dtype: torch.dtype, reach: int) -> None:
    """Content and positions point to opposite ends, so that the largest product of factors underflows."""
    problem = make_problem(Cyclic(4), "ge", (4, 6), 5, 1, 1, dtype=dtype)
    problem = problem.map(lambda x: x.detach().clone().contiguous())
    problem.query[:, 0] = 1
    problem.key[:, 0] = -torch.linspace(-reach, reach, 24, dtype=dtype).view(4, 6)
    problem.positions.space[:, 0] = torch.linspace(-reach, reach, len(problem.positions.space), dtype=dtype)
    problem = problem.map(lambda x: x.requires_grad_())
    double = problem.map(lambda x: x.detach().double().requires_grad_())
    found, wanted = problem.attend(backend), double.attend("reference")
    tolerance = 2 * reach * torch.finfo(dtype).eps
    assert relative(found.double(), wanted) < tolerance
    assert_gradients_agree(gradients(problem, found), gradients(double, wanted), 10 * tolerance)


class TestDropout:
    @pytest.mark.parametrize("backend", ["reference", *FAST])
    @pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
    def test_mean_and_variance(self, backend: str, encoding: str) -> None:
        """Over many draws out has the mean of no dropout and the variance p/(1-p) * sum of (weight v)^2."""
        p, draws = 0.25, 400
        problem = make_problem(Cyclic(4), encoding, (3, 3), 3, 1, 1, 1)
        problem = problem.map(lambda x: x.detach().contiguous())
        with torch.no_grad():
            plain = problem.attend(backend)
            many = problem.map(lambda x: x.expand(draws, *x.shape[1:]) if x.ndim == 6 else x)
            dropped = many.attend(backend, dropout=p)
            variance = p / (1 - p) * self._sum_of_squares(problem)
        error = (dropped.mean(0) - plain[0]).abs() / (variance.sqrt() / draws**0.5)
        assert error.max() < 5
        ratio = dropped.var(0) / variance
        assert 0.95 < ratio.mean() < 1.05
        assert ratio.max() < 2

    @staticmethod
    def _sum_of_squares(problem: Problem) -> Tensor:
        """sum over (h~, h^, j) of (coefficient * v)^2, by differentiating the reference's own mixing."""
        q, k, v, positions = problem
        total = torch.zeros(q.shape[1], len(positions.offset_index), *q.shape[-2:])
        queries = range(q.shape[3]) if not positions.own_query else [None]
        for h in queries:
            # One query element at a time: the coefficients of the others are removed by attending without them.
            if h is None:
                part_q, part_positions = q, positions
            else:
                part_q = q[:, :, :, h : h + 1]
                part_positions = positions._replace(element_index=positions.element_index[:, h : h + 1])
            for m in range(k.shape[3]):
                for pixel in range(q.shape[-2] * q.shape[-1]):
                    one = torch.zeros_like(v)
                    one.flatten(-2)[:, :, :, m, pixel] = 1
                    weight = attend(part_q, k, one, part_positions, scale=0.4, backend="reference")[0, :1, 0]
                    total += (weight * v.flatten(-2)[0, :, 0, m, pixel][:, None, None, None]) ** 2
        return total.unsqueeze(1)

    @pytest.mark.parametrize("backend", FAST)
    def test_zero_rate_equals_none_and_seeds_repeat(self, backend: str) -> None:
        problem = make_problem()
        assert torch.equal(problem.attend(backend, 0.0), problem.attend(backend))
        torch.manual_seed(1)
        first = problem.attend(backend, 0.3)
        second = problem.attend(backend, 0.3)
        torch.manual_seed(1)
        assert torch.equal(problem.attend(backend, 0.3), first)
        assert not torch.equal(first, second)

    @needs_kernel
    @pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
    def test_native_drops_the_same_in_every_precision(self, encoding: str) -> None:
        problem = make_problem(encoding=encoding, size=(7, 5))
        double = problem.map(lambda x: x.detach().double().requires_grad_())
        torch.manual_seed(2)
        found = problem.attend("native", 0.5)
        torch.manual_seed(2)
        wanted = double.attend("native", 0.5)
        assert relative(found.double(), wanted) < 1e-5
        assert_gradients_agree(gradients(problem, found), gradients(double, wanted), 1e-4)

    @pytest.mark.parametrize("backend", FAST)
    @pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
    def test_backward_has_the_mask_of_forward(self, backend: str, encoding: str) -> None:
        """Finite differences with a fixed seed: they are far off if the masks differ."""
        problem = make_problem(encoding=encoding)
        for x in problem.inputs():
            direction = torch.randn_like(x)

            def at(step: float, x: Tensor = x, direction: Tensor = direction) -> Tensor:
                torch.manual_seed(3)
                moved = problem.map(lambda y: y + step * direction if y is x else y)
                return moved.attend(backend, 0.5).sum()

            slope = (at(1e-2) - at(-1e-2)) / 2e-2
            (grad,) = torch.autograd.grad(at(0.0), x)
            torch.testing.assert_close((grad * direction).sum(), slope, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_bitwise_repeatable_for_any_number_of_threads(backend: str, dtype: torch.dtype) -> None:
    problem = make_problem(Dihedral(4), size=(9, 7), neighborhood=5, batch=3, dtype=dtype)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 2):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            out = problem.attend(backend, 0.1)
            results.append([out, *gradients(problem, out)[:3]])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("backend", FAST)
def test_two_threads_at_once(backend: str) -> None:
    layer = gevit.GroupAttention(Cyclic(4), 6, 12, heads=3, backend=backend).eval()
    inputs = [torch.randn(2, 6, 4, 9, size) for size in (8, 11)]
    wanted = [layer(x) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not torch.equal(layer(inputs[index]), wanted[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("encoding", ["ge", "relative"])
def test_empty_batch(backend: str, encoding: str) -> None:
    problem = make_problem(encoding=encoding, batch=0)
    out = problem.attend(backend)
    assert out.shape == (0, 7, 2, 4, 6, 5)
    assert all(g.isfinite().all() for g in gradients(problem, out))


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


def test_factored_runs_in_bounded_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one pixel give what one chunk gives."""
    problem = make_problem(size=(5, 4), neighborhood=5)
    whole = problem.attend("factored")
    monkeypatch.setattr(factored, "CHUNK_NUMBERS", 1)
    pixelwise = problem.attend("factored")
    torch.testing.assert_close(pixelwise, whole)
    for a, b in zip(gradients(problem, pixelwise), gradients(problem, whole), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class TestChoice:
    def test_unknown_backend(self) -> None:
        with pytest.raises(ValueError, match=r"unknown backend 'natve'; valid: auto, .*did you mean 'native'"):
            make_problem().attend("natve")

    def test_native_refuses_what_it_does_not_serve(self) -> None:
        with pytest.raises(ValueError, match=r"serves float32 and float64 on the CPU, got torch.float16"):
            make_problem(dtype=torch.float16).attend("native")

    def test_mixed_precision_is_refused(self) -> None:
        problem = make_problem()
        with pytest.raises(ValueError, match=r"one dtype and device, got torch.float32 on cpu, torch.float64"):
            problem._replace(key=problem.key.detach().double()).attend("auto")

    def test_without_the_kernel_auto_is_factored_with_one_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        native._library.cache_clear()
        monkeypatch.setattr(native, "_TARGETS", {})
        monkeypatch.setattr("importlib.machinery.EXTENSION_SUFFIXES", [".none"])
        try:
            problem = make_problem()
            with pytest.warns(UserWarning, match=r"without its CPU kernel.*install g\+\+"):
                out = problem.attend("auto")
            assert torch.equal(out, problem.attend("factored"))
            with pytest.raises(ValueError, match="the native backend is not built"):
                problem.attend("native")
        finally:
            native._library.cache_clear()


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
