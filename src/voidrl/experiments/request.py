"""The request of a command line, and the methods and seeds of the experiment that it selects.

With `pretrain_seeds` in the file, every pre-trained agent is fine-tuned once per seed. No two runs of a
method then share a seed: with seeds 1 to N, run s from pre-training p has the seed (p − 1) N + s. A method
that is trained `like` the fine-tuned one shares its seeds, one run for each of its runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from voidrl.config import flat, merge, require
from voidrl.errors import ConfigError, MissingExtraError, UnknownNameError
from voidrl.experiments.format import ArmSpec, ExperimentSpec
from voidrl.experiments.tasks import PHASES

# Fields that neither `--set` nor a grid can change.
RESERVED = ("method", "method.name", "seed", "device", "engine", "env", "env.id", "phase", "steps")
RESERVED_REMEDY = (
    "use --methods, --seeds, --tasks, --device, --engine, pretrain.steps, finetune.steps or train.steps"
)


@dataclass(frozen=True)
class ExperimentRequest:
    """The request of a command line; by default the experiment as in its file."""

    tasks: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()
    """Seeds of runs; with pre-training seeds, of the fine-tunings of each pre-training."""
    pretrain_seeds: Sequence[int] = ()
    steps_scale: float = 1.0
    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the config of all runs by dotted names; `pretrain.` and `train.` before a name limit it to a
    phase, and `evaluation.` changes the evaluation."""
    device: str = "auto"
    engine: str = "auto"
    tune: int | None = None
    """Points that Optuna chooses; None for all points of the grid."""
    elsewhere: bool = False
    """Whether runs are on other machines, which may have GPUs that this one does not have."""


def check_request(experiment: ExperimentSpec, request: ExperimentRequest) -> None:
    """Refuse what no run of the experiment could have."""
    require(0 < request.steps_scale < float("inf"), "steps_scale", request.steps_scale, "a number above 0")
    for name, value in flat(merge(request.changes)).items():
        if is_reserved(name):
            raise ConfigError(f"{name} = {value!r} cannot be set for all runs: {RESERVED_REMEDY}")
    for name, seeds in (("seeds", request.seeds), ("pretrain_seeds", request.pretrain_seeds)):
        require(len({*seeds}) == len(seeds), name, [*seeds], "each of them once")
    pretrained = [*request.pretrain_seeds]
    expected = f"none, as every fine-tuning of experiment {experiment.name!r} has its own pre-training"
    require(not pretrained or bool(experiment.pretrain_seeds), "--pretrain-seeds", pretrained, expected)
    require(min(pretrained, default=1) > 0, "pretrain_seeds", pretrained, "whole numbers from 1 on")
    if request.tune is None:
        return
    require(request.tune > 0, "tune", request.tune, "a whole number above 0")
    if not experiment.grid:
        raise ConfigError(f"--tune {request.tune} needs a file with [grid], which {experiment.path} has not")
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("optuna", "tune", f"--tune {request.tune}")


def is_reserved(name: str) -> bool:
    """Whether a field cannot be changed for all runs, with or without the prefix of a phase."""
    phase, _, rest = name.partition(".")
    limited = phase in PHASES and rest in RESERVED and rest != "steps"
    return limited or name in RESERVED


def select_arms(experiment: ExperimentSpec, request: ExperimentRequest) -> tuple[list[ArmSpec], list[str]]:
    """The requested arms, or all that can be run, with notes on the others."""
    known, names = experiment.arms, request.methods
    require(len({*names}) == len(names), "methods", [*names], "each of them once")
    for name in names:
        if name not in known:
            remedy = f"Methods are those of experiment {experiment.name!r}."
            raise UnknownNameError("method", name, known, remedy)
        expected = f"a preset with which it can be run: {', '.join(known[name].presets)}"
        fits = _has_preset(experiment, request, known[name])
        require(fits, f"method {name!r} with preset", request.preset, expected)
    if names:
        return [arm for name, arm in known.items() if name in names], []
    chosen, notes = [], []
    for arm in known.values():
        arms = _with_sources(experiment, arm)
        given = flat(merge(experiment.config, *(each.config for each in arms), request.changes))
        if absent := [name for each in arms for name in each.requires if name not in given]:
            notes.append(f"left out, for want of {', '.join(absent)} (use --set): {arm.label}")
        elif not _has_preset(experiment, request, arm):
            notes.append(f"left out, as not for preset {request.preset}: {arm.label}")
        else:
            chosen.append(arm)
    require(bool(chosen), "preset", request.preset, "one with which a method of the experiment can be run")
    return chosen, notes


def _has_preset(experiment: ExperimentSpec, request: ExperimentRequest, arm: ArmSpec) -> bool:
    """Whether an arm can be run with the requested preset, and so can the arm that it starts from."""
    preset = request.preset or experiment.preset
    return all(not each.presets or preset in each.presets for each in _with_sources(experiment, arm))


def _with_sources(experiment: ExperimentSpec, arm: ArmSpec) -> list[ArmSpec]:
    """An arm and the arms that its settings come from, the nearest first."""
    other = arm.source or arm.like
    return [arm, *(_with_sources(experiment, experiment.arms[other]) if other else [])]


# Seeds


class RunSeeds(NamedTuple):
    """The seeds behind one run of a method."""

    seed: int
    """Seed of the run itself."""
    pretrain: int | None = None
    """Seed of the pre-training that it starts from; None if it is no fine-tuning."""
    paired: bool = False
    """Whether a pre-training has several fine-tunings, so that a folder must name both seeds."""

    @property
    def folder(self) -> str:
        """The last part of the run's folder."""
        return f"pretrain{self.pretrain}-seed{self.seed}" if self.paired else f"seed{self.seed}"


def run_seeds(experiment: ExperimentSpec, request: ExperimentRequest, arm: ArmSpec) -> list[RunSeeds]:
    """The requested runs of an arm in each task, in the order in which they start."""
    if arm.like is not None and not arm.seeds:
        return [RunSeeds(each.seed) for each in run_seeds(experiment, request, experiment.arms[arm.like])]
    seeds = _requested(arm, request.seeds, experiment.seeds)
    if arm.phases == ("pretrain",) and experiment.pretrain_seeds:
        seeds = _requested(arm, request.pretrain_seeds, experiment.pretrain_seeds)
    if arm.phases[-1] != "finetune":
        return [RunSeeds(seed) for seed in seeds]
    if not experiment.pretrain_seeds:
        return [RunSeeds(seed, seed) for seed in seeds]
    source = experiment.pretrained(arm)
    own = source.seeds if source.phases == ("pretrain",) else ()  # of another arm: those that are evaluated
    pretrained = request.pretrain_seeds or own or experiment.pretrain_seeds
    count = max(*arm.seeds, *experiment.seeds, 1)
    for seed in seeds:
        expected = f"1 to {count}, as in the file; --pretrain-seeds adds more"
        require(1 <= seed <= count, "seeds", seed, expected)
    # One fine-tuning of every pre-trained agent is done first.
    return [RunSeeds((p - 1) * count + seed, p, paired=True) for seed in seeds for p in pretrained]


def _requested(arm: ArmSpec, given: Sequence[int], default: Sequence[int]) -> Sequence[int]:
    """The command line's seeds, or the file's; of a method's own seeds, those that are asked for."""
    if arm.seeds:
        return [seed for seed in arm.seeds if not given or seed in given]
    return given or default
