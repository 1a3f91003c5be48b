"""The summary of a report: an overview, who is ahead, and limits of the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voidrl.report.formatting import join_names, seed_list, step_range, steps
from voidrl.report.groups import PHASE_NAMES, ArmRuns, defining_settings, differing_names, env_names
from voidrl.report.outcomes import measure_of
from voidrl.report.provenance import dates, field, versions_table
from voidrl.report.read import Collection
from voidrl.report.results import Results

MOST_ENVS = 3  # each with its own statement
MOST_ARMS = 6  # in one statement
ENOUGH = 0.995  # of the protocol's steps: parallel environments may end a few early


@dataclass(frozen=True)
class Caveat:
    """A limit of the numbers, and the runs that it applies to."""

    kind: str
    """`failed`, `warn`, `running` or `note`: how it is highlighted."""
    title: str
    details: list[str]


def default_title(collection: Collection) -> str:
    """The experiment's title if most runs belong to it, else the environments."""
    planned = sum(run.experiment is not None for run in collection.runs)
    if len(collection.experiments) == 1 and 2 * planned > len(collection.runs):
        return collection.experiments[0].title
    names = env_names(run.env.partition("?")[0] for run in collection.runs)
    return join_names(dict.fromkeys(names.values()), MOST_ENVS)


def overview(collection: Collection, arms: Sequence[ArmRuns]) -> list[tuple[str, str]]:
    """Overview of the runs, as names and values."""
    runs = collection.runs
    phases = Counter(run.phase for run in runs)
    is_mixed = len(collection.experiments) > 1 or any(run.experiment is None for run in runs)
    rows = [(f"About {each.name}" if is_mixed else "About", each.about) for each in collection.experiments]
    versions = {str(field(run, "versions", "voidrl") or "") for run in runs} - {""}
    by_phase = (f"{phases[phase]} {name}" for phase, name in PHASE_NAMES.items() if phases[phase])
    rows += [
        ("Runs", ", ".join(by_phase)),
        ("Environments", join_names(dict.fromkeys(arm.env_name for arm in arms))),
        ("Arms", join_names(dict.fromkeys(arm.grid_label or arm.label for arm in arms), separator="; ")),
        ("Seeds", seed_list(run.seed for run in runs)),
        ("Dates", dates(runs)),
        ("voidrl", join_names(sorted(versions))),
    ]
    return [(name, value) for name, value in rows if value]


def findings(stages: Sequence[Results]) -> list[str]:
    """Mean and range of every arm, and the arm ahead, for each comparison; points of grids have their own."""
    found = []
    for results in stages:
        headlines: dict[str, dict[str, list[ArmRuns]]] = {}  # ranked arms by measure and environment
        for env in results.by_env:
            if ranked := [arm for arm in results.ranked(env) if arm.grid_label is None]:
                headlines.setdefault(ranked[0].headline or "", {})[env] = ranked
        for key, by_env in headlines.items():
            if len(by_env) <= MOST_ENVS:
                found += [f"{results.title}, {env}: {_finding(rows, key)}" for env, rows in by_env.items()]
            else:
                title = f"{results.title}, {len(by_env)} environments"
                found.append(f"{title}: highest mean {measure_of(key).name}: {_wins(by_env.values(), key)}.")
    return found


def _wins(compared: Iterable[list[ArmRuns]], key: str) -> str:
    """Number of environments in which each arm is ahead; equal means are no win for anybody."""
    leaders = [leading(arms, key) for arms in compared if len(arms) > 1]
    wins = Counter(found[0].label for found in leaders if len(found) == 1).most_common()
    if ties := sum(len(found) > 1 for found in leaders):
        wins.append(("equal", ties))
    return ", ".join(f"{label} in {number}" for label, number in wins) or "nothing to compare"


def leading(arms: Sequence[ArmRuns], key: str) -> list[ArmRuns]:
    """The arm with the highest mean, or all arms that share it."""
    best = max(arm.spreads[key].mean for arm in arms)
    return [arm for arm in arms if arm.spreads[key].mean == best]


def _finding(arms: list[ArmRuns], key: str) -> str:
    """`arms` are sorted by their means."""
    taken = step_range(run.final_steps for arm in arms for run in arm.spreads[key].runs)
    values = join_names((f"{arm.label} {arm.cell(key)}" for arm in arms), MOST_ARMS, "; ")
    statement = f"{measure_of(key).name} after {taken} steps: {values}."
    if len(arms) == 1:
        return statement
    best, *others = arms
    tied = [arm.label for arm in leading(arms, key)]
    if len(tied) > 1:
        return f"{statement} Equal means: {'; '.join(tied)}."
    close = [arm.label for arm in others if arm.spreads[key].high >= best.spreads[key].low]
    if any(len(arm.spreads[key].seeds) == 1 for arm in arms):
        return f"{statement} Highest mean: {best.label} (no spread with one seed)."
    if close:
        return f"{statement} Not told apart, as their ranges overlap: {'; '.join([best.label, *close])}."
    return f"{statement} Ahead: {best.label} (no overlap of ranges)."


def caveats(collection: Collection, arms: Sequence[ArmRuns], stages: Sequence[Results]) -> list[Caveat]:
    """Everything that limits the numbers, the most serious first."""
    runs = collection.runs
    ordered = [arm for results in stages for arm in results.arms]
    by_status: dict[str, list[str]] = {}
    for run in runs:
        kind = f"evaluation {run.evaluation_gap}" if run.evaluation_gap else run.status
        by_status.setdefault(kind, []).append(f"{run.name}: {run.progress}")
    absent = collection.missing
    machines = [
        f"voidrl {voidrl}, torch {torch}, commit {git}, {machine}: {number} runs"
        for voidrl, torch, _, _, git, machine, number, *_ in versions_table(runs).rows
    ]
    found = {
        ("failed", "Skipped"): [f"{each.path}: {each.why}" for each in collection.skipped],
        ("failed", "Failed runs"): by_status.get("failed", []),
        ("failed", "Failed evaluations"): by_status.get("evaluation failed", []),
        ("failed", "Failed before the first step"): [f"{name}: {why}" for name, why in absent.items() if why],
        ("warn", "Incomplete runs"): by_status.get("stopped", []),
        ("warn", "Runs not started"): [name for name, why in absent.items() if not why],
        ("warn", "Experiments that differ from their file"): [
            f"{each.name}: {each.departure}" for each in collection.experiments if each.departure
        ],
        ("warn", "Only one seed: differences may be chance"): [
            *dict.fromkeys(arm.name for arm in ordered if len(arm.final_seeds) == 1)
        ],
        ("warn", "Fewer seeds in the numbers than were started"): [
            f"{arm.name}: {arm.seed_text}" for arm in ordered if len(arm.final_seeds) < len(arm.seeds)
        ],
        ("warn", "Missing evaluations"): [run.name for run in runs if run.evaluation_gap == "missing"],
        ("warn", "Fewer steps than the protocol: not comparable with published numbers"): _short_arms(arms),
        ("warn", "Different settings within an arm"): [
            f"{arm.name}: {join_names(names)}"
            for arm in arms
            if (names := differing_names([defining_settings(run) for run in arm.runs]))
        ],
        ("warn", "Several runs with the same seed: each counts"): [
            f"{arm.name}: {join_names(run.name for run in arm.runs)}"
            for arm in arms
            if len(arm.seeds) < len(arm.runs)
        ],
        ("warn", "Unreadable parts"): [f"{run.name}: {note}" for run in runs for note in run.notes],
        ("running", "Running: numbers so far"): by_status.get("running", []),
        ("note", "Pruned before their end"): by_status.get("pruned", []),
        ("note", "Different versions or hardware"): machines if len(machines) > 1 else [],
    }
    return [Caveat(kind, title, details) for (kind, title), details in found.items() if details]


def _short_arms(arms: Sequence[ArmRuns]) -> list[str]:
    found = []
    for arm in arms:
        protocol, taken = arm.protocol_steps, min(run.steps for run in arm.counted)
        if protocol and taken < ENOUGH * protocol:
            percent = f"{100 * taken / protocol:.2g}%"
            found.append(f"{arm.name}: {steps(taken)} of {steps(protocol)} steps ({percent})")
    return found
