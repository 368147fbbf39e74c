"""The equation of group attention, literally: every coefficient (h, h~, h^, j) exists in memory."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from gevit.attention.dropout import Dropout
from gevit.encoding import Positions


def attend_reference(
    query: Float[Tensor, "b c n q y x"],
    key: Float[Tensor, "b c n m y x"],
    value: Float[Tensor, "b c n m y x"],
    positions: Positions,
    scale: float,
    dropout: Dropout,
) -> Float[Tensor, "b c n v y x"]:
    """Group attention as the paper writes it. Axes: v = h, q = h~, m = h^, j = neighbour, n = head."""
    side = math.isqrt(int(positions.offset_index.shape[1]))
    query = scale * query

    # <q(i, h~), k(j, h^)>; with own_query the one query of output h is h itself.
    content = torch.einsum("bcnqyx->bnyxqc", query) @ neighbors(key, side).flatten(-2)
    content = content.unflatten(-1, (key.shape[3], -1))
    inside = neighbors(query.new_ones(1, 1, 1, 1, *query.shape[-2:], dtype=torch.bool), side)
    content = content.masked_fill(~inside, -torch.inf)
    content = content.unsqueeze(5) if positions.own_query else content.unsqueeze(4)

    # <q(i, h~), rho_P(h^-1 (x_j - x_i))> and <q(i, h~), rho_P(element[h, h~, h^])>
    space_channels = positions.space.shape[1]
    to_space, to_element = query[:, :space_channels], query[:, space_channels:]
    rho_space = positions.space[positions.offset_index]
    if positions.own_query:
        space = torch.einsum("bcnvyx,vjc->bnyxvj", to_space, rho_space).unsqueeze(5)
    else:
        space = torch.einsum("bcnqyx,vjc->bnyxvqj", to_space, rho_space)
    score = content + space.unsqueeze(-2)
    if positions.element.numel():
        rho_element = positions.element[positions.element_index]
        meet = "bcnvyx,vqmc->bnyxvqm" if positions.own_query else "bcnqyx,vqmc->bnyxvqm"
        score += torch.einsum(meet, to_element, rho_element).unsqueeze(-1)

    # The sum over h~ of the weights, then the sum over keys (j, h^) of weight times value.
    weight = score.flatten(-2).softmax(-1)
    if dropout.rate:
        weight = weight * dropout.scale * kept(dropout, score.shape, score.device).flatten(-2)
    out = weight.sum(-2) @ neighbors(value, side).flatten(-2).transpose(-1, -2)
    return torch.einsum("bnyxvc->bcnvyx", out)


def kept(dropout: Dropout, shape: tuple[int, ...], device: torch.device) -> Bool[Tensor, "b n y x v q m j"]:
    """Which of all coefficients survive dropout."""
    batch, heads, height, width, outputs, queries, keys, offsets = shape
    image, head = dropout.first_image + torch.arange(batch, device=device), torch.arange(heads, device=device)
    pixel = torch.arange(height * width, device=device).view(height, width)
    h, query = torch.arange(outputs, device=device), torch.arange(queries, device=device)
    places = dropout.places(
        (image[:, None] * heads + head)[..., None, None, None, None, None, None],
        pixel[..., None, None, None, None],
        (query * outputs + h[:, None])[..., None, None],
        torch.arange(offsets, device=device)[None],
        keys,
    )
    return places.kept()


def neighbors(x: Shaped[Tensor, "b c n m y x"], side: int) -> Shaped[Tensor, "b n y x c m j"]:
    """The side x side neighbourhood of every pixel, zero outside the image."""
    radius = side // 2
    padded = F.pad(x, (radius, radius, radius, radius))
    return padded.unfold(-2, side, 1).unfold(-2, side, 1).permute(0, 2, 4, 5, 1, 3, 6, 7).flatten(-2)
