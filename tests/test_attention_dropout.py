"""Attention dropout: one function of seed and place for every backend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gevit.attention import attend
from gevit.groups import Cyclic
from tests.attention_problems import (
    FAST,
    Problem,
    assert_gradients_agree,
    gradients,
    make_problem,
    needs_kernel,
    relative,
)


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
