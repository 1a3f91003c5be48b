"""Published numbers that experiments are compared with, as printed, and their sources.

Labels in `ours` are the arms of the experiment's file, so that a table can show both.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass

from voidrl.errors import UnknownNameError
from voidrl.suites.atari import paper_table

RAM_RATIO = "RAM state ratio"
AGGREGATES = {
    "median": "%",
    "mean": "%",
    "above_human": "games",
    "median of 57": "%",
    "mean of 57": "%",
    "above_human of 57": "games",
    RAM_RATIO: "×",
}
"""Columns that are not tasks, with their units. Medians and means are of human-normalized scores, over the 26
games unless they say 57."""


@dataclass(frozen=True)
class PublishedRow:
    """One method's row."""

    name: str
    """In lower case: `apt`, `drq`."""
    label: str
    """As printed."""
    ours: str | None
    """The label of our arm that it is compared with; None if voidrl has none."""
    values: Mapping[str, float]
    """By column; missing numbers are left out."""


@dataclass(frozen=True)
class Published:
    """One published table."""

    name: str
    title: str
    source: str
    """The publication, and where in it."""
    measure: str
    """What the numbers under a task are."""
    columns: tuple[str, ...]
    """Environment ids as in `experiment.json`, then names from `AGGREGATES`."""
    rows: tuple[PublishedRow, ...]
    notes: tuple[str, ...] = ()
    """What matters for a comparison: protocol, seeds, misprints."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The columns that are environments."""
        return tuple(column for column in self.columns if column not in AGGREGATES)

    @property
    def aggregates(self) -> tuple[str, ...]:
        """The columns that are aggregates."""
        return tuple(column for column in self.columns if column in AGGREGATES)

    def value(self, ours: str, column: str) -> float | None:
        """The published number for our arm with this label."""
        found = (row.values.get(column) for row in self.rows if row.ours == ours)
        return next(found, None)


@dataclass(frozen=True)
class _PublishedTable:
    title: str
    source: str
    measure: str
    notes: tuple[str, ...]


PAPER = "Liu and Abbeel 2021, Behavior From the Void: Unsupervised Active Pre-Training"
MISPRINTS = (
    "Numbers are as printed, misprints included: in the row of demon_attack SimPLe to SPR repeat "
    "crazy_climber, and the printed means do not follow from the printed scores (APT recomputed: mean "
    "66.6 %, 8 above human)."
)
PROTOCOL = "250M steps of pre-training, then 100K steps with task reward"
_TABLES = {
    "table2": _PublishedTable(
        "26 Atari games after 100K steps",
        f"{PAPER}, table of the 26 games",
        "score",
        (f"APT: {PROTOCOL}; means over 10 seeds.", MISPRINTS),
    ),
    "table3": _PublishedTable(
        "Unsupervised methods, with and without contrastive learning (CL)",
        f"{PAPER}, table of aggregates",
        "human-normalized score",
        (f"{PROTOCOL}; human-normalized in percent.",),
    ),
    "table4": _PublishedTable(
        "Variants of APT on 26 Atari games",
        f"{PAPER}, table of ablations",
        "human-normalized score",
        (f"{PROTOCOL}; human-normalized in percent; means over 3 seeds.",),
    ),
    "table5": _PublishedTable(
        "Pre-trained or random heads",
        f"{PAPER}, table of fine-tuning heads",
        "score",
        (f"{PROTOCOL}; means over 3 seeds.",),
    ),
    "exploration": _PublishedTable(
        "MsPacman without task reward",
        f"{PAPER}, text of the ablation study",
        "zero-shot score",
        (
            "5M steps of pre-training, then zero-shot; means over 3 seeds.",
            "The paper gives only the ratio of RAM states, not the number of steps they are counted over.",
        ),
    ),
    "urlb": _PublishedTable(
        "URLB from states: 2M frames of pre-training, 100K with task reward",
        "README of MOSS (Zhao et al. 2022), mean returns of eleven of the twelve tasks; expert: Laskin et "
        "al. 2021, URLB",
        "return",
        ("The spread over seeds is not given. jaco_reach_top_right is not in the table.",),
    ),
}


def names() -> list[str]:
    """Names of all tables."""
    return [*_TABLES]


def numbers(name: str) -> Published:
    """The table of an experiment, such as `table2` or `urlb`."""
    if name not in _TABLES:
        raise UnknownNameError("published table", name, _TABLES)
    about = _TABLES[name]
    text = importlib.resources.files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    reader = csv.DictReader(text.splitlines())
    columns = [column for column in reader.fieldnames or () if column not in ("name", "label", "ours")]
    rows = [
        PublishedRow(
            name=line["name"],
            label=line["label"],
            ours=line["ours"] or None,
            values={column: float(line[column]) for column in columns if line[column]},
        )
        for line in reader
    ]
    if name == "table2":  # its scores are stored with the other Atari tables
        columns, rows = _with_games(columns, rows)
    return Published(name, about.title, about.source, about.measure, tuple(columns), tuple(rows), about.notes)


def _with_games(columns: list[str], rows: list[PublishedRow]) -> tuple[list[str], list[PublishedRow]]:
    games = paper_table(26)
    printed = {"random": "random_printed", "human": "human_printed"}
    full = [
        PublishedRow(
            row.name,
            row.label,
            row.ours,
            {
                **{
                    f"atari/{game}": scores[printed.get(row.name, row.name)] for game, scores in games.items()
                },
                **row.values,
            },
        )
        for row in rows
    ]
    return [*(f"atari/{game}" for game in games), *columns], full
