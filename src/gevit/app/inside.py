"""The feature maps and the attention of a model for an image and for the moved image, lined up by the group."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gevit.app.pixels import as_base64, as_levels
from gevit.app.scenes import Contender
from gevit.equivariance.comparison import compare_elements, move_maps
from gevit.equivariance.measuring import RelativeError, compare
from gevit.groups import Group
from gevit.models.attention_maps import attention_input, attention_maps

# The relative difference that is drawn as bright as can be.
BRIGHTEST_ERROR = 0.5

Image = Float[Tensor, "channels side side"]
Maps = Float[Tensor, "*rows height width"]


def feature_maps(
    contender: Contender, image: Image, layer: str, element: int, channel: int | None = None
) -> dict[str, Any]:
    """The maps of one channel of a layer: F(x), F(gx), what equivariance promises for it, and how far it is from that.

    Args:
        contender: whose.
        image: in [0, 1].
        layer: one of `forward_features`.
        element: g, of the group that acts.
        channel: which one; one with much to see if not given.
    """
    x = contender.info.normalize(image)
    [found] = compare_elements(contender.model, x, [element], layer, contender.acting)
    shown = found.channel(channel)
    maps = torch.stack([one[shown] for one in (found.plain, found.found, found.promised)])
    difference = (found.found - found.promised).abs().amax(0) / found.promised.abs().max().clamp(min=1e-12)
    return {
        "layer": layer,
        "channel": shown,
        "channels": len(found.plain),
        "moved": contender.acting.act_on_image(image, element),
        "maps": as_base64(as_levels(maps, float(maps.min()), float(maps.max()))),
        "difference": as_base64(as_levels(difference, 0.0, BRIGHTEST_ERROR)),
        **_facts(found.error, maps),
    }


def attention(
    contender: Contender, image: Image, layer: str, element: int, place: tuple[float, float]
) -> dict[str, Any]:
    """Where a pixel of the image looks, and where the moved pixel of the moved image does.

    Args:
        contender: whose attention.
        image: in [0, 1].
        layer: one of `attention_layers`.
        element: g.
        place: of the pixel, row and column as shares of height and width.
    """
    model, group = contender.model, contender.acting
    x = contender.info.normalize(image)
    images = torch.stack([x, group.act_on_image(x, element)])
    rows, columns = attention_input(model, images[:1], layer).shape[-2:]
    pixel = min(int(place[0] * rows), rows - 1), min(int(place[1] * columns), columns - 1)
    moved_pixel = _moved(pixel, (rows, columns), group, element)

    plain = attention_maps(model, images[:1], layer, pixel)[0]
    found = attention_maps(model, images[1:], layer, moved_pixel)[0]
    promised = move_maps(plain, group, element)
    # Beside the map of h, that of g h, which it becomes.
    lined_up = group.product[element] if found.shape[1] > 1 else torch.zeros(1, dtype=torch.long)
    maps = torch.stack([plain, found[:, lined_up]])
    error = compare(found, promised, group.name(element), group.is_exact(element))
    return {
        "layer": layer,
        "pixel": pixel,
        "moved_pixel": moved_pixel,
        "heads": len(plain),
        "becomes": [group.name(int(h)) for h in lined_up],
        "moved": contender.acting.act_on_image(image, element),
        "maps": as_base64(as_levels(maps, 0.0, float(maps.max()))),
        **_facts(error, maps),
    }


def _facts(error: RelativeError, maps: Maps) -> dict[str, Any]:
    if not maps.isfinite().all():
        raise ValueError("the model gives numbers that are not finite for this image")
    order, height, width = maps.shape[-3:]
    numbers = {"error": error.worst, "mean_error": error.mean, "exact": error.exact}
    return numbers | {"order": order, "height": height, "width": width}


def _moved(pixel: tuple[int, int], size: tuple[int, int], group: Group, element: int) -> tuple[int, int]:
    """The pixel of the moved image, nearest to where the element moves this one about the centre."""
    start = torch.tensor([at - (n - 1) / 2 for at, n in zip(pixel, size, strict=True)], dtype=torch.float64)
    rows, columns = group.act_on_image(torch.empty(size), element).shape
    offset = group.matrices[element] @ start
    row, column = (round(float(x) + (n - 1) / 2) for x, n in zip(offset, (rows, columns), strict=True))
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"{group.name(element)} moves this pixel out of the image; choose one nearer to the centre")
    return row, column
