"""Names that others chose, such as those of classes and files, as plain text in Markdown and LaTeX."""

from __future__ import annotations

import re

from gevit.rendering.words import printable

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After the end of a row these would be its arguments.
    "[": "{[}",
    "*": "{*}",
    "α": r"$\alpha$",
    "±": r"$\pm$",
    "°": r"$^{\circ}$",
    "–": "--",
}


def markdown(text: str) -> str:
    r"""Text as it is, in Markdown and in cells of its tables.

    >>> print(markdown("a|b <i> *c* R4_SA"))
    a\|b &lt;i&gt; \*c\* R4_SA
    """
    text = re.sub(r"[\\`*\[\]|~$]", r"\\\g<0>", printable(text))
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word it is no emphasis
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex(text: str) -> str:
    r"""Text as it is, in LaTeX.

    >>> print(latex("R4_SA: 97.5 ± 0.1 %"))
    R4\_SA: 97.5 $\pm$ 0.1 \%
    """
    return "".join(_LATEX.get(character, character) for character in printable(text))
