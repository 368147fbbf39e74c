"""How far a module is from commuting with a group: F(L_g x) against L_g F(x).

Works on any module or function of one tensor. What kind of thing goes in and comes out is read off the number of axes:
4 is a batch of images, 5 a batch of signals on the group, 2 or less is invariant (logits); others are refused. A module
may also return a dict or a sequence of such tensors; the worst of them counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gevit.groups import Group
from gevit.layers import StochasticDepth

# The largest relative error that rounding is taken to explain, in the lowest precision of input and outputs.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}
TRANSLATIONS = ((1, 0), (0, 1), (2, -1))  # rows and columns that `measure` shifts an input by


class EquivarianceError(AssertionError):
    """A module does not commute with an element of the group."""


class RelativeError(float):
    """The worst relative error of one transformation, max |a - b| / max |b|, as a float.

    Attributes:
        name: what was done to the input.
        mean: the mean relative error, mean |a - b| / mean |b|.
        exact: whether the transformation moves pixels to pixels; others are interpolated, and their error is mostly
            that of the interpolation.
    """

    name: str
    mean: float
    exact: bool

    def __new__(cls, worst: float, mean: float, name: str, exact: bool = True) -> RelativeError:
        """Make one from its numbers."""
        error = super().__new__(cls, worst)
        error.name, error.mean, error.exact = name, mean, exact
        return error

    def __reduce__(self) -> tuple[type[RelativeError], tuple[float, float, str, bool]]:
        return RelativeError, (float(self), self.mean, self.name, self.exact)

    @property
    def worst(self) -> float:
        """The worst relative error: the value itself."""
        return float(self)


@dataclass(frozen=True)
class Report(Sequence[RelativeError]):
    """Relative errors of a module: a sequence with one for each element of the group, and those of translations."""

    group: Group
    elements: tuple[RelativeError, ...]
    translations: tuple[RelativeError, ...]

    @property
    def worst(self) -> float:
        """The worst error over the exact elements (quarter turns and flips), a NaN counting as worst."""
        return max((error for error in self.elements if error.exact), key=_nan_is_worst)

    @property
    def mean(self) -> float:
        """The mean over the exact elements of their mean errors."""
        means = [error.mean for error in self.elements if error.exact]
        return sum(means) / len(means)

    def __getitem__(self, element: int) -> RelativeError:  # type: ignore[override]
        return self.elements[element]

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[RelativeError]:
        return iter(self.elements)

    def __str__(self) -> str:
        rows = [("element", "worst", "mean", "")]
        for error in (*self.elements, *self.translations):
            note = "" if error.exact else "approximate (interpolated)"
            rows.append((error.name, f"{error:.1e}", f"{error.mean:.1e}", note))
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{a:<{width}}  {b:>8}  {c:>8}  {d}".rstrip() for a, b, c, d in rows)


def measure(
    module: nn.Module | Callable[[Tensor], object],
    x: Tensor,
    group: Group,
    translations: Sequence[tuple[int, int]] = TRANSLATIONS,
    margin: int | None = None,
) -> Report:
    """Measure how far `module` is from equivariant, element by element, and for translations.

    Quarter turns and flips move pixels exactly, so a right module has errors of rounding alone. Other angles are
    interpolated and only approximate on a square grid. Translations roll the input; since a module may treat the border
    of an image differently, maps are compared only at least `margin` pixels away from it and from the seam (a module
    that pools space away or subsamples is not translation equivariant to rounding). The module and `x` are left as they
    are: the statistics of batch norms in training mode too.

    Args:
        module: takes images or group signals; put it in evaluation mode first, dropout is not equivariant.
        x: input, `[batch, channels, height, width]` or `[batch, channels, |H|, height, width]`.
        group: the group.
        translations: shifts (rows, columns) to try.
        margin: how far from border and seam translated maps are compared; a quarter of the map if not given.

    >>> from gevit.groups import Cyclic
    >>> blur = nn.AvgPool2d(3, stride=1, padding=1)
    >>> measure(blur, torch.randn(1, 1, 8, 8, dtype=torch.float64), Cyclic(4)).worst < 1e-12
    True
    """
    with _observed(module, x, group):
        return worst_of(_measure_outputs(module, x, group, translations, margin))


def measure_layers(module: Callable[[Tensor], Mapping[str, Tensor]], x: Tensor, group: Group) -> dict[str, Report]:
    """The elements' errors of each tensor that `module`, such as `model.forward_features`, returns by name."""
    names: list[str] = []

    def outputs(x: Tensor) -> list[Tensor]:
        found = module(x)
        names[:] = found
        return list(found.values())

    with _observed(module, x, group):
        reports = _measure_outputs(outputs, x, group, translations=(), margin=None)
    return dict(zip(names, reports, strict=True))


def worst_of(reports: Iterable[Report]) -> Report:
    """Several reports of one group as one: of every transformation the worst error, and the worst mean one."""
    reports = list(reports)
    elements = zip(*(report.elements for report in reports), strict=True)
    translations = zip(*(report.translations for report in reports), strict=True)
    return Report(reports[0].group, tuple(map(_worst, elements)), tuple(map(_worst, translations)))


def assert_equivariant(
    module: nn.Module | Callable[[Tensor], object],
    x: Tensor,
    group: Group,
    tolerance: float | None = None,
) -> None:
    """Raise `EquivarianceError` unless `module` commutes with every quarter turn and flip of the group, to rounding.

    Elements that interpolate are not asserted: no network on a square grid is exactly equivariant to them. The largest
    error of an output is relative to its largest number: what is far smaller, in a channel of its own, is not seen.
    Where no exact element changes the input, nothing is proved: `Cyclic(3)` has none but the identity, and zeros stay
    zeros.

    Args:
        module: as in `measure`.
        x: as in `measure`.
        group: the group.
        tolerance: largest relative error allowed; if not given, that of the lowest precision of input and outputs:
            1e-10 in float64, 1e-5 in float32, 5e-3 in float16 and 5e-2 in bfloat16.
    """
    exact = [element for element in range(group.order) if group.is_exact(element)]
    with _observed(module, x, group):
        plain = _outputs(module, x, group)
        if tolerance is None:
            tolerance = max(TOLERANCES[y.dtype] for y in (x, *plain) if y.dtype in TOLERANCES)
        errors = {element: _worst(_element_errors(module, x, plain, group, element)) for element in exact}
    failed = [element for element in exact if not errors[element] <= tolerance]  # a NaN fails too
    if failed:
        element = max(failed, key=lambda e: _nan_is_worst(errors[e]))
        error = errors[element]
        raise EquivarianceError(
            f"not equivariant to element {element} of {group} ({error.name}): worst relative error {error:.2e} "
            f"(mean {error.mean:.2e}), tolerance {tolerance:.0e}; {len(failed)} of {len(exact)} elements fail"
        )


def _measure_outputs(
    module: Callable[[Tensor], object],
    x: Tensor,
    group: Group,
    translations: Sequence[tuple[int, int]],
    margin: int | None,
) -> list[Report]:
    """One report for each tensor that the module returns."""
    plain = _outputs(module, x, group)
    elements = [_element_errors(module, x, plain, group, element) for element in range(group.order)]
    shifted = [
        [
            compare(_inner(found, shift, margin), _inner(_roll(y, shift), shift, margin), f"translation {shift}")
            for found, y in zip(_outputs(module, _roll(x, shift), group), plain, strict=True)
        ]
        for shift in translations
    ]
    return [
        Report(group, tuple(errors[k] for errors in elements), tuple(errors[k] for errors in shifted))
        for k in range(len(plain))
    ]


def _element_errors(
    module: Callable[[Tensor], object], x: Tensor, plain: list[Tensor], group: Group, element: int
) -> list[RelativeError]:
    """Compare each of the module's outputs for the transformed input with its transformed output in `plain`."""
    found = _outputs(module, _act(x, group, element), group)
    name, exact = group.name(element), group.is_exact(element)
    return [compare(f, _act(y, group, element), name, exact) for f, y in zip(found, plain, strict=True)]


def _outputs(module: Callable[[Tensor], object], x: Tensor, group: Group) -> list[Tensor]:
    """The tensors that the module returns, each of a kind that the group is known to act on."""
    # Copies: a module may work in place, or return the same memory every time.
    outputs: list[Tensor] = [y for y in pytree.tree_leaves(module(x.clone())) if y is not None]
    if not outputs:
        raise ValueError("the module returns no tensor")
    for y in outputs:
        if not isinstance(y, Tensor):
            raise TypeError(f"the module returns a {type(y).__name__}, expected tensors; leave it out")
        if y.ndim not in (0, 1, 2, 4, 5):
            raise ValueError(
                f"the module returns a tensor of {y.ndim} axes, {tuple(y.shape)}: expected logits [batch, classes], "
                f"images [batch, channels, height, width] or signals [batch, channels, {group.order}, height, width]; "
                "bring it to such a shape, e.g. tokens [batch, n, channels] by "
                "tokens.transpose(1, 2).unflatten(2, (height, width))"
            )
        if not y.numel():
            raise ValueError(f"there is nothing to measure in an output of shape {tuple(y.shape)}")
    return [y.clone() for y in outputs]


@contextlib.contextmanager
def _observed(module: object, x: Tensor, group: Group) -> Iterator[None]:
    """Check what is measured, and leave the module as it was: batch norms in training mode count what they see."""
    owner = getattr(module, "__self__", module)  # of a method, such as model.forward_features
    parts = list(owner.modules()) if isinstance(owner, nn.Module) else []
    _check_input(parts, x, group)
    training = [buffer for part in parts if part.training for buffer in part.buffers(recurse=False)]
    before = [buffer.clone() for buffer in training]
    try:
        with torch.no_grad():
            yield
    finally:
        for buffer, value in zip(training, before, strict=True):
            buffer.copy_(value)


def _check_input(parts: Sequence[nn.Module], x: Tensor, group: Group) -> None:
    if x.ndim not in (4, 5):
        raise ValueError(
            f"expected images [batch, channels, height, width] or signals [batch, channels, {group.order}, height, "
            f"width], got {x.ndim} axes: {tuple(x.shape)}"
        )
    if not x.is_floating_point():
        raise TypeError(f"expected a floating-point input, got {x.dtype}; convert it, e.g. x.float() / 255")
    if not x.numel():
        raise ValueError(f"there is nothing to measure in an input of shape {tuple(x.shape)}")
    if any(part.training and _drops(part) for part in parts):
        raise ValueError("the module is in training mode and has dropout, which is random; call module.eval() first")


def _drops(module: nn.Module) -> bool:
    kinds: tuple[tuple[type[nn.Module], str], ...] = ((nn.modules.dropout._DropoutNd, "p"), (StochasticDepth, "rate"))
    name = next((name for kind, name in kinds if isinstance(module, kind)), "dropout")
    rate = getattr(module, name, 0.0)
    return isinstance(rate, float) and rate > 0


def _act(x: Tensor, group: Group, element: int) -> Tensor:
    if x.ndim <= 2:
        return x
    return group.act_on_signal(x, element) if x.ndim == 5 else group.act_on_image(x, element)


def _roll(x: Tensor, shift: tuple[int, int]) -> Tensor:
    return x if x.ndim <= 2 else x.roll(shift, (-2, -1))


def _inner(x: Tensor, shift: tuple[int, int], margin: int | None) -> Tensor:
    if x.ndim <= 2:
        return x
    height, width = x.shape[-2:]
    top, left = (
        min((n - 1) // 2, (n // 4 if margin is None else margin) + abs(s))
        for n, s in zip((height, width), shift, strict=True)
    )
    return x[..., top : height - top, left : width - left]


def compare(found: Tensor, wanted: Tensor, name: str, exact: bool = True) -> RelativeError:
    """The worst and the mean relative error of what was found against what was wanted."""
    if found.shape != wanted.shape:
        raise ValueError(f"the output for {name} has shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
    if not (wanted.is_floating_point() or wanted.is_complex()):
        found, wanted = found.double(), wanted.double()  # integers without a sign wrap around
    difference, scale = (found - wanted).abs().double(), wanted.abs().double()
    worst, mean = _ratio(difference.max(), scale.max()), _ratio(difference.mean(), scale.mean())
    return RelativeError(worst, mean, name, exact)


def _worst(errors: Sequence[RelativeError]) -> RelativeError:
    """The worst of the errors of one transformation, with the worst of the means."""
    mean = max((error.mean for error in errors), key=_nan_is_worst)
    return RelativeError(max(errors, key=_nan_is_worst), mean, errors[0].name, errors[0].exact)


def _ratio(difference: Tensor, scale: Tensor) -> float:
    # A map that is zero everywhere has no scale of its own: report the difference itself.
    return float(difference / scale) if scale > 0 else float(difference)


def _nan_is_worst(value: float) -> float:
    return float("inf") if value != value else value
