"""What attention needs, counted before anything runs: arithmetic from its equations, memory of the reference backend.

The arithmetic is that of factored group attention, whatever computes it. For one pixel and one head, let G = |H|, K the
neighbours inside the image, C the channels of a head (Cs of them meet the offsets, Ce the elements), U the distinct
offsets, and T = G^3 the triples (h, h~, h^), or G^2 where each output has the one query h~ = h (`relative`). The
multiply-adds are

    forward    content      G G K C     <q[h~], k[h^, j]>
               space        G U Cs      <q[h~], rho(offset)>, once for each distinct offset
               element      G G Ce      <q[h~], rho(element)>
               normaliser   T K         Z[h, h~] = sum of R S C
               weights      2 T K       W[h, h^, j] = sum over h~ of (R / Z) S C
               values       G G K C     sum of W v
    backward   once more    G G K C + 3 T K   content, normaliser and weights: only the inputs were kept
               products     4 G G K C   gradients of the weights, the values, the queries and the keys
               softmax      4 T K       x = p dW, its sum D, and x - p D summed over h and over h^

Exponentials, maxima and dropout are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from gevit.bench.cases import Case
from gevit.encoding import Positions, global_neighborhood
from gevit.layers import Block, GroupAttention, LiftingAttention, MaxPool
from gevit.models import GroupTransformer
from gevit.models.features import halves

# Copies of its large tensors (coefficients, gathered neighbours) that a layer of the reference holds at once.
COPIES = 3
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Attention:
    """The sizes of one call of group attention on square images.

    Attributes:
        batch: images.
        heads: heads.
        side: height and width of an image.
        neighborhood: odd side of the square a pixel attends to.
        order: G.
        channels: C.
        space_channels: Cs.
        distinct_offsets: U.
        own_query: whether each output has the one query h~ = h.
    """

    batch: int
    heads: int
    side: int
    neighborhood: int
    order: int
    channels: int
    space_channels: int
    distinct_offsets: int
    own_query: bool

    @property
    def neighbors(self) -> int:
        """K, summed over the pixels of an image: pairs of a pixel and a neighbour inside the image."""
        radius = self.neighborhood // 2
        return sum(max(0, self.side - abs(offset)) for offset in range(-radius, radius + 1)) ** 2

    @property
    def forward(self) -> int:
        """Multiply-adds of the forward pass."""
        space = self.order * self.distinct_offsets * self.space_channels
        element = self.order**2 * (self.channels - self.space_channels)
        return self._planes * (self.side**2 * (space + element) + 2 * self._product + 3 * self._triples)

    @property
    def backward(self) -> int:
        """Multiply-adds of the backward pass."""
        return self._planes * (5 * self._product + 7 * self._triples)

    @property
    def _planes(self) -> int:
        return self.batch * self.heads

    @property
    def _product(self) -> int:
        """G G K C: all queries, or outputs, with all neighbours."""
        return self.order**2 * self.neighbors * self.channels

    @property
    def _triples(self) -> int:
        """T K: once for each coefficient."""
        return self.order ** (2 if self.own_query else 3) * self.neighbors


def attention_of(layer: GroupAttention, side: int, case: Case) -> Attention:
    """The attention of one layer, on images of this side."""
    positions: Positions = layer.positions(side, side)
    return Attention(
        batch=case.batch,
        heads=layer.heads,
        side=side,
        neighborhood=layer.neighborhood or global_neighborhood(side, side),
        order=layer.group.order,
        channels=layer.head_channels,
        space_channels=positions.space.shape[1],
        distinct_offsets=positions.space.shape[0],
        own_query=positions.own_query,
    )


def multiply_adds(layer: GroupAttention, side: int, case: Case) -> int:
    """The arithmetic of the attention of one layer, on images of this side; in training with its gradient."""
    work = attention_of(layer, side, case)
    return work.forward + (work.backward if case.mode == "train" else 0)


def attention_layers(model: GroupTransformer, size: int) -> list[tuple[GroupAttention | LiftingAttention, int]]:
    """The attention layers and the side of the images they see."""
    layers: list[tuple[GroupAttention | LiftingAttention, int]] = []
    side = size
    for layer in (model.lifting, *model.body.values()):
        for inner in layer.modules():
            if isinstance(inner, GroupAttention | LiftingAttention):
                layers.append((inner, side))
            elif halves(inner):
                side = max(1, side // 2) if isinstance(inner, MaxPool) else (side + 1) // 2
        if isinstance(layer, Block):
            side -= 2 * layer.crop
    return layers


def reference_bytes(layers: list[tuple[GroupAttention | LiftingAttention, int]], case: Case) -> int:
    """About the memory that the reference needs for these layers and the sides of the images they see.

    Inference holds one layer at a time. Training keeps all of them, and the backward pass adds one more copy.
    """
    numbers = [case.batch * _reference_numbers(layer, side) for layer, side in layers]
    copies = COPIES * sum(numbers) + max(numbers) if case.mode == "train" else COPIES * max(numbers)
    return FLOAT * copies


def _reference_numbers(layer: GroupAttention | LiftingAttention, side: int) -> int:
    """For one image: at every offset, a coefficient for each (h, h~, h^) and a key vector for each h^."""
    positions: Positions = layer.positions(side, side)
    reach = global_neighborhood(side, side)
    neighborhood = min(layer.neighborhood or reach, reach)
    keys = positions.element_index.shape[2]
    numbers = positions.element_index.numel() + keys * layer.head_channels
    return layer.heads * numbers * (side * neighborhood) ** 2
