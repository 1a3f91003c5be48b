"""The Markdown that users read: its pages, code blocks, headings and links."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
SKIPPED = re.compile(r"<!-- not executed: (.*?) -->\s*", re.DOTALL)

PRINTED = "<!-- printed by the block above -->"


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str
    skipped: str | None = None
    """Why it is not executed, where a comment right before it says so."""
    printed: bool = False
    """Whether a comment right before it says that the block above prints this."""


def parse(page: Path):
    return parse_text(page.read_text("utf-8"))


@cache
def parse_text(text: str):
    """Its tokens, which nobody changes: most pages are looked at by several tests."""
    return MarkdownIt("commonmark").enable("table").parse(text)


def blocks(page: Path) -> list[Block]:
    """All fenced blocks, in order."""
    found, before = [], None
    for token in parse(page):
        if token.type == "fence":
            comment = before.content if before is not None and before.type == "html_block" else ""
            skipped = SKIPPED.fullmatch(comment)
            reason = skipped[1].strip() if skipped else None
            line, language = token.map[0] + 1, token.info.strip()
            found.append(Block(page, line, language, token.content, reason, comment.strip() == PRINTED))
        before = token
    return found


def indented_blocks(page: Path) -> list[int]:
    """The lines of code blocks without a fence, whose language nobody can tell."""
    return [token.map[0] + 1 for token in parse(page) if token.type == "code_block"]


def inline_code(page: Path) -> list[tuple[int, str]]:
    """(line, text) of what stands between backticks."""
    spans = ((t.map[0] + 1, part) for t in parse(page) for part in t.children or ())
    return [(line, part.content) for line, part in spans if part.type == "code_inline"]


def anchors(page: Path) -> set[str]:
    """The names under which Git hosts, and our site, link to headings."""
    names: set[str] = set()
    tokens = parse(page)
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open":
            continue
        words = "".join(
            part.content for part in inline.children or () if part.type in ("text", "code_inline")
        )
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in names:
            number += 1
        names.add(name)
    return names


def links(page: Path) -> list[tuple[int, str]]:
    """(line, target) of every link and picture."""
    found = []
    for token in parse(page):
        for part in token.children or ():
            target = part.attrs.get("href") or part.attrs.get("src")
            if target:
                found.append((token.map[0] + 1, str(target)))
    return found
