"""Scores with and without pre-training on several games: verdict, tables and a picture, from a `panel.json`.

    voidrl experiment atari-panel                                  # writes runs/atari-panel/panel.json
    python benchmarks/atari_panel.py runs/atari-panel/panel.json --picture panel.png --markdown panel.md

`voidrl report runs/atari-panel` shows the same from the run folders.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from voidrl.report.figures import DPI, draw_panel, require_matplotlib
from voidrl.report.panel import read_section


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("panel", type=Path, help="a panel.json")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    parser.add_argument("--markdown", type=Path, metavar="MD", help="write the text to a file too")
    parser.add_argument("--title", help="of the picture")
    options = parser.parse_args()
    section = read_section(options.panel)
    parts = ["\n".join(f"- {line}" for line in section.verdicts)]
    for table in section.tables():
        parts += [table.markdown(), *table.notes]
    text = "\n\n".join(parts)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.picture:
        draw_panel(require_matplotlib(["png"]), section, options.title).savefig(options.picture, dpi=DPI)


if __name__ == "__main__":
    main()
