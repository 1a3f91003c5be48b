"""doctor."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, TextIO

from voidrl.cli.options import make_parser
from voidrl.system.files import user_path
from voidrl.system.terminal.screen import has_unicode, is_log, width_of
from voidrl.system.terminal.tables import LEAST_PROSE, make_console, wrap_text, writable

if TYPE_CHECKING:
    from voidrl.cli.checkup.probes import Finding

SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(argv: list[str]) -> int:
    """Check what works on this machine, and print the command that fixes the rest: `voidrl doctor`."""
    parser = make_parser("doctor", doctor.__doc__)
    parser.add_argument("--out", default="runs", metavar="DIR", help="where runs would go (default: runs)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(argv)
    from voidrl.cli.checkup.checkup import examine, is_ready, summary

    findings = []
    for finding in examine(user_path(options.out)):
        findings.append(finding)
        if not options.json:
            _print(finding, sys.stdout)
    ready = is_ready(findings)
    if options.json:
        found = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"ready": ready, "summary": summary(findings), "findings": found}, indent=2))
    else:
        print(wrap_text(f"\n{summary(findings)}", indent=0))
    return 0 if ready else 1


def _print(finding: Finding, stream: TextIO) -> None:
    """One finding: on a terminal with its remedy below it, in a pipe on one line."""
    from rich.text import Text

    from voidrl.cli.checkup.checkup import NAMES

    wide = max(map(len, NAMES))
    found, remedy = writable(finding.found, stream), writable(finding.fix, stream)
    if is_log(stream):
        fix = f"; fix: {remedy}" if remedy else ""
        print(f"{finding.state:<4}  {finding.name:<{wide}}  {found}{fix}", file=stream, flush=True)
        return
    sign = f"{SIGNS[finding.state]} " if has_unicode(stream) else f"{finding.state:<4}  "
    indent = len(sign) + wide + 2
    if width_of(stream) - indent < LEAST_PROSE:
        wide, indent = 0, len(sign)
    text = Text(wrap_text(f"{sign}{finding.name:<{wide}}  {found}", indent=indent, file=stream))
    text.stylize(STYLES[finding.state], 0, len(sign))
    console = make_console(stream)
    console.print(text, soft_wrap=True)
    if remedy:  # not broken, so that it can be copied
        console.print(Text(f"{' ' * indent}fix: {remedy}", "cyan"), soft_wrap=True)
    stream.flush()
