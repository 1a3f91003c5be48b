"""Every code block that a user may copy is executed: Python as it stands, commands through `voidrl.cli.main`.

Runs are made tiny behind the scenes (`doc_tiny`). A block that begins with a comment of nothing but a file
name (`# my_maze.py`) is written to that file. A block that cannot run here has a comment right before it,
`<!-- not executed: reason -->`. Output after `<!-- printed by the block above -->`
must be what is printed.
"""

import contextlib
import io
import re
import sys
import tomllib
from pathlib import Path

import hub_fakes
import pytest
from doc_pages import PAGES, ROOT, blocks, indented_blocks
from doc_shell import Shell
from doc_tiny import make_tiny
from tiny_weights import NARROW, resnet_weights, write_weights

from voidrl.representations import imagenet

QUICK = {"README.md", "CONTRIBUTING.md"}
QUICK |= {f"docs/{name}.md" for name in ("quickstart", "own_environment")}
SHELL = {"", "sh", "bash", "shell"}
SHOWN = {"text", "json", "{toctree}"}
FILE = re.compile(r"# ([\w/-]+\.(?:py|toml))\n")
MOST_SKIPPED = 6


def names(pages):
    """Of those that hold anything to execute."""
    return [str(p.relative_to(ROOT)) for p in pages if any(b.language not in SHOWN for b in blocks(p))]


def marked(name):
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.fixture
def workplace(request, tmp_path, tmp_path_factory, monkeypatch):
    """An empty folder, from which modules can be imported, with every run tiny and a Hub of its own."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
    make_tiny(monkeypatch, quick=request.getfixturevalue("name") in QUICK)
    hub_fakes.install(monkeypatch, tmp_path_factory.mktemp("hub"))
    if request.getfixturevalue("name") == "docs/representations.md":
        monkeypatch.setattr(imagenet, "CHANNELS", NARROW)
        write_weights(tmp_path / "resnet18-f37072fd.pth", resnet_weights(channels=NARROW))
    yield tmp_path
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and Path(origin).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("name", [*map(marked, names(PAGES))])
def test_every_block_runs(name, workplace, monkeypatch):
    if "dmc/" in (ROOT / name).read_text("utf-8"):
        pytest.importorskip("dm_control")  # which does not exist for Python 3.13
    shell, namespace, out = Shell(monkeypatch), {"__name__": "__main__"}, ""
    for block in blocks(ROOT / name):
        if block.skipped is not None:
            continue
        try:
            if block.printed:
                assert block.text.split() == out.split(), f"it printed\n{out}"
            elif block.language not in SHOWN:
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    execute(block, shell, namespace)
                out = said.getvalue()
        except BaseException as error:
            error.add_note(f"in the block of {name} at line {block.line}:\n{block.text}")
            raise


def execute(block, shell, namespace):
    file = FILE.match(block.text)
    if file:
        Path(file[1]).parent.mkdir(parents=True, exist_ok=True)
        Path(file[1]).write_text(block.text, "utf-8")
    if block.language == "toml":
        assert file, "a TOML block begins with the name of its file, so that commands find it"
        tomllib.loads(block.text)
    elif block.language == "python" and not file:
        code = compile("\n" * block.line + block.text, str(block.page), "exec")
        exec(code, namespace)
    elif block.language in SHELL:
        shell.run(block.text)


def test_every_block_has_a_language_that_is_understood():
    known = SHELL | SHOWN | {"python", "toml"}
    for page in PAGES:
        for block in blocks(page):
            assert block.language in known, f"{page}:{block.line}"
        assert not indented_blocks(page), f"{page}: use a fenced block, ```text if it is no code"


def test_few_blocks_are_not_executed_and_each_says_why():
    skipped = [block for page in PAGES for block in blocks(page) if block.skipped is not None]
    assert all(len(block.skipped) > 15 for block in skipped), "a reason is a sentence"
    assert len(skipped) <= MOST_SKIPPED, [f"{b.page.relative_to(ROOT)}:{b.line}" for b in skipped]
    lines = [line for page in PAGES for line in page.read_text("utf-8").splitlines()]
    mentions = sum(line.startswith("<!-- not executed") for line in lines)
    assert mentions == len(skipped), "such a comment stands right before its block"
