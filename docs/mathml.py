"""Sets equations as MathML, which browsers draw themselves: the site needs no JavaScript and no network."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator


def to_mathml(latex: str, display: str = "inline") -> str:
    """An equation as MathML; a command that the converter does not know is an error, not text on the page."""
    mathml: str = convert(latex, display=display)
    if "\\" in mathml:
        raise ValueError(f"equation {latex!r} has a LaTeX command that latex2mathml does not know")
    return mathml


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="equation">{to_mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the renderer; conf.py selects it with `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
