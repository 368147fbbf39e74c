"""Values of flags that several commands take."""

from __future__ import annotations

import argparse


def positive_integer(text: str) -> int:
    """A count of something."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def neighborhood(text: str) -> int | None:
    """The odd side of a neighbourhood; None for the whole image."""
    try:
        return None if text == "global" else positive_integer(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected an odd integer or 'global', got {text!r}") from None
