from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from gevit import create_model
from gevit.training.config import TrainConfig
from gevit.training.optimizer import ADAM_SHARE, Muon, hidden_matrices, learning_rate, orthogonalized


@pytest.mark.parametrize("shape", [(20, 90), (90, 20), (7, 7), (2, 16)])
def test_orthogonalized_keeps_directions_and_evens_out_their_sizes(shape: tuple[int, int]) -> None:
    u, s, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    s = torch.logspace(0, -2, len(s), dtype=torch.float64)  # a hundred to one
    found = orthogonalized(u * s @ v)
    in_the_same_frame = u.T @ found @ v.T
    sizes = in_the_same_frame.diagonal()
    assert ((sizes > 0.6) & (sizes < 1.3)).all()
    assert (in_the_same_frame - torch.diag(sizes)).abs().max() < 1e-9


def test_a_step_moves_a_matrix_by_the_learning_rate_whatever_the_size_of_its_gradient() -> None:
    for size in (1e-6, 1.0, 1e6):
        weight = nn.Parameter(torch.zeros(10, 20))
        optimizer = Muon([weight], [], lr=0.1)
        weight.grad = size * torch.randn(10, 20)
        optimizer.step()
        assert 0.06 < torch.linalg.matrix_norm(weight.detach(), 2) < 0.13


def test_the_others_move_as_adamw_moves_them() -> None:
    torch.manual_seed(1)
    ours = [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(6, 4))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    muon = Muon([], ours, lr=0.04, weight_decay=0.1)
    adamw = torch.optim.AdamW(theirs, lr=0.04 * ADAM_SHARE, weight_decay=0.1)
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        muon.step()
        adamw.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["r4_sa", "z2_cnn", "alpha_p4_cnn", "cpvt"])
def test_every_parameter_is_moved_once(name: str) -> None:
    model = create_model(name)
    matrices, others = hidden_matrices(model)
    assert sorted(map(id, [*matrices, *others])) == sorted(map(id, model.parameters()))
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(named[id(matrix)].endswith("weight") and "classes" not in named[id(matrix)] for matrix in matrices)
    assert all(min(matrix.flatten(1).shape) > 1 for matrix in matrices)
    assert len(matrices) >= 6


def test_a_filter_moves_as_the_matrix_of_its_rows() -> None:
    gradient = torch.randn(6, 2, 4, 3, 3)
    filters, matrix = (nn.Parameter(torch.zeros(shape)) for shape in (gradient.shape, (6, 72)))
    filters.grad, matrix.grad = gradient, gradient.flatten(1)
    for parameter in (filters, matrix):
        Muon([parameter], [], lr=0.1).step()
    assert torch.equal(filters.flatten(1), matrix)


def test_weight_decay_and_parameters_without_gradient() -> None:
    decayed, idle = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    optimizer = Muon([decayed, idle], [], lr=0.5, weight_decay=0.1)
    decayed.grad = torch.zeros(3, 3)
    optimizer.step()
    torch.testing.assert_close(decayed.detach(), torch.full((3, 3), 0.95))
    assert torch.equal(idle.detach(), torch.ones(3, 3))


def test_an_ended_trapezoid_is_the_run_that_its_last_settings_describe() -> None:
    long = TrainConfig(schedule="trapezoid", lr=1.0, epochs=40, warmup_epochs=1.0, cooldown_epochs=10.0)
    short = TrainConfig(schedule="trapezoid", lr=1.0, epochs=9, warmup_epochs=1.0, cooldown_epochs=5.0)
    steps_per_epoch = 20
    rates = [learning_rate(short, step, steps_per_epoch) for step in range(9 * steps_per_epoch)]
    assert rates[: 4 * steps_per_epoch] == [learning_rate(long, step, steps_per_epoch) for step in range(80)]
    assert rates[4 * steps_per_epoch] == 1.0
    assert rates[-1] == pytest.approx(1 / 100)
    assert all(earlier > later for earlier, later in itertools.pairwise(rates[80:]))
    with pytest.raises(ValueError, match="together"):
        TrainConfig(epochs=3, warmup_epochs=1.0, cooldown_epochs=2.5)
