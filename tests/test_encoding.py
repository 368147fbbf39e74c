from __future__ import annotations

import numpy as np
import pytest
import torch

from gevit.encoding import ENCODINGS, Elements, PositionalEncoding, element_table, offset_table
from gevit.groups import Cyclic, Dihedral, Group
from gevit.layers import GroupAttention

NOT_EQUIVARIANT = {"gsa"}
GROUPS: list[Group] = [
    Cyclic(1),
    Cyclic(3),
    Cyclic(4),
    Cyclic(8),
    Cyclic(12),
    Dihedral(1),
    Dihedral(3),
    Dihedral(4),
]


def _is_invariant(encoding: str, group: Group) -> bool:
    """Whether acting on h, h~ and h^ by the same element leaves what rho_P sees: what equivariance needs."""
    table = element_table(encoding, group)
    return all(
        torch.equal(
            table[moved][:, moved if table.shape[1] > 1 else slice(None)][:, :, moved],
            table,
        )
        for moved in group.product
    )


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_but_gsa_is_invariant(encoding: str, group: Group) -> None:
    assert _is_invariant(encoding, group) == (encoding not in NOT_EQUIVARIANT or group.order == 1)


@pytest.mark.parametrize("ignored", ["output", "query", "key"])
def test_an_encoding_that_ignores_an_element_has_a_full_table(ignored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads |H|^3 entries."""

    def partial(group: Group, h: Elements, query: Elements, key: Elements) -> Elements:
        first, second = {"output": (query, key), "query": (h, key), "key": (h, query)}[ignored]
        return group.product[group.inverse[first], second]

    monkeypatch.setitem(ENCODINGS, "partial", partial)
    assert element_table("partial", Cyclic(3)).shape == (3, 3, 3)
    layers = {}
    for backend in ("reference", "auto"):
        torch.manual_seed(0)
        layers[backend] = GroupAttention(Cyclic(3), 6, 6, 2, 3, "partial", backend=backend)
    x = torch.randn(1, 6, 3, 4, 4)
    torch.testing.assert_close(layers["auto"](x), layers["reference"](x))


def test_tables_are_the_papers_for_rotations() -> None:
    h, query, key = torch.meshgrid(*[torch.arange(8)] * 3, indexing="ij")
    assert torch.equal(element_table("ge", Cyclic(8)), (-h + 2 * query - key) % 8)
    assert torch.equal(element_table("gsa", Cyclic(8)), (h - query + key) % 8)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("neighborhood", [1, 3, 5, 7])
def test_offsets_are_turned_by_the_inverse(group: Group, neighborhood: int) -> None:
    table = offset_table(group, neighborhood)
    radius = neighborhood // 2
    offsets = np.stack([table.rows[table.row_index], table.columns[table.column_index]], -1)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, neighborhood) * (radius > 0)] * 2, indexing="ij"), -1)
    for element in range(group.order):
        wanted = grid.reshape(-1, 2) @ np.linalg.inv(group.matrices[element].numpy()).T
        np.testing.assert_allclose(offsets[table.offset_index[element]], wanted, atol=1e-14)


@pytest.mark.parametrize(("group", "cosets"), [(Cyclic(4), 1), (Dihedral(4), 1), (Cyclic(8), 2), (Cyclic(16), 4)])
def test_quarter_turns_and_flips_share_their_offsets(group: Group, cosets: int) -> None:
    """Bit for bit: every coset reads one set of numbers, so that its encodings are equal and not nearly equal."""
    assert len(offset_table(group, 5).row_index) == 25 * cosets


def test_global_encoding_follows_the_image() -> None:
    encoding = PositionalEncoding(Cyclic(4), None, 3)
    assert encoding(4, 6).offset_index.shape == (4, 11**2)
    assert encoding(1, 1).offset_index.shape == (4, 1)


def test_state_holds_no_tables() -> None:
    names = set(PositionalEncoding(Cyclic(4), 5, 3, 4).state_dict())
    assert {name.split(".")[0] for name in names} == {"row", "column", "element"}


def test_coordinates_are_encoded_smoothly_at_the_start() -> None:
    """With zero biases, coordinate 0 would enter the norm as a constant, where the slope is a million."""
    encode = PositionalEncoding(Cyclic(4), 5, 3).row.double()
    slopes = encode(torch.linspace(-1, 1, 2001).double()).diff(dim=0).abs() * 1000
    assert 0.1 < slopes.max() < 100


def test_unknown_encoding() -> None:
    with pytest.raises(ValueError, match="unknown encoding 'absolute'; valid: ge, gsa, relative"):
        element_table("absolute", Cyclic(4))


@pytest.mark.parametrize(("group", "values"), [(Cyclic(4), 5), (Cyclic(8), 13), (Dihedral(8), 13), (Cyclic(12), 27)])
def test_coordinates_that_differ_by_rounding_are_one(group: Group, values: int) -> None:
    table = offset_table(group, 5)
    assert len(table.rows) == len(table.columns) == values
    assert np.diff(np.sort(table.rows)).min() > 0.01


@pytest.mark.parametrize(
    ("group", "neighborhood"), [(Cyclic(4), 5), (Cyclic(4), 9), (Cyclic(8), 5), (Cyclic(12), 5), (Dihedral(8), 7)]
)
def test_a_start_like_a_convolution_is_well_conditioned(group: Group, neighborhood: int) -> None:
    """One step of an optimizer moves the encoding a little, not to anywhere, and half precision can hold it."""
    for seed in range(3):
        torch.manual_seed(seed)
        layer = GroupAttention(group, 16, 16, 4, neighborhood, initialisation="convolution")
        for function in (layer.positions.row, layer.positions.column):
            assert max(float(parameter.detach().abs().max()) for parameter in function.parameters()) < 1000
        before = layer.positions(9, 9).space
        with torch.no_grad():
            for parameter in layer.positions.parameters():
                parameter.add_(1e-3 * torch.randn_like(parameter).sign())  # as far as Adam's first step
        assert (layer.positions(9, 9).space - before).abs().max() < 0.05 * before.abs().max()


def test_heads_that_start_like_a_convolution_look_at_a_pixel_near_the_centre() -> None:
    for group, neighborhood in ((Cyclic(4), 5), (Cyclic(4), 9), (Cyclic(8), 5)):
        torch.manual_seed(0)
        layer = GroupAttention(group, 16, 16, 9, neighborhood, initialisation="convolution")
        radius = neighborhood // 2
        maps = layer.attention_of_pixel(torch.randn(1, 16, group.order, 11, 11), (5, 5))
        near = maps.sum(-3)[..., radius - 2 : radius + 3, radius - 2 : radius + 3].sum((-2, -1))
        assert near.mean() > 0.9
