"""Scores of the experiment `adapt`: a table at 10, 30 and 100 % of the steps, what it shows, and a picture.

voidrl experiment adapt --jobs 2                                    # writes runs/adapt
python benchmarks/adapt_table.py runs/adapt --markdown adapt.md --picture adapt.png

Several folders, of different tasks or seeds, are read as one experiment.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from markdown_table import as_markdown

from voidrl.report.curves import mean_curve
from voidrl.report.figures import COLORS, DPI, import_pyplot
from voidrl.report.formatting import Table, steps
from voidrl.report.read import Run, read_all

ARMS = {
    "before": "fine-tuned, before",
    "after": "fine-tuned",
    "from_zero": "from 0 steps",
    "scratch": "from scratch",
}
"""Arms of the experiment that have a score on a task, and their columns."""
SHARES = (0.1, 0.3, 1.0)
TOLERANCE = 0.05  # of the steps: an evaluation further away than that is none at a share
COLUMNS = 5  # of the picture
METRIC = "eval/return"
Runs = dict[str, dict[str, list[Run]]]
"""Complete runs by task and arm."""


def read_runs(folders: list[Path]) -> Runs:
    """The complete runs of an experiment that have a task's reward."""
    found: Runs = {}
    for run in read_all(folders, print).runs:
        if run.cell is not None and run.cell.arm in ARMS and run.took_all_steps:
            task = run.cell.folder.partition("/")[0]
            found.setdefault(task, {}).setdefault(run.cell.arm, []).append(run)
    return found


def score_at(run: Run, share: float) -> float | None:
    """The mean return of a run at a share of its steps; at the end that of the evaluation after training."""
    if share == 1 and run.evaluation is not None:
        return float(run.evaluation["mean_return"])
    if METRIC not in run.series:
        return None
    at, values = run.series[METRIC]
    nearest = int(np.argmin(np.abs(at - share * run.asked_steps)))
    is_near = abs(at[nearest] - share * run.asked_steps) <= TOLERANCE * run.asked_steps
    return float(values[nearest]) if is_near else None


def zero_shot(run: Run) -> float | None:
    """The mean return of the agent that a run fine-tuned; None from scratch."""
    saved = None if run.evaluation is None else run.evaluation.get("zero_shot")
    if saved is None and run.phase == "finetune":
        return score_at(run, 0.0)
    return None if saved is None else float(saved["mean_return"])


class Scores:
    """Scores of several seeds, of which some may be missing."""

    def __init__(self, values: list[float | None]) -> None:
        self.values = [value for value in values if value is not None]

    @property
    def mean(self) -> float:
        """NaN without a score."""
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation over seeds."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        if not self.values:
            return "–"
        digits = 0 if abs(self.mean) >= 100 else 1 if abs(self.mean) >= 10 else 2
        text = f"{self.mean:,.{digits}f} ± {self.spread:,.{digits}f}"
        return text.replace("-", "−")


def score_table(runs: Runs) -> Table:
    """A row for each task and share of its steps."""
    rows = []
    for task, arms in runs.items():
        first = next(iter(arms.values()))[0]
        name = f"{task} ({first.config['learner']['name'].upper()})"
        before = str(Scores([*map(zero_shot, arms.get("after", []))]))
        for share in SHARES:
            scores = [Scores([score_at(run, share) for run in arms.get(arm, [])]) for arm in ARMS]
            rows.append([name, f"{100 * share:.0f} %", before, *map(str, scores)])
            name = before = ""
    seeds = max(len(each) for arms in runs.values() for each in arms.values())
    note = f"Mean return ± standard deviation over {seeds} seeds. Zero-shot: the pre-trained agent as it is."
    columns = ["task", "steps", "zero-shot", *ARMS.values()]
    return Table("Adaptation", columns, rows, [note], frozenset(range(1, len(columns))))


def verdicts(runs: Runs) -> list[str]:
    """What the table shows about the three promises of fine-tuning."""
    worse, ahead, compared, above, learned = [], [], [], [], []
    for task, arms in runs.items():
        at_end, early = (
            {arm: Scores([score_at(run, share) for run in arms.get(arm, [])]) for arm in ARMS}
            for share in (1.0, 0.3)
        )
        before = Scores([*map(zero_shot, arms.get("after", []))])
        untrained = Scores([*map(zero_shot, arms.get("from_zero", []))])
        spread = max(before.spread, at_end["after"].spread)
        if at_end["after"].mean < before.mean - spread:
            worse.append(f"{task} ({before} → {at_end['after']})")
        if not math.isnan(early["after"].mean + early["scratch"].mean):
            compared.append(task)
            if early["after"].mean >= early["scratch"].mean:
                ahead.append(task)
        if before.mean > untrained.mean:
            above.append(task)
            if early["after"].mean >= early["from_zero"].mean:
                learned.append(task)
    behind = [task for task in compared if task not in ahead]
    lost = [task for task in above if task not in learned]
    return [
        f"Below zero-shot by more than the spread of seeds after fine-tuning: {_names(worse) or 'none'}.",
        f"At 30 % of the steps, fine-tuned is ahead of or equal to from scratch on {len(ahead)} of "
        f"{len(compared)} tasks{_but(behind)}.",
        f"At 30 % of the steps, it is ahead of or equal to fine-tuning from 0 steps on {len(learned)} of the "
        f"{len(above)} tasks on which zero-shot is above the untrained agent{_but(lost)}.",
    ]


def _names(names: list[str]) -> str:
    return ", ".join(names)


def _but(names: list[str]) -> str:
    return f" (all but {_names(names)})" if names else ""


def draw(runs: Runs) -> Any:
    """Small multiples: the return in each task while it is learned, and the level of zero-shot."""
    plt = import_pyplot()
    columns = min(COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    size = (max(2.4 * columns, 7.0), 2.0 * rows + 0.5)  # the legend needs 7 inches
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis, (task, arms) in zip(axes.flat, runs.items(), strict=False):
        for color, (arm, label) in zip(COLORS, ARMS.items(), strict=False):
            series = [_curve(run) for run in arms.get(arm, []) if METRIC in run.series]
            if not series:
                continue
            curve = mean_curve(series)
            axis.plot(curve.steps, curve.mean, color=color, linewidth=1.6, label=label)
            axis.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
        before = Scores([*map(zero_shot, arms.get("after", []))])
        if before.values:
            axis.axhline(before.mean, color="#333333", linestyle="--", linewidth=1.0, label="zero-shot")
        learner = next(iter(arms.values()))[0].config["learner"]["name"].upper()
        axis.set_title(f"{task} ({learner})", fontsize=8)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter(lambda value, _: steps(value) if value >= 0 else "")
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(runs) :]:
        axis.set_axis_off()
    shown: dict[str, Any] = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    figure.legend([*shown.values()], [*shown], loc="outside lower center", ncols=len(shown), fontsize=8)
    return figure


def _curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Evaluations in training; fine-tuning begins at zero-shot."""
    at, values = run.series[METRIC]
    before = zero_shot(run)
    if before is None or at[0] == 0:
        return at, values
    return np.append(0.0, at), np.append(before, values)


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", type=Path, nargs="+", help="the folder of the experiment")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    parser.add_argument("--markdown", type=Path, metavar="MD", help="write the text to a file too")
    options = parser.parse_args()
    runs = read_runs(options.experiment)
    if not runs:
        parser.error(f"there is no complete run of {', '.join(ARMS)}")
    table = score_table(runs)
    parts = [as_markdown(table), *table.notes, "\n".join(f"- {line}" for line in verdicts(runs))]
    text = "\n\n".join(parts)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.picture:
        draw(runs).savefig(options.picture, dpi=DPI)


if __name__ == "__main__":
    main()
