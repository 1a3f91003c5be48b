"""Everything that a report says about runs, for the terminal, the page and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from voidrl.probing import result as probes
from voidrl.report import provenance, summary
from voidrl.report.comparisons import comparison_sections
from voidrl.report.formatting import Section, Table
from voidrl.report.grids import find_grids
from voidrl.report.groups import ArmRuns, make_arms
from voidrl.report.outcomes import outcome, return_source, sort_keys
from voidrl.report.published import find_benchmarks, published_table, scale_tables
from voidrl.report.read import Collection, read_all
from voidrl.report.results import Results, make_results

HEADINGS = {
    "panel": "With and without pre-training",
    "grid": "Grid",
    "scores": "Scores over tasks",
    "published": "Published numbers",
    "probes": "Probes",
}
"""The sections of a page that only some runs have, and their headings."""


@dataclass(frozen=True)
class Report:
    """The runs under some paths, and all tables and sentences about them; each is made once, when needed."""

    paths: Sequence[str | Path]
    """Where its runs were found."""
    collection: Collection
    title: str

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], say: Callable[[str], None], title: str | None = None
    ) -> Report:
        """Read all runs under the paths; `say` is called with notes about skipped parts."""
        collection = read_all(paths, say)
        return cls(paths, collection, title or summary.default_title(collection))

    @cached_property
    def arms(self) -> list[ArmRuns]:
        """Runs that differ only in their seed."""
        return make_arms(self.collection.runs)

    @cached_property
    def results(self) -> list[Results]:
        """The results of each stage."""
        return make_results(self.arms)

    @cached_property
    def findings(self) -> list[str]:
        """Sentences about the arms that are ahead."""
        return summary.findings(self.results)

    @cached_property
    def caveats(self) -> list[summary.Caveat]:
        """Limits of the numbers."""
        return summary.caveats(self.collection, self.arms, self.results)

    @cached_property
    def tables(self) -> list[Table]:
        """The tables of the summary."""
        found = [table for results in self.results for table in (results.pivot(), results.table())]
        return [table for table in found if table is not None]

    @cached_property
    def sections(self) -> list[Section]:
        """The sections under `HEADINGS`."""
        benchmarks = find_benchmarks(self.collection, self.arms)
        scores = scale_tables(benchmarks, self.arms)
        quoted = (published_table(each) for each in benchmarks)
        return [
            *comparison_sections(self.arms),
            *(grid.section() for grid in find_grids(self.collection)),
            *(Section("scores", table.title, [table]) for table in scores),
            *(Section("published", table.title, [table]) for table in quoted),
            *self._probes(),
        ]

    def _probes(self) -> Iterator[Section]:
        for run in self.collection.runs:
            if (saved := run.probe) is not None:
                names, notes = probes.columns(saved), [*probes.notes(saved), probes.heading(saved)]
                numeric = frozenset(range(2, len(names)))
                table = Table(run.name, names, probes.rows(saved), notes, numeric)
                yield Section("probes", run.name, [table])

    def as_json(self) -> str:
        """One record for each run, with numbers in full precision."""
        runs = [(arm, run, outcome(run)) for arm in self.arms for run in arm.runs]
        keys = sort_keys({key for *_, numbers in runs for key in numbers})
        records = [
            {
                "folder": run.name,
                "experiment": run.experiment and run.experiment.name,
                "environment": run.env,
                "arm": arm.label,
                "method": run.method,
                "phase": run.phase,
                "seed": run.seed,
                "status": run.status,
                "steps": run.steps,
                "steps_asked": run.asked_steps,
                "steps_protocol": run.protocol_steps,
                **{key.replace("/", "_"): numbers.get(key) for key in keys},
                "return_source": return_source(run),
                "date": provenance.field(run, "date"),
                "command": provenance.field(run, "command"),
                "voidrl": provenance.field(run, "versions", "voidrl"),
                "torch": provenance.field(run, "versions", "torch"),
                "commit": provenance.commit(run),
                "hardware": provenance.hardware(run),
            }
            for arm, run, numbers in runs
        ]
        return json.dumps(records, indent=2, allow_nan=False) + "\n"
