"""The one hot operation, group attention: one function, several backends that agree to rounding.

For pixel i, output element h, query elements h~ and keys (j, h^) in the neighbourhood of i,

    score[h, h~, h^, j] = scale * < q[h~, i],  k[h^, i + j] + rho_P(h^-1 (x_j - x_i), element[h, h~, h^]) >
    out[h, i] = sum over h~ of  sum over (h^, j) of  softmax_(h^, j)(score[h, h~]) * v[h^, i + j]

where rho_P is `Positions`: its space part meets the first channels of the query, its element part the rest.
Neighbours outside the image are masked. Attention dropout drops each coefficient (h, h~, h^, j) independently.

Backends:
    reference: the equation, literally; the oracle for the others.
    factored:  plain PyTorch on any device; exact, |H| times fewer exponentials, bounded memory.
    native:    a CPU kernel; the same factorisation in one pass.
    auto:      native where it serves, otherwise factored.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from gevit._checks import check_choice
from gevit.attention.fast import attend_fast
from gevit.attention.projected import attend_projected
from gevit.attention.reference import attend_reference
from gevit.encoding import Positions

__all__ = ["BACKENDS", "attend", "attend_projected"]

BACKENDS = ("auto", "reference", "factored", "native")


def attend(
    query: Float[Tensor, "batch channels heads queries height width"],
    key: Float[Tensor, "batch channels heads keys height width"],
    value: Float[Tensor, "batch channels heads keys height width"],
    positions: Positions,
    *,
    scale: float,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "batch channels heads outputs height width"]:
    """Attend from every pixel and output element to its neighbourhood on the group; see the module's equation.

    Args:
        query: one vector for each pixel and query element.
        key: one vector for each pixel and key element.
        value: as `key`.
        positions: rho_P for this neighbourhood.
        scale: what scores are multiplied with before the softmax.
        dropout: the probability with which a coefficient is dropped; the others are scaled up.
        backend: `"auto"`, `"reference"`, `"factored"` or `"native"`.
    """
    check_choice("backend", backend, BACKENDS)
    if backend == "reference":
        return attend_reference(query, key, value, positions, scale, dropout)
    return attend_fast(query, key, value, positions, scale, dropout, backend)
