"""The equation of group attention, literally: every coefficient (h, h~, h^, j) exists in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gevit.encoding import Positions


def attend_reference(
    query: Float[Tensor, "b c n q y x"],
    key: Float[Tensor, "b c n m y x"],
    value: Float[Tensor, "b c n m y x"],
    positions: Positions,
    scale: float,
    dropout: float,
) -> Float[Tensor, "b c n v y x"]:
    """Group attention as the paper writes it. Axes: v = h, q = h~, m = h^, j = neighbour, n = head."""
    side = round(positions.offset_index.shape[1] ** 0.5)
    space_channels = positions.space.shape[1]

    # <q(i, h~), k(j, h^)>; with own_query the one query of output h is h itself.
    content = torch.einsum("bcnqyx,bcnmyxj->bnqyxmj", query, neighbors(key, side))
    content = content.unsqueeze(3) if positions.own_query else content.unsqueeze(2)

    # <q(i, h~), rho_P(h^-1 (x_j - x_i))> and <q(i, h~), rho_P(element[h, h~, h^])>
    rho_space = positions.space[positions.offset_index]
    to_space, to_element = query[:, :space_channels], query[:, space_channels:]
    if positions.own_query:
        space = torch.einsum("bcnvyx,vjc->bnvyxj", to_space, rho_space).unsqueeze(3)
    else:
        space = torch.einsum("bcnqyx,vjc->bnvqyxj", to_space, rho_space)
    score = content + space.unsqueeze(-2)
    if positions.element.numel():
        rho_element = positions.element[positions.element_index]
        if positions.own_query:
            element = torch.einsum("bcnvyx,vqmc->bnvqyxm", to_element, rho_element)
        else:
            element = torch.einsum("bcnqyx,vqmc->bnvqyxm", to_element, rho_element)
        score = score + element.unsqueeze(-1)

    inside = neighbors(query.new_ones(query.shape[-2:], dtype=torch.bool), side)
    score = (scale * score).masked_fill(~inside[:, :, None], -torch.inf)
    weight = F.dropout(score.flatten(-2).softmax(-1), dropout).view_as(score)
    return torch.einsum("bnvqyxmj,bcnmyxj->bcnvyx", weight, neighbors(value, side))


def neighbors(x: Tensor, side: int) -> Tensor:
    """The side x side neighbourhood of every pixel, `[..., y, x] -> [..., y, x, j]`, zero outside the image."""
    radius = side // 2
    padded = F.pad(x, (radius, radius, radius, radius))
    return padded.unfold(-2, side, 1).unfold(-2, side, 1).flatten(-2)
