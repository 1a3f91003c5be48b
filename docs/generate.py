"""Generate commands.md, config.md, presets.md and the pages of api/ from the code.

With `--check`, nothing is written, and an outdated page is an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "src")]

from generator.api import pages  # noqa: E402
from generator.commands import commands  # noqa: E402
from generator.config import config  # noqa: E402
from generator.presets import presets  # noqa: E402

PAGES = {"commands.md": commands, "config.md": config, "presets.md": presets, **pages()}


def main(argv: list[str]) -> int:
    """Write the pages, or report the outdated ones."""
    made = {name: make() for name, make in PAGES.items()}
    old = [name for name, text in made.items() if not _is(DOCS / name, text)]
    if "--check" in argv:
        if old:
            names = ", ".join(f"docs/{name}" for name in old)
            print(f"{names}: not up to date; run `python docs/generate.py`", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(made[name], "utf-8")
        print(f"wrote docs/{name}")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
