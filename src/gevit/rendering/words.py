"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time that one waits.

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


def percent(share: float) -> str:
    """A share in percent.

    >>> percent(0.97154)
    '97.2%'
    """
    return f"{100 * share:.1f}%"


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
