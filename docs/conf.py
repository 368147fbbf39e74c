"""How the documentation is built: `make docs`.

The root of the sources is the repository, so that every relative link and picture of a page works here and wherever
the repository is read.
"""

from importlib import metadata

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project, author, release = "gevit", "the gevit developers", metadata.version("gevit")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "results/**/table.md", "src/gevit/models/pretrained/*.md", "*.md"]
exclude_patterns = ["README.md", "docs/_build"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["toc.not_included"]  # tables of results and cards of weights are reached by links

autodoc_typehints = "none"  # signatures have them, shapes included
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

highlight_language = "text"
default_role = "code"  # docstrings write names between single backticks

html_theme = "furo"
html_title = "gevit"
html_show_copyright = False  # the licence says it


def _mathml(self: HTML5Translator, node: nodes.Element) -> None:
    """Formulas as MathML, which browsers draw by themselves: no script, nothing from elsewhere."""
    is_block = isinstance(node, nodes.math_block)
    formula = latex2mathml.converter.convert(node.astext(), display="block" if is_block else "inline")
    self.body.append(f'<div style="overflow-x: auto">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


def _plain_bars(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """A bar in a docstring is a bar, as in |H|, not a substitution."""
    lines[:] = [line.replace("|", r"\|") if not line.startswith(">>>") else line for line in lines]


def setup(app: Sphinx) -> None:
    """Draw formulas our way, and take docstrings as they are."""
    app.connect("autodoc-process-docstring", _plain_bars)
    app.add_node(nodes.math, override=True, html=(_mathml, None))
    app.add_node(nodes.math_block, override=True, html=(_mathml, None))
