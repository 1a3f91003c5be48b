"""`voidrl explore`: how much of a game a method sees without reward, and what its policy then scores.

The paper's last experiment. Every method pre-trains with the same settings and counts the distinct states of
the emulator; its policy, which has never seen a reward, then plays for score. With fine-tuning, the agent of
APT and a new one learn from the reward, with equal numbers of steps and updates.

Each run is a folder OUT/seed<k>/<part>. What is there is kept and what stopped goes on, so the same command
again ends what another one began; several may work on different methods or seeds of one OUT.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidrl import api, checkpoint
from voidrl.envs.ram import MEASURES
from voidrl.errors import CheckpointError, RunInterrupted
from voidrl.explore_plan import (
    FINETUNED,
    METHODS,
    PRESET,
    SCRATCH,
    TUNED,
    Part,
    Plan,
    make_plan,
    refuse_another,
)
from voidrl.games import GAMES, baseline
from voidrl.metrics import read_metrics
from voidrl.runfolder import environment_info
from voidrl.score import FILE_NAME, record, started

Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class Outcome:
    """A run that is complete, and its evaluation."""

    name: str
    """The method, `finetuned` or `scratch`."""
    seed: int
    folder: Path
    config: dict[str, Any]
    machine: dict[str, Any]
    """On which it was begun, and with which versions."""
    steps: int
    curves: dict[str, Curve]
    """Step → distinct states so far, by measure; and `score`, of the games that ended while it trained."""
    evaluation: dict[str, Any]
    """As `voidrl.score.record` makes it."""

    @property
    def counts(self) -> dict[str, float]:
        """Distinct states seen in the whole run, by measure."""
        return {name: curve[-1][1] for name, curve in self.curves.items() if name in MEASURES}

    def to_json(self) -> dict[str, Any]:
        """Everything in it."""
        curves = {
            name: {"steps": [step for step, _ in curve], "values": [value for _, value in curve]}
            for name, curve in self.curves.items()
        }
        return {**vars(self), "folder": str(self.folder), "counts": self.counts, "curves": curves}


@dataclass(frozen=True)
class Exploration:
    """All that was asked for, done."""

    plan: Plan
    outcomes: list[Outcome]

    def of(self, name: str) -> list[Outcome]:
        """The runs of a method, or of `finetuned` and `scratch`, in the order of the seeds."""
        return [outcome for outcome in self.outcomes if outcome.name == name]

    @property
    def measures(self) -> list[str]:
        """What is counted in this game, the most telling first."""
        counted = self.outcomes[0].counts
        return [name for name in ("variables", "positions", "ram") if name in counted]

    @property
    def counted_envs(self) -> tuple[int, int]:
        """In how many of the environments of pre-training states are counted, and how many these are."""
        env = self.plan.parts[0].config.env
        return min(env.counted_envs or env.num_envs, env.num_envs), env.num_envs

    @property
    def baseline(self) -> tuple[float, float] | None:
        """Published scores of random play and of a human; None for games that have none."""
        return baseline(self.plan.game) if self.plan.game in GAMES else None

    def to_json(self) -> dict[str, Any]:
        """Everything in it, and the machine that put it together; each run names its own."""
        asked = {name: value for name, value in vars(self.plan).items() if name not in ("parts", "out")}
        scores = None if self.baseline is None else dict(zip(("random", "human"), self.baseline, strict=True))
        runs = [outcome.to_json() for outcome in self.outcomes]
        return {**asked, "baseline": scores, "collected": environment_info(), "runs": runs}


def run_explore(
    env: str,
    out: str | Path | None = None,
    *,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = (1,),
    preset: str = PRESET,
    steps: int | str | None = None,
    eval_steps: int | str | None = None,
    finetune_steps: int | str | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> Exploration:
    """Do what is missing under `out`, print the table, write `explore.json` and draw `explore.png`.

    Args:
        env: `atari/<game>`.
        out: By default `runs/explore-<game>`.
        methods: Which pre-train, from `voidrl list methods`.
        seeds: Each method has one run with each.
        preset: A name from `voidrl list presets`.
        steps: Of pre-training; by default the preset's.
        eval_steps: For which policies play for score; by default 125k as in the paper, 10k with `atari-demo`.
        finetune_steps: Also fine-tune APT's agents and train new ones, for so many steps.
        config: Changes to the preset, for all runs: `{"learner.n_step": 3}`.
        device: `auto`, `cpu`, `cuda`.
    """
    from voidrl.report.explore_figure import draw, require_pyplot
    from voidrl.report.explore_table import table

    require_pyplot()  # a missing package is better known before than after
    plan = make_plan(env, out, methods, seeds, preset, steps, eval_steps, finetune_steps, config, device)
    for part in plan.parts:  # all of them before hours are spent on the first
        refuse_another(part)
    _say(f"{env}: preset {preset}, {plan.steps} steps, {len(plan.parts)} runs under {plan.out}")
    for part in plan.parts:
        _do(part)
    result = Exploration(plan, [_read(part, plan.out) for part in plan.parts])
    _write_json(plan.out / "explore.json", result.to_json())
    picture = draw(result, plan.out / "explore.png")
    print(table(result))
    print(f"\npicture: {picture}\nnumbers: {plan.out / 'explore.json'}")
    return result


def _do(part: Part) -> None:
    """Begin, continue or keep a run, and evaluate its end."""
    if _evaluated(part) is not None:
        _say(f"{part.folder}: kept, complete and evaluated")
        return
    try:
        _train(part)
    except RunInterrupted as stop:
        raise RunInterrupted(f"{stop}, or with the same `voidrl explore` again") from None
    _say(f"{part.folder}: evaluating for {part.evaluation['steps']} steps")
    agent = api.load(part.folder, device=part.config.device)
    options = {k: v for k, v in part.evaluation.items() if k not in ("env", "episodes")}
    saved = record(agent, part.folder, api.evaluate(agent, **options), part.evaluation)
    checkpoint.write_json_atomic(part.folder / FILE_NAME, saved)


def _train(part: Part) -> None:
    root, config = part.folder / "checkpoints", part.config
    if checkpoint.list_steps(root):
        if checkpoint.latest(root, _say).step < config.steps:
            api.resume(part.folder, device=config.device)
        return
    if _is_at_end(part):
        raise CheckpointError(
            f"{part.folder} is complete, but holds no checkpoint that could be evaluated for "
            f"{part.evaluation['steps']} steps: bring it back, or use another --out"
        )
    _say(f"{part.folder}: beginning, {config.steps} steps")
    # Without a checkpoint there is nothing to go on with: what a killed run left behind is replaced.
    if part.name == FINETUNED:
        source = part.folder.with_name(TUNED)
        api.finetune(source, config.env.id, config=config, out=part.folder, overwrite=True)
    elif part.name == SCRATCH:
        api.train(config.env.id, config=config, out=part.folder, overwrite=True)
    else:
        api.pretrain(config.env.id, config=config, out=part.folder, overwrite=True)


def _evaluated(part: Part) -> dict[str, Any] | None:
    """The evaluation that is asked for, if it is there; then no checkpoint is needed any more."""
    path = part.folder / FILE_NAME
    if not path.is_file() or not _is_at_end(part):
        return None
    saved: dict[str, Any] = checkpoint.read_json(path, "an evaluation")
    try:
        agent, settings = saved["agent"], saved["settings"]
        at_end = agent["steps"] >= part.config.steps and agent["started"] == started(part.folder)
    except (KeyError, TypeError):
        return None
    return saved if at_end and settings == part.evaluation else None


def _is_at_end(part: Part) -> bool:
    path = part.folder / "metrics.jsonl"
    rows = read_metrics(path) if path.is_file() else []
    return bool(rows) and rows[-1]["step"] >= part.config.steps


def _read(part: Part, out: Path) -> Outcome:
    rows, evaluation = read_metrics(part.folder), _evaluated(part)
    assert evaluation is not None, "a part is read when it is done"
    columns = {**{name: f"coverage/{name}" for name in MEASURES}, "score": "episode/return"}
    curves = {
        name: [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        for name, key in columns.items()
    }
    return Outcome(
        name=part.name,
        seed=part.seed,
        folder=part.folder.relative_to(out),
        config=checkpoint.read_json(part.folder / "config.json", "the config of a run"),
        machine=checkpoint.read_json(part.folder / "environment.json", "the machine of a run"),
        steps=rows[-1]["step"],
        curves={name: curve for name, curve in curves.items() if curve},
        evaluation=evaluation,
    )


def _write_json(path: Path, data: Any) -> None:
    """With every list of numbers on one line; atomic, as several processes may end at the same time."""
    text = json.dumps(data, indent=1, allow_nan=False)
    text = re.sub(r"\[([-+.\w\s,]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    tmp = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    tmp.write_text(text + "\n", encoding="utf-8")
    tmp.replace(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
