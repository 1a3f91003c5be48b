"""Pre-training against scratch: scores of each game, differences with intervals, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voidrl.errors import ConfigError
from voidrl.report.formatting import Table
from voidrl.report.read import Collection
from voidrl.report.scores.panel import Panel, PanelArms, make_panels, read_panel, show_score, signed, span
from voidrl.report.scores.statistics import Interval, percent

ABSENT = "–"
LABELS = {
    "random": "random play",
    "zero_shot": "zero-shot",
    "scratch": "from scratch",
    "finetuned": "fine-tuned",
}
INTERVALS = (
    "Human-normalized: 0 is a random policy, 100 % the human tester. Brackets are {level} bootstrap "
    "intervals over seeds: pre-trainings are drawn first, then fine-tunings within each. Deviations are "
    "multiplied by √(n / (n − 1)), as intervals from few seeds would otherwise be too narrow. Each game is "
    "resampled on its own; the pooled difference is the mean over games."
)


@dataclass(frozen=True)
class ForestLine:
    """A difference in the picture."""

    name: str
    interval: Interval
    text: str
    positions: dict[str, str]
    """Ends of the interval, the difference and 0, in percent of the axis."""


@dataclass(frozen=True)
class PanelSection:
    """The panel of an experiment."""

    panel: Panel
    name: str
    """Name of the experiment, with the two arms where it has several comparisons."""

    @property
    def title(self) -> str:
        """The difference that the panel shows."""
        arms = self.panel.arms
        return f"{self.panel.label(arms.finetuned)} − {self.panel.label(arms.scratch)}, human-normalized"

    @property
    def verdicts(self) -> list[str]:
        """Conclusions as sentences."""
        return self.panel.verdicts()

    @property
    def intervals(self) -> str:
        """Method of the intervals."""
        return INTERVALS.format(level="90 %" if self.panel.gain is None else self.panel.gain.percent)

    def lines(self) -> list[ForestLine]:
        """Fine-tuned − scratch in each game, and pooled last."""
        found = [(name, gain) for name, gain, _ in self.panel.difference_rows() if gain is not None]
        if not found:
            return []
        low = min(0.0, *(each.low for _, each in found))
        high = max(0.0, *(each.high for _, each in found))
        width = (high - low) or 1.0

        def at(value: float) -> str:
            return f"{100 * (value - low) / width:.1f}%"

        lines = []
        for name, each in found:
            positions = {"low": at(each.low), "mean": at(each.point), "high": at(each.high), "zero": at(0.0)}
            lines.append(ForestLine(name, each, signed(each.point), positions))
        return lines

    def score_table(self) -> Table:
        """Each game and arm: the mean, and every seed."""
        panel, rows = self.panel, []
        for game in panel.games:
            for arm in panel.arms.names:
                groups = [[entry.score for entry in group] for group in panel.groups(arm, game).values()]
                normalized = panel.normalized(arm, game)
                if normalized is None:
                    rows.append([game, panel.label(arm), ABSENT, ABSENT, "not run"])
                    continue
                mean = float(np.mean([np.mean(group) for group in groups]))
                seeds = panel.seeds_in_words(arm, game)
                rows.append([game, panel.label(arm), show_score(mean), percent(normalized), seeds])
        columns = ["game", "arm", "mean", "human-normalized", "every seed"]
        note = "The mean of a pre-trained arm is over pre-trainings of the mean over their fine-tunings."
        return Table("Scores", columns, rows, [note], frozenset({2, 3}))

    def difference_table(self) -> Table:
        """Human-normalized differences of each game, pooled last."""
        panel, arms = self.panel, self.panel.arms
        columns = ["game", f"{panel.label(arms.finetuned)} − {panel.label(arms.scratch)}", "interval"]
        with_zero_shot = panel.zero_shot_gain is not None
        if with_zero_shot:
            columns += [f"{panel.label(arms.zero_shot)} − {panel.label(arms.random)}", "each pre-training"]
        rows = []
        for name, gain, zero_shot in panel.difference_rows():
            cells = [name, *_cells(gain)]
            if with_zero_shot:
                # Two or three values are better shown than summarized; over all games an interval is fair.
                seeds = ", ".join(map(signed, panel.zero_shot_seeds(name) if name in panel.games else []))
                cells += [_cells(zero_shot)[0], seeds or _cells(zero_shot)[1]]
            rows.append(cells)
        return Table("Differences", columns, rows, [self.intervals], frozenset(range(1, len(columns))))

    def tables(self) -> list[Table]:
        """All of it as text."""
        return [self.difference_table(), self.score_table()]


def _cells(interval: Interval | None) -> list[str]:
    if interval is None:
        return [ABSENT, ABSENT]
    return [signed(interval.point), span(interval) or "no spread"]


def panel_sections(collection: Collection) -> list[PanelSection]:
    """A section for each experiment with a fine-tuned arm and one from scratch on Atari games."""
    sections = []
    for experiment in collection.experiments:
        runs = {run.cell.folder: run for run in collection.runs if run.experiment is experiment and run.cell}
        evaluations = {folder: run.evaluation for folder, run in runs.items() if run.took_all_steps}
        panels = make_panels(experiment.cells, evaluations)
        for panel in panels:
            several = f", {panel.label(panel.arms.finetuned)}" if len(panels) > 1 else ""
            sections.append(PanelSection(panel, experiment.name + several))
    return sections


def read_section(path: Path) -> PanelSection:
    """The section of a single `panel.json`, whose arms have the names of the experiment `atari-panel`."""
    entries = read_panel(path)
    there = {entry.arm for entry in entries}
    missing = [name for name in ("finetuned", "scratch") if name not in there]
    if missing:
        raise ConfigError(
            f"{path} has no scores of {' and '.join(missing)}: expected arms named as in the experiment "
            f"atari-panel, found {', '.join(sorted(there)) or 'none'}"
        )
    optional = {name: name for name in ("zero_shot", "random") if name in there}
    return PanelSection(Panel(PanelArms("finetuned", "scratch", **optional), entries, LABELS), path.stem)
