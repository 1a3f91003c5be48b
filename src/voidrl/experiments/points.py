"""The points of a grid in the plan of an experiment: which fields vary in a method, and the cells of a point.

A field of `[grid]` is set at each point as `--set` would set it, one of `[methods.NAME.grid]` as the method's
own config would. A field varies in a run if its values make different configs there. So an agent from scratch
has no points that differ only in the reward of pre-training, and points that differ only in how they are
fine-tuned share one pre-training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from voidrl.config import Config, bonus_method, field_types, flat, merge, to_json
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.experiments.configs import Planner
from voidrl.experiments.format import PHASES, ArmSpec, ExperimentSpec
from voidrl.experiments.grid import Axis, Point, point_folder, point_text, short_names
from voidrl.experiments.plan import Cell
from voidrl.experiments.request import RESERVED, ExperimentRequest, reserved, with_sources
from voidrl.experiments.seeds import RunSeeds
from voidrl.experiments.tasks import PhaseSpec, Task
from voidrl.system.units import parse_count


class Points:
    """Varying fields, points and cells of the methods of an experiment."""

    def __init__(
        self, experiment: ExperimentSpec, request: ExperimentRequest, task: Task, arms: Sequence[ArmSpec]
    ) -> None:
        self.experiment, self.request = experiment, request
        self.base = Planner(experiment, request)
        self.short: dict[str, str] = {}
        self.axes: dict[str, list[Axis]] = {arm.name: [] for arm in arms}
        """Fields that vary in an arm."""
        self._pretraining: dict[str, set[str]] = {arm.name: set() for arm in arms}
        """Fields that vary in the pre-training that the arm starts from."""
        self._planners: dict[str, Planner] = {}
        if experiment.has_grid:
            self._find_varying(task, arms)

    def cells(self, arm: ArmSpec, task: Task, seeds: RunSeeds, point: Point) -> Iterator[Cell]:
        """The runs of an arm at a point: the pre-training first, which other points may share."""
        if not point:
            yield from self.base.cells(arm, task, seeds)
            return
        *sources, final = self._cells(arm, task, seeds, point)
        if sources:
            part = {name: value for name, value in point.items() if name in self._pretraining[arm.name]}
            [source, _] = self._cells(arm, task, seeds, part)
            source = self._at(source, part)
            yield source
            final = dataclasses.replace(final, source=source.folder)
        yield self._at(final, point)

    def _cells(self, arm: ArmSpec, task: Task, seeds: RunSeeds, point: Point) -> list[Cell]:
        planner = self._planner(arm, point)
        return [*planner.cells(planner.experiment.arms[arm.name], task, seeds)]

    def _at(self, cell: Cell, point: Point) -> Cell:
        """A cell with the folder and label of a point."""
        if not point:
            return cell
        above, _, last = cell.folder.rpartition("/")
        return dataclasses.replace(
            cell,
            folder=f"{above}/{point_folder(point, self.short)}/{last}",
            label=f"{cell.label} ({point_text(point, self.short)})",
            point=dict(point),
        )

    # Which fields vary where

    def _find_varying(self, task: Task, arms: Sequence[ArmSpec]) -> None:
        own = {name: axis for arm in self.experiment.arms.values() for name, axis in arm.grid.items()}
        every = {**self.experiment.grid, **own}
        given = flat(merge(self.request.changes))
        for name in every:
            why = (
                "evaluations are the same at all points" if name.startswith("evaluation.") else reserved(name)
            )
            if why:
                raise ConfigError(f"{self.experiment.path}: a grid cannot vary {name}: {why}")
            if name in given:
                raise ConfigError(
                    f"{name} varies in the grid of {self.experiment.path} and cannot be set for all runs: "
                    f"leave out --set {name}={given[name]}"
                )
        self.short = short_names([*every])
        try:
            for arm in arms:
                self._vary(arm, task)
        except ConfigError as error:
            if self.experiment.path in str(error):
                raise
            raise ConfigError(f"{self.experiment.path}: [grid]: {error}") from None
        varying = {axis.name for axes in self.axes.values() for axis in axes}
        for name in (name for arm in arms for name in (*self.experiment.grid, *arm.grid)):
            if name not in varying:
                known = self.base.known_fields()
                if name.removeprefix("pretrain.").removeprefix("train.") not in (*known, *RESERVED):
                    raise UnknownNameError(f"field of a grid in {self.experiment.path}:", name, known)
                raise ConfigError(
                    f"{self.experiment.path}: {name} changes none of the runs: leave it out of the grid"
                )

    def _vary(self, arm: ArmSpec, task: Task) -> None:
        """Find the fields that vary in an arm, and those that vary in its pre-training."""
        axes = dict(self.experiment.grid)
        for each in reversed(with_sources(self.experiment, arm)):
            axes |= each.grid
        last = arm.phases[-1]
        runs = {last: arm.name}
        if last == "finetune":
            runs["pretrain"] = arm.source or arm.name
        known = [self.base.config(self.experiment.arms[name], phase, task) for phase, name in runs.items()]
        for axis in axes.values():
            if any(_is_whole(config, axis.name) for config in known):
                axes[axis.name] = axis.as_whole(self.experiment.path)
        first = {axis.name: axis.values[0] for axis in axes.values()}
        for axis in axes.values():
            planners = [self._planner(arm, {**first, axis.name: value}) for value in axis.values]
            for phase, name in runs.items():
                configs = [each.config(each.experiment.arms[name], phase, task) for each in planners]
                if len({repr(_used(config, axis.name)) for config in configs}) == 1:
                    continue
                if axis not in self.axes[arm.name]:
                    self.axes[arm.name].append(axis)
                if phase == "pretrain" != last:
                    self._pretraining[arm.name].add(axis.name)

    def _planner(self, arm: ArmSpec, point: Point) -> Planner:
        """The planner of an arm at a point; each field belongs to the first arm that has it, else to all."""
        arms = with_sources(self.experiment, arm)
        key = f"{arm.name if any(each.grid for each in arms) else ''} {sorted(point.items())!r}"
        if key not in self._planners:
            left, changed = dict(point), dict(self.experiment.arms)
            for each in arms:
                own = {name: left.pop(name) for name in each.grid if name in left}
                changed[each.name] = _with_values(each, own)
            experiment = dataclasses.replace(self.experiment, arms=changed)
            request = dataclasses.replace(self.request, changes={**self.request.changes, **left})
            self._planners[key] = Planner(experiment, request, self.base)
        return self._planners[key]


def _with_values(arm: ArmSpec, values: Mapping[str, Any]) -> ArmSpec:
    """An arm with changed settings; `pretrain.` and `train.` before a name limit it to a phase."""
    config, by_phase = dict(arm.config), dict(arm.by_phase)
    for name, value in values.items():
        phase, _, rest = name.partition(".")
        old = by_phase.get(phase, PhaseSpec())
        if phase in PHASES and rest == "steps":
            steps = parse_count(value, name, zero=phase == "pretrain")
            by_phase[phase] = dataclasses.replace(old, steps=steps)
        elif phase in ("pretrain", "train"):
            by_phase[phase] = dataclasses.replace(old, config=merge(old.config, {rest: value}))
        else:
            config = merge(config, {name: value})
    return dataclasses.replace(arm, config=config, by_phase=by_phase)


def _is_whole(config: Config, name: str) -> bool:
    """Whether a field takes whole numbers and no others."""
    *parts, last = name.removeprefix("pretrain.").removeprefix("train.").split(".")
    owner: Any = config
    for part in parts:
        owner = getattr(owner, part, None)
    hint = field_types(type(owner)).get(last) if dataclasses.is_dataclass(owner) else None
    kinds = {*get_args(hint)} or {hint}
    return int in kinds and float not in kinds


def _used(config: Config, name: str) -> dict[str, Any]:
    """The fields that have a meaning in the phase of a run; none where `name` is for another phase."""
    if name.startswith("train.") and config.phase != "train":
        return {}
    values = to_json(config)
    has_bonus = bool(bonus_method(values))
    unused: dict[str, tuple[str, ...]] = {
        "pretrain": ("finetune.", "bonus.", "reward_scale"),
        "train": ("finetune.",) if has_bonus else ("finetune.", "method.", "intrinsic_"),
        "finetune": (),
    }
    return {k: v for k, v in flat(values).items() if not k.startswith(unused[config.phase])}
