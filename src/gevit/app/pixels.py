"""Images and maps as bytes that the page draws."""

from __future__ import annotations

import base64

import torch
from jaxtyping import Float
from torch import Tensor

from gevit.data.preview import as_colours
from gevit.models.info import ModelInfo


def as_rgb(pixels: Float[Tensor, "channels height width"], info: ModelInfo) -> bytes:
    """Pixels as bytes of red, green and blue."""
    colours = as_colours(pixels[None], info.mean, info.std)[0]
    return (255 * colours).round().byte().permute(1, 2, 0).contiguous().numpy().tobytes()


def as_levels(maps: Float[Tensor, "*rows height width"], low: float, high: float) -> bytes:
    """Numbers as bytes from 0, at `low`, to 255, at `high`."""
    levels = (255 * (maps - low) / max(high - low, 1e-12)).round().clamp(0, 255)
    return levels.to(torch.uint8).contiguous().numpy().tobytes()


def as_base64(content: bytes) -> str:
    """Bytes as text that JSON can hold."""
    return base64.b64encode(content).decode()
