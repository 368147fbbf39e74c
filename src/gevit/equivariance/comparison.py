"""What the figures show: the feature maps F(gx) of a moved image beside the moved feature maps g F(x)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gevit._checks import check_choice
from gevit.equivariance.measuring import RelativeError, compare
from gevit.group_conv import GroupConv
from gevit.groups import Group
from gevit.layers import GroupAttention, LiftingAttention
from gevit.models.base import EquivariantModel
from gevit.models.features import halves
from gevit.models.info import ModelInfo
from gevit.models.transformer import GroupTransformer


class NothingToShow(ValueError):  # noqa: N818 - it is no fault of the caller's
    """The model has no such symmetry, or it cannot be shown."""


@dataclass(frozen=True)
class Comparison:
    """An image, the moved image, and the feature maps of one layer for both.

    Attributes:
        name: what moved the image, such as `90°`.
        layer: whose feature maps these are.
        image: the image x.
        moved: the moved image gx.
        plain: the feature maps F(x).
        found: the feature maps F(gx).
        promised: what equivariance promises for them, g F(x).
        exact: whether pixels moved to pixels; otherwise they were interpolated.
        info: what is known of the model, such as how its images were normalised.
    """

    name: str
    layer: str
    image: Float[Tensor, "channels height width"]
    moved: Float[Tensor, "channels height width"]
    plain: Float[Tensor, "features order rows columns"]
    found: Float[Tensor, "features order rows columns"]
    promised: Float[Tensor, "features order rows columns"]
    exact: bool = True
    info: ModelInfo | None = None

    @cached_property
    def error(self) -> RelativeError:
        """The worst and the mean relative error of F(gx) against g F(x), as `measure` has them."""
        return compare(self.found, self.promised, self.name, self.exact)

    def channel(self, wanted: int | None = None) -> int:
        """The channel that was asked for, or else the one that tells orientations apart best."""
        channels = len(self.plain)
        if wanted is None:
            return int(self.plain.var(1, correction=0).mean((-2, -1)).argmax())
        if not 0 <= wanted < channels:
            raise ValueError(f"{self.layer} has channels 0 to {channels - 1}, got {wanted}")
        return wanted


def compare_elements(
    model: EquivariantModel,
    image: Float[Tensor, "channels height width"],
    elements: Iterable[int],
    layer: str | None = None,
    group: Group | None = None,
) -> list[Comparison]:
    """Move the image by each of these elements of a group.

    Args:
        model: a model in evaluation mode.
        image: one image, as the model takes it.
        elements: the elements g.
        layer: one of `forward_features`; the first block if not given.
        group: that of the elements, the model's if not given. Another one is for models without rotations and
            reflections (`z2_sa`): their feature maps are images, which any group moves.

    >>> from gevit import create_model
    >>> model, image = create_model("d1_sa").eval(), torch.randn(1, 28, 28)
    >>> flip, = compare_elements(model, image, [1])
    >>> flip.name, flip.layer, flip.error < 1e-5
    ('flip', 'stage1_block1', True)
    """
    group, layer = group or model.group, _check_layer(model, layer)
    plain = _maps(model, image, layer)
    comparisons = []
    for element in elements:
        moved = group.act_on_image(image, element)
        found, promised = _maps(model, moved, layer), move_maps(plain, group, element)
        name, exact = group.name(element), group.is_exact(element)
        comparisons.append(Comparison(name, layer, image, moved, plain, found, promised, exact, model.info))
    return comparisons


def move_maps(maps: Float[Tensor, "*_ order height width"], group: Group, element: int) -> Tensor:
    """Move signals on the group, or maps of one element, which are images."""
    return group.act_on_image(maps, element) if maps.shape[-3] == 1 else group.act_on_signal(maps, element)


def compare_translation(
    model: EquivariantModel, image: Float[Tensor, "channels height width"], layer: str | None = None
) -> Comparison:
    """Move the image down and to the right by about a fifth of its side.

    Near the border a map depends on where the border is, and every norm of the network sees the whole map. The image is
    therefore laid on a canvas of its darkest colour, large enough that border and image do not meet within the reach of
    the layers, and only the middle, which the border does not reach, is compared. The shift is a multiple of the
    layer's stride: between the steps of a max-pool no network is equivariant.
    """
    if not isinstance(model, GroupTransformer):
        raise NothingToShow(f"translations are shown for models such as r4_sa, not for a {type(model).__name__}")
    layer = _check_layer(model, layer)
    reach, stride = _reach_and_stride(model, layer)
    steps = max(1, image.shape[-1] // 5 // stride)
    shift = steps * stride
    border = stride * -(-(2 * reach + shift + shift // 2) // stride)
    sides = 2 * [border - shift // 2, border + shift // 2]  # as far from the middle before the move as after it
    canvas = torch.stack([F.pad(plane, sides, value=float(plane.min())) for plane in image])

    moved = canvas.roll((shift, shift), (-2, -1))
    plain, found = (_maps(model, x, layer) for x in (canvas, moved))
    promised = plain.roll((steps, steps), (-2, -1))
    cut = -(-reach // stride) + steps
    rows, columns = (side - 2 * cut for side in plain.shape[-2:])
    canvas, moved = (_middle(x, stride * rows, stride * columns) for x in (canvas, moved))
    plain, found, promised = (_middle(x, rows, columns) for x in (plain, found, promised))
    name = f"{shift} pixels down and right"
    return Comparison(name, layer, canvas, moved, plain, found, promised, info=model.info)


def _check_layer(model: EquivariantModel, layer: str | None) -> str:
    if layer is None:
        return min(model.body, key=lambda name: "block" not in name)  # the first block, or the first layer of all
    return check_choice("layer", layer, ["lifting", *model.body])


def _maps(model: EquivariantModel, image: Tensor, layer: str) -> Tensor:
    with torch.no_grad():
        return model.forward_features(image[None])[layer][0]


def _reach_and_stride(model: GroupTransformer, layer: str) -> tuple[int, int]:
    """How many pixels of the image a pixel of the layer sees to each side, and how many apart its pixels are."""
    reach, stride = 0, 1
    for name, module in [("lifting", model.lifting), *model.body.items()]:
        for part in module.modules():
            if isinstance(part, GroupConv):
                reach += stride * (part.size // 2)
            elif isinstance(part, (LiftingAttention, GroupAttention)):
                if part.neighborhood is None:
                    raise NothingToShow("global attention sees the border of an image from everywhere")
                reach += stride * (part.neighborhood // 2)
            if halves(part):
                reach, stride = reach + 2 * stride, 2 * stride
        if name == layer:
            break
    return reach, stride


def _middle(x: Tensor, height: int, width: int) -> Tensor:
    top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
    return x[..., top : top + height, left : left + width]
