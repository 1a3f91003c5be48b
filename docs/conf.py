"""Sphinx configuration of the documentation site, which `make docs` builds from the Markdown files.

The source folder is the repository root, so that relative links work both here and in a checkout: a link to a
page leads to that page, a link to any other file to a copy of it. A broken link is a warning, and `-W` turns
warnings into errors.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))  # for mathml.py

project = "voidrl"
author = "The voidrl authors"
project_copyright = author
release = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]

extensions = ["myst_parser", "mathml"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/**", "results/**", "benchmarks/**"]
exclude_patterns = [".*", "build", "runs", "src", "tests", "**/__pycache__"]

myst_enable_extensions = ["dollarmath"]  # $…$ and $$…$$, as Git hosts read them
myst_heading_anchors = 4  # the same anchors that Git hosts give to headings
highlight_language = "sh"  # of a code block that names no language

html_theme = "furo"
html_title = f"voidrl {release}"
html_math_renderer = "mathml"
html_extra_path = ["site"]  # a page at the root that redirects to docs/index.html
html_static_path = ["static"]
html_css_files = ["voidrl.css"]
html_use_index = False
html_show_sourcelink = False
html_copy_source = False
