"""Positional encodings: which offset and which group element each (h, h~, h^) sees, and the learned rho_P.

For an output element h, a query (i, h~) and a key (j, h^), the encoding is rho_P(offset, element) with

| name       | offset             | element          | queries of output h |
|------------|--------------------|------------------|---------------------|
| `ge`       | h^-1 (x_j - x_i)   | h^-1 h~ h^^-1 h~ | all h~, summed      |
| `gsa`      | h^-1 (x_j - x_i)   | h h~^-1 h^       | all h~, summed      |
| `relative` | h^-1 (x_j - x_i)   | h^-1 h^          | h~ = h alone        |

`ge` is the encoding of the paper. `gsa` is what the code of GSA-Nets computes; it is not equivariant. `relative`
is equivariant and has |H| times fewer coefficients.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gevit._checks import casts_automatically, check_choice
from gevit.groups import Group
from gevit.linear import Linear, Norm
from gevit.tables import TabulatedModule

Elements = Int[Tensor, "#outputs #queries #keys"]

LEAST_FEATURE = 1e-3  # a share of the largest; see `CoordinateEncoding.fit`


def _ge(group: Group, h: Elements, query: Elements, key: Elements) -> Elements:
    """h^-1 h~ h^^-1 h~"""
    product, inverse = group.product, group.inverse
    return product[inverse[h], product[product[query, inverse[key]], query]]


def _gsa(group: Group, h: Elements, query: Elements, key: Elements) -> Elements:
    """h h~^-1 h^"""
    return group.product[group.product[h, group.inverse[query]], key]


def _relative(group: Group, h: Elements, query: Elements, key: Elements) -> Elements:
    """h^-1 h^"""
    return group.product[group.inverse[h], key]


# By name, the element that rho_P sees, as a function of h, h~ and h^.
ENCODINGS = {"ge": _ge, "gsa": _gsa, "relative": _relative}
# Encodings in which output h has the one query h~ = h.
OWN_QUERY = {"relative"}


def element_table(encoding: str, group: Group) -> Int[Tensor, "outputs queries keys"]:
    """The element that rho_P sees for every (h, h~, h^); those of `OWN_QUERY` have one query per output, h~ = h.

    >>> from gevit.groups import Cyclic
    >>> element_table("relative", Cyclic(3))[:, 0]
    tensor([[0, 1, 2],
            [2, 0, 1],
            [1, 2, 0]])
    """
    elements = torch.arange(group.order, device="cpu")
    h, query, key = elements[:, None, None], elements[None, :, None], elements[None, None, :]
    table = ENCODINGS[check_choice("encoding", encoding, ENCODINGS)](group, h, query, key)
    # An encoding may ignore one of the three; backends read a full table.
    return table.expand(group.order, 1 if encoding in OWN_QUERY else group.order, group.order).contiguous()


class OffsetTable(NamedTuple):
    """The offsets h^-1 (x_j - x_i) of a square neighbourhood, each distinct one stored once.

    `rows[row_index[u]], columns[column_index[u]]` is distinct offset u, scaled so that the neighbourhood spans
    [-1, 1]; `offset_index[h, j]` is the distinct offset that output element h sees at neighbour j.
    """

    rows: Float[np.ndarray, row_values]
    columns: Float[np.ndarray, column_values]
    row_index: Int[np.ndarray, offsets]
    column_index: Int[np.ndarray, offsets]
    offset_index: Int[np.ndarray, "outputs neighbors"]


@functools.lru_cache(maxsize=64)
def offset_table(group: Group, neighborhood: int) -> OffsetTable:
    """Tabulate the offsets of a neighbourhood under every element of the group.

    A quarter turn or flip q only permutes the offsets of a square. Write h = q r with one representative r a
    coset: h^-1 x = r^-1 (q^-1 x), so all h of the coset read one set of numbers in another order. This is what
    makes the encoding exactly equivariant, to the last bit, and what lets the fast backends share their work.
    """
    radius = neighborhood // 2
    grid = np.stack(np.meshgrid(*[np.arange(-radius, radius + 1)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    matrices = group.matrices.numpy()
    exact = [element for element in range(group.order) if group.is_exact(element)]

    index = np.full((group.order, len(grid)), -1, dtype=np.int64)
    offsets: list[np.ndarray] = []
    for representative in range(group.order):
        if index[representative, 0] >= 0:
            continue
        first = len(offsets) * len(grid)
        offsets.append(grid / max(radius, 1) @ matrices[representative])  # x^T r is (r^-1 x)^T
        for q in exact:
            moved = grid @ matrices[q].astype(np.int64) + radius
            index[group.product[q, representative]] = first + moved[:, 0] * neighborhood + moved[:, 1]
    (rows, row_index), (columns, column_index) = map(_distinct, np.concatenate(offsets).T)
    return OffsetTable(rows, columns, row_index, column_index, index)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _offset_tensors(group: Group, neighborhood: int) -> list[Tensor]:
    """The same as tensors on the CPU; to a compiler, which need not look into it, they are constants."""
    return [torch.as_tensor(table, device="cpu") for table in offset_table(group, neighborhood)]


def _distinct(values: Float[np.ndarray, n]) -> tuple[Float[np.ndarray, " few"], Int[np.ndarray, n]]:
    """The values that differ by more than rounding, and which of them each is."""
    _, first, index = np.unique(values.round(12), return_index=True, return_inverse=True)
    return values[first], index


class CoordinateEncoding(nn.Sequential):
    """The learned function of one coordinate: 1 -> 16 -> channels, with norm and swish between.

    The biases of the first map start uniform in [-1, 1]. The paper starts them at zero; coordinate 0 then enters the
    norm as a constant, whose slope there makes the gradient of these biases a million times all others.
    """

    def __init__(self, channels: int, hidden: int = 16) -> None:
        first = Linear(1, hidden)
        nn.init.uniform_(first.bias, -1, 1)
        super().__init__(first, Norm(hidden), nn.SiLU(), Linear(hidden, channels))

    @property
    def weight(self) -> Tensor:
        """One of its weights, for their dtype and device: `parameters()` of the copies in nn.DataParallel is empty."""
        weight = self[0].weight
        assert isinstance(weight, Tensor)
        return weight

    def forward(self, coordinates: Float[Tensor, n]) -> Float[Tensor, "n channels"]:
        """Encode each coordinate."""
        encoded = coordinates[:, None]
        for layer in self:
            encoded = layer(encoded)
        return encoded

    @torch.no_grad()
    def fit(self, coordinates: Float[Tensor, n], values: Float[Tensor, "n few"], importance: Float[Tensor, n]) -> None:
        """Set the last map so that the first channels take nearly these values there, and the others 0: least squares.

        Where there are many coordinates, the hidden features of neighbours are nearly the same. What tells them apart
        by less than LEAST_FEATURE is left out: to fit it as well would take weights of 10^4 to 10^5, with which the
        first step of training, or half precision, makes any function of it.
        """
        *features, last = self
        assert isinstance(last, Linear)
        hidden = importance[:, None] * nn.Sequential(*features)(coordinates[:, None])
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))  # in 16 bits torch has no pseudoinverse
        wanted = importance[:, None].to(hidden) * F.pad(values, (0, last.out_features - values.shape[1]))
        last.weight.copy_((torch.linalg.pinv(hidden, rtol=LEAST_FEATURE) @ wanted).T)


class Positions(NamedTuple):
    """rho_P, tabulated for one neighbourhood: what attention needs to know about positions.

    Output element h meets vector `space[offset_index[h, j]]` at neighbour j, and, for query element h~ and key
    element h^, vector `element[element_index[h, h~, h^]]`. With `own_query`, output h has the one query h~ = h.
    """

    space: Float[Tensor, "offsets space_channels"]
    element: Float[Tensor, "elements element_channels"]
    offset_index: Int[Tensor, "outputs neighbors"]
    element_index: Int[Tensor, "outputs queries keys"]
    own_query: bool

    def check_indices(self) -> None:
        """Check that the tables of indices stay within those of vectors: a kernel reads where they point."""
        if torch.compiler.is_compiling() or self.offset_index.device.type != "cpu":
            return  # there are no values yet; or they are on a device, which checks them without being waited for
        for name, vectors in (("offset_index", self.space), ("element_index", self.element)):
            lowest, highest = torch.stack(getattr(self, name).aminmax()).tolist()
            if vectors.numel() and not 0 <= lowest <= highest < len(vectors):
                raise ValueError(f"{name} must be from 0 to {len(vectors) - 1}, got {lowest} to {highest}")


class PositionalEncoding(TabulatedModule):
    """The learned rho_P: a function of the row, one of the column, and a vector for each group element.

    Args:
        group: the group whose elements transform the offsets.
        neighborhood: odd side of the square of offsets, or None when it follows the image (global attention).
        coordinate_channels: channels of the query that meet the row, and as many that meet the column.
        element_channels: channels of the query that meet the element; 0 in lifting, where keys have none.
        encoding: `"ge"`, `"gsa"` or `"relative"`; which element is seen.
    """

    element: nn.Parameter | None
    element_index: Tensor

    def __init__(
        self,
        group: Group,
        neighborhood: int | None,
        coordinate_channels: int,
        element_channels: int = 0,
        encoding: str = "ge",
    ) -> None:
        super().__init__()
        self.group = group
        self.neighborhood = neighborhood
        self.coordinate_channels = coordinate_channels
        self.row = CoordinateEncoding(coordinate_channels)
        self.column = CoordinateEncoding(coordinate_channels)
        if element_channels:
            self.element = nn.Parameter(torch.randn(group.order, element_channels))
            elements = element_table(encoding, group)
        else:
            self.register_parameter("element", None)
            elements = torch.zeros(group.order, 1, 1, dtype=torch.long, device="cpu")
        self.own_query = bool(element_channels) and encoding in OWN_QUERY

        self.add_table("element_index", elements)
        if neighborhood is not None:
            for name, table in zip(OffsetTable._fields, _offset_tensors(group, neighborhood), strict=True):
                self.add_table(f"_{name}", table)

    def forward(self, height: int, width: int) -> Positions:
        """Tabulate rho_P for images of this size."""
        height, width = int(height), int(width)  # numbers also to a tracer, which sees sizes as tensors
        side = global_neighborhood(height, width) if self.neighborhood is None else self.neighborhood
        rows, columns, row_index, column_index, index = self._table(side)
        with full_precision(rows.device):
            # Weights may have another precision for the moment, as in a sharded model.
            rows, columns = rows.to(self.row.weight.dtype), columns.to(self.column.weight.dtype)
            space = torch.cat([self.row(rows)[row_index], self.column(columns)[column_index]], dim=-1)
        element = space.new_empty(0, 0) if self.element is None else self.element
        offset_index = _clip(index.view(-1, side, side), global_neighborhood(height, width)).flatten(1)
        return Positions(space, element, offset_index, self.element_index, self.own_query)

    def _table(self, side: int) -> list[Tensor]:
        if self.neighborhood is not None:
            return [getattr(self, f"_{name}") for name in OffsetTable._fields]
        # Global attention is local attention over every offset that the image has.
        tables, like = _offset_tensors(self.group, side), self.row.weight
        return [table.to(like.device, like.dtype if table.is_floating_point() else None) for table in tables]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switches autocast off where it is on: positions and softmaxes want all their digits."""
    return torch.autocast(device.type, enabled=False) if casts_automatically(device) else nullcontext()


def global_neighborhood(height: int, width: int) -> int:
    """The neighbourhood that reaches every pixel of an image from every other."""
    return 2 * max(height, width) - 1


def _clip(offsets: Int[Tensor, "outputs side side"], largest: int) -> Int[Tensor, "outputs fewer fewer"]:
    """Drop the offsets beyond the largest that an image has."""
    excess = max(0, offsets.shape[1] - largest) // 2
    return offsets[:, excess : offsets.shape[1] - excess, excess : offsets.shape[2] - excess]
