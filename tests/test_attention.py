"""Every backend of the one attention function against the literal reference."""

from __future__ import annotations

import importlib.machinery
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gevit
from gevit.attention import attend, factored, native, torch_op
from gevit.attention.dropout import Dropout
from gevit.groups import Cyclic, Dihedral, Group
from gevit.layers import GroupAttention, LiftingAttention
from tests.attention_problems import (
    FAST,
    Problem,
    assert_gradients_agree,
    gradients,
    make_problem,
    needs_kernel,
    relative,
)

# What is left of agreement after rounding, in the output and in the gradients.
TOLERANCES = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-12, 1e-10)}
ORDERS = st.one_of(st.integers(1, 9).map(Cyclic), st.integers(1, 5).map(Dihedral))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("backend", FAST)
@settings(max_examples=40, deadline=None, derandomize=True)
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

    assert torch.autograd.gradcheck(function, problem.inputs(), fast_mode=True)


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


# Powers of two that content, space and element are multiplied with.
MAGNITUDES = {
    "1": (0, 0, 0),
    "1e2": (7, 7, 7),
    "1e4": (13, 13, 13),
    "1e6": (20, 20, 20),
    "1e9": (30, 30, 30),
    "1e20": (66, 66, 66),
    "1e37": (120, 120, 120),
    "content": (32, 0, 0),
    "space": (0, 32, 0),
    "element": (0, 0, 32),
    "all but content": (0, 20, 32),
}


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_scores_of_any_size(backend: str, encoding: str, magnitude: str) -> None:
    """Integers times powers of two have exact scores, with many ties: only then is a softmax of large scores known.

    One pixel has larger queries yet: saturated rows beside others.
    """
    content, space, element = MAGNITUDES[magnitude]
    problem = make_problem(Cyclic(4), encoding, (4, 5), 3, batch=1, heads=1)
    value = problem.value.detach()
    problem = problem.map(lambda x: torch.randint_like(x, -2, 3))
    problem.query[..., 1, 2] *= 2**4
    positions = problem.positions
    positions = positions._replace(space=positions.space * 2.0**space, element=positions.element * 2.0**element)
    problem = Problem(problem.query, problem.key * 2.0**content, value, positions)
    problem = problem.map(lambda x: x.detach().requires_grad_())
    double = problem.map(lambda x: x.detach().double().requires_grad_())
    found, wanted = problem.attend(backend, scale=0.5), double.attend("reference", scale=0.5)
    assert relative(found.double(), wanted) < 1e-5
    for mine, theirs in zip(gradients(problem, found), gradients(double, wanted), strict=True):
        assert relative(mine.double(), theirs) < 1e-4


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("encoding", ["ge", "relative"])
def test_gradients_of_saturated_softmaxes(backend: str, encoding: str) -> None:
    """Where one coefficient has nearly all the weight, gradients are small differences; they keep their digits.

    All contents are 2048; the pixel itself is 12 ahead, and so is one element.
    """
    problem = make_problem(Cyclic(4), encoding, (4, 5), batch=1, heads=1)
    value = problem.value.detach()
    problem = problem.map(torch.zeros_like)
    problem.query[:] = 2**7
    problem.key[:, 0] = 2**4
    problem.positions.space[4, 0] = problem.positions.element[0, 0] = 12 / 2**7
    problem = problem._replace(value=value).map(lambda x: x.detach().requires_grad_())
    double = problem.map(lambda x: x.detach().double().requires_grad_())
    found, wanted = problem.attend(backend, scale=1.0), double.attend("reference", scale=1.0)
    for mine, theirs in zip(gradients(problem, found), gradients(double, wanted), strict=True):
        assert relative(mine.double(), theirs) < 1e-3


@needs_kernel
@pytest.mark.parametrize("scale", [1e2, 65535.0])
def test_models_of_large_images(scale: float) -> None:
    """Images of 16 bits that nobody normalised: the first layer has scores of 1e9."""
    images = torch.rand(1, 1, 22, 22) * scale
    model = gevit.create_model("r4_sa", neighborhood=3).eval()
    logits = {}
    for backend in ("reference", "factored", "native"):
        for layer in model.modules():
            if isinstance(layer, LiftingAttention | GroupAttention):
                layer.backend = backend
        logits[backend] = model(images)
    assert relative(logits["factored"], logits["reference"]) < 1e-5
    assert relative(logits["native"], logits["reference"]) < 1e-5


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def results(backend: str, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    problem = make_problem(Dihedral(2), size=(9, 7), batch=3, dtype=dtype)
    out = problem.attend(backend, 0.1)
    return [out, *gradients(problem, out)]


@needs_kernel
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_kernel_is_bitwise_the_same_for_any_number_of_threads(dtype: torch.dtype) -> None:
    found = []
    for count in (1, 2, 3, 4):
        with threads(count):
            found.append(results("native", dtype))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@needs_kernel
def test_a_layer_is_bitwise_the_same_for_any_number_of_threads() -> None:
    """The kernel has its linear maps as well, and sums gradients over heads and images in a fixed order."""
    torch.manual_seed(0)
    layer = gevit.GroupAttention(Dihedral(2), 5, 12, heads=3, neighborhood=3, dropout=0.1, backend="native")
    x = torch.randn(3, 5, 4, 9, 7, requires_grad=True)
    inputs = [x, *[p for m in (layer.query, layer.key, layer.value) for p in m.parameters()], layer.out.weight]
    found = []
    for count in (1, 2, 3, 4):
        with threads(count):
            torch.manual_seed(1)
            out = layer(x)
            found.append([out, *torch.autograd.grad(out.sin().sum(), inputs)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("count", [1, 3])
def test_factored_is_bitwise_repeatable_with_as_many_threads(count: int) -> None:
    """PyTorch's matrix products depend on the number of threads and on the processor."""
    with threads(count):
        first, second = (results("factored", torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


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


@pytest.mark.parametrize("neighborhood", [3, None])
def test_factored_runs_in_tiles(monkeypatch: pytest.MonkeyPatch, neighborhood: int | None) -> None:
    """Tiles of one row, of a few planes, and of all give the same."""
    problem = make_problem(size=(5, 4), neighborhood=neighborhood, heads=3)

    def run(numbers: int) -> list[Tensor]:
        monkeypatch.setattr(factored, "TILE_NUMBERS", numbers)
        torch.manual_seed(0)
        out = problem.attend("factored", 0.1)
        return [out, *gradients(problem, out)]

    whole = run(2**30)
    for numbers in (1, 2 * 4 * 4 * 9 * 20):
        for a, b in zip(run(numbers), whole, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class _Operators(TorchDispatchMode):
    """Counts calls of each operator, and the numbers of the largest tensor that one gave."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


def _operators(encoding: str, neighborhood: int | None, **options: Any) -> _Operators:
    """The operators of a forward and a backward pass of `factored`."""
    problem = make_problem(Cyclic(4), encoding, neighborhood=neighborhood, **options)
    call = (problem.query, problem.key, problem.value, problem.positions, 0.4, Dropout(0.1, torch.tensor(7)))
    operators = _Operators()
    with torch.no_grad(), operators:
        out = factored.forward(*call)
        factored.backward(torch.ones_like(out), *call)
    return operators


# What asks a device for numbers, and waits for it.
WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "unique_dim", "_unique2", "masked_select"}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("encoding", ["ge", "gsa", "relative", "lifting"])
@pytest.mark.parametrize("neighborhood", [3, None])
def test_factored_never_waits_for_its_device(encoding: str, neighborhood: int | None) -> None:
    assert not WAITS & set(_operators(encoding, neighborhood).calls)
    with _Operators() as operators:
        bool(torch.ones(()) > 0)  # what waits is seen
    assert WAITS & set(operators.calls)


@pytest.mark.usefixtures("unchecked_shapes")
def test_auto_is_factored_on_other_devices() -> None:
    """A device without numbers: whoever looked at one would fail."""
    problem = make_problem().map(lambda x: x.detach().to("meta"))
    tables = {name: getattr(problem.positions, name).to("meta") for name in ("offset_index", "element_index")}
    positions, dropout = problem.positions._replace(**tables), Dropout(0.1, torch.tensor(7))
    call = torch_op.Call(*problem[:3], None, positions, 2, 0.4, dropout, "auto")
    assert torch_op._backend(call) is factored
    out = factored.forward(*problem[:3], positions, 0.4, dropout)
    grads = factored.backward(out, *problem[:3], positions, 0.4, dropout)
    assert [g.shape for g in grads] == [x.shape for x in problem.inputs()]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
def test_factored_keeps_to_its_budget(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """The largest temporary has at most so many numbers, however many images there are; inputs and output aside."""
    monkeypatch.setattr(factored, "TILE_NUMBERS", 2**15)
    for batch in (1, 4, 8):
        padded = batch * 2 * 14 * 14 * 4 * (4 if encoding == "lifting" else 7)
        assert _operators(encoding, 3, batch=batch, size=(12, 12)).largest <= max(2**15, padded)
    monkeypatch.setattr(factored, "TILE_NUMBERS", 2**30)
    assert _operators(encoding, 3, batch=8, size=(12, 12)).largest > max(2**15, padded)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("backend", ["reference", *FAST])
class TestInputs:
    """What does not fit is refused, in the same words, before any backend sees it."""

    def refuse(self, problem: Problem, backend: str, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            problem.attend(backend)

    def test_shapes(self, backend: str) -> None:
        problem = make_problem().map(Tensor.detach)
        query, key, value, positions = problem

        def refuse(wrong: Problem, name: str) -> None:
            self.refuse(wrong, backend, ValueError, f"{name} does not fit the other inputs: expected .*, got ")

        refuse(problem._replace(key=key[..., :-1]), "key")
        refuse(problem._replace(key=key[:1]), "key")
        refuse(problem._replace(key=key[:, :-1]), "key")
        refuse(problem._replace(key=key[:, :, :1]), "key")
        refuse(problem._replace(value=value[:, :, :, :2]), "value")
        refuse(problem._replace(query=query[0]), "query")
        refuse(problem._replace(query=query[:, :, :, :2]), "element_index")
        refuse(problem._replace(positions=positions._replace(space=positions.space[0])), "space")
        refuse(problem._replace(positions=positions._replace(element=positions.element[:, 1:])), "element")
        refuse(problem._replace(positions=positions._replace(element=positions.element[:0])), "space")
        refuse(problem._replace(positions=positions._replace(offset_index=positions.offset_index[0])), "offset_index")
        refuse(
            problem._replace(positions=positions._replace(element_index=positions.element_index[:2])), "element_index"
        )
        own = make_problem(encoding="relative").map(Tensor.detach)
        refuse(own._replace(query=own.query[:, :, :, :3]), "offset_index")

    def test_sizes(self, backend: str) -> None:
        problem = make_problem().map(Tensor.detach)
        query, key, value, positions = problem
        nine = positions.offset_index
        for count in (4, 8):
            wrong = problem._replace(positions=positions._replace(offset_index=nine[:, :count]))
            self.refuse(wrong, backend, ValueError, f"square of an odd number of neighbours, got {count}")
        flat = Problem(query[..., :0], key[..., :0], value[..., :0], positions)
        self.refuse(flat, backend, ValueError, "attention needs a pixel")

    def test_tables(self, backend: str) -> None:
        problem = make_problem().map(Tensor.detach)
        positions = problem.positions
        for name, rows in (("offset_index", 9), ("element_index", 4)):
            table = getattr(positions, name)
            for value in (-1, rows):
                broken = table.clone()
                broken[0, 0] = value
                wrong = problem._replace(positions=positions._replace(**{name: broken}))
                self.refuse(wrong, backend, ValueError, f"{name} must be from 0 to {rows - 1}, got ")
            wrong = problem._replace(positions=positions._replace(**{name: table.float()}))
            self.refuse(wrong, backend, ValueError, f"{name} must be int32 or int64 on cpu, got torch.float32")
        narrow = positions._replace(
            offset_index=positions.offset_index.int(), element_index=positions.element_index.int()
        )
        assert torch.equal(problem._replace(positions=narrow).attend(backend), problem.attend(backend))

    def test_kinds(self, backend: str) -> None:
        problem = make_problem().map(Tensor.detach)
        mixed = problem._replace(key=problem.key.double())
        self.refuse(mixed, backend, ValueError, r"one dtype and device, got torch.float32 on cpu, torch.float64")
        self.refuse(
            problem.map(Tensor.long), backend, TypeError, r"query must be a floating-point tensor, got torch.int64"
        )
        with pytest.raises(ValueError, match="dropout must be at least 0 and below 1, got 1"):
            problem.attend(backend, dropout=1.0)


class TestChoice:
    def test_unknown_backend(self) -> None:
        with pytest.raises(ValueError, match=r"unknown backend 'natve'; valid: auto, .*did you mean 'native'"):
            make_problem().attend("natve")

    def test_native_refuses_what_it_does_not_serve(self) -> None:
        with pytest.raises(ValueError, match=r"serves float32 and float64 on the CPU, got torch.float16"):
            make_problem(dtype=torch.float16).attend("native")

    @needs_kernel
    def test_errors_of_the_kernel_are_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = make_problem()
        for code, error, message in (
            (1, MemoryError, "could not allocate"),
            (2, ValueError, "these sizes.*batch 2, ch"),
        ):
            monkeypatch.setattr(native._library(torch.float32), "gevit_attend_forward", lambda *_, code=code: code)
            with pytest.raises(error, match=message):
                problem.attend("native")

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ([], "was not built when gevit was installed.*pip install -v"),
            (["_kernel_baseline.other-python.so"], r"built for another Python or processor \(_kernel_baseline.other"),
            ([f"_kernel_baseline{importlib.machinery.EXTENSION_SUFFIXES[0]}"], "does not load: "),
        ],
        ids=["not built", "for another", "broken"],
    )
    def test_without_the_kernel_auto_is_factored_with_one_warning(
        self, files: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in files:
            (tmp_path / name).write_text("not a library")
        native._library.cache_clear()
        monkeypatch.setattr(native, "_FOLDER", tmp_path)
        try:
            problem = make_problem()
            with pytest.warns(UserWarning, match=f"without its CPU kernel.*{message}"):
                out = problem.attend("auto")
            assert torch.equal(out, problem.attend("factored"))
            with pytest.raises(ValueError, match=f"the native backend cannot be used: .*{message}"):
                problem.attend("native")
        finally:
            native._library.cache_clear()
