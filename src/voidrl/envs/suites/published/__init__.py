"""Published numbers that experiments are compared with, and their sources.

Labels in `ours` are the arms of the experiment's file, so that a table can show both. Rows are named after
presets (`drq_eps` for `drq-eps`), so that runs outside of experiments are compared, too.

A benchmark may have several tables: the paper's, as printed, and one of public score files with more runs.
They are stored apart, since an agent scores differently there.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass

from voidrl.envs.suites.atari import paper_table
from voidrl.errors import UnknownNameError

_ABOUT_ROWS = ("name", "label", "ours", "runs")
RAM_RATIO = "RAM state ratio"
AGGREGATES = {
    "median": "%",
    "mean": "%",
    "iqm": "%",
    "above_human": "games",
    "median of 57": "%",
    "mean of 57": "%",
    "above_human of 57": "games",
    RAM_RATIO: "×",
}
"""Columns that are not tasks, with their units. Medians, means and interquartile means (over all runs, as in
Agarwal et al. 2021) are of human-normalized scores, over the 26 games unless they say 57."""


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
    title: str
    source: str
    """The publication and the place in it."""
    measure: str
    """Meaning of the numbers under a task."""
    columns: tuple[str, ...]
    """Environment ids as in `experiment.json`, then names from `AGGREGATES`."""
    rows: tuple[PublishedRow, ...]
    notes: tuple[str, ...] = ()
    """Caveats for a comparison: protocol, seeds, misprints."""
    heading: str = "published"
    """Heading of its numbers, where they are shown alongside others."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The columns that are environments."""
        return tuple(column for column in self.columns if column not in AGGREGATES)

    @property
    def aggregates(self) -> tuple[str, ...]:
        """The columns that are aggregates."""
        return tuple(column for column in self.columns if column in AGGREGATES)

    def row(self, ours: str) -> PublishedRow | None:
        """The row that our arm with this label is compared with."""
        return next((row for row in self.rows if row.ours == ours), None)

    def value(self, ours: str, column: str) -> float | None:
        """The published number for our arm with this label."""
        row = self.row(ours)
        return None if row is None else row.values.get(column)


@dataclass(frozen=True)
class _PublishedTable:
    title: str
    source: str
    measure: str
    notes: tuple[str, ...]
    heading: str = "published"
    next_to: tuple[str, ...] = ()
    """Other tables of its benchmark."""


PAPER = "Liu and Abbeel 2021, Behavior From the Void: Unsupervised Active Pre-Training"
MISPRINTS = (
    "Numbers are as printed, misprints included: in the row of demon_attack SimPLe to SPR repeat "
    "crazy_climber (the larger samples have demon_attack itself), and the printed means do not follow from "
    "the printed scores (APT recomputed: mean 66.6 %, 8 above human)."
)
PROTOCOL = "250M steps of pre-training, then 100K steps with task reward"
_TABLES = {
    "table2": _PublishedTable(
        "26 Atari games after 100K steps",
        f"{PAPER}, table of the 26 games",
        "score",
        (f"APT: {PROTOCOL}; means over 10 seeds.", MISPRINTS),
        heading="printed",
        next_to=("atari100k",),
    ),
    "atari100k": _PublishedTable(
        "26 Atari games after 100K steps, larger samples",
        "per-run scores in google-research/rliable (CURL, DER, DrQ, OTRainbow, SPR: 100 runs), "
        "google-research's bigger_better_faster, eloialonso/iris and facebookresearch/MRQ; EfficientZero: "
        "means over 3 runs",
        "score",
        (
            "Means over runs, each evaluated once, at the end of training. Of DER, DrQ and OTRainbow we have "
            "the aggregates alone; this DER is another implementation than the printed one.",
            "MR.Q was run with sticky actions, the others without.",
            "With more runs, SPR's mean is 61.6 % (printed: 70.4 %) and CURL's 26.1 % (38.1 %): the larger "
            "sample is the better aim.",
        ),
        heading="larger sample",
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


def sources(name: str) -> tuple[Published, ...]:
    """The table of an experiment, and the others of its benchmark."""
    table = numbers(name)
    return (table, *map(numbers, _TABLES[name].next_to))


def numbers(name: str) -> Published:
    """One table, such as `table2` or `urlb`."""
    if name not in _TABLES:
        raise UnknownNameError("published table", name, _TABLES)
    about = _TABLES[name]
    text = importlib.resources.files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    reader = csv.DictReader(text.splitlines())
    columns = [
        column for column in reader.fieldnames or () if column not in ("name", "label", "ours", "runs")
    ]
    rows = [
        PublishedRow(
            name=line["name"],
            label=line["label"],
            ours=line["ours"] or None,
            values={column: float(line[column]) for column in columns if line[column]},
            runs=line.get("runs") or "",
        )
        for line in reader
    ]
    if name == "table2":  # its scores are stored with the other Atari tables
        columns, rows = _with_games(columns, rows)
    return Published(
        name,
        about.title,
        about.source,
        about.measure,
        tuple(columns),
        tuple(rows),
        about.notes,
        about.heading,
    )


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
