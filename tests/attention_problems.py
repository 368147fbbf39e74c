"""Inputs of `gevit.attention.attend` for the tests, and what it takes to compare backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gevit.attention import attend, native
from gevit.encoding import PositionalEncoding, Positions
from gevit.groups import Cyclic, Group

needs_kernel = pytest.mark.skipif(not native.is_available(), reason=native.reason())
FAST = ["factored", pytest.param("native", marks=needs_kernel)]


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
