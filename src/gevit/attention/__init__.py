"""The one hot operation, group attention: one function, several backends that agree to rounding.

For pixel i, output element h, query elements h~ and keys (j, h^) in the neighbourhood of i,

    score[h, h~, h^, j] = scale * < q[h~, i],  k[h^, i + j] + rho_P(h^-1 (x_j - x_i), element[h, h~, h^]) >
    out[h, i] = sum over h~ of  sum over (h^, j) of  softmax_(h^, j)(score[h, h~]) * v[h^, i + j]

where rho_P is `Positions`: its space part meets the first channels of the query, its element part the rest.
Neighbours outside the image are masked. Attention dropout drops each coefficient (h, h~, h^, j) independently.

Backends:
    reference: the equation, literally; the oracle for the others.
    factored:  plain PyTorch on any device; exact, |H| times fewer exponentials, bounded memory.
    native:    a CPU kernel in float32; the same factorisation in one pass.
    auto:      native where it serves, otherwise factored.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gevit._checks import check_choice
from gevit.attention.fast import attend_fast
from gevit.attention.reference import attend_reference
from gevit.encoding import Positions, global_neighborhood

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
    positions = _clip(positions, *query.shape[-2:])
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):  # a softmax needs more than half precision
        query, key, value = query.float(), key.float(), value.float()
        positions = positions._replace(space=positions.space.float(), element=positions.element.float())
    if backend == "reference":
        out = attend_reference(query, key, value, positions, scale, dropout)
    else:
        out = attend_fast(query, key, value, positions, scale, dropout, backend)
    return out.to(dtype)


def _clip(positions: Positions, height: int, width: int) -> Positions:
    """Drop the offsets that no pair of pixels of this image has."""
    side = round(positions.offset_index.shape[1] ** 0.5)
    excess = (side - global_neighborhood(height, width)) // 2
    if excess <= 0:
        return positions
    square = positions.offset_index.unflatten(1, (side, side))
    kept = square[:, excess:-excess, excess:-excess].flatten(1)
    return positions._replace(offset_index=kept)
