"""Errors that say what is wrong, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import torch
from torch import Tensor

from gevit.groups import Group


def check_choice(what: str, value: str, valid: Iterable[str]) -> str:
    """Return `value` if it is one of `valid`; otherwise raise, listing them and the nearest match."""
    choices = list(valid)
    if value in choices:
        return value
    names = {choice.lower(): choice for choice in choices}  # another case alone is the nearest of all
    nearest = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.4)
    hint = f"; did you mean {names[nearest[0]]!r}?" if nearest else ""
    raise ValueError(f"unknown {what} {value!r}; valid: {', '.join(choices)}{hint}")


def check_count(what: str, value: int) -> int:
    """Return `value` if it is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be a positive integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{what} must be a positive integer, got {value}")
    return value


def check_num_classes(value: int) -> int:
    """Return `value` if it is a number of classes; 0 stands for a model that gives features instead."""
    return value if type(value) is int and value == 0 else check_count("num_classes", value)


def check_rate(what: str, value: float) -> float:
    """Return `value` if it is a dropout rate."""
    if not 0 <= value < 1:
        raise ValueError(f"{what} must be at least 0 and below 1, got {value}")
    return value


def check_neighborhood(value: int | None) -> int | None:
    """Return `value` if it is an odd positive integer, or None (global attention)."""
    if value is None:
        return None
    if check_count("neighborhood", value) % 2 == 0:
        raise ValueError(
            f"neighborhood must be odd, so that it has a centre, got {value}; "
            f"use {value - 1} or {value + 1}, or None for global attention ('global' on the command line)"
        )
    return value


def check_group(group: Group) -> Group:
    """Return `group` if it is one."""
    if not isinstance(group, Group):
        raise TypeError(f"group must be a group such as gevit.groups.Dihedral(4), got {group!r}")
    return group


def casts_automatically(device: torch.device) -> bool:
    """Whether autocast is on; some devices have none."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def is_traced() -> bool:
    """Whether `torch.jit.trace` is recording what is computed."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    return tracing


def check_dtype(x: Tensor, parameter: Tensor) -> None:
    """Check that an input has the precision of the weights; autocast brings them together."""
    if x.dtype != parameter.dtype and not casts_automatically(x.device):
        raise TypeError(
            f"the input is {x.dtype} and the weights are {parameter.dtype}; convert one of them: "
            f"x.to({parameter.dtype}), or .to({x.dtype}) of the model or layer"
        )


def check_image(x: Tensor, channels: int) -> None:
    """Check that `x` is a batch of floating-point images `[batch, channels, height, width]`."""
    _check_floating("an image", x)
    expected = f"[batch, {channels}, height, width]"
    if x.ndim != 4:
        hint = "; add the batch axis with x[None]" if x.ndim == 3 else ""
        raise ValueError(f"expected images {expected}, got {x.ndim} axes: {tuple(x.shape)}{hint}")
    if x.shape[1] != channels:
        raise ValueError(f"expected images {expected}, got {x.shape[1]} channels: {tuple(x.shape)}")
    _check_size(x)


def check_signal(x: Tensor, channels: int, group: Group) -> None:
    """Check that `x` is a batch of signals on the group, `[batch, channels, |H|, height, width]`."""
    _check_floating("a group signal", x)
    expected = f"[batch, {channels}, {group.order}, height, width]"
    if x.ndim != 5:
        hint = "; lift images first, with LiftingAttention" if x.ndim == 4 else ""
        raise ValueError(f"expected a group signal {expected}, got {x.ndim} axes: {tuple(x.shape)}{hint}")
    if x.shape[1] != channels:
        raise ValueError(f"expected a group signal {expected}, got {x.shape[1]} channels: {tuple(x.shape)}")
    if x.shape[2] != group.order:
        raise ValueError(
            f"expected a group signal {expected} on {group}, got a group axis of {x.shape[2]}: {tuple(x.shape)}"
        )
    _check_size(x)


def _check_floating(what: str, x: Tensor) -> None:
    if not x.is_floating_point():
        hint = "take its real part or its magnitude" if x.is_complex() else "convert it, e.g. x.float() / 255"
        raise TypeError(f"{what} must be a floating-point tensor, got {x.dtype}; {hint}")


def _check_size(x: Tensor) -> None:
    if 0 in x.shape[-2:]:
        raise ValueError(f"height and width must be at least 1, got {tuple(x.shape)}")
