"""The request of a command line, and the methods of the experiment that it selects."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voidrl.config import flat, merge, require
from voidrl.errors import ConfigError, MissingExtraError, UnknownNameError
from voidrl.experiments.format import ArmSpec, ExperimentSpec
from voidrl.experiments.grid import MAX_POINTS


@dataclass(frozen=True)
class ExperimentRequest:
    """The request of a command line; by default the experiment as in its file."""

    tasks: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()
    """Seeds of runs; with pre-training seeds, of the fine-tunings of each pre-training."""
    pretrain_seeds: Sequence[int] = ()
    scale: str | None = None
    """One of the experiment's sizes; None for the first."""
    steps_scale: float = 1.0
    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the config of all runs by dotted names; `pretrain.` and `train.` before a name limit it to a
    phase, and `evaluation.` changes the evaluation."""
    device: str = "auto"
    engine: str = "auto"
    samples: int | None = None
    """Points to draw from the grid; None for all of them."""
    grid_seed: int = 0
    """Seed of drawn points."""
    tune: int | None = None
    """Points that Optuna chooses; None for none."""

    def require_grid(self, experiment: ExperimentSpec) -> None:
        """Refuse options for grids where there is none, or which exclude each other."""
        for option, number in (("--samples", self.samples), ("--tune", self.tune)):
            if number is None:
                continue
            whole = isinstance(number, int) and 1 <= number <= MAX_POINTS
            require(whole, option.lstrip("-"), number, f"a whole number from 1 to {MAX_POINTS}")
            if not experiment.has_grid:
                raise ConfigError(
                    f"{option} {number} cannot be used with experiment {experiment.name!r}, which has no "
                    f"grid: use a file with [grid]"
                )
        if self.samples is not None and self.tune is not None:
            raise ConfigError(
                f"--samples {self.samples} and --tune {self.tune} exclude each other: the first draws points "
                f"at random, the second lets Optuna choose them; leave one out"
            )
        if self.grid_seed and self.samples is None and self.tune is None:
            raise ConfigError(
                f"--grid-seed {self.grid_seed} cannot be used without --samples or --tune, whose points "
                f"it seeds: add one of them, or leave it out"
            )
        require(0 <= self.grid_seed < 2**31, "grid_seed", self.grid_seed, "a whole number in [0, 2³¹)")
        if self.tune is not None and importlib.util.find_spec("optuna") is None:
            raise MissingExtraError("optuna", "tune", f"--tune {self.tune}")


def select_arms(experiment: ExperimentSpec, request: ExperimentRequest) -> list[ArmSpec]:
    """The requested arms, or all that can be run; an error for a requested one that cannot."""
    known, missing, names = experiment.arms, experiment.missing, request.methods
    for name in names:
        if name in missing:
            raise ConfigError(
                f"method {name!r} of experiment {experiment.name!r} is missing: voidrl does not have "
                f"{missing[name]}; there are {', '.join(known)}"
            )
        if name not in known:
            remedy = f"Methods are those of experiment {experiment.name!r}."
            raise UnknownNameError("method", name, known, remedy)
        if not _has_preset(experiment, request, known[name]):
            raise ConfigError(
                f"method {name!r} of experiment {experiment.name!r} cannot be run with preset "
                f"{request.preset!r}: expected {' or '.join(known[name].presets)}"
            )
    require(len({*names}) == len(names), "methods", [*names], "each of them once")
    chosen = [arm for name, arm in known.items() if not names or name in names]
    if not names:
        chosen = [arm for arm in chosen if not _absent_fields(experiment, request, arm)]
    chosen = [arm for arm in chosen if _has_preset(experiment, request, arm)]
    require(bool(chosen), "preset", request.preset, "one with which a method of the experiment can be run")
    return chosen


def _has_preset(experiment: ExperimentSpec, request: ExperimentRequest, arm: ArmSpec) -> bool:
    """Whether an arm can be run with the requested preset, and so can the arm that it starts from."""
    arms = _with_sources(experiment, arm)
    preset = request.preset or experiment.preset
    return all(not each.presets or preset in each.presets for each in arms)


def _with_sources(experiment: ExperimentSpec, arm: ArmSpec) -> list[ArmSpec]:
    """An arm and the arms that its settings come from."""
    others = [experiment.arms[name] for name in (arm.source, arm.like) if name is not None]
    return [arm, *(each for other in others for each in _with_sources(experiment, other))]


def _absent_fields(experiment: ExperimentSpec, request: ExperimentRequest, arm: ArmSpec) -> list[str]:
    """The fields that an arm requires and that neither file nor command line gives."""
    arms = _with_sources(experiment, arm)
    given = flat(merge(experiment.config, *(each.config for each in arms), request.changes))
    return [name for each in arms for name in each.requires if name not in given]


def left_out(
    experiment: ExperimentSpec, request: ExperimentRequest, arms: Sequence[ArmSpec]
) -> Iterator[str]:
    """Why arms of the experiment are not run, though no others were requested."""
    reasons: dict[str, list[str]] = {}
    for arm in (arm for arm in experiment.arms.values() if arm not in arms):
        absent = _absent_fields(experiment, request, arm)
        why = f"as not for preset {request.preset}"
        if absent:
            why = f"for want of {', '.join(absent)} (use --set)"
        reasons.setdefault(why, []).append(arm.label)
    for why, labels in reasons.items():
        yield f"left out, {why}: {', '.join(labels)}"
