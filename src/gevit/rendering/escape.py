"""Names that others chose, such as those of classes and files, as plain text of whatever they are written in."""

from __future__ import annotations

import re
import unicodedata

_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, separators of lines
_REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
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


def visible(text: str) -> str:
    r"""Text on one line without characters that control a terminal or reorder what is around them.

    >>> print(visible("red\x1b[31m\n"))
    red\x1b[31m\n
    """
    return "".join(_code(character) if _is_unseen(character) else character for character in text)


def markdown(text: str) -> str:
    r"""Text as it is, in Markdown and in cells of its tables.

    >>> print(markdown("a|b <i> *c* R4_SA"))
    a\|b &lt;i&gt; \*c\* R4_SA
    """
    text = re.sub(r"[\\`*\[\]|~$]", r"\\\g<0>", visible(text))
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word it is no emphasis
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex(text: str) -> str:
    r"""Text as it is, in LaTeX.

    >>> print(latex("R4_SA: 97.5 ± 0.1 %"))
    R4\_SA: 97.5 $\pm$ 0.1 \%
    """
    return "".join(_LATEX.get(character, character) for character in visible(text))


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN or unicodedata.bidirectional(character) in _REORDERING


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
