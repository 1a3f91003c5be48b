"""Pre-training against scratch: scores of each game, differences with intervals, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from voidrl.report.formatting import Bar, Section, Table
from voidrl.report.read import Collection
from voidrl.report.scores.panel import Panel, make_panels, show_score, signed, span
from voidrl.report.scores.statistics import DIFFERENCE_LEVEL, Interval, percent

ABSENT = "–"
INTERVALS = (
    f"Human-normalized: 0 is a random policy, 100 % the human tester. Brackets are {DIFFERENCE_LEVEL:.0%} "
    "bootstrap intervals over seeds: pre-trainings are drawn first, then fine-tunings within each. "
    "Deviations are multiplied by √(n / (n − 1)), as intervals from few seeds would otherwise be too narrow. "
    "Each game is resampled on its own; the pooled difference is the mean over games."
)
LEGEND = "The dot is the difference, the bar its interval, the upright line 0."


def find_panels(collection: Collection) -> dict[str, Panel]:
    """The panels of experiments with a fine-tuned arm and one from scratch on Atari games, by name."""
    found = {}
    for experiment in collection.experiments:
        runs = {run.cell.folder: run for run in collection.runs if run.experiment is experiment and run.cell}
        evaluations = {folder: run.evaluation for folder, run in runs.items() if run.took_all_steps}
        panels = make_panels(experiment.cells, evaluations)
        for panel in panels:
            several = f", {panel.label(panel.arms.finetuned)}" if len(panels) > 1 else ""
            found[experiment.name + several] = panel
    return found


def panel_sections(panels: Mapping[str, Panel]) -> list[Section]:
    """Each panel: conclusions, differences, and every seed."""
    return [
        Section(
            f"With and without pre-training: {name}",
            [_difference_table(panel), _score_table(panel)],
            panel.verdicts(),
        )
        for name, panel in panels.items()
    ]


def _difference_table(panel: Panel) -> Table:
    """Human-normalized differences of each game, pooled last."""
    arms, rows, bars = panel.arms, list[list[str]](), list[Bar | None]()
    columns = ["game", f"{panel.label(arms.finetuned)} − {panel.label(arms.scratch)}", "interval"]
    with_zero_shot = panel.zero_shot_gain is not None
    if with_zero_shot:
        columns += [f"{panel.label(arms.zero_shot)} − {panel.label(arms.random)}", "each pre-training"]
    for name, gain, zero_shot in panel.difference_rows():
        cells = [name, *_cells(gain)]
        if with_zero_shot:
            # Two or three values are better shown than summarized; over all games an interval is fair.
            seeds = ", ".join(map(signed, panel.zero_shot_seeds(name) if name in panel.games else []))
            cells += [_cells(zero_shot)[0], seeds or _cells(zero_shot)[1]]
        rows.append(cells)
        color = "competence" if name == "pooled" else "knowledge"
        bars.append(None if gain is None else Bar(gain.low, gain.point, gain.high, color, mark=0.0))
    numeric = frozenset(range(1, len(columns)))
    return Table(panel.title, columns, rows, [INTERVALS], numeric, bars=bars, legend=LEGEND)


def _cells(interval: Interval | None) -> list[str]:
    if interval is None:
        return [ABSENT, ABSENT]
    return [signed(interval.point), span(interval) or "no spread"]


def _score_table(panel: Panel) -> Table:
    """Each game and arm: the mean, and every seed."""
    rows = []
    for game in panel.games:
        for arm in panel.arms.names:
            groups = panel.groups(arm, game).values()
            cells = [ABSENT, ABSENT, "not run"]
            if (normalized := panel.normalized(arm, game)) is not None:
                mean = float(np.mean([np.mean(group) for group in groups]))
                cells = [show_score(mean), percent(normalized), panel.seeds_in_words(arm, game)]
            rows.append([game, panel.label(arm), *cells])
    columns = ["game", "arm", "mean", "human-normalized", "every seed"]
    note = "The mean of a pre-trained arm is over pre-trainings of the mean over their fine-tunings."
    return Table("Scores of every seed", columns, rows, [note], frozenset({2, 3}))
