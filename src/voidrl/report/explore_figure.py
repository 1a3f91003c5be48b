"""One picture of `voidrl explore`: states over steps, scores of the policies, and fine-tuning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voidrl.errors import MissingExtraError
from voidrl.explore_plan import FINETUNED, SCRATCH, TUNED
from voidrl.progress import human_count
from voidrl.report.demo_figure import APT, RANDOM, import_pyplot
from voidrl.report.demo_figure import SCRATCH as BLUE

if TYPE_CHECKING:
    from voidrl.explore import Curve, Exploration, Outcome

# Different in lightness too, and each with its own dashes: told apart in grey and with any kind of sight.
LOOKS: dict[str, tuple[str, Any]] = {
    "apt": (APT, "-"),
    "positive": ("#e0a000", (0, (5, 1.5))),
    "random": (RANDOM, (0, (1.2, 1.2))),
    FINETUNED: (APT, "-"),
    SCRATCH: (BLUE, (0, (5, 1.5))),
}
OTHERS = [("#009e73", "-."), ("#56b4e9", "--"), ("#cc79a7", ":"), ("#0072b2", "-.")]
TITLES = {
    "variables": "Annotated variables",
    "positions": "Positions of the player",
    "ram": "Whole RAM: timers saturate it",
}
DIAMOND: dict[str, Any] = {"marker": "D", "linestyle": "", "markeredgecolor": "white", "markersize": 8}
DOTS = (0, (1.5, 1.5))
LOG_FROM = 20.0  # between the fewest and the most at the end: above, a straight axis hides the fewest


def require_pyplot() -> Any:
    """Return matplotlib, drawing to files, or a sentence that says how to install it."""
    try:
        return import_pyplot()
    except MissingExtraError:
        raise MissingExtraError("matplotlib", "plot", "the picture of `voidrl explore`") from None


def draw(result: Exploration, path: Path) -> Path:
    """Curves as the mean over seeds, with a thin line for each where there are several."""
    plt = require_pyplot()
    plan, tuned = result.plan, result.plan.finetune_steps is not None
    names = [*result.measures, "score", *([FINETUNED] if tuned else [])]
    columns = {2: 2, 3: 3, 4: 2, 5: 3}[len(names)]
    layout = [names] if len(names) <= 3 else [names[:columns], names[columns:]]
    if len(names) == 5:
        layout = [names[:3], [names[3], names[4], names[4]]]
    size = (3.75 * columns, 3.05 * len(layout) + 0.4)
    figure, axes = plt.subplot_mosaic(layout, figsize=size, layout="constrained")
    looks = _looks(plan.methods)
    for measure in result.measures:
        _count_panel(axes[measure], result, measure, looks)
    _score_panel(axes["score"], result, looks)
    if tuned:
        _task_panel(axes[FINETUNED], result)
    seeds = "1 seed" if len(plan.seeds) == 1 else f"mean and each of {len(plan.seeds)} seeds"
    figure.suptitle(f"{plan.env}, preset {plan.preset}, {seeds}", fontsize=11, color="#444444")
    tmp = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    figure.savefig(tmp, dpi=130, format="png")
    tmp.replace(path)
    plt.close(figure)
    return path


def _looks(methods: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Colour and dashes of each method."""
    others = iter(OTHERS * len(methods))
    return {name: LOOKS[name] if name in LOOKS else next(others) for name in methods}


def _count_panel(axis: Any, result: Exploration, measure: str, looks: dict[str, tuple[str, Any]]) -> None:
    ends = []
    for method, look in looks.items():
        runs = result.of(method)
        _curves(axis, [run.curves[measure] for run in runs], look, method)
        ends.append(float(np.mean([run.counts[measure] for run in runs])))
    if max(ends) > LOG_FROM * min(ends):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    counted, envs = result.counted_envs
    seen = "distinct states seen" if counted == envs else f"distinct states, {counted} of {envs} envs"
    axis.set(title=TITLES[measure], xlabel="steps without reward", ylabel=seen)
    _plain(axis)
    axis.legend(edgecolor="none", framealpha=0.8, handlelength=2.6)


def _score_panel(axis: Any, result: Exploration, looks: dict[str, tuple[str, Any]]) -> None:
    for place, (method, (colour, _)) in enumerate(looks.items()):
        _bar(axis, place, result.of(method), colour)
    axis.set_xticks(range(len(looks)), list(looks))
    axis.set(title="Score, no reward ever seen", ylabel="score of the policy")
    axis.tick_params(axis="x", length=0)
    said = _references(axis, result)
    if said is not None:
        axis.set_xlabel(f"dotted: {said}", fontsize=9)
    _plain(axis, x=False)


def _task_panel(axis: Any, result: Exploration) -> None:
    labels = {FINETUNED: f"fine-tuned from {TUNED}", SCRATCH: "from scratch"}
    for name, label in labels.items():
        runs, look = result.of(name), LOOKS[name]
        axis.plot([], [], color=look[0], linestyle=look[1], linewidth=2.2, label=label)
        _curves(axis, [run.curves["score"] for run in runs if "score" in run.curves], look)
        scores = [run.evaluation["mean_return"] for run in runs]
        axis.plot([run.steps for run in runs], scores, color=look[0], zorder=5, **DIAMOND)
    axis.plot([], [], color="#666666", label="evaluated at the end", **DIAMOND)
    axis.set(title="Then with the game's reward", xlabel="steps with reward", ylabel="score while learning")
    said = _references(axis, result)
    if said is not None:
        axis.plot([], [], color="#444444", linewidth=1.2, linestyle=DOTS, label=said)
    _plain(axis)
    axis.legend(edgecolor="none", framealpha=0.8, handlelength=2.6)


def _curves(axis: Any, curves: Sequence[Curve], look: tuple[str, Any], label: str | None = None) -> None:
    """Rows of different seeds need not be at the same steps: the mean is of what lies between them."""
    if not curves:
        return
    colour, dashes = look
    thick: dict[str, Any] = {"linewidth": 2.2, "label": label}
    each = {"linewidth": 0.8, "alpha": 0.55} if len(curves) > 1 else thick
    arrays = [np.array(curve).T for curve in curves]  # (2, points) each
    for steps, values in arrays:
        axis.plot(steps, values, color=colour, linestyle=dashes, **each)
    if len(arrays) > 1:
        first, last = max(steps[0] for steps, _ in arrays), min(steps[-1] for steps, _ in arrays)
        common = np.unique(np.clip(arrays[0][0], first, last))
        mean = np.mean([np.interp(common, steps, values) for steps, values in arrays], axis=0)
        axis.plot(common, mean, color=colour, linestyle=dashes, **thick)


def _bar(axis: Any, place: int, runs: Sequence[Outcome], colour: str) -> None:
    scores = [run.evaluation["mean_return"] for run in runs]
    mean = float(np.mean(scores))
    axis.bar(place, mean, width=0.62, color=colour, alpha=0.8)
    if len(scores) > 1:
        spread = place + np.linspace(-0.12, 0.12, len(scores))
        axis.plot(spread, scores, "o", color="#222222", markersize=4.5, zorder=4)
    end, away, side = (min(scores), -5, "top") if mean < 0 else (max(scores), 5, "bottom")
    number = f"{mean:,.0f}" if abs(mean) >= 100 else f"{mean:,.1f}"
    where: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": side, "zorder": 6}
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
    axis.annotate(number, (place, end), (0, away), **where, weight="bold", bbox=box)


def _references(axis: Any, result: Exploration) -> str | None:
    """Published scores as dotted lines, a human's if that leaves the rest to be seen; and what they are."""
    low, high = axis.get_ylim()
    low, high, said = min(0.0, low), max(0.0, high), None
    if result.baseline is not None:
        random, human = result.baseline
        low, high = min(low, random), max(high, random)
        near = human - high < 0.5 * (high - low)
        high = max(high, human) if near else high
        for value in (random, human) if near else (random,):
            axis.axhline(value, color="#444444", linewidth=1.2, linestyle=DOTS, zorder=3)
        said = f"random play {random:,.0f}" + (
            f", human {human:,.0f}" if near else f"; human {human:,.0f}, above"
        )
    room = 0.12 * (high - low)  # for what is written above the highest and below the lowest
    axis.set_ylim(low - room if low < 0 else 0.0, high + room)
    return said


def _plain(axis: Any, *, x: bool = True) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, axis="both" if x else "y")
    axis.set_axisbelow(True)
    axis.yaxis.set_major_formatter(lambda y, _: human_count(y))
    if x:
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter(lambda x, _: human_count(x))
