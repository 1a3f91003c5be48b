"""Everything that a report says about runs, for the terminal, the page, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from voidrl.report import provenance, summary
from voidrl.report.formatting import Section, Table
from voidrl.report.grids import find_grids, grid_sections
from voidrl.report.groups import ArmRuns, make_arms
from voidrl.report.panel import find_panels, panel_sections
from voidrl.report.probes import probe_tables
from voidrl.report.published import atari_table, published_tables
from voidrl.report.ranking import coverage_rankings
from voidrl.report.read import Collection, read_all
from voidrl.report.results import Results, make_results
from voidrl.report.scores.grids import GridResult
from voidrl.report.scores.panel import Panel
from voidrl.report.stages import stage_table
from voidrl.report.urlb import urlb_sections


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
        """The table of results of each stage."""
        return make_results(self.arms)

    @cached_property
    def overview(self) -> list[tuple[str, str]]:
        """Names and values."""
        return summary.overview(self.collection, self.arms)

    @cached_property
    def findings(self) -> list[str]:
        """Sentences about the arms that are ahead."""
        return summary.findings(self.results)

    @cached_property
    def caveats(self) -> list[summary.Caveat]:
        """Limits of the numbers."""
        return summary.caveats(self.collection, self.arms, self.results)

    @cached_property
    def before_after(self) -> Table | None:
        """Each method before and after fine-tuning."""
        return stage_table(self.collection, self.results)

    @cached_property
    def atari(self) -> Table | None:
        """Aggregates over games."""
        return atari_table(self.arms)

    @cached_property
    def panel_results(self) -> dict[str, Panel]:
        """Panels by name."""
        return find_panels(self.collection)

    @cached_property
    def grid_results(self) -> dict[str, GridResult]:
        """Grids by name."""
        return find_grids(self.collection)

    @cached_property
    def panels(self) -> list[Section]:
        """Differences between fine-tuning and training from scratch."""
        return panel_sections(self.panel_results)

    @cached_property
    def grids(self) -> list[Section]:
        """Ranked points of grids."""
        return grid_sections(self.grid_results.values())

    @cached_property
    def rankings(self) -> list[Table]:
        """Methods by their coverage."""
        return [ranking.table() for ranking in coverage_rankings(self.arms)]

    @cached_property
    def urlb(self) -> list[Section]:
        """Expert-normalized scores on URLB's tasks."""
        return urlb_sections(self.collection, self.arms)

    @cached_property
    def probes(self) -> list[Table]:
        """Probes of runs."""
        return probe_tables(self.collection.runs)

    @cached_property
    def published(self) -> list[Table]:
        """Published numbers alongside ours."""
        return published_tables(self.collection, self.arms)

    @cached_property
    def settings(self) -> Table:
        """Settings that differ between runs."""
        return provenance.settings_table(self.arms)

    @cached_property
    def runs(self) -> Table:
        """Every run with its status."""
        return provenance.runs_table(self.arms)

    @cached_property
    def versions(self) -> Table:
        """Versions and hardware."""
        return provenance.versions_table(self.collection.runs)

    @cached_property
    def commands(self) -> list[tuple[str, str]]:
        """Runs and the command that made them."""
        return provenance.commands(self.collection)
