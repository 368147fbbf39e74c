"""Where a pixel looks: the attention of a layer as maps over the image, by head and group element."""

from __future__ import annotations

import threading

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_choice
from gevit.layers import GroupAttention, LiftingAttention
from gevit.models.base import EquivariantModel

Attention = LiftingAttention | GroupAttention


def attention_layers(model: EquivariantModel) -> dict[str, Attention]:
    """The attention of the layers that have one, by their names in `forward_features`.

    >>> from gevit.pretrained import create_model
    >>> list(attention_layers(create_model("r4_sa", preset="nano")))
    ['stage2_block1', 'stage2_block2', 'stage2_block3', 'stage2_block4']
    """
    layers = [("lifting", model.lifting), *model.body.items()]
    return {name: part for name, layer in layers for part in layer.modules() if isinstance(part, Attention)}


def attention_input(
    model: EquivariantModel, images: Float[Tensor, "batch channels height width"], layer: str
) -> Tensor:
    """What the attention of this layer is given: an image in lifting, else a signal on the group."""
    check_choice("layer with attention", layer, attention_layers(model))
    given: list[Tensor] = []
    asking = threading.get_ident()

    def keep(_: nn.Module, inputs: tuple[Tensor]) -> None:
        if threading.get_ident() == asking and not given:  # other threads may be using the model, too
            given.append(inputs[0])

    handle = attention_layers(model)[layer].register_forward_pre_hook(keep)
    try:
        with torch.no_grad():
            for name, _ in model.iterate_features(images):
                if name == layer:
                    break
    finally:
        handle.remove()
    return given[0]


def attention_maps(
    model: EquivariantModel,
    images: Float[Tensor, "batch channels height width"],
    layer: str,
    pixel: tuple[int, int],
) -> Float[Tensor, "batch heads order rows columns"]:
    """How much a pixel of a layer attends to each other, by head and element h of its output.

    The mean over the queries h~ of what `attention_of_pixel` gives, summed over the elements h^ of the keys: every map
    sums to 1. For an equivariant model the maps are equivariant: those of the moved pixel of the moved image are these,
    moved.

    Args:
        model: in evaluation mode.
        images: as the model takes them.
        layer: one of `attention_layers`.
        pixel: row and column in the map that the layer is given, whose size is that of the result.
    """
    signal = attention_input(model, images, layer)
    with torch.no_grad():
        weights = attention_layers(model)[layer].attention_of_pixel(signal, pixel).mean(3).sum(3)
    height, width = signal.shape[-2:]
    side = weights.shape[-1]
    radius = side // 2
    canvas = weights.new_zeros(*weights.shape[:3], height + 2 * radius, width + 2 * radius)
    canvas[..., pixel[0] : pixel[0] + side, pixel[1] : pixel[1] + side] = weights
    return canvas[..., radius : radius + height, radius : radius + width]
