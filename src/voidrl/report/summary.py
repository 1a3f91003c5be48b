"""What was run, what came out, and what to keep in mind: in sentences, from the runs alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from voidrl import __version__
from voidrl.report.formatting import between, count, day, listed, many, seeds, sentence, steps
from voidrl.report.groups import STAGES, Arm, Stage, differing, essential, stages_of
from voidrl.report.outcomes import (
    behind,
    first_measure,
    headline,
    measure_of,
    seeds_behind,
    show_spread,
    spreads,
)
from voidrl.report.provenance import field, hardware
from voidrl.report.read import Collection, Run

MOST_ENVS = 3  # each of which has a sentence of its own
MOST_ARMS = 6  # in a sentence


@dataclass(frozen=True)
class Caveat:
    """Something without which the numbers would be misread."""

    kind: str
    """`failed`, `warn`, `running` or `note`: how loud it is."""
    text: str
    details: list[str] = dataclasses.field(default_factory=list)


def title_of(collection: Collection) -> str:
    """The experiment's, or the environments'."""
    if len(collection.experiments) == 1:
        return collection.experiments[0].title
    names = [*dict.fromkeys(run.env.partition("?")[0].removeprefix("voidrl/") for run in collection.runs)]
    return listed(names) if len(names) <= MOST_ENVS else f"{count(len(names))} environments"


def what_was_run(collection: Collection, arms: Sequence[Arm]) -> list[str]:
    """One or two sentences."""
    runs = collection.runs
    told = [sentence(experiment.about) for experiment in collection.experiments if experiment.about]
    phases = [
        f"{many(len(found), 'run')} {words}"
        for phase, words in (
            ("pretrain", "without reward"),
            ("finetune", "of fine-tuning"),
            ("train", "from scratch"),
        )
        if (found := [run for run in runs if run.phase == phase])
    ]
    labels = dict.fromkeys(arm.label for arm in arms)
    envs = dict.fromkeys(arm.env_name for arm in arms)
    where = listed(envs) if len(envs) <= MOST_ENVS else f"{count(len(envs))} environments"
    numbers = [run.seed for run in runs]
    compared = f"compared are {listed(labels)}" if len(labels) > 1 else listed(labels)
    with_seeds = f"seed{'s' * (len(set(numbers)) > 1)} {seeds(numbers)}"
    told.append(sentence(f"{listed(phases)} in {where}; {compared}, {with_seeds}"))
    days = sorted({day(field(run, "date")) for run in runs} - {""})
    if days:
        between = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        versions = {str(field(run, "versions", "voidrl")) for run in runs} - {"None"}
        told.append(f"Run on {between}{f' with voidrl {listed(sorted(versions))}' if versions else ''}.")
    return told


def what_came_out(arms: Sequence[Arm]) -> list[str]:
    """A sentence for each comparison, or for many of them together."""
    told: list[str] = []
    for stage, by_env in stages_of(arms).items():
        if len(by_env) <= MOST_ENVS:
            told += filter(None, (_finding(stage, found) for found in by_env.values()))
        else:
            told += _findings(stage, by_env)
    return told


def _finding(stage: Stage, arms: list[Arm]) -> str:
    key = headline(arms, stage)
    if key is None:
        return ""
    have = {arm: found[key] for arm in arms if key in (found := spreads(arm))}
    ranked = sorted(have, key=lambda arm: -have[arm].mean)
    values = [f"{arm.label} {show_spread(key, have[arm])}{_so_far(arm, key)}" for arm in ranked[:MOST_ARMS]]
    rest = f", and {len(ranked) - MOST_ARMS} more" if len(ranked) > MOST_ARMS else ""
    taken = [run.final_steps for arm in ranked if arm.complete for run in behind(arm, key)]
    after = f" after {between(taken)} steps" if taken else ""
    some = [arm for arm in ranked if have[arm].runs > 1]
    over = "; means over seeds, in brackets the range" if some else "; one seed each" if ranked else ""
    where = f"{STAGES[stage]}, in {arms[0].env_name}{after}"
    return f"{where}, {measure_of(key).name}: {', '.join(values)}{rest}{over}."


def _so_far(arm: Arm, key: str) -> str:
    if arm.complete:
        return ""
    return f" so far, at {between([run.final_steps for run in behind(arm, key)])} steps"


def _findings(stage: Stage, by_env: dict[str, list[Arm]]) -> list[str]:
    every = [arm for found in by_env.values() for arm in found]
    key = headline(every, stage)
    if key is None:
        return []
    wins: dict[str, int] = {}
    compared = 0
    for found in by_env.values():
        have = {arm.label: spread[key].mean for arm in found if key in (spread := spreads(arm))}
        if len(have) < 2:
            continue
        compared += 1
        for label, value in have.items():
            if value == max(have.values()):
                wins[label] = wins.get(label, 0) + 1
    if not compared:
        return [
            f"{STAGES[stage]}: {count(len(by_env))} environments, with nothing to compare in any of them."
        ]
    ranked = [f"{label} in {wins[label]}" for label in sorted(wins, key=lambda label: -wins[label])]
    return [
        f"{STAGES[stage]}: of {count(compared)} environments with several arms, the highest mean "
        f"{measure_of(key).name} was reached by {listed(ranked)}; ties count for each."
    ]


def caveats(collection: Collection, arms: Sequence[Arm]) -> list[Caveat]:
    """Everything that makes a number less than it seems, the worst first."""
    found = [
        *_skipped(collection),
        *_by_status(collection.runs),
        *_not_begun(collection),
        *_departures(collection),
        *_seeds(arms),
        *_evaluations(collection.runs),
        *_protocol(arms),
        *_settings(arms),
        *_duplicates(arms),
        *_versions(collection.runs),
        *_notes(collection.runs),
    ]
    order = ["failed", "warn", "running", "note"]
    return sorted(found, key=lambda caveat: order.index(caveat.kind))


def _skipped(collection: Collection) -> list[Caveat]:
    if not collection.skipped:
        return []
    text = f"{many(len(collection.skipped), 'folder or file was', 'folders or files were')} skipped"
    return [Caveat("failed", sentence(text), [f"{each.path}: {each.why}" for each in collection.skipped])]


def _by_status(runs: Sequence[Run]) -> list[Caveat]:
    found = []
    for status, kind, words in (
        ("failed", "failed", ("run failed", "runs failed")),
        ("incomplete", "warn", ("run is incomplete", "runs are incomplete")),
        ("running", "running", ("run is still being written", "runs are still being written")),
    ):
        those = [run for run in runs if run.status == status and not run.evaluation_gap]
        if those:
            it, they = ("it", "it logged") if len(those) == 1 else ("them", "they logged")
            text = f"{many(len(those), *words)}; curves show what {they}"
            if len(those) < len(runs):
                text += f", and final numbers leave {it} out where an arm has complete runs"
            found.append(Caveat(kind, sentence(text), [f"{run.name} {run.status_note}" for run in those]))
    return found


def _not_begun(collection: Collection) -> list[Caveat]:
    found = []
    failed = {
        cell.folder: why
        for experiment, cell in collection.missing_cells()
        if (why := experiment.failure(cell))
    }
    absent = [cell.folder for _, cell in collection.missing_cells() if cell.folder not in failed]
    if failed:
        text = (
            f"{many(len(failed), 'run of the experiment', 'runs of the experiment')} failed before beginning"
        )
        found.append(Caveat("failed", sentence(text), [f"{name}: {why}" for name, why in failed.items()]))
    if absent:
        text = f"{many(len(absent), 'run of the experiment has', 'runs of the experiment have')} not begun"
        found.append(Caveat("warn", sentence(text), absent))
    others = collection.other_cells()
    if others:
        text = f"{many(len(others), 'other run', 'other runs')} of the experiment"
        text += f" {'is' if len(others) == 1 else 'are'} not part of this report"
        found.append(Caveat("note", sentence(text), [cell.folder for _, cell in others]))
    for experiment in collection.experiments:
        if experiment.missing:
            text = f"methods of {experiment.name} that do not exist yet, and are not shown"
            told = [f"{name}: {why}" for name, why in experiment.missing.items()]
            found.append(Caveat("warn", sentence(text), told))
    return found


def _departures(collection: Collection) -> list[Caveat]:
    return [
        Caveat(
            "warn", f"Experiment {experiment.name} was not run as its file has it: {experiment.departure}."
        )
        for experiment in collection.experiments
        if experiment.departure
    ]


def _seeds(arms: Sequence[Arm]) -> list[Caveat]:
    """By the seeds that numbers are of, which can be fewer than were begun."""
    counted: dict[Arm, list[int]] = {}
    for stage, by_env in stages_of(arms).items():
        key = headline([arm for found in by_env.values() for arm in found], stage)
        for found in by_env.values():
            counted |= {arm: seeds_behind(arm, first_measure(spreads(arm), key)) for arm in found}
    warned = []
    single = [arm for arm in arms if len(counted[arm]) == 1]
    if single and len(single) == len(arms):
        text = "Every arm has one seed: differences may be chance, and there is no spread."
        warned.append(Caveat("warn", text))
    elif single:
        text = f"{many(len(single), 'arm has', 'arms have')} one seed only, and so no spread"
        warned.append(Caveat("warn", sentence(text), [_arm_name(arm) for arm in single]))
    fewer = [
        f"{_arm_name(arm)}: {len(counted[arm])} of {len(arm.seeds)} seeds ({seeds(counted[arm])})"
        for arm in arms
        if len(counted[arm]) < len(arm.seeds)
    ]
    if fewer:
        text = f"the numbers of {many(len(fewer), 'arm')} are of fewer seeds than were begun"
        warned.append(Caveat("warn", sentence(text), fewer))
    return warned


def _evaluations(runs: Sequence[Run]) -> list[Caveat]:
    found = []
    failed = [run for run in runs if run.evaluation_gap == "failed"]
    if failed:
        text = f"{many(len(failed), 'evaluation')} failed"
        found.append(Caveat("failed", sentence(text), [f"{run.name} {run.status_note}" for run in failed]))
    missing = [run.name for run in runs if run.evaluation_gap == "missing"]
    if missing:
        text = f"evaluation missing in {many(len(missing), 'complete run')}"
        found.append(Caveat("warn", sentence(text), missing))
    return found


def _protocol(arms: Sequence[Arm]) -> list[Caveat]:
    short = []
    for arm in arms:
        protocol = arm.protocol_steps
        if protocol and (reached := min(run.steps for run in arm.counted)) < 0.995 * protocol:
            short.append(
                f"{_arm_name(arm)}: {steps(reached)} of {steps(protocol)} steps ({share(reached, protocol)})"
            )
    if not short:
        return []
    text = f"{many(len(short), 'arm was', 'arms were')} trained for less than the protocol asks for"
    return [
        Caveat("warn", f"{sentence(text)[:-1]}: their numbers cannot be held against published ones.", short)
    ]


def share(part: float, whole: float) -> str:
    """`0.5 %`."""
    return f"{100 * part / whole:.2g} %" if part < whole else f"{100 * part / whole:.0f} %"


def _settings(arms: Sequence[Arm]) -> list[Caveat]:
    mixed = [
        f"{_arm_name(arm)}: {listed(differ)}"
        for arm in arms
        if (differ := differing([essential(run) for run in arm.runs]))
    ]
    if not mixed:
        return []
    text = f"{many(len(mixed), 'arm puts', 'arms put')} runs with different settings together"
    return [Caveat("warn", sentence(text), mixed)]


def _duplicates(arms: Sequence[Arm]) -> list[Caveat]:
    twice = [
        f"{_arm_name(arm)}: {listed(run.name for run in arm.runs)}"
        for arm in arms
        if len(arm.seeds) < len(arm.runs)
    ]
    if not twice:
        return []
    text = f"{many(len(twice), 'arm has', 'arms have')} several runs with one seed, which count each"
    return [Caveat("warn", sentence(text), twice)]


def _versions(runs: Sequence[Run]) -> list[Caveat]:
    found = []
    commits = {str(field(run, "git", "commit"))[:10] for run in runs} - {"None"}
    if len(commits) > 1:
        found.append(
            Caveat("note", f"Runs come from {many(len(commits), 'commit')}: {listed(sorted(commits))}.")
        )
    dirty = [run for run in runs if field(run, "git", "dirty")]
    if dirty:
        text = f"{many(len(dirty), 'run')} came from a working tree with changes that no commit holds"
        found.append(Caveat("note", sentence(text)))
    for name, of in (("torch", _torch), ("hardware", hardware)):
        kinds = {of(run) for run in runs} - {""}
        if len(kinds) > 1:
            found.append(Caveat("note", f"Runs were made with different {name}: {listed(sorted(kinds))}."))
    newer = {
        version
        for run in runs
        if (version := str(field(run, "versions", "voidrl") or ""))
        and _number(version) > _number(__version__)
    }
    if newer:
        text = f"some runs were written by voidrl {listed(sorted(newer))}, and this is {__version__}"
        found.append(Caveat("warn", sentence(f"{text}: upgrade it to see all that they hold")))
    return found


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def _torch(run: Run) -> str:
    return str(field(run, "versions", "torch") or "")


def _notes(runs: Sequence[Run]) -> list[Caveat]:
    told = [f"{run.name}: {note}" for run in runs for note in run.notes]
    if not told:
        return []
    return [Caveat("warn", sentence(f"{many(len(told), 'part')} of runs could not be read"), told)]


def _arm_name(arm: Arm) -> str:
    return f"{arm.label} in {arm.env_name}"
