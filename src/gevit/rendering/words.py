"""Numbers and names as people read them."""

from __future__ import annotations

import unicodedata

_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, separators of lines
_REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def duration(seconds: float) -> str:
    """A length of time.

    >>> duration(42.4), duration(754.0), duration(7260.0)
    ('42 s', '12 min 34 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return "{} min {} s".format(*divmod(whole, 60))
    return "{} h {} min".format(*divmod(whole // 60, 60))


def step_time(seconds: float) -> str:
    """A time that was measured, to three digits.

    >>> step_time(0.01234), step_time(4.5678)
    ('12.3 ms', '4.57 s')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def epoch_number(epoch: int | float) -> str:
    """An epoch, or how much of it there was time for.

    >>> epoch_number(3), epoch_number(2.3712)
    ('3', '2.37')
    """
    return f"{epoch:.2f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """A share in percent.

    >>> percent(0.97154)
    '97.2%'
    """
    return f"{100 * share:.1f}%"


# What tells how good a model is, and what to call it.
METRICS = {"loss": "loss", "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1"}


def metric_text(name: str, value: float) -> str:
    """The value of one of `METRICS`.

    >>> metric_text("macro_f1", 0.8123), metric_text("loss", 0.8123)
    ('81.2%', '0.8123')
    """
    return f"{value:.4f}" if name == "loss" else percent(value)


def percent_range(low: float, high: float) -> str:
    """An interval of shares in percent.

    >>> percent_range(0.826, 0.9452)
    '82.6 to 94.5'
    """
    return f"{100 * low:.1f} to {100 * high:.1f}"


def relative_error(value: float) -> str:
    """A relative error to two digits.

    >>> relative_error(2.345e-7), relative_error(0.0)
    ('2.3e-07', '0')
    """
    return f"{value:.1e}" if value else "0"


def printable(text: object) -> str:
    r"""A name that others chose, such as that of a class or a file, on one line.

    What would control a terminal (escape sequences, ends of lines) or reorder the text around it is written out.

    >>> print(printable("red\x1b[31m\n"))
    red\x1b[31m\n
    """
    return "".join(_code(character) if _is_unseen(character) else character for character in str(text))


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN or unicodedata.bidirectional(character) in _REORDERING


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
