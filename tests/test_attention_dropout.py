"""Attention dropout: one function of seed and place for every backend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gevit
from gevit.attention import Projections, attend, attend_projected, torch_op
from gevit.attention.dropout import Dropout
from gevit.attention.reference import kept
from gevit.groups import Cyclic, Dihedral, Group
from tests.attention_problems import (
    FAST,
    Problem,
    assert_gradients_agree,
    gradients,
    make_problem,
    relative,
)


@pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
def test_mean_and_variance(encoding: str) -> None:
    """Over many draws out has the mean of no dropout and the variance p/(1-p) * sum of (weight v)^2."""
    p, draws = 0.25, 400
    problem = make_problem(Cyclic(4), encoding, (3, 3), 3, 1, 1, 1)
    problem = problem.map(lambda x: x.detach().contiguous())
    with torch.no_grad():
        plain = problem.attend("reference")
        many = problem.map(lambda x: x.expand(draws, *x.shape[1:]) if x.ndim == 6 else x)
        dropped = many.attend("reference", dropout=p)
        variance = p / (1 - p) * _sum_of_squares(problem)
    error = (dropped.mean(0) - plain[0]).abs() / (variance.sqrt() / draws**0.5)
    assert error.max() < 5
    ratio = dropped.var(0) / variance
    assert 0.95 < ratio.mean() < 1.05
    assert ratio.max() < 2


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
def test_zero_rate_equals_none_and_seeds_repeat(backend: str) -> None:
    problem = make_problem()
    assert torch.equal(problem.attend(backend, 0.0), problem.attend(backend))
    torch.manual_seed(1)
    first = problem.attend(backend, 0.3)
    second = problem.attend(backend, 0.3)
    torch.manual_seed(1)
    assert torch.equal(problem.attend(backend, 0.3), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("group", "encoding", "size", "neighborhood"),
    [
        (Cyclic(4), "ge", (7, 5), 3),
        (Cyclic(3), "gsa", (4, 6), 3),
        (Dihedral(2), "relative", (7, 5), 5),
        (Cyclic(5), "relative", (3, 4), None),
        (Cyclic(4), "lifting", (9, 8), 5),
        (Cyclic(1), "ge", (3, 17), None),
    ],
)
def test_every_backend_drops_the_same(
    backend: str, dtype: torch.dtype, group: Group, encoding: str, size: tuple[int, int], neighborhood: int | None
) -> None:
    problem = make_problem(group, encoding, size, neighborhood, batch=3, dtype=dtype)
    double = problem.map(lambda x: x.detach().double().requires_grad_())
    torch.manual_seed(2)
    found = problem.attend(backend, 0.5)
    torch.manual_seed(2)
    wanted = double.attend("reference", 0.5)
    assert relative(found.double(), wanted) < 1e-5
    assert_gradients_agree(gradients(problem, found), gradients(double, wanted), 1e-4)


@pytest.mark.parametrize("backend", FAST)
def test_chunks_of_images_do_not_matter(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    layer = gevit.GroupAttention(Cyclic(4), 6, 12, heads=3, neighborhood=3, dropout=0.5, backend=backend)
    x = torch.randn(5, 6, 4, 5, 4)

    def run(numbers: int) -> tuple[Tensor, list[Tensor]]:
        monkeypatch.setattr(torch_op, "CHUNK_NUMBERS", numbers)
        torch.manual_seed(1)
        out = layer(x)
        return out, list(torch.autograd.grad(out.square().sum(), list(layer.parameters())))

    out, grads = run(1)
    for other in (backend, "reference"):
        layer.backend = other
        wanted, wanted_grads = run(2**30)
        assert relative(out, wanted) < 1e-5
        assert_gradients_agree(grads, wanted_grads, 1e-4)


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_no_image_or_head_repeats_the_mask_of_another(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Equal images, equal heads, a few images at a time: only dropout tells them apart."""
    monkeypatch.setattr(torch_op, "CHUNK_NUMBERS", 1)
    images, heads, channels = 8, 3, 7
    positions = make_problem().positions
    weight = torch.randn(3, channels, 1, 6).expand(3, channels, heads, 6).reshape(3, channels * heads, 6)
    identity = torch.eye(channels * heads)
    zero = torch.zeros(channels * heads)
    projections = Projections(weight, torch.zeros(3, channels * heads), identity, zero)
    x = torch.randn(1, 6, 4, 6, 5).expand(images, -1, -1, -1, -1)
    out = attend_projected(x, projections, positions, heads=heads, scale=0.1, dropout=0.5, backend=backend)
    masks = out.unflatten(1, (channels, heads)).transpose(1, 2).flatten(0, 1).flatten(1)
    distance = (masks[:, None] - masks).abs().mean(-1) / masks.std()
    assert distance[~torch.eye(images * heads, dtype=torch.bool)].min() > 0.1


def test_masks_are_independent_along_every_axis() -> None:
    """Two values of any one coordinate, or of the seed, agree as often as chance has it."""
    shape = (5, 3, 6, 5, 4, 4, 5, 9)  # image, head, row, column, h, h~, h^, j

    def signs(seed: int) -> Tensor:
        return 2.0 * kept(Dropout(0.5, torch.tensor(seed)), shape, torch.device("cpu")) - 1

    mask = signs(2**40 + 5)
    assert mask.shape == shape
    for axis, size in enumerate(shape):
        rows = mask.movedim(axis, 0).flatten(1)
        correlation = (rows @ rows.T / rows.shape[1] - torch.eye(size)).abs().max()
        assert correlation < 5 / rows.shape[1] ** 0.5, axis
    for other in (2**40 + 6, 2**41 + 5, 5):
        assert (mask * signs(other)).mean().abs() < 5 / mask.numel() ** 0.5


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rate(rate: float) -> None:
    dropout = Dropout(rate, torch.tensor(3))
    mask = kept(dropout, (4, 3, 8, 8, 4, 4, 4, 9), torch.device("cpu"))
    sigma = (rate * (1 - rate) / mask.numel()) ** 0.5
    assert abs(float(mask.float().mean()) - (1 - rate)) < 5 * sigma + 1e-5
    assert dropout.scale == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_a_later_part_of_a_batch_has_its_own_masks() -> None:
    whole = kept(Dropout(0.5, torch.tensor(1)), (5, 2, 3, 3, 1, 1, 3, 9), torch.device("cpu"))
    rest = kept(Dropout(0.5, torch.tensor(1), first_image=3), (2, 2, 3, 3, 1, 1, 3, 9), torch.device("cpu"))
    assert torch.equal(whole[3:], rest)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("encoding", ["ge", "relative", "lifting"])
def test_backward_has_the_mask_of_forward(backend: str, encoding: str) -> None:
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
