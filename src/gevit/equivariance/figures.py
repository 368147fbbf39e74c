"""Pictures of equivariance, made for print: a column or a page wide, on scales that can be compared."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gevit.data.preview import as_colours
from gevit.equivariance.comparison import Comparison, compare_elements
from gevit.groups import Group
from gevit.models.base import EquivariantModel
from gevit.models.info import ModelInfo
from gevit.rendering import charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure, SubFigure

COLUMN, PAGE = 3.4, 7.0  # inches
STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.titlepad": 3,
    "figure.titlesize": 8,
    "axes.linewidth": 0.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "figure.constrained_layout.w_pad": 0.015,
    "figure.constrained_layout.h_pad": 0.015,
    "figure.constrained_layout.wspace": 0.01,
    "figure.constrained_layout.hspace": 0.01,
    "image.interpolation": "none",
    "pdf.fonttype": 42,
}
# Perceptually even, and safe for colour-blind readers.
MAP_COLORS, ERROR_COLORS = "cividis", "magma"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def equivariance_figure(group: Group, comparison: Comparison, title: str, channel: int | None = None) -> Figure:
    """Draw how feature maps follow an image.

    The first row shows the image and its feature maps F(x), one for each group element; the second the moved image and
    its maps F(gx); the third the maps that equivariance promises, g F(x); the last how far the second is from those,
    relative to the largest value of the layer.

    Args:
        group: the group of the feature maps.
        comparison: what to draw.
        title: what is shown; the layer and the channel follow it.
        channel: which channel of the layer; one with much to see if not given.
    """
    from matplotlib.figure import Figure

    columns = 1 + group.order
    with _style():
        figure = Figure(_size(columns, rows=4), layout="compressed")
        _draw_following(figure, columns, group, comparison, title, channel)
        _settle(figure)
    return figure


def feature_map_figure(
    models: Mapping[str, EquivariantModel],
    image: Float[Tensor, "channels height width"],
    layer: str | None = None,
) -> Figure:
    """Draw how feature maps follow the image, for each model under one element of its group.

    Args:
        models: models by the name to print, in evaluation mode.
        image: one image.
        layer: which of `forward_features` to draw; the first block if not given.
    """
    from matplotlib.figure import Figure

    columns = 1 + max(model.group.order for model in models.values())
    with _style():
        width, height = _size(columns, rows=4)
        figure = Figure((width, height * len(models)), layout="constrained")
        parts = figure.subfigures(len(models), 1, squeeze=False)[:, 0]
        for part, (name, model) in zip(parts, models.items(), strict=True):
            # The last quarter turn of the group and, where there is one, a reflection with it.
            element = max(e for e in range(model.group.order) if model.group.is_exact(e))
            [comparison] = compare_elements(model, image, [element], layer)
            _draw_following(part, columns, model.group, comparison, f"{name}, g = {comparison.name}")
        _settle(figure)
    return figure


def error_figure(
    group: Group, models: Mapping[str, Sequence[Comparison]], title: str, channel: int | None = None
) -> Figure:
    """Draw how far the feature maps of models are from equivariant, side by side, on one logarithmic scale.

    A column is an element g that moves pixels to pixels. On top is the moved image gx; then, for each model, one of
    its maps F(x), that map found for gx and moved back, g^-1 F(gx), and the error |g^-1 F(gx) - F(x)|, averaged over
    the channels and elements of the layer and relative to the mean of |F(x)|: the mean of the drawn error is the mean
    relative error beneath.

    Args:
        group: the group of all the models.
        models: comparisons by the name to print, one for each element of the group, in its order.
        title: what is shown; the layer follows it.
        channel: which channel of the maps; for each model one with much to see if not given.
    """
    from matplotlib.figure import Figure

    elements = [e for e in range(1, group.order) if group.is_exact(e)]
    rows, columns = 1 + 2 * len(models), 1 + len(elements)
    with _style():
        width, height = _size(columns, rows)
        figure = Figure((width, height + 0.28 * len(models)), layout="compressed")  # room for the numbers
        first = next(iter(models.values()))
        figure.suptitle(f"{title}: {first[0].layer}")
        axes = _grid(figure, rows, columns)
        _show_image(axes[0, 0], first[0].image, first[0].info)
        axes[0, 0].set_title("$x$")
        for axis, element in zip(axes[0, 1:], elements, strict=True):
            _show_image(axis, first[element].moved, first[element].info)
            axis.set_title(f"$g$ = {_wrapped(group.name(element))}")
        scale = _error_scale(first[0].plain)
        for row, (name, comparisons) in enumerate(models.items()):
            _draw_errors(axes[1 + 2 * row : 3 + 2 * row], name, group, comparisons, elements, scale, channel)
        _colorbar(figure, axes[1:, 1:], scale, ERROR_COLORS, "relative error")
        _settle(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all; the file's suffix says in which format."""
    with _style():
        charts.save(figure, path, dpi=300)


def _draw_following(
    part: Figure | SubFigure,
    columns: int,
    group: Group,
    comparison: Comparison,
    title: str,
    channel: int | None = None,
) -> None:
    from matplotlib.colors import Normalize

    channel = comparison.channel(channel)
    plain, found, promised = (maps[channel] for maps in (comparison.plain, comparison.found, comparison.promised))
    error = (found - promised).abs() / comparison.promised.abs().max()
    shades = Normalize(float(plain.min()), float(plain.max()))
    scale = _error_scale(plain)
    mean, worst = _number(comparison.error.mean), _number(comparison.error.worst)
    part.suptitle(f"{title}: {comparison.layer}, channel {channel}")
    part.supxlabel(f"relative error of the layer: mean {mean}, worst {worst}", fontsize=STYLE["font.size"])
    axes = _grid(part, 4, columns)
    _show_image(axes[0, 0], comparison.image, comparison.info)
    _show_image(axes[1, 0], comparison.moved, comparison.info)
    axes[0, 0].set_title("$h$ =", loc="right")
    for axis, label in zip(axes[:2, 0], ("$x$\n$F(x)$", "$gx$\n$F(gx)$"), strict=True):
        axis.set_ylabel(label)
    for axis, label in zip(axes[2:, 0], ("promised:\n$g\\,F(x)$", "error:\n$|F(gx)$\n$-\\,g\\,F(x)|$"), strict=True):
        _write(axis, label)
    for h in range(group.order):
        axes[0, 1 + h].set_title(_wrapped(group.name(h)))
        for axis, maps in zip(axes[:3, 1 + h], (plain, found, promised), strict=True):
            _show(axis, maps[h], shades, MAP_COLORS)
        _show(axes[3, 1 + h], error[h], scale, ERROR_COLORS)
    drawn = axes[:, 1 : 1 + group.order]
    _colorbar(part, drawn[:3], shades, MAP_COLORS, "feature map")
    _colorbar(part, drawn[3:], scale, ERROR_COLORS, "rel. error")


def _draw_errors(
    axes: np.ndarray,
    name: str,
    group: Group,
    comparisons: Sequence[Comparison],
    elements: Sequence[int],
    scale: LogNorm,
    channel: int | None,
) -> None:
    from matplotlib.colors import Normalize

    plain = comparisons[0].plain
    channel = comparisons[0].channel(channel)
    drawn = plain[channel, 0]
    shades = Normalize(float(drawn.min()), float(drawn.max()))
    _show(axes[0, 0], drawn, shades, MAP_COLORS)
    axes[0, 0].set_ylabel(f"{name}\nchannel {channel}")
    axes[0, 0].set_title("$F(x)$")
    _write(axes[1, 0], "error, mean\nover channels\nand elements")
    axes[1, 0].set_xlabel("mean\nworst", ha="right", x=1)
    for column, element in enumerate(elements, start=1):
        found = group.act_on_signal(comparisons[element].found, int(group.inverse[element]))
        error = (found - plain).abs().mean((0, 1)) / plain.abs().mean()
        _show(axes[0, column], found[channel, 0], shades, MAP_COLORS)
        axes[0, column].set_title("$g^{-1}F(gx)$")
        _show(axes[1, column], error, scale, ERROR_COLORS)
        measured = comparisons[element].error
        axes[1, column].set_xlabel(f"{_number(measured.mean)}\n{_number(measured.worst)}")


@contextlib.contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def _size(columns: int, rows: int) -> tuple[float, float]:
    """A column or a page wide, and as high as square pictures make it."""
    width = COLUMN if columns <= 5 else PAGE
    side = min((width - 0.8) / columns, 0.8)
    return width, rows * (side + 0.03) + 0.6


def _settle(figure: Figure) -> None:
    """Lay the figure out once for all formats, which takes longer than to draw it."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _grid(part: Figure | SubFigure, rows: int, columns: int) -> np.ndarray:
    axes: np.ndarray = part.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.set_box_aspect(1)
        axis.spines[:].set_visible(False)
    return axes


def _show(axis: Axes, values: Tensor, scale: Normalize, colors: str) -> None:
    axis.imshow(values.numpy(force=True), norm=scale, cmap=colors, aspect="auto")


def _show_image(axis: Axes, image: Tensor, info: ModelInfo | None) -> None:
    """Show the pixels of an image that is normalised; to mean 0 and spread 1, if no more is known."""
    if info:
        pixels, mean, std = info.denormalize(image), info.mean, info.std
    else:
        pixels, mean, std = image, (0.0,) * len(image), (1.0,) * len(image)
    [colours] = as_colours(pixels[None], mean, std)
    axis.imshow(colours.permute(1, 2, 0).numpy(force=True), aspect="auto")


def _write(axis: Axes, text: str) -> None:
    """Text where a picture would be."""
    axis.text(1, 0.5, text, transform=axis.transAxes, ha="right", va="center")


def _error_scale(maps: Tensor) -> LogNorm:
    """From below rounding to as large as the maps themselves."""
    from matplotlib.colors import LogNorm

    return LogNorm(1e-17 if maps.dtype == torch.float64 else 1e-9, 1, clip=True)  # a logarithm has no zero


def _colorbar(part: Figure | SubFigure, axes: np.ndarray, scale: Normalize, colors: str, label: str) -> None:
    from matplotlib.cm import ScalarMappable

    bar = ScalarMappable(scale, colors)
    part.colorbar(bar, ax=axes.ravel().tolist(), label=label, aspect=8 * len(axes), pad=0.02)


def _number(value: float) -> str:
    """A number as one prints it: 3.5×10⁻⁷."""
    if not math.isfinite(value):
        return str(value)
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if value else "0"


def _wrapped(name: str) -> str:
    return name.replace(", ", ",\n")
