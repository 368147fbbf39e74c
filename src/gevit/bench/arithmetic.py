"""The arithmetic that factored group attention needs, counted from its equations, not from any implementation.

For one pixel and one head, with G = |H| elements, K neighbours inside the image, C channels a head of which Cs meet the
offsets and Ce the elements, U distinct offsets, and T = G^3 triples (h, h~, h^), or G^2 where each output has the one
query h~ = h (`relative`), the multiply-adds are

    forward    content      G G K C     <q[h~], k[h^, j]>
               space        G U Cs      <q[h~], rho(offset)>, once for each distinct offset
               element      G G Ce      <q[h~], rho(element)>
               normaliser   T K         Z[h, h~] = sum of R S C
               weights      2 T K       W[h, h^, j] = sum over h~ of (R / Z) S C
               values       G G K C     sum of W v
    backward   again        content, normaliser and weights: nothing but the inputs was kept
               products     4 G G K C   of the weights, the values, the queries and the keys
               softmax      4 T K       x = p dW, its sum D, x - p D, and the sums over h, h^ and j

Exponentials, maxima and dropout are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """The sizes of one call of group attention on square images of `side` pixels; `neighborhood` is n of n x n."""

    batch: int
    heads: int
    side: int
    neighborhood: int
    order: int
    channels: int
    space_channels: int
    distinct_offsets: int
    own_query: bool = False

    @property
    def neighbors(self) -> int:
        """Pairs of a pixel and a neighbour inside the image: K, summed over the pixels of an image.

        >>> Attention(1, 1, 3, 3, 4, 10, 6, 9).neighbors  # 4 corners, 4 edges and a centre
        49
        """
        radius = self.neighborhood // 2
        return sum(max(0, self.side - abs(offset)) for offset in range(-radius, radius + 1)) ** 2

    @property
    def forward(self) -> int:
        """Multiply-adds of the forward pass."""
        space = self.order * self.distinct_offsets * self.space_channels
        element = self.order**2 * (self.channels - self.space_channels)
        per_image = self.side**2 * (space + element) + 2 * self._product + 3 * self._triples
        return self.batch * self.heads * per_image

    @property
    def backward(self) -> int:
        """Multiply-adds of the backward pass."""
        again = self._product + 3 * self._triples
        return self.batch * self.heads * (again + 4 * self._product + 4 * self._triples)

    @property
    def _product(self) -> int:
        """G G K C: a product of all queries, or outputs, with all neighbours."""
        return self.order**2 * self.neighbors * self.channels

    @property
    def _triples(self) -> int:
        """T K: one operation for each coefficient."""
        return self.order ** (2 if self.own_query else 3) * self.neighbors
