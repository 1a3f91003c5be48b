"""The documentation site: `make docs` builds it from the same Markdown that is read as plain files.

The source folder is the repository itself, so that links between docs/, results/, examples/ and the pages at
the top mean the same here as in a checkout: to another page they lead to that page, to any other file to a
copy of it. A link to a page, a heading, a file or a picture that is not there is a warning, and `-W` makes
warnings errors.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

project = "voidrl"
author = "The voidrl authors"
project_copyright = author
release = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "results/**", "benchmarks/**"]
exclude_patterns = [".*", "build", "runs", "src", "tests", "**/__pycache__"]

myst_heading_anchors = 4  # headings can be linked to by the names that Git hosts give them
highlight_language = "sh"  # what a block without a language holds

html_theme = "furo"
html_title = f"voidrl {release}"
html_extra_path = ["site"]  # the site's front door: a page that leads to docs/index.html
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_use_index = False
html_show_sourcelink = False
html_copy_source = False
