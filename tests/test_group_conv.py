from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gevit.equivariance import assert_equivariant, measure
from gevit.group_conv import FilterBank, GroupConv
from gevit.groups import Cyclic, Dihedral, Group
from gevit.layers import Downsample

GROUPS: list[Group] = [Cyclic(1), Cyclic(4), Cyclic(8), Cyclic(12), Dihedral(1), Dihedral(2), Dihedral(4), Dihedral(8)]


def signal(group: Group, height: int, width: int, lifting: bool, channels: int = 2) -> Tensor:
    elements = () if lifting else (group.order,)
    return torch.randn(2, channels, *elements, height, width, dtype=torch.float64)


@pytest.mark.parametrize("lifting", [True, False], ids=["lifting", "group"])
@pytest.mark.parametrize("group", GROUPS, ids=str)
class TestEquivariance:
    """Exact to rounding for quarter turns and flips, whatever the angles between them."""

    @pytest.mark.parametrize(("size", "padding"), [(1, 0), (3, 0), (3, 1), (4, 0), (4, 2), (5, 1)])
    def test_every_filter_size(self, group: Group, size: int, padding: int, lifting: bool) -> None:
        layer = GroupConv(group, 2, 3, size, padding, lifting).double()
        for height, width in ((6, 6), (7, 7), (5, 8)):
            assert_equivariant(layer, signal(group, height, width, lifting), group, tolerance=1e-12)

    def test_translations(self, group: Group, lifting: bool) -> None:
        layer = GroupConv(group, 2, 3, padding=1, lifting=lifting).double()
        report = measure(layer, signal(group, 9, 10, lifting), group, translations=[(1, 0), (-1, 2)], margin=1)
        assert max(report.translations) < 1e-12

    def test_float32(self, group: Group, lifting: bool) -> None:
        layer = GroupConv(group, 2, 3, lifting=lifting)
        assert_equivariant(layer, signal(group, 7, 7, lifting).float(), group, tolerance=1e-5)


@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(1), Dihedral(4)], ids=str)
def test_the_equation_literally(group: Group) -> None:
    """(f * psi)(x, h) = sum over y and h^ of f(y, h^) psi(h^-1 (y - x), h^-1 h^)."""
    layer = GroupConv(group, 2, 3).double()
    f = signal(group, 4, 5, lifting=False)
    wanted = torch.zeros(2, 3, group.order, 2, 3, dtype=torch.float64)
    for h, key in itertools.product(range(group.order), repeat=2):
        inverse = int(group.inverse[h])
        for row, column, i, j in itertools.product(range(2), range(3), range(-1, 2), range(-1, 2)):
            u, v = (group.matrices[inverse] @ torch.tensor([i, j], dtype=torch.float64)).long().tolist()
            psi = layer.weight[:, :, group.product[inverse, key], 1 + u, 1 + v]
            wanted[:, :, h, row, column] += f[:, :, key, row + 1 + i, column + 1 + j] @ psi.T
    torch.testing.assert_close(layer(f), wanted, rtol=1e-12, atol=1e-12)


def test_the_trivial_group_has_the_plain_convolution() -> None:
    x = torch.randn(2, 3, 7, 8)
    layer = GroupConv(Cyclic(1), 3, 5, padding=1, lifting=True)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight.squeeze(2), padding=1).unsqueeze(2))
    on_signals = GroupConv(Cyclic(1), 3, 5, padding=1)
    on_signals.load_state_dict(layer.state_dict())
    assert torch.equal(on_signals(x.unsqueeze(2)), layer(x))


@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
def test_quarter_turns_and_flips_move_filters_to_the_bit(group: Group) -> None:
    filters = torch.randn(3, 2, group.order, 3, 3)
    bank = FilterBank(group, 3)(filters)
    for h in range(group.order):
        assert torch.equal(bank[:, :, h], group.act_on_signal(filters, h))


def test_other_angles_interpolate() -> None:
    """Smooth filters are sampled at h^-1 y, within the error of interpolation: (row + column) / sqrt 2 at 45°."""
    rows, columns = torch.meshgrid(*[torch.arange(-4.0, 5.0)] * 2, indexing="ij")
    blob = torch.exp(-(rows**2 + columns**2) / 4)
    round_, edge = FilterBank(Cyclic(8), 9, lifting=True)(torch.stack([blob, blob * rows])[:, None])[:, 1, 0]
    assert (round_ - blob).abs().max() < 0.1
    assert (edge - blob * (rows + columns) / 2**0.5).abs().max() < 0.1
    assert (edge - blob * (rows - columns) / 2**0.5).abs().max() > 0.5


class TestNegativeControls:
    """Banks that are wrong in one thing are caught."""

    def fails(self, layer: GroupConv) -> None:
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_equivariant(layer, signal(layer.group, 6, 6, layer.lifting), layer.group, tolerance=1e-2)

    @pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
    def test_elements_permuted_wrongly(self, group: Group) -> None:
        layer = GroupConv(group, 2, 3).double()
        layer.bank.relative = group.product  # h h^ instead of h^-1 h^
        self.fails(layer)

    def test_elements_on_the_wrong_side(self) -> None:
        """For groups that do not commute h^-1 h^ is not h^ h^-1."""
        group = Dihedral(4)
        layer = GroupConv(group, 2, 3).double()
        layer.bank.relative = group.product[:, group.inverse].T.contiguous()
        self.fails(layer)

    @pytest.mark.parametrize("lifting", [True, False])
    def test_filters_moved_the_wrong_way(self, lifting: bool) -> None:
        layer = GroupConv(Cyclic(4), 2, 3, lifting=lifting).double()
        layer.bank.moves = layer.bank.moves[layer.group.inverse]
        self.fails(layer)


@pytest.mark.parametrize("lifting", [True, False])
@pytest.mark.parametrize("group", [Cyclic(3), Dihedral(2)], ids=str)
def test_gradients(group: Group, lifting: bool) -> None:
    layer = GroupConv(group, 2, 2, padding=1, lifting=lifting).double()
    x = signal(group, 3, 4, lifting).requires_grad_()

    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(layer, {"weight": weight}, (x,))
        return out

    assert torch.autograd.gradcheck(convolve, (x, layer.weight))


def test_tables_are_no_state() -> None:
    layer = GroupConv(Cyclic(8), 2, 3)
    assert list(layer.state_dict()) == ["weight"]
    assert layer.bank.moves.dtype == torch.float32
    assert layer.double().bank.moves.dtype == torch.float64
    assert layer.weight.shape == (3, 2, 8, 3, 3)


def test_responses_keep_their_scale() -> None:
    x = torch.randn(4, 16, 4, 12, 12)
    y = GroupConv(Cyclic(4), 16, 64)(x)
    assert y.std().item() == pytest.approx(2**0.5, rel=0.1)


@pytest.mark.usefixtures("unchecked_shapes")
class TestBadInput:
    def test_arguments(self) -> None:
        with pytest.raises(ValueError, match="size must be a positive integer, got 0"):
            GroupConv(Cyclic(4), 1, 2, size=0)
        with pytest.raises(ValueError, match="in_channels must be a positive integer, got -1"):
            GroupConv(Cyclic(4), -1, 2)
        with pytest.raises(TypeError, match=r"out_channels must be a positive integer, got 2\.0"):
            GroupConv(Cyclic(4), 1, 2.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="padding must be at least 0, got -1"):
            GroupConv(Cyclic(4), 1, 2, padding=-1)

    def test_maps(self) -> None:
        layer = GroupConv(Cyclic(4), 2, 3)
        with pytest.raises(ValueError, match="a 2x9 map is too small for a 3x3 filter; use larger images, or padding"):
            layer(torch.zeros(1, 2, 4, 2, 9))
        with pytest.raises(ValueError, match=r"on Cyclic\(4\), got a group axis of 8"):
            layer(torch.zeros(1, 2, 8, 5, 5))
        with pytest.raises(ValueError, match="got 4 axes"):
            layer(torch.zeros(1, 2, 5, 5))
        with pytest.raises(ValueError, match=r"expected images \[batch, 2, height, width\], got 3 channels"):
            GroupConv(Cyclic(4), 2, 3, lifting=True)(torch.zeros(1, 3, 5, 5))


@pytest.mark.parametrize("size", [(12, 14), (13, 15), (12, 15), (1, 2)])
def test_halving_is_a_convolution_and_then_a_blur(size: tuple[int, int]) -> None:
    """Inside the image, where zeros and the continued border do not differ; equivariant up to the border."""
    convolution = GroupConv(Dihedral(4), 2, 3, 3, padding=1, lifting=True, halve=True).double()
    x = torch.randn(1, 2, *size, dtype=torch.float64)
    halved = convolution(x)
    assert_equivariant(convolution, x, Dihedral(4), tolerance=1e-12)
    assert halved.shape[-2:] == tuple((side + 1) // 2 for side in size)
    convolution.halve = False
    inner = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(halved[inner], Downsample()(convolution(x))[inner])


@pytest.mark.parametrize("size", [2, 4, 5])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("sides", [(8, 9), (9, 8), (6, 6)])
@pytest.mark.parametrize("lifting", [True, False])
def test_halving_is_exact_whatever_the_convolution_leaves(
    size: int, padding: int, sides: tuple[int, int], lifting: bool
) -> None:
    """What is halved is the convolved map, which an even filter makes odd where the image is even."""
    group = Dihedral(4)
    layer = GroupConv(group, 2, 3, size, padding, lifting, halve=True).double()
    x = torch.randn(1, 2, *([] if lifting else [group.order]), *sides, dtype=torch.float64)
    assert_equivariant(layer, x, group, tolerance=1e-12)
