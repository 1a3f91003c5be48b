"""Published numbers that experiments are compared with, and their sources.

`tables.toml` describes the tables, and a CSV file of the same name has the numbers of each. Labels in its
column `ours` are arms of the experiment's file, so that a table can show both. Other runs are compared with
the row of their preset (`drq_eps` for `drq-eps`) or method (`apt_icm` for APT with ICM's features).
Aggregates are of normalized scores in percent, over all tasks of the table or over the group in their name;
the IQM is the interquartile mean over all runs (Agarwal et al. 2021).

A benchmark may have several tables: the paper's, as printed, and one of public score files with more runs.
They are stored apart, since an agent scores differently there.
"""

from __future__ import annotations

import csv
import importlib.resources
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voidrl.envs.suites.atari import paper_table
from voidrl.errors import UnknownNameError

_ABOUT_ROWS = ("name", "label", "ours", "runs")


@dataclass(frozen=True)
class PublishedRow:
    """One method's row."""

    name: str
    """Method in lower case: `apt`, `drq`."""
    label: str
    """Label as printed."""
    ours: str | None
    """The label of our arm that it is compared with; None if voidrl has none."""
    values: Mapping[str, float]
    """Numbers by column; missing ones are left out."""
    runs: str = ""
    """Runs of each task, `100` or `52–60`; empty where the table does not say, or says it for all rows."""


@dataclass(frozen=True)
class Published:
    """One published table."""

    name: str
    columns: tuple[str, ...]
    """Tasks, as environment ids; then aggregates over tasks, such as `mean` or `median of 57`."""
    rows: tuple[PublishedRow, ...]
    title: str
    source: str
    """The publication and the place in it."""
    measure: str
    """Meaning of the numbers under a task."""
    notes: Sequence[str] = ()
    """Caveats for a comparison: protocol, seeds, misprints."""
    heading: str = "published"
    """Heading of its numbers, where they are shown alongside others."""
    alongside: Sequence[str] = ()
    """Other tables of its benchmark."""
    runs: Mapping[str, Any] = field(default_factory=dict)
    """Settings of runs that are compared with it outside of experiments, too; empty for none."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The columns that are environments."""
        return tuple(column for column in self.columns if "/" in column)


def names() -> list[str]:
    """Names of all tables."""
    return [*_described()]


def sources(name: str) -> tuple[Published, ...]:
    """The table of an experiment, and the others of its benchmark."""
    table = numbers(name)
    return (table, *map(numbers, table.alongside))


def numbers(name: str) -> Published:
    """One table, such as `table2` or `urlb`."""
    described = _described()
    if name not in described:
        raise UnknownNameError("published table", name, described)
    reader = csv.DictReader(_read(f"{name}.csv").splitlines())
    columns = [column for column in reader.fieldnames or () if column not in _ABOUT_ROWS]
    # The paper's scores of games are stored once, with the other data of Atari.
    games = paper_table(26) if name == "table2" else {}
    rows = []
    for line in reader:
        column_of = {"random": "random_printed", "human": "human_printed"}.get(line["name"], line["name"])
        values = {f"atari/{game}": scores[column_of] for game, scores in games.items()}
        values |= {column: float(line[column]) for column in columns if line[column]}
        rows.append(
            PublishedRow(line["name"], line["label"], line["ours"] or None, values, line.get("runs") or "")
        )
    columns = [*(f"atari/{game}" for game in games), *columns]
    return Published(name, tuple(columns), tuple(rows), **described[name])


def _described() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_read("tables.toml"))


def _read(name: str) -> str:
    return importlib.resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
