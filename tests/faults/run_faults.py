"""Run the catalogue of faults against a checkout, and write what came of it.

python tests/faults/run_faults.py --src src --out after.json
python tests/faults/run_faults.py --merge before.json after.json --into docs/reliability.md
"""

import argparse
import json
import queue
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from fault_catalogue import GOOD, run_fault
from fault_lab import Lab
from fault_list import FAULTS

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--src", type=Path, help="the folder that holds the package voidrl")
    parser.add_argument("--out", type=Path, help="where the outcomes are written, as JSON")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], help="words in the groups or names of faults")
    parser.add_argument("--merge", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--into", type=Path, help="a page with markers, in which the table is replaced")
    options = parser.parse_args()
    if options.merge:
        before, after = (json.loads(path.read_text()) for path in options.merge)
        return write_table(render(before, after), options.into)
    chosen = options.only or [""]
    faults = [f for f in FAULTS if any(word in f"{f.group}: {f.name}" for word in chosen)]
    results = run_all(options.src, faults, options.jobs)
    if options.out:
        write_results(options.out, [asdict(result) for result in results], keep=bool(options.only))
    unexpected = [r for r in results if r.outcome not in (r.expect, "skipped")]
    print(f"{len(results)} faults, {len(unexpected)} with another outcome than expected")
    return int(bool(unexpected))


def run_all(src, faults, jobs):
    """Run faults, several at a time, each worker with a server of its own; results in order."""
    waiting = queue.SimpleQueue()
    for item in enumerate(faults):
        waiting.put(item)
    results = {}

    def work():
        lab = Lab(src)
        while not waiting.empty():
            index, fault = waiting.get()
            results[index] = result = run_fault(fault, lab)
            flag = "" if result.outcome in (result.expect, "skipped") else " !"
            print(
                f"{result.outcome:10} {result.seconds:5.1f} s  {fault.group}: {fault.name}{flag}", flush=True
            )
            if flag:
                print(f"           {result.detail[:250]}", flush=True)
        lab.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[index] for index in sorted(results)]


def write_results(path, rows, keep):
    """Write rows as JSON; with `keep`, others that are there already stay, in the order of the catalogue."""
    known = (
        {(row["group"], row["name"]): row for row in json.loads(path.read_text())}
        if keep and path.exists()
        else {}
    )
    known |= {(row["group"], row["name"]): row for row in rows}
    ordered = [known[key] for fault in FAULTS if (key := (fault.group, fault.name)) in known]
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def render(before, after):
    """A table for each group: the fault, its command, the outcome before and after."""
    old = {(row["group"], row["name"]): row for row in before}
    lines, group = [], None
    for row in after:
        if row["group"] != group:
            group = row["group"]
            lines += [
                "",
                f"**{group.capitalize()}**",
                "",
                "| fault | command | before | after |",
                "|---|---|---|---|",
            ]
        was = old.get((row["group"], row["name"]))
        cells = [row["name"], code(row["command"]), outcome(was), outcome(row)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip()


def code(command):
    """A command as code in one cell."""
    line = command.replace("\n", "\\n")
    return f"`` {line} ``" if "`" in line else f"`{line}`"


def outcome(row):
    if row is None:
        return "not run"
    return row["outcome"] if row["outcome"] in (*GOOD, "skipped") else f"**{row['outcome']}**"


def write_table(table, page):
    if page is None:
        print(table)
        return 0
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
