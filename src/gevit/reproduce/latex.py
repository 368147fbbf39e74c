r"""A study in LaTeX; needs the package booktabs."""

from __future__ import annotations

from gevit.reproduce.markdown import PARAMETERS, table_rows
from gevit.reproduce.summary import Summary

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "α": r"$\alpha$",
    "±": r"$\pm$",
    "°": r"$^{\circ}$",
    "–": "--",
}


def latex(summary: Summary) -> str:
    """A table environment with the notes below it."""
    columns = [(column, 1 + summary.has_paper(column)) for column in summary.study.columns]
    groups = " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{escape(column)}}}" for column, width in columns)
    rules, heads, first = "", "", 2
    for _, width in columns:
        rules += f"\\cmidrule(lr){{{first}-{first + width - 1}}}"
        heads += (" & paper" if width == 2 else "") + " & ours"
        first += width
    if summary.parameters:
        groups, heads, first = f"{groups} & ", f"{heads} & {PARAMETERS}", first + 1
    rows = "\n".join(" & ".join(map(escape, row)) + r" \\" for row in table_rows(summary))
    notes = "\n\n".join(map(escape, summary.notes()))
    caption = f"{summary.study.title}. Accuracy in percent; ours on {summary.data}"
    if summary.paper_data:
        caption += f", the paper's on {summary.paper_data}"
    return f"""% needs \\usepackage{{booktabs}}
\\begin{{table}}
\\caption{{{escape(caption)}.}}
\\label{{tab:gevit-{summary.study.name}}}
\\centering
\\begin{{tabular}}{{l{"r" * (first - 2)}}}
\\toprule
 & {groups} \\\\
{rules}
{escape(summary.study.row_title)}{heads} \\\\
\\midrule
{rows}
\\bottomrule
\\end{{tabular}}

\\medskip
\\parbox{{\\linewidth}}{{\\footnotesize
{notes}
}}
\\end{{table}}
"""


def escape(text: str) -> str:
    r"""Text as LaTeX wants it.

    >>> print(escape("R4_SA: 97.5 ± 0.1 %"))
    R4\_SA: 97.5 $\pm$ 0.1 \%
    """
    return "".join(SPECIAL.get(character, character) for character in text)
