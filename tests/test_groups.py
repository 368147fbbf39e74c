from __future__ import annotations

import pytest
import torch

from gevit.groups import Cyclic, Dihedral, Group

GROUPS: list[Group] = [*map(Cyclic, range(1, 17)), *map(Dihedral, range(1, 9))]


@pytest.mark.parametrize("group", GROUPS, ids=str)
class TestAxioms:
    def test_closure_and_cancellation(self, group: Group) -> None:
        everything = torch.arange(group.order)
        assert (group.product.sort(0).values == everything[:, None]).all()
        assert (group.product.sort(1).values == everything).all()

    def test_associativity(self, group: Group) -> None:
        a, b, c = torch.meshgrid(*[torch.arange(group.order)] * 3, indexing="ij")
        product = group.product
        assert (product[product[a, b], c] == product[a, product[b, c]]).all()

    def test_identity_and_inverse(self, group: Group) -> None:
        everything = torch.arange(group.order)
        assert (group.product[0] == everything).all()
        assert (group.product[:, 0] == everything).all()
        assert (group.product[everything, group.inverse] == 0).all()
        assert (group.product[group.inverse, everything] == 0).all()

    def test_matrices_represent_the_product(self, group: Group) -> None:
        products = group.matrices[:, None] @ group.matrices[None]
        torch.testing.assert_close(products, group.matrices[group.product], rtol=0, atol=1e-14)
        identity = torch.eye(2, dtype=torch.float64).expand(group.order, 2, 2)
        torch.testing.assert_close(group.matrices @ group.matrices.transpose(1, 2), identity, rtol=0, atol=1e-14)

    def test_elements_are_distinct(self, group: Group) -> None:
        distances = (group.matrices[:, None] - group.matrices[None]).abs().amax((-2, -1))
        assert (distances + torch.eye(group.order) > 1e-3).all()

    def test_exact_left_action(self, group: Group) -> None:
        """L_a L_b = L_ab, to the bit, on images and on signals, square or not."""
        exact = [e for e in range(group.order) if group.is_exact(e)]
        signal = torch.randn(2, group.order, 5, 7)
        for a in exact:
            for b in exact:
                ab = int(group.product[a, b])
                for act in (group.act_on_image, group.act_on_signal):
                    assert torch.equal(act(act(signal, b), a), act(signal, ab))
        assert torch.equal(group.act_on_signal(signal, 0), signal)

    def test_signal_action_is_a_left_action_on_the_group_axis(self, group: Group) -> None:
        """For every element, also interpolated ones: where the signal is constant in space, only h moves."""
        signal = torch.randn(group.order, 1, 1)
        for a in range(group.order):
            moved = group.act_on_signal(signal, a)
            for h in range(group.order):
                source = group.product[group.inverse[a], h]
                torch.testing.assert_close(moved[h], signal[source], rtol=1e-5, atol=1e-5)


def test_exact_elements() -> None:
    assert [Cyclic(8).is_exact(e) for e in range(8)] == [True, False] * 4
    assert all(Dihedral(4).is_exact(e) for e in range(8))
    assert sum(Dihedral(3).is_exact(e) for e in range(6)) == 2


def test_quarter_turn_and_flip_are_those_of_torch() -> None:
    image = torch.randn(3, 4, 6)
    for k in range(4):
        assert torch.equal(Cyclic(4).act_on_image(image, k), image.rot90(k, (-2, -1)))
        assert torch.equal(Dihedral(4).act_on_image(image, 4 + k), image.flip(-1).rot90(k, (-2, -1)))
        assert torch.equal(Cyclic(12).act_on_image(image, 3 * k), image.rot90(k, (-2, -1)))


def test_exact_action_moves_the_point_its_matrix_says() -> None:
    group = Dihedral(4)
    for element in range(group.order):
        image = torch.zeros(9, 9)
        image[4 - 3, 4 + 1] = 1
        row, column = (group.matrices[element] @ torch.tensor([-3.0, 1.0], dtype=torch.float64)).int().tolist()
        assert group.act_on_image(image, element)[4 + row, 4 + column] == 1


def test_interpolated_action_agrees_with_the_exact_one_and_is_about_a_left_action() -> None:
    group = Cyclic(8)
    rows, columns = torch.meshgrid(*[torch.linspace(-1, 1, 101, dtype=torch.float64)] * 2, indexing="ij")
    blob = torch.exp(-((rows - 0.2) ** 2 + (columns + 0.3) ** 2) / 0.05)
    for element in (2, 4, 6):
        torch.testing.assert_close(group._interpolate(blob, element), group.act_on_image(blob, element))
    twice = group.act_on_image(group.act_on_image(blob, 1), 1)
    assert (twice - group.act_on_image(blob, 2)).abs().max() < 0.02
    assert (group.act_on_image(blob, 1) - blob).abs().max() > 0.1


def test_names() -> None:
    assert [Dihedral(2).name(e) for e in range(4)] == ["identity", "180°", "flip", "flip, 180°"]
    assert Cyclic(16).name(1) == "22.5°"
    assert str(Dihedral(4)) == "Dihedral(4)"


def test_equality_is_by_value() -> None:
    assert Cyclic(4) == Cyclic(4)
    assert len({Cyclic(4), Cyclic(4), Dihedral(4), Cyclic(8)}) == 3
    assert Dihedral(1) != Cyclic(2)


@pytest.mark.parametrize(("n", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), (True, TypeError)])
@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_order(n: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"number of rotations must be"):
        Cyclic(n)


def test_bad_actions() -> None:
    group = Cyclic(8)
    with pytest.raises(ValueError, match=r"elements 0 to 7, got 8"):
        group.act_on_image(torch.zeros(3, 3), 8)
    with pytest.raises(ValueError, match=r"shape \[\.\.\., 8, height, width\], got \(4, 3, 3\)"):
        group.act_on_signal(torch.zeros(4, 3, 3), 1)
    with pytest.raises(ValueError, match="at least 2 axes"):
        group.act_on_image(torch.zeros(3), 0)
    with pytest.raises(TypeError, match="floating-point"):
        group.act_on_image(torch.zeros(3, 3, dtype=torch.uint8), 1)
    assert group.act_on_image(torch.zeros(3, 3, dtype=torch.uint8), 2).dtype == torch.uint8
    assert group.act_on_image(torch.zeros(2, 0, 3), 1).shape == (2, 0, 3)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_integers_without_a_sign_are_moved(dtype: torch.dtype) -> None:
    group = Dihedral(4)
    for signal in (torch.arange(8 * 12).view(8, 3, 4), torch.arange(8 * 12).view(8, 4, 3).transpose(1, 2)):
        for element in range(group.order):
            for act in (group.act_on_image, group.act_on_signal):
                moved = act((signal + 60_000).to(dtype), element)
                assert moved.dtype == dtype
                assert torch.equal(moved.long(), act(signal + 60_000, element))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_interpolated_where_they_should_be(dtype: torch.dtype) -> None:
    image = torch.rand(1, 1, 65, 65).to(dtype)
    moved, wanted = (Cyclic(8).act_on_image(x, 1) for x in (image, image.float()))
    assert moved.dtype == dtype
    assert (moved.float() - wanted).abs().max() <= torch.finfo(dtype).eps


def test_tables_are_where_they_can_be_read_whatever_the_default_device() -> None:
    with torch.device("meta"):
        group = Dihedral(4)
        assert group.product.device.type == "cpu"
        assert group.act_on_image(torch.rand(3, 3), 1).device.type == "meta"
        assert Cyclic(8).act_on_image(torch.rand(3, 3), 1).device.type == "meta"
