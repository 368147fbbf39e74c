"""Pictures of equivariance: feature maps of an image and of the transformed image, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gevit.models.transformer import GroupTransformer

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

# Perceptually even and safe for colour-blind readers; maps share one scale, differences another.
MAP_COLORS, DIFFERENCE_COLORS = "cividis", "magma"


def feature_map_figure(
    models: Mapping[str, GroupTransformer],
    image: Float[Tensor, "channels height width"],
    layer: str = "stage1_block1",
) -> Figure:
    """Draw how feature maps follow the image, for each model under one element of its group.

    The first row shows the image and its feature maps F(x), one for each group element; the second the transformed
    image and its maps F(L_g x); the third the maps that equivariance promises, L_g F(x); the last their difference
    from the second.

    Args:
        models: models by the name to print, in evaluation mode.
        image: one image.
        layer: which of `forward_features` to draw.
    """
    from matplotlib.figure import Figure

    columns = 1 + max(model.group.order for model in models.values())
    figure = Figure(figsize=(1.15 * columns + 0.5, 5.3 * len(models)), layout="constrained")
    parts = figure.subfigures(len(models), 1, squeeze=False)[:, 0]
    for part, (name, model) in zip(parts, models.items(), strict=True):
        # The last quarter turn of the group and, where there is one, a reflection with it.
        element = max(e for e in range(model.group.order) if model.group.is_exact(e))
        _draw(part, columns, name, model, image, layer, element)
    return figure


def _draw(
    part: SubFigure,
    columns: int,
    name: str,
    model: GroupTransformer,
    image: Tensor,
    layer: str,
    element: int,
) -> None:
    group = model.group
    moved = group.act_on_image(image, element)
    with torch.no_grad():
        plain = model.forward_features(image[None])[layer]
        found = model.forward_features(moved[None])[layer]
    promised = group.act_on_signal(plain, element)
    channel = int(plain[0].var(1, correction=0).mean((-2, -1)).argmax())  # the one that tells orientations apart best
    rows = [
        ("$x$ and $F(x)$", image, plain[0, channel]),
        ("$gx$ and $F(gx)$", moved, found[0, channel]),
        ("$g\\,F(x)$", None, promised[0, channel]),
        ("|difference|", None, (found - promised)[0, channel].abs()),
    ]
    low, high = float(plain[0, channel].min()), float(plain[0, channel].max())
    worst = float((found - promised).abs().max() / promised.abs().max())

    part.suptitle(
        f"{name}: {layer}, channel {channel}; g = {group.name(element)}; relative error {worst:.0e}",
        fontsize=11,
    )
    axes = part.subplots(len(rows), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
        axis.set_box_aspect(image.shape[-2] / image.shape[-1])
    for row, (label, picture, maps) in enumerate(rows):
        axes[row, 0].text(-0.08, 0.5, label, transform=axes[row, 0].transAxes, rotation=90, va="center", ha="right")
        if picture is not None:
            axes[row, 0].imshow(_to_display(picture), cmap="gray")
        is_difference = label == "|difference|"
        for h in range(group.order):
            axes[row, h + 1].imshow(
                maps[h].numpy(force=True),
                cmap=DIFFERENCE_COLORS if is_difference else MAP_COLORS,
                vmin=0 if is_difference else low,
                vmax=0.1 * (high - low) if is_difference else high,
            )
            if row == 0:
                axes[row, h + 1].set_title(f"h = {group.name(h)}", fontsize=8)


def _to_display(image: Tensor) -> np.ndarray:
    """An image scaled to [0, 1], rows x columns (x channels)."""
    scaled = (image - image.min()) / (image.max() - image.min()).clamp_min(1e-12)
    return (scaled[0] if len(scaled) == 1 else scaled.permute(1, 2, 0)).numpy(force=True)
