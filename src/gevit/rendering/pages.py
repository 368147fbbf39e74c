"""Pages of HTML that need nothing else: no other file, no network, no script."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gevit.environment import needs
from gevit.rendering.words import printable

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **facts: Any) -> str:
    """Fill in a template of this package; what is filled in is text, unless the template says it is HTML."""
    return _environment().get_template(template).render(facts)


@functools.cache
def _environment() -> Environment:
    with needs("Jinja2"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    return Environment(
        loader=PackageLoader("gevit.rendering"),
        autoescape=True,
        finalize=_plain,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _plain(value: Any) -> Any:
    return printable(value) if type(value) is str else value  # not what is marked as HTML
