"""The `triton` backend: its kernels in the interpreter against the reference, and compiled for GPUs not at hand."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

import gevit
from gevit.attention import factored, torch_op, triton_backend
from gevit.groups import Cyclic, Dihedral, Group
from gevit.models import official
from tests.attention_problems import (
    Problem,
    assert_gradients_agree,
    gradients,
    make_problem,
    needs_kernel,
    relative,
)
from tests.outside import reference

ROOT = Path(__file__).parents[1]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
GROUPS = [Cyclic(1), Cyclic(2), Cyclic(3), Cyclic(4), Dihedral(1), Dihedral(2), Dihedral(3)]
FORWARD, BACKWARD = 1e-5, 1e-4


@pytest.fixture(autouse=True)
def _without_overflow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take half of the interpreter's time, and dropout's arithmetic overflows on purpose."""
    if importlib.util.find_spec("triton"):
        from triton.runtime.interpreter import interpreter_builder

        options = dataclasses.replace(interpreter_builder.options, sanitize_overflow=False)
        monkeypatch.setattr(interpreter_builder, "options", options)


def run(problem: Problem, backend: str, dropout: float = 0.0, **options: float) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(3)
    out = problem.attend(backend, dropout, **options)
    return out, gradients(problem, out)


def assert_agrees(problem: Problem, dropout: float = 0.0, other: str = "reference") -> None:
    found, wanted = run(problem, "triton", dropout), run(problem, other, dropout)
    assert relative(found[0], wanted[0]) < FORWARD
    assert_gradients_agree(found[1], wanted[1], BACKWARD)


@needs_triton
class TestAgreement:
    @settings(max_examples=8, deadline=None, derandomize=True)
    @given(
        group=st.sampled_from(GROUPS),
        encoding=st.sampled_from(["ge", "gsa", "relative", "lifting"]),
        size=st.sampled_from([(1, 1), (2, 3), (5, 1), (5, 7), (3, 2), (7, 4)]),
        neighborhood=st.sampled_from([1, 3, 5, 9, None]),
        heads=st.integers(1, 2),
        part=st.integers(1, 4),
        dropout=st.sampled_from([0.0, 0.4]),
    )
    def test_with_reference(
        self,
        group: Group,
        encoding: str,
        size: tuple[int, int],
        neighborhood: int | None,
        heads: int,
        part: int,
        dropout: float,
    ) -> None:
        if group.order > 2:  # the interpreter is slow
            size = min(size, (2, 3))
        problem = make_problem(group, encoding, size, neighborhood, 2, heads, part)
        assert_agrees(problem, dropout)

    def test_in_tiles_like_those_of_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several tiles, the last not full, and several blocks of outputs and keys."""
        monkeypatch.setattr(triton_backend, "INTERPRETED_TILE", triton_backend.Tile(16, 1, 1))
        assert_agrees(make_problem(Cyclic(2), "ge", (1, 5), 3, 2, 2), 0.3)

    def test_a_part_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The memory of a launch is bounded: some images at a time, or some heads, with the masks of all at once."""
        problem = make_problem(Cyclic(2), "lifting", (2, 3), 3, batch=2, heads=2)
        whole = run(problem, "triton", 0.5)
        for numbers, parts in ((1, 4), (2**7, 2)):  # a head, an image
            monkeypatch.setattr(triton_backend, "LAUNCH_NUMBERS", numbers)
            assert len(list(triton_backend._parts(problem.query, problem.positions))) == parts
            found = run(problem, "triton", 0.5)
            assert relative(found[0], whole[0]) < FORWARD
            assert_gradients_agree(found[1], whole[1], BACKWARD)

    @needs_kernel
    @pytest.mark.parametrize(
        ("encoding", "group", "size"), [("ge", Cyclic(2), (4, 3)), ("relative", Cyclic(3), (1, 5))]
    )
    def test_the_mask_is_that_of_the_native_kernel(self, encoding: str, group: Group, size: tuple[int, int]) -> None:
        problem = make_problem(group, encoding, size, 3, 2, 2)
        assert_agrees(problem, 0.5, other="native")
        assert relative(problem.attend("triton", 0.5), problem.attend("native", 0.5)) > 0.1  # another seed

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_accumulates_in_single(self, dtype: torch.dtype) -> None:
        """All that is lost is the rounding of the results."""
        problem = make_problem(Cyclic(2), "ge", (4, 3), 3, 1, 2)
        half = problem.map(lambda x: x.detach().to(dtype).requires_grad_())
        single = half.map(lambda x: x.detach().float().requires_grad_())
        found, wanted = run(half, "triton"), run(single, "reference")
        rounding = torch.finfo(dtype).eps
        assert found[0].dtype == dtype
        assert all(g.dtype == dtype for g in found[1])
        assert relative(found[0].float(), wanted[0]) < rounding
        # Gradients are compared for the same upstream, which half precision has rounded, too.
        assert_gradients_agree([g.float() for g in found[1]], wanted[1], 4 * rounding)

    def test_bitwise_repeatable(self) -> None:
        problem = make_problem(Dihedral(1), size=(5, 3))
        first, second = run(problem, "triton", 0.2), run(problem, "triton", 0.2)
        assert all(torch.equal(a, b) for a, b in zip((first[0], *first[1]), (second[0], *second[1]), strict=True))

    @pytest.mark.parametrize("encoding", ["ge", "lifting"])
    def test_empty_batch(self, encoding: str) -> None:
        out, grads = run(make_problem(encoding=encoding, batch=0), "triton")
        assert out.shape[0] == 0
        assert all(g.isfinite().all() for g in grads)

    def test_entries_of_a_table_may_name_the_same_vector(self) -> None:
        problem = make_problem(Cyclic(2), "ge", (3, 2))
        positions = problem.positions
        few = positions._replace(
            offset_index=positions.offset_index % 2, element_index=torch.zeros_like(positions.element_index)
        )
        assert_agrees(problem._replace(positions=few))


@needs_triton
class TestScoresOfAnySize:
    @pytest.mark.parametrize("encoding", ["ge", "relative"])
    def test_random(self, encoding: str) -> None:
        """Scores up to 1e4 are known to 1e-3 in float32, and so is the log of a coefficient."""
        problem = make_problem(Cyclic(2), encoding, (4, 5), 3, 1, 1, magnitude=100.0)
        double = problem.map(lambda x: x.detach().double().requires_grad_())
        found, wanted = run(problem, "triton"), run(double, "reference")
        assert relative(found[0].double(), wanted[0]) < 1e-2
        assert_gradients_agree(found[1], wanted[1], 1e-1)

    @pytest.mark.parametrize(
        ("content", "space", "element"),
        [(13, 13, 13), (120, 120, 120), (0, 20, 32)],
    )
    @pytest.mark.parametrize(("seed", "rounding"), [(1, 0.0), (0, 1e-7)])
    def test_exact(self, content: int, space: int, element: int, seed: int, rounding: float) -> None:
        """Integers times powers of two have exact scores, with many ties: only then is a softmax of them known.

        Gradients are sums of vectors times gradients of scores. In seed 0 they cancel, and the rounding of the terms is
        what is left; in seed 1 nothing cancels.
        """
        torch.manual_seed(seed)
        problem = make_problem(Cyclic(2), "ge", (2, 4), 3, 1, 1)
        value = problem.value.detach()
        problem = problem.map(lambda x: torch.randint_like(x, -2, 3))
        problem.query[..., 1, 2] *= 2**4
        positions = problem.positions
        positions = positions._replace(space=positions.space * 2.0**space, element=positions.element * 2.0**element)
        problem = Problem(problem.query, problem.key * 2.0**content, value, positions)
        problem = problem.map(lambda x: x.detach().requires_grad_())
        double = problem.map(lambda x: x.detach().double().requires_grad_())
        found, wanted = run(problem, "triton", scale=0.5), run(double, "reference", scale=0.5)
        assert relative(found[0].double(), wanted[0]) < FORWARD
        query, keys, _, *tables = (x.abs().max().item() for x in problem.inputs())
        terms = [max(keys, *tables), query, 1.0, query, query]
        for mine, theirs, term in zip(found[1], wanted[1], terms, strict=True):
            assert relative(mine.double(), theirs, floor=1e-30 + rounding / BACKWARD * term) < BACKWARD

    def test_saturated(self) -> None:
        """Where one coefficient has nearly all the weight, gradients are small differences; they keep their digits."""
        problem = make_problem(Cyclic(2), "ge", (3, 4), batch=1, heads=1)
        value = problem.value.detach()
        problem = problem.map(torch.zeros_like)
        problem.query[:] = 2**7
        problem.key[:, 0] = 2**4
        problem.positions.space[4, 0] = problem.positions.element[0, 0] = 12 / 2**7
        problem = problem._replace(value=value).map(lambda x: x.detach().requires_grad_())
        double = problem.map(lambda x: x.detach().double().requires_grad_())
        found, wanted = run(problem, "triton", scale=1.0), run(double, "reference", scale=1.0)
        for mine, theirs in zip(found[1], wanted[1], strict=True):
            assert relative(mine.double(), theirs) < 1e-3


@needs_triton
class TestModels:
    @pytest.mark.parametrize(
        ("file", "name", "encoding", "images"),
        [("ge_se2_1_rot_5", "z2_sa", "ge", None), ("ge_e2_2_rot_5", "d1_sa", "ge", 1)],
    )
    def test_logits_of_the_authors(self, file: str, name: str, encoding: str, images: int | None) -> None:
        """A few images: the interpreter takes minutes for all of `tests/test_official.py`."""
        path = reference("golden", f"{file}.safetensors")
        model = official.load(path, name, "rotmnist", 5, encoding)
        for module in model.modules():
            if isinstance(module, (gevit.LiftingAttention, gevit.GroupAttention)):
                module.backend = "triton"
        golden = load_file(path)
        with torch.no_grad():
            logits = model(golden["x"][:images])
        wanted = golden["logits"][:images]
        assert (logits - wanted).abs().max() <= 1e-5 * wanted.abs().max()

    def test_a_layer_trains(self) -> None:
        grads = {}
        x = torch.randn(2, 6, 2, 4, 3)
        for backend in ("triton", "reference"):
            torch.manual_seed(0)
            layer = gevit.GroupAttention(Cyclic(2), 6, 12, heads=2, neighborhood=3, dropout=0.2, backend=backend)
            grads[backend] = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
        assert_gradients_agree(list(grads["triton"]), list(grads["reference"]), BACKWARD)


@pytest.mark.usefixtures("unchecked_shapes")
class TestChoice:
    """There is no GPU here: a stand-in for its tensors is enough to be chosen for."""

    @pytest.fixture(autouse=True)
    def forget_warnings(self) -> None:
        torch_op._warn_once.cache_clear()

    def on_a_gpu(self, backend: str = "auto", dtype: torch.dtype = torch.float32) -> Any:
        return SimpleNamespace(backend=backend, query=SimpleNamespace(dtype=dtype, device=torch.device("cuda")))

    @needs_triton
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_auto_takes_it_on_a_gpu(self, dtype: torch.dtype) -> None:
        assert torch_op._backend(self.on_a_gpu(dtype=dtype)) is triton_backend
        assert torch_op._backend(self.on_a_gpu("factored")) is factored

    def test_without_triton_auto_is_factored_with_one_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "triton", None)
        with pytest.warns(UserWarning, match=r"without its GPU kernels.*pip install 'gevit\[gpu\]'"):
            assert torch_op._backend(self.on_a_gpu()) is factored
        assert torch_op._backend(self.on_a_gpu()) is factored  # warnings are errors
        with pytest.raises(ValueError, match="the triton backend cannot be used: triton is not installed"):
            make_problem().attend("triton")

    @needs_triton
    def test_what_it_does_not_serve(self) -> None:
        with pytest.warns(UserWarning, match=r"serves float32, float16 and bfloat16, got torch.float64"):
            assert torch_op._backend(self.on_a_gpu(dtype=torch.float64)) is factored
        with pytest.raises(ValueError, match=r"cannot be used: it serves float32.*got torch.float64; or use b"):
            make_problem(dtype=torch.float64).attend("triton")

    def test_the_package_does_not_need_it(self) -> None:
        code = "import sys; sys.modules['triton'] = None; import gevit; print(gevit.create_model('z2_sa').group)"
        assert outside_the_interpreter("-c", code).stdout == "Cyclic(1)\n"

    @needs_triton
    def test_on_the_cpu_it_needs_the_interpreter(self) -> None:
        code = "from tests.attention_problems import make_problem; make_problem().attend('triton')"
        done = outside_the_interpreter("-c", code, check=False)
        assert "it serves CUDA and ROCm (and the CPU if TRITON_INTERPRET=1 is set), got a tensor on cpu" in done.stderr


@needs_triton
def test_compiled_ahead_of_time(tmp_path: Path) -> None:
    """Real binaries for three GPUs: no register spills, no shared memory beyond theirs, no atomic operation.

    The rest of the kernels and variants: python benchmarks/triton_resources.py
    """
    script = str(ROOT / "benchmarks" / "triton_resources.py")
    flags = ["--variant", "ge, dropout", "--width", "6", "10", "32", "--kernel", "forward", "key_gradient"]
    flags += ["--out", str(tmp_path / "found.json")]
    outside_the_interpreter(script, *flags)
    cases = json.loads((tmp_path / "found.json").read_text())["cases"]
    assert {case["target"] for case in cases} == {"sm_80", "sm_90", "gfx942"}
    assert {(case["group"], case["neighborhood"], case["width"]) for case in cases} == {
        (group, side, width) for group in ("R4", "R8", "D4") for side in (5, 9) for width in (6, 10, 32)
    }
    for case in cases:
        assert case["spilled_bytes"] == 0
        assert 0 < case["registers"] <= (512 if case["target"] == "gfx942" else 255)
        assert case["shared_bytes"] <= 64 * 1024
        assert case["atomics"] == 0


def outside_the_interpreter(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    del environment["TRITON_INTERPRET"]
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert not check or done.returncode == 0, done.stderr
    return done
