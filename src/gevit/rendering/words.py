"""Numbers and names as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(42.4), duration(754.0), duration(7260.0)
    ('42 s', '12 min 34 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return "{} min {} s".format(*divmod(whole, 60))
    return "{} h {} min".format(*divmod(whole // 60, 60))


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.97154)
    '97.2%'
    """
    return f"{100 * share:.1f}%"


def relative_error(value: float) -> str:
    """A relative error for people.

    >>> relative_error(2.345e-7), relative_error(0.0)
    ('2.3e-07', '0')
    """
    return f"{value:.1e}" if value else "0"


def printable(text: object) -> str:
    r"""A name that comes from outside, with what would steer a terminal (escapes, line breaks, text direction) shown.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
