from __future__ import annotations

import pytest
import torch
from torch import nn

import gevit
from gevit.equivariance import assert_equivariant, measure
from gevit.groups import Cyclic, Dihedral, Group
from gevit.layers import Block, Crop, InvariantPooling, MaxPool
from gevit.linear import Dropout, Norm, Pointwise

GROUPS: list[Group] = [Cyclic(1), Cyclic(3), Cyclic(4), Cyclic(8), Dihedral(1), Dihedral(2), Dihedral(4)]
SIZES = [(8, 8), (7, 7), (6, 9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("group", GROUPS, ids=str)
class TestEquivariance:
    """Each layer alone, exact for quarter turns and flips, on square and non-square and odd sizes."""

    @pytest.mark.parametrize("neighborhood", [3, None])
    def test_lifting(self, group: Group, size: tuple[int, int], dtype: torch.dtype, neighborhood: int | None) -> None:
        layer = gevit.LiftingAttention(group, 2, 8, heads=3, neighborhood=neighborhood).to(dtype)
        assert_equivariant(layer, torch.randn(2, 2, *size, dtype=dtype), group)

    @pytest.mark.parametrize("encoding", ["ge", "relative"])
    @pytest.mark.parametrize("neighborhood", [5, None])
    def test_group_attention(
        self, group: Group, size: tuple[int, int], dtype: torch.dtype, neighborhood: int | None, encoding: str
    ) -> None:
        layer = gevit.GroupAttention(group, 4, 10, heads=2, neighborhood=neighborhood, encoding=encoding).to(dtype)
        assert_equivariant(layer, torch.randn(1, 4, group.order, *size, dtype=dtype), group)

    def test_block(self, group: Group, size: tuple[int, int], dtype: torch.dtype) -> None:
        block = Block(gevit.GroupAttention(group, 6, 12, heads=2, neighborhood=3), crop=1).to(dtype)
        assert_equivariant(block, torch.randn(1, 6, group.order, *size, dtype=dtype), group)

    def test_pools(self, group: Group, size: tuple[int, int], dtype: torch.dtype) -> None:
        x = torch.randn(2, 3, group.order, *size, dtype=dtype)
        for layer in (MaxPool(), Crop(1), Norm(3).to(dtype), Pointwise(3, 4).to(dtype)):
            assert_equivariant(layer, x, group)
        for pooling in ("max_mean", "sum_max"):
            assert_equivariant(InvariantPooling(pooling), x, group)


@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
def test_translations_away_from_the_border(group: Group) -> None:
    x = torch.randn(1, 2, 18, 19, dtype=torch.float64)
    lifting = gevit.LiftingAttention(group, 2, 8, heads=2, neighborhood=5).double()
    attention = gevit.GroupAttention(group, 8, 12, heads=2, neighborhood=5).double()
    for module, margin in ((lifting, 2), (nn.Sequential(lifting, attention), 4)):
        report = measure(module, x, group, translations=[(1, 0), (0, -2), (2, 2)], margin=margin)
        assert max(report.translations) < 1e-12
    assert max(measure(lifting, x, group, translations=[(1, 0)], margin=0).translations) > 1e-4


def test_group_attention_mixes_group_elements() -> None:
    """Not a tautology: the output at h depends on the input at every h^."""
    layer = gevit.GroupAttention(Cyclic(4), 4, 6, heads=1, neighborhood=1)
    x = torch.randn(1, 4, 4, 1, 1, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x)[0, 0, 0, 0, 0], x)
    assert (grad.abs().amax((0, 1, 3, 4)) > 0).all()


class TestMaxPool:
    @pytest.mark.parametrize(("side", "wanted"), [(1, 1), (2, 1), (3, 1), (6, 3), (7, 3), (9, 4)])
    def test_sizes(self, side: int, wanted: int) -> None:
        assert MaxPool()(torch.randn(1, 1, 1, side, 2)).shape == (1, 1, 1, wanted, 1)

    def test_even_sizes_are_the_ordinary_pool(self) -> None:
        x = torch.randn(1, 2, 3, 6, 8)
        assert torch.equal(MaxPool()(x), nn.functional.max_pool3d(x, (1, 2, 2)))
        assert torch.equal(MaxPool(truncate=True)(x), MaxPool()(x))

    def test_truncation_breaks_equivariance(self) -> None:
        """The negative control: what the authors' code does on odd sizes."""
        x = torch.randn(1, 2, 4, 7, 7)
        assert torch.equal(MaxPool(truncate=True)(x), nn.functional.max_pool3d(x, (1, 2, 2)))
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_equivariant(MaxPool(truncate=True), x, Cyclic(4))


def test_a_constant_map_passes_no_gradient_through_a_norm() -> None:
    """Its slope would be a million; other maps of the batch, and all values, are those of the plain norm."""
    norm, plain = Norm(3), nn.GroupNorm(1, 3, eps=1e-12)
    x = torch.randn(3, 3, 4, 5, 6)
    x[1] = 0.7
    x[2] = 0.7
    x[2, 1, 2, 3, 4] = 0.8  # one number of this map differs
    x.requires_grad_()
    weights = torch.randn(3, 3, 4, 5, 6)
    (grad,), (wanted,) = (torch.autograd.grad((layer(x) * weights).sum(), x) for layer in (norm, plain))
    assert torch.equal(norm(x), plain(x))
    assert torch.equal(grad[[0, 2]], wanted[[0, 2]])
    assert wanted[1].abs().max() > 1e5
    assert not grad[1].any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, on its first use of forward mode
def test_derivatives_of_a_norm() -> None:
    """Second ones, also forward over reverse, and those of each image; a constant map has none."""
    norm = Norm(3).double()
    x = torch.randn(2, 3, 4, dtype=torch.double)
    assert torch.autograd.gradgradcheck(norm, x.clone().requires_grad_())
    x[1] = 0.7

    def loss(image: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = norm(image[None]).sin().sum()
        return out

    for derivative in (torch.func.grad(loss), torch.func.jacfwd(loss), torch.func.hessian(loss)):
        found = torch.func.vmap(derivative)(x)
        assert found[0].any()
        assert not found[1].any()


def test_initialisation() -> None:
    layer = gevit.GroupAttention(Cyclic(4), 400, 200)
    for map_ in (layer.query, layer.key, layer.value):
        assert map_.weight.std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
        assert not map_.bias.any()
    assert layer.out.weight.std().item() == pytest.approx((2 / 900) ** 0.5, rel=0.02)
    assert layer.positions.element is not None
    assert layer.positions.element.std().item() == pytest.approx(1, rel=0.2)


@pytest.mark.usefixtures("unchecked_shapes")
class TestBadInput:
    @pytest.mark.parametrize("neighborhood", [0, -1, 4])
    def test_neighborhood(self, neighborhood: int) -> None:
        with pytest.raises(ValueError, match=rf"neighborhood must be .*got {neighborhood}"):
            gevit.LiftingAttention(Cyclic(4), 1, 8, neighborhood=neighborhood)
        with pytest.raises(ValueError, match=rf"neighborhood must be .*got {neighborhood}"):
            gevit.GroupAttention(Cyclic(4), 8, 8, neighborhood=neighborhood)

    def test_types(self) -> None:
        with pytest.raises(TypeError, match=r"neighborhood must be a positive integer, got 3\.0"):
            gevit.GroupAttention(Cyclic(4), 8, 8, neighborhood=3.0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="heads must be a positive integer, got '9'"):
            gevit.GroupAttention(Cyclic(4), 8, 8, heads="9")  # type: ignore[arg-type]

    def test_widths(self) -> None:
        with pytest.raises(ValueError, match="out_channels must be even .*got 9; use 8 or 10"):
            gevit.GroupAttention(Cyclic(4), 8, 9)
        with pytest.raises(ValueError, match="multiple of 4 .*got 10; use 8 or 12"):
            gevit.LiftingAttention(Cyclic(4), 8, 10)
        with pytest.raises(ValueError, match="at least 6"):
            gevit.GroupAttention(Cyclic(4), 8, 4)
        with pytest.raises(ValueError, match="heads must be a positive integer, got 0"):
            gevit.GroupAttention(Cyclic(4), 8, 8, heads=0)
        with pytest.raises(ValueError, match="in_channels must be a positive integer, got -1"):
            gevit.LiftingAttention(Cyclic(4), -1, 8)
        with pytest.raises(ValueError, match=r"dropout must be at least 0 and below 1, got 1\.5"):
            gevit.GroupAttention(Cyclic(4), 8, 8, dropout=1.5)

    def test_choices(self) -> None:
        with pytest.raises(ValueError, match="unknown encoding 'gae'; valid: ge, gsa, relative; did you mean"):
            gevit.GroupAttention(Cyclic(4), 8, 8, encoding="gae")
        with pytest.raises(
            ValueError, match="unknown backend 'cuda'; valid: auto, reference, factored, native, triton"
        ):
            gevit.GroupAttention(Cyclic(4), 8, 8, backend="cuda")
        with pytest.raises(ValueError, match="unknown pooling 'mean_max'; valid: max_mean, sum_max"):
            InvariantPooling("mean_max")

    def test_images(self) -> None:
        layer = gevit.LiftingAttention(Cyclic(4), 3, 8)
        with pytest.raises(ValueError, match=r"expected images \[batch, 3, height, width\], got 1 channels"):
            layer(torch.zeros(2, 1, 8, 8))
        with pytest.raises(ValueError, match=r"got 3 axes: \(3, 8, 8\); add the batch axis"):
            layer(torch.zeros(3, 8, 8))
        with pytest.raises(ValueError, match="height and width must be at least 1"):
            layer(torch.zeros(2, 3, 0, 8))
        with pytest.raises(TypeError, match=r"got torch\.uint8; convert it"):
            layer(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
        with pytest.raises(TypeError, match=r"got torch\.complex64; take its real part"):
            layer(torch.zeros(2, 3, 8, 8, dtype=torch.complex64))

    def test_signals(self) -> None:
        layer = gevit.GroupAttention(Cyclic(4), 6, 12)
        with pytest.raises(ValueError, match=r"on Cyclic\(4\), got a group axis of 8"):
            layer(torch.zeros(1, 6, 8, 5, 5))
        with pytest.raises(ValueError, match="got 4 axes.*lift images first"):
            layer(torch.zeros(1, 6, 5, 5))
        with pytest.raises(ValueError, match="got 3 channels"):
            layer(torch.zeros(1, 3, 4, 5, 5))
        with pytest.raises(TypeError, match=r"a group signal must be a floating-point tensor, got torch\.int64"):
            layer(torch.zeros(1, 6, 4, 5, 5, dtype=torch.long))

    def test_crop(self) -> None:
        with pytest.raises(ValueError, match="a 4x9 map is too small to crop 2 on each side"):
            Crop(2)(torch.zeros(1, 1, 4, 4, 9))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_keeps_the_mean_and_its_own_gradient(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x = Dropout(rate), torch.ones(3, 7, 4, 31, 29, dtype=dtype, requires_grad=True)
    y = layer(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = y != 0
    variance = (1 - rate) * rate / kept.numel()
    assert abs(kept.double().mean() - (1 - rate)) < 5 * variance**0.5
    assert torch.equal(grad, y.detach())
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / (1 - round(rate * 2**16) / 2**16), dtype=dtype).item()}
    bits = kept.flatten()[: kept.numel() // 4 * 4].view(-1, 4).double()  # numbers of the same 64 bits
    assert (torch.corrcoef(bits.T) - torch.eye(4)).abs().max() < 5 / len(bits) ** 0.5
    torch.manual_seed(0)
    assert torch.equal(layer(x), y)
    assert not torch.equal(layer(x), y)
    assert layer.eval()(x) is x
    assert not Dropout(1.0)(x).any()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_dropout_is_traced() -> None:
    traced = torch.jit.trace(Dropout(0.5), torch.ones(2, 100), check_trace=False)
    assert set(traced(torch.ones(2, 100)).unique().tolist()) == {0.0, 2.0}


def test_dropout_under_vmap() -> None:
    x = torch.ones(3, 5, 200)
    same, other = (torch.vmap(Dropout(0.5), randomness=kind)(x) for kind in ("same", "different"))
    assert torch.equal(same[0], same[1])
    assert not torch.equal(other[0], other[1])
