"""Every relative link on the pages that users read leads to a file, and to a heading in it."""

from urllib.parse import unquote

import pytest
from doc_pages import PAGES, ROOT, anchors, links

ALL = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "results").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]


def problem(page, target):
    """What is wrong with a link, or None."""
    if target.startswith(("https://", "http://", "mailto:")):
        return None
    path, _, anchor = unquote(target).partition("#")
    if path.startswith("/"):
        return "an absolute path: it leads elsewhere in every clone"
    found = (page.parent / path).resolve() if path else page
    if not found.is_file():
        return "no such file" if not found.exists() else "a folder: name a file in it"
    if not found.is_relative_to(ROOT):
        return "outside the repository"
    if anchor and (found.suffix != ".md" or anchor not in anchors(found)):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    problems = {f"line {line}: {target}": problem(page, target) for line, target in links(page)}
    assert not {link: what for link, what in problems.items() if what}


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("resume.md", None),
        ("resume.md#exact-resume", None),
        ("../examples/own_method.py", None),
        ("https://example.org/missing", None),
        ("missing.md", "no such file"),
        ("resume.md#missing", "no such heading"),
        ("#missing", "no such heading"),
        ("../examples", "a folder: name a file in it"),
        ("/docs/resume.md", "an absolute path: it leads elsewhere in every clone"),
    ],
)
def test_a_broken_link_is_found(target, what):
    assert problem(ROOT / "docs" / "index.md", target) == what


def test_headings_are_named_as_git_hosts_name_them(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b.c`: d\n\n## Same\n\n## Same\n\n## What is it?\n")
    assert anchors(page) == {"a-bc-d", "same", "same-1", "what-is-it"}
