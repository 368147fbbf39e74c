"""The equation of group attention, literally: every coefficient (h, h~, h^, j) exists in memory."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from gevit.attention.dropout import Dropout, Noise, noise_of_offsets, noise_of_pairs
from gevit.attention.layout import Workspace
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
    inside = neighbors(query.new_ones(1, 1, 1, 1, *query.shape[-2:], dtype=torch.bool), side)
    weight = coefficients(query, neighbors(key, side), inside, positions, scale)
    if dropout.rate:
        weight = weight * dropout.scale * kept(dropout, weight.shape, weight.device)
    # The sum over h~ of the weights, then the sum over keys (j, h^) of weight times value.
    out = weight.sum(-3).flatten(-2) @ neighbors(value, side).flatten(-2).transpose(-1, -2)
    return torch.einsum("bnyxvc->bcnvyx", out)


def coefficients(
    query: Float[Tensor, "b c n q y x"],
    key: Float[Tensor, "b n y x c m j"],
    inside: Bool[Tensor, "1 1 y x 1 1 j"],
    positions: Positions,
    scale: float,
) -> Float[Tensor, "b n y x v queries m j"]:
    """Every coefficient of attention: for each (h, h~) they sum to 1 over the keys (j, h^).

    Args:
        query: of the pixels that attend.
        key: of their neighbours.
        inside: which neighbours are in the image.
        positions: rho_P for this neighbourhood.
        scale: what scores are multiplied with.
    """
    query = scale * query

    # <q(i, h~), k(j, h^)>; with own_query the one query of output h is h itself.
    content = torch.einsum("bcnqyx->bnyxqc", query) @ key.flatten(-2)
    content = content.unflatten(-1, key.shape[-2:])
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
    weight: Tensor = score.flatten(-2).softmax(-1).view_as(score)
    return weight


def kept(dropout: Dropout, shape: tuple[int, ...], device: torch.device) -> Bool[Tensor, "b n y x v q m j"]:
    """Which of all coefficients survive dropout."""
    keys = shape[6]

    def axis(which: int, size: int) -> Tensor:
        return torch.arange(size, device=device).view(-1, *[1] * (7 - which))

    image, head, row, column, h, query, _, offset = (axis(which, size) for which, size in enumerate(shape))
    of_pixels = dropout.noise_of_pixels((dropout.first_image + image) * shape[1] + head, row * shape[3] + column)
    of_pairs = noise_of_pairs(query * shape[4] + h, axis(6, (keys + 1) // 2))
    noise = Noise.of(of_pixels, of_pairs, noise_of_offsets(offset))
    return dropout.kept(noise, -2, keys, torch.bool, Workspace(noise.a))


def neighbors(x: Shaped[Tensor, "b c n m y x"], side: int) -> Shaped[Tensor, "b n y x c m j"]:
    """The side x side neighbourhood of every pixel, zero outside the image."""
    radius = side // 2
    padded = F.pad(x, (radius, radius, radius, radius))
    return padded.unfold(-2, side, 1).unfold(-2, side, 1).permute(0, 2, 4, 5, 1, 3, 6, 7).flatten(-2)


def neighbors_of(
    x: Shaped[Tensor, "b c n m y x"], pixel: tuple[int, int], side: int
) -> Shaped[Tensor, "b n 1 1 c m j"]:
    """`neighbors` of one pixel alone."""
    row, column = pixel
    radius = side // 2
    window = F.pad(x, (radius, radius, radius, radius))[..., row : row + side, column : column + side]
    return window.transpose(1, 2).flatten(-2)[:, :, None, None]
