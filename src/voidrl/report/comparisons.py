"""Does pre-training pay: fine-tuned minus from scratch, in each task and pooled, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from voidrl.report.formatting import Bar, Section, Table, draw_bars
from voidrl.report.groups import ArmRuns
from voidrl.report.scores.scales import Scale
from voidrl.report.scores.statistics import DIFFERENCE_LEVEL, Differences, Interval, differences, percent
from voidrl.system.units import plural

FEW = 2  # pre-trainings of a task, up to which its interval is too narrow
NOTE = (
    f"Brackets are {DIFFERENCE_LEVEL:.0%} bootstrap intervals over seeds: pre-trainings are drawn first, "
    "then fine-tunings within each. Deviations are multiplied by √(n / (n − 1)), as intervals from few seeds "
    "would otherwise be too narrow. The pooled difference is the mean over tasks. "
    "The dot is the difference, the bar its interval, the upright line 0."
)


def comparison_sections(arms: Sequence[ArmRuns]) -> list[Section]:
    """A section for each fine-tuned method and the one from scratch that it is compared with."""
    groups: dict[tuple[Path | None, Scale], list[ArmRuns]] = {}
    for arm in arms:
        if arm.stage == "task" and arm.scale is not None:
            experiment = arm.runs[0].experiment
            root = None if experiment is None else experiment.root
            groups.setdefault((root, arm.scale[0]), []).append(arm)
    return [
        section
        for (_, scale), members in groups.items()
        for tuned, scratch in _pairs(members)
        if (section := _section(tuned, scratch, members, scale)) is not None
    ]


def _pairs(arms: Sequence[ArmRuns]) -> list[tuple[str, str]]:
    """Labels that are compared: each method from scratch with the fine-tuned one that it is like.

    Where an experiment says nothing of that, one fine-tuned method and one from scratch are compared.
    """
    tuned, scratch = (
        {arm.label: arm.runs[0].cell for arm in arms if arm.phase == phase} for phase in ("finetune", "train")
    )
    labels = {cell.arm: label for label, cell in tuned.items() if cell is not None}
    likes = {label: cell.like for label, cell in scratch.items() if cell is not None and cell.like}
    pairs = [(labels[like], label) for label, like in likes.items() if like in labels]
    if not pairs and len(tuned) == len(scratch) == 1:
        pairs = [(next(iter(tuned)), next(iter(scratch)))]
    return pairs


def _section(tuned: str, scratch: str, arms: Sequence[ArmRuns], scale: Scale) -> Section | None:
    nested: dict[str, list[list[float]]] = {}
    plain: dict[str, list[float]] = {}
    for arm in arms:
        if (arm.label, arm.phase) == (scratch, "train") and arm.scores():
            plain[arm.env_name] = [score for _, score in arm.scores()]
        if (arm.label, arm.phase) == (tuned, "finetune") and arm.scores():
            by_source: dict[object, list[float]] = {}
            for run, score in arm.scores():  # without a known pre-training, seeds tell them apart
                seed = run.cell and run.cell.pretrain_seed
                key = (run.source.resolved if run.source else run.seed) if seed is None else seed
                by_source.setdefault(key, []).append(score)
            nested[arm.env_name] = [*by_source.values()]
    tasks = [name for name in nested if name in plain]
    if not tasks:
        return None
    found = differences({name: nested[name] for name in tasks}, {name: plain[name] for name in tasks})
    rows, bars = [], list[Bar | None]()
    for name, gain in (*((name, found.games[name]) for name in tasks), ("pooled", found.pooled)):
        seeds = ["", ""]
        if name != "pooled":
            sizes = [*map(len, nested[name])]
            seeds = [f"{sum(sizes)} of {plural(len(sizes), 'pre-training')}", str(len(plain[name]))]
        rows.append([name, signed(gain.point), span(gain) or "no spread", *seeds])
        bars.append(Bar(gain.low, gain.point, gain.high, 2 * (name == "pooled"), mark=0.0))
    columns = ["task", f"{tuned} − {scratch}", "interval", f"runs of {tuned}", f"runs of {scratch}"]
    title = f"{tuned} − {scratch}, {scale.reference}-normalized"
    table = Table(title, columns, rows, [NOTE], frozenset({1, 2}), bars=draw_bars(bars, 0.0))
    findings = [*_verdict(tuned, scratch, scale, found)]
    if min(len(nested[name]) for name in tasks) <= FEW:
        findings.append("With so few pre-trainings of a task, intervals tend to be too narrow.")
    findings.append("Intervals are over seeds in these tasks; they do not say what happens in other tasks.")
    return Section("panel", title, [table], findings)


def _verdict(tuned: str, scratch: str, scale: Scale, found: Differences) -> Iterator[str]:
    """What the differences show, and what they do not."""
    gains = found.games.values()
    ahead = sum(gain.point > 0 for gain in gains)
    # One run of each arm has no interval: its width is 0.
    clear = sum(0 < gain.low < gain.high for gain in gains)
    below = sum(gain.low < gain.high < 0 for gain in gains)
    yield (
        f"{tuned} has the higher mean on {ahead} of {plural(len(gains), 'task')}; the whole {found.percent} "
        f"interval is above 0 on {clear}, below 0 on {below}."
    )
    pooled = found.pooled
    text = f"Pooled over {plural(len(gains), 'task')}, {tuned} − {scratch} is {signed(pooled.point)}"
    text += f" {scale.reference}-normalized"
    if pooled.is_flat:
        yield f"{text}; without a spread between seeds there is no interval, and nothing follows from it."
        return
    text += f", {found.percent} interval {span(pooled)}"
    if pooled.low > 0:
        yield f"{text}, all of it above 0: in these tasks and at this scale, pre-training pays."
    elif pooled.high < 0:
        yield f"{text}, all of it below 0: in these tasks and at this scale, pre-training hurts."
    else:
        yield f"{text}, which includes 0: these runs do not tell whether pre-training helps or hurts."


def signed(share: float) -> str:
    """A difference of shares: `+12.3 %`."""
    text = percent(share)
    return text if text.startswith("-") or text == percent(0.0) else f"+{text}"


def span(interval: Interval) -> str:
    """Ends of an interval: `[-1.0 %, +12.3 %]`; empty without a width."""
    return "" if interval.is_flat else f"[{signed(interval.low)}, {signed(interval.high)}]"
