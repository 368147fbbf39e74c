"""Linear maps with the paper's initialisation."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear map whose weights start normal with std sqrt(2 / fan_in) and whose biases start at zero."""

    def reset_parameters(self) -> None:
        """Draw new weights."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.in_features))
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Pointwise(Linear):
    """The same linear map of the channels at every pixel (and group element): a 1x1 convolution."""

    def forward(self, x: Float[Tensor, "batch channels *domain"]) -> Float[Tensor, "batch out *domain"]:
        """Map the channel axis."""
        weight, columns = self.weight.expand(x.shape[0], -1, -1), x.flatten(2)
        bias = self.weight.new_zeros(()) if self.bias is None else self.bias[:, None]
        flat = torch.baddbmm(bias, weight, columns)
        out: Tensor = flat.unflatten(2, x.shape[2:])
        return out
