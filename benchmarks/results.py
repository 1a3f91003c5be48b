"""The records in `results/`, the index of them, and the tables of them in README and docs.

    python benchmarks/results.py add runs/* --benchmark urlb --method apt-2M   # enter finished runs
    python benchmarks/results.py write     # index.csv and all tables
    python benchmarks/results.py check     # fails where they are out of date

A record is `results/<benchmark>/<method>/seed<N>/record.json`: the scores of one seed by task, with command,
commit, whether files differed from it, machine and date; `metrics.jsonl.gz` has the rows of its log.
`index.csv` has a row for each task and method. A table stands between `<!-- results: NAME -->` and
`<!-- end of results -->`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
STATUSES = ("valid", "preliminary", "invalid")
# Student's t at 0.95, by degrees of freedom: half the width of a 90 % interval in standard errors.
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
FEW = 5  # seeds from which on a table has an interval instead of each seed
SCORE = re.compile(r"\{([\w-]+/[\w-]+/[\w-]+)([^}]*)\}")  # of a template
TABLE = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """One task and method, over seeds."""

    benchmark: str
    task: str
    method: str
    pretrain_steps: int
    steps: int
    metric: str
    seeds: int
    mean: float
    low: float | None
    high: float | None
    scores: str
    reference: str
    reference_source: str
    commit: str
    machine: str
    date: str
    status: str


def main(argv: list[str] | None = None) -> None:
    """Add runs, write the index and the tables, or check that they are up to date."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("add", "write", "check"))
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, to add")
    parser.add_argument("--benchmark")
    parser.add_argument("--method", help="the name of its row, such as apt-2M")
    parser.add_argument("--status", choices=STATUSES, default="valid")
    options = parser.parse_args(argv)
    if options.action == "add":
        if not (options.runs and options.benchmark and options.method):
            parser.error("add needs run folders, --benchmark and --method")
        for run in options.runs:
            add(run, options.benchmark, options.method, options.status)
    stale = [path for path, text in outputs() if not path.is_file() or path.read_text() != text]
    if options.action == "check":
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"not up to date: {names}; run `python benchmarks/results.py write`")
        return
    for path, text in outputs():
        path.write_text(text)


def outputs() -> Iterator[tuple[Path, str]]:
    """Every generated file with the text that it should have."""
    rows = index()
    yield RESULTS / "index.csv", as_csv(rows)
    tables = tomllib.loads((RESULTS / "tables.toml").read_text())
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(RESULTS.glob("**/*.md"))]:
        text = path.read_text()
        if TABLE.search(text):
            yield path, TABLE.sub(lambda m: m[1] + table(rows, tables[m[2]], m[2]) + m[3], text)


def records() -> Iterator[dict[str, Any]]:
    """All records, in order of their paths."""
    for path in sorted(RESULTS.glob("*/*/seed*/record.json")):
        record = json.loads(path.read_text())
        place = (record["benchmark"], record["method"], f"seed{record['seed']}")
        assert path.parent.parts[-3:] == place, f"{path} is a record of {place}"
        assert record["status"] in STATUSES, f"{path}: status {record['status']!r}"
        yield record


def index() -> list[Row]:
    """A row for each task and method."""
    groups: dict[tuple, list[tuple[int, dict[str, Any], dict[str, Any]]]] = defaultdict(list)
    for record in records():
        for task, result in record["tasks"].items():
            groups[record["benchmark"], task, record["method"]].append((record["seed"], result, record))
    published = references()
    rows = []
    for (benchmark, task, method), found in groups.items():
        found.sort(key=lambda each: int(each[0]))
        scores = [result["score"] for _, result, _ in found]
        _, first, record = found[0]
        low, high = interval(scores)
        if first["metric"].startswith(("share", "success")) and low is not None and high is not None:
            low, high = max(0.0, low), min(1.0, high)
        reference, source = published.get((benchmark, task, method.split("-")[0]), ("", ""))
        origin = {
            key: list(dict.fromkeys(each["provenance"][key] for _, _, each in found))
            for key in ("commit", "machine", "date")
        }
        rows.append(
            Row(
                benchmark,
                task,
                method,
                pretrain_steps=first["pretrain_steps"],
                steps=first["steps"],
                metric=first["metric"],
                seeds=len(scores),
                mean=rounded(statistics.mean(scores)),
                low=low,
                high=high,
                scores=" ".join(f"{rounded(score):g}" for score in scores),
                reference=reference,
                reference_source=source,
                commit=" ".join(origin["commit"]),
                machine=" / ".join(origin["machine"]),
                date=" / ".join(origin["date"]),
                status=record["status"],
            )
        )
    return rows


def interval(scores: list[float]) -> tuple[float | None, float | None]:
    """The 90 % interval of the mean by Student's t; None of a single seed."""
    if len(scores) < 2:
        return None, None
    error = statistics.stdev(scores) / len(scores) ** 0.5
    half = error * STUDENT[min(len(scores) - 1, len(STUDENT)) - 1]
    mean = statistics.mean(scores)
    return rounded(mean - half), rounded(mean + half)


def references() -> dict[tuple[str, str, str], tuple[str, str]]:
    """Published scores, by benchmark, task and method."""
    with (RESULTS / "references.csv").open() as file:
        return {
            (row["benchmark"], row["task"], row["method"]): (row["score"], row["source"])
            for row in csv.DictReader(file)
        }


def rounded(value: float) -> float:
    """Three digits, or all before the point."""
    return float(f"{value:.3g}") if abs(value) < 1000 else float(round(value))


def as_csv(rows: list[Row]) -> str:
    """The index as text."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    writer.writerows(["" if value is None else value for value in asdict(row).values()] for row in rows)
    return file.getvalue()


def table(rows: list[Row], spec: dict[str, Any], name: str) -> str:
    """A table of Markdown: a line for each method (or task), a column for each task (or method)."""
    if "template" in spec:
        return SCORE.sub(lambda m: score(rows, m[1], m[2].split()), spec["template"])
    by = {(row.task, row.method): row for row in rows if row.benchmark == spec["benchmark"]}
    tasks, methods, percent = spec["tasks"], spec["methods"], spec.get("percent", False)
    for task in tasks:
        for method in methods:
            if (task, method) not in by and not spec.get("gaps"):
                raise SystemExit(f"results/tables.toml, {name}: no record of {method!r} on {task!r}")
    across = spec.get("across", "tasks")
    columns, lines = (tasks, methods) if across == "tasks" else (methods, tasks)
    text = [f"| | {' | '.join(columns.values())} |", f"|---|{'---|' * len(columns)}"]
    for line, label in lines.items():
        cells = []
        for column in columns:
            row = by.get((column, line) if across == "tasks" else (line, column))
            cells.append(cell(row, percent) if row else "")
        text.append(f"| {label} | {' | '.join(cells)} |")
    if spec.get("published"):
        label, method = spec["published"]
        found = references()
        cells = [found.get((spec["benchmark"], task, method), ("",))[0] for task in tasks]
        text.append(f"| {label} | {' | '.join(cells)} |")
    used = [by[key] for key in ((task, method) for task in tasks for method in methods) if key in by]
    counts = sorted({row.seeds for row in used})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text += ["", f"*{seeds} seed{'s' if counts != [1] else ''}; {note(used)}*", ""]
    return "\n".join(text)


def score(rows: list[Row], name: str, flags: list[str]) -> str:
    """The score of `BENCHMARK/TASK/METHOD`, as a cell: in bold, as percent, its mean only, or its seeds."""
    benchmark, task, method = name.split("/")
    if "published" in flags:
        return references()[benchmark, task, method][0]
    keys = {(row.benchmark, row.task, row.method): row for row in rows}
    row = keys.get((benchmark, task, method))
    if row is None or row.status == "invalid":
        raise SystemExit(f"results/tables.toml: no valid record of {name}")
    if "seeds" in flags:
        return str(row.seeds)
    mean, bracket, rest = re.split(r"( [\[(])|$", cell(row, "%" in flags), maxsplit=1)
    mean = f"**{mean}**" if "bold" in flags else mean
    return mean if "mean" in flags else mean + (bracket or "") + rest


def note(rows: list[Row]) -> str:
    """How a cell is read, and where the records come from."""
    commits = ", ".join(dict.fromkeys(" ".join(row.commit for row in rows).split()))
    dates = sorted({date for row in rows for date in row.date.split(" / ")})
    reading = []
    if any(1 < row.seeds < FEW for row in rows):
        reading.append("in parentheses each seed; ")
    if any(row.seeds >= FEW for row in rows):
        reading.append("in brackets the 90 % interval of the mean; ")
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{''.join(reading)}commit{'s' if ',' in commits else ''} {commits}, {when}."


def cell(row: Row, percent: bool) -> str:
    """The mean, with each of a few seeds or the interval of many."""

    def show(value: float) -> str:
        number = value * 100 if percent else value
        text = f"{number:.0f}" if percent or abs(number) >= 100 else f"{number:.3g}"
        return text.replace("-", "−")

    mean = show(row.mean) + (" %" if percent else "")
    if row.seeds == 1 or row.low is None or row.high is None:
        return mean
    if row.seeds < FEW:
        return f"{mean} ({', '.join(show(float(score)) for score in row.scores.split())})"
    return f"{mean} [{show(row.low)}, {show(row.high)}]"


def add(run: Path, benchmark: str, method: str, status: str) -> None:
    """Enter a finished run: its evaluation joins the record of its seed."""
    config = json.loads((run / "config.json").read_text())
    environment = json.loads((run / "environment.json").read_text())
    evaluation = json.loads((run / "evaluation.json").read_text())
    seed, git = config["seed"], environment.get("git") or {}
    folder = RESULTS / benchmark / method / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "record.json"
    task = config["env"]["id"].split("/")[-1]
    gpus = [gpu["name"] for gpu in environment["gpus"]]
    record = json.loads(path.read_text()) if path.exists() else {"tasks": {}}
    record |= {"benchmark": benchmark, "method": method, "seed": seed, "status": status, "config": config}
    record["provenance"] = {
        "command": environment["command"],
        "commit": (git.get("commit") or "unknown")[:7],
        "clean": git.get("clean"),  # None if the run began outside of voidrl's clone
        "machine": ", ".join(gpus) or environment["cpu"]["model"],
        "date": environment["date"][:10],
    }
    returns, agent = evaluation["returns"], evaluation["agent"]
    steps = 0 if agent["phase"] == "pretrain" else agent["steps"]
    record["tasks"][task] = {
        "pretrain_steps": agent["steps_with_pretraining"] - steps,
        "steps": steps,
        "metric": "return",
        "score": round(statistics.mean(returns), 3),
        "episodes": [round(value, 3) for value in returns],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    log = folder / "metrics.jsonl.gz"
    old = gzip.decompress(log.read_bytes()) if log.exists() else b""
    new = [json.dumps({"task": task, **json.loads(line)}) for line in (run / "metrics.jsonl").open()]
    with gzip.GzipFile(log, "wb", mtime=0) as file:
        file.write(old + ("\n".join(new) + "\n").encode())


if __name__ == "__main__":
    main()
