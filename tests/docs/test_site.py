"""The site: generated pages are up to date, all has its page, and Sphinx builds it without a warning."""

import importlib
import re
import subprocess
import sys

import pytest
from doc_pages import DOCS, PAGES, ROOT, anchors, inline_code, links

from voidrl.cli import main as cli
from voidrl.config import registry
from voidrl.presets.presets import AGENT_NAMES, NO_PRESET, PRESETS


@pytest.fixture
def generate(monkeypatch):
    """docs/generate.py."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("generate")


def test_generated_pages_are_up_to_date(generate, capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_works_offline(tmp_path):
    options = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-c", "docs"]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "index.html").read_text("utf-8")
    assert (tmp_path / re.search(r'href="(.+?)"', front)[1]).is_file()
    page = (tmp_path / "docs/methods/apt.html").read_text("utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in page
    assert not re.search(r"<script[^>]*(http|mathjax)", page, re.IGNORECASE)


def test_every_page_is_on_the_front_page_or_on_an_index_page_that_is():
    def listed(index):
        return {(index.parent / target).resolve() for _, target in links(index)}

    found = listed(DOCS / "index.md")
    for index in DOCS.glob("*/index.md"):
        assert index in found
        found |= listed(index)
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {DOCS / "index.md"}
    assert pages <= found, "an index page has a line for each page, and a place for it in a toctree"


METHOD_PAGES = [page for page in sorted((DOCS / "methods").glob("*.md")) if page.stem != "index"]


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_has_a_section_with_all_its_parts(method):
    page = next(page for page in METHOD_PAGES if method in anchors(page))
    text = page.read_text("utf-8")
    own = text if page.stem == method else section(text, method)
    assert re.search(rf"^voidrl pretrain .*--method {method}\b", own, re.MULTILINE)
    assert re.search(r"^\$\$\n.+?\n\$\$$", own, re.MULTILINE | re.DOTALL), "the reward is an equation"
    assert re.search(r"[Ii]t logs", own), "what it logs"
    assert re.search(r"[Dd]eviat", own), "where it deviates from its paper and from public code"
    results = text.partition("\n## Results")[2].partition("\n## ")[0]
    assert page.stem == method or f"| `{method}` |" in results, "a row of the results"
    assert "ublished" in results, "ours and published"
    index = (DOCS / "methods" / "index.md").read_text("utf-8")
    assert f"`{method}`](" in index, "a row of the decision table"


def section(text, title):
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_everything_else_has_a_section_and_every_preset_a_row():
    representations = (DOCS / "representations.md").read_text("utf-8")
    for name in registry.names("representation"):
        assert "voidrl pretrain" in section(representations, name), name
    assert set(AGENT_NAMES) <= anchors(DOCS / "agents.md")
    assert set(registry.names("learner")) <= anchors(DOCS / "learners.md")
    assert {f"voidrl-{name}" for name in cli.COMMANDS} <= anchors(DOCS / "commands.md")
    rows = re.findall(
        r"^\| \[([\w-]+)\]\(\S+\.toml\) \|", (DOCS / "presets.md").read_text("utf-8"), re.MULTILINE
    )
    assert set(PRESETS) <= set(rows), "a row that leads to its file"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_named_in_passing_is_there(page):
    """Commands and presets between backticks; those in blocks are executed."""
    for line, text in inline_code(page):
        command = re.match(r"voidrl ([a-z]\w*)", text)
        assert command is None or command[1] in cli.COMMANDS, f"{page.name}:{line}: {text}"
        preset = re.search(r"--preset ([a-z0-9-]+)", text)
        assert preset is None or preset[1] in (*PRESETS, NO_PRESET), f"{page.name}:{line}: {text}"
