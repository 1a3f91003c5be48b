"""The table of environments written by others, from the records of their tests.

    make test-foreign                                             # prints it, and writes the records
    python benchmarks/foreign_table.py build/foreign --write      # updates docs/environments/foreign.md

Each record is written by a test that passed (tests/foreign/test_foreign.py), so that the table has exactly
the environments that were trained in and played. What stands between the marks of the page is replaced.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs/environments/foreign.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEAD = ("package", "environment", "what the networks see", "learner, encoder", "remarks")


def main() -> None:
    """Read, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, help="the folder that VOIDRL_FOREIGN_RECORDS named")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    found = [json.loads(path.read_text()) for path in sorted(options.records.glob("*.json"))]
    if not found:
        parser.error(f"no records in {options.records}: run `make test-foreign` first")
    text = table(found)
    print(text)
    if options.write:
        page = PAGE.read_text()
        before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
        PAGE.write_text(f"{page[:before]}\n{text}\n{page[after:]}")


def table(records: list[dict[str, Any]]) -> str:
    """The records as a Markdown table, with the number of environments and packages below it."""
    rows = [HEAD, tuple("---" for _ in HEAD)]
    records = sorted(records, key=lambda each: (each["package"].lower(), each["env"]))
    rows += [row(each) for each in records]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    packages = {each["package"].partition("[")[0] for each in records}
    quick = ", ".join(f"`{each['env']}`" for each in records if each["quick"])
    counts = f"{len(records)} environments of {len(packages)} packages. `make test` runs {quick}."
    return "\n".join([*lines, "", counts])


def row(record: dict[str, Any]) -> tuple[str, ...]:
    """One environment."""
    config = ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in record["config"].items())
    remarks = "; ".join(part for part in (record["note"], config) if part)
    return (
        f"{record['package']} {record['version']}",
        f"`{record['env']}`",
        record["seen_as"],
        f"`{record['learner']}`, `{record['encoder']}`",
        remarks,
    )


if __name__ == "__main__":
    main()
