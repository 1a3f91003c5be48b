"""What `voidrl explore` ends with: means over the seeds as text, with the range where there are several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from voidrl.explore_plan import FINETUNED, PRESET, SCRATCH, TUNED
from voidrl.stats import percent

if TYPE_CHECKING:
    from voidrl.explore import Exploration, Outcome

NAMES = {"ram": "RAM vectors", "variables": "variables", "positions": "positions"}
CONTROL = "positive"  # to which the paper compares what APT sees
Rows = list[list[str]]


def table(result: Exploration) -> str:
    """Three parts: while pre-training, the policy that came of it, and, if there was any, fine-tuning."""
    plan = result.plan
    blocks = [_pretraining(result), _fixed(result)]
    if plan.finetune_steps is not None:
        blocks.append(_task(result))
    seeds = ", ".join(map(str, plan.seeds))
    several = f"means over seeds {seeds}, in brackets the range" if len(plan.seeds) > 1 else f"seed {seeds}"
    lines = [f"{plan.env}, preset {plan.preset}; {several}"]
    for title, rows in blocks:
        lines += ["", title, *_aligned(rows)]
    lines.append("")
    if result.baseline is not None:
        random, human = result.baseline
        lines.append(
            f"Published scores of {plan.game}: {random:,.1f} for random play, {human:,.1f} for a human."
        )
    lines.append(_about_ram(result))
    if plan.preset == PRESET:
        lines.append(f"{PRESET} takes minutes and shows how it works, not how well.")
    return "\n".join(lines)


def _about_ram(result: Exploration) -> str:
    counted, envs = result.counted_envs
    runs = [run for name in result.plan.methods for run in result.of(name)]
    new = [100 * run.counts["ram"] / (run.steps * counted / envs) for run in runs]
    low, high = f"{min(new):.0f}", f"{max(new):.0f}"
    share = f"{low} %" if low == high else f"{low} to {high} %"
    remedy = "compare variables and positions"
    if result.measures == ["ram"]:
        remedy = f"they tell little, but no variables of {result.plan.game} are annotated"
    return f"Whole RAM vectors hold timers and saturate, {share} of the steps arrived in a new one: {remedy}."


def _pretraining(result: Exploration) -> tuple[str, Rows]:
    measures, methods = result.measures, result.plan.methods
    rows = [["", "steps", *(NAMES[name] for name in measures)]]
    for method in methods:
        runs = result.of(method)
        counts = [_cell([run.counts[name] for run in runs], _count) for name in measures]
        rows.append([method, _steps(runs), *counts])
    if {TUNED, CONTROL} <= {*methods}:
        ratios = [_ratio(result.of(TUNED), result.of(CONTROL), name) for name in measures]
        rows.append([f"{TUNED} / {CONTROL}", "", *ratios])
    counted, envs = result.counted_envs
    where = "" if counted == envs else f", counted in {counted} of {envs} environments"
    return f"Distinct states seen while pre-training, without reward{where}", rows


def _fixed(result: Exploration) -> tuple[str, Rows]:
    measures = result.measures
    rows = [["", "steps", *(NAMES[name] for name in measures), *_score_names(result)]]
    for method in result.plan.methods:
        found = [run.evaluation for run in result.of(method)]
        counts = [_cell([one["counts"][name] for one in found], _count) for name in measures]
        steps = _cell([one["counted_steps"] for one in found], _count)
        rows.append([method, steps, *counts, *_scores(result, method)])
    return "The policy afterwards, which learns no more and has never seen a reward", rows


def _task(result: Exploration) -> tuple[str, Rows]:
    rows = [["", "steps", *_score_names(result)]]
    for name, label in ((FINETUNED, f"fine-tuned from {TUNED}"), (SCRATCH, "from scratch")):
        rows.append([label, _steps(result.of(name)), *_scores(result, name)])
    return "Then with the game's reward", rows


def _score_names(result: Exploration) -> list[str]:
    return ["score", *(["human-normalised"] if result.baseline else [])]


def _scores(result: Exploration, name: str) -> list[str]:
    found = [run.evaluation for run in result.of(name)]
    cells = [_cell([one["mean_return"] for one in found], _score)]
    if result.baseline:
        cells.append(_cell([one["human_normalised"] for one in found], percent))
    return cells


def _cell(values: Sequence[float], show: Callable[[float], str]) -> str:
    low, high = show(min(values)), show(max(values))
    return show(float(np.mean(values))) + ("" if low == high else f" [{low} to {high}]")


def _steps(runs: Sequence[Outcome]) -> str:
    """Environments step together, so runs differ by a few."""
    return _count(float(np.mean([run.steps for run in runs])))


def _count(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value:,.0f}"


def _score(value: float) -> str:
    return f"{value:,.1f}"


def _ratio(ours: Sequence[Outcome], theirs: Sequence[Outcome], measure: str) -> str:
    """Of the means; in brackets, of the runs with the same seed."""
    pairs = np.array([[a.counts[measure], b.counts[measure]] for a, b in zip(ours, theirs, strict=True)])
    mine, other = pairs.mean(axis=0)
    each = pairs[:, 0] / pairs[:, 1]
    low, high = f"{each.min():.2f}×", f"{each.max():.2f}×"
    return f"{mine / other:.2f}×" + ("" if low == high else f" [{low} to {high}]")


def _aligned(rows: Rows) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
