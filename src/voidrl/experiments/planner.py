"""Makes the plan of an experiment: its cells in the order in which they start, at every point of its grid.

A field of `[grid]` is set at each point as `--set` would set it, one of `[methods.NAME.grid]` as the method's
own config would. A field varies in a run if its values make different configs there. So an agent from scratch
has no points that differ only in the reward of pre-training, and points that differ only in how they are
fine-tuned share one pre-training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

from voidrl.config import Config, bonus_method, field_types, flat, merge, require, to_json
from voidrl.errors import ConfigError, RunFolderError, UnknownNameError
from voidrl.experiments import scale
from voidrl.experiments.configs import Planner
from voidrl.experiments.format import PHASES, ArmSpec, ExperimentSpec
from voidrl.experiments.grid import Axis, Point, all_points, point_folder, point_text, short_names
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.request import (
    RESERVED,
    ExperimentRequest,
    check_request,
    left_out,
    reserved,
    select_arms,
    with_sources,
)
from voidrl.experiments.seeds import RunSeeds, require_seeds, run_seeds
from voidrl.experiments.tasks import PhaseSpec, Task, select
from voidrl.runs.folder import RunFolder
from voidrl.system.files import user_path
from voidrl.system.units import parse_count


def make_plan(experiment: ExperimentSpec, request: ExperimentRequest, out: str | Path | None = None) -> Plan:
    """Plan every requested run, and the pre-trainings that these start from."""
    default_scale = experiment.at_scale(None).scale
    experiment = experiment.at_scale(request.scale)
    check_request(experiment, request)
    require_seeds(experiment, request)
    arms = select_arms(experiment, request)
    tasks = select(experiment.tasks, request.tasks) if request.tasks else [*experiment.tasks]
    points = Points(experiment, request, tasks[0], arms)
    runs = {arm.name: run_seeds(experiment, request, arm) for arm in arms}
    most = max(map(len, runs.values()))
    require(most > 0, "seeds", [*request.seeds, *request.pretrain_seeds], "seeds that one of the methods has")
    tuned = {arm.name for arm in arms if request.tune is not None and points.axes[arm.name]}
    chosen = {arm.name: [] if arm.name in tuned else all_points(points.axes[arm.name]) for arm in arms}

    cells: dict[str, Cell] = {}
    for place, task, arm in product(range(most), tasks, arms):  # one seed of everything is done first
        for seeds, point in product(runs[arm.name][place : place + 1], chosen[arm.name]):
            for cell in points.cells(arm, task, seeds, point):
                if cell.is_final or cell.folder not in cells:  # a pre-training may be both
                    cells[cell.folder] = cell
    if not experiment.has_grid:
        points.base.require_effect()
    if out is None:
        suffix = "" if experiment.scale == default_scale else f"-{experiment.scale}"
        out = Path("runs", experiment.name + suffix)
    out = user_path(out)
    if RunFolder(out).holds_run:
        raise RunFolderError(f"{out} holds a run, so no experiment can be kept there: use another --out")

    def cells_at(arm: str, point: Point) -> list[Cell]:
        every = product(runs[arm], tasks)
        found = [c for seeds, task in every for c in points.cells(experiment.arms[arm], task, seeds, point)]
        return [*{cell.folder: cell for cell in found}.values()]

    notes = [*points.base.notes, *left_out(experiment, request), *_notes([*cells.values()])]
    return Plan(experiment, request, out, [*cells.values()], notes, points.axes, cells_at)


def _notes(cells: Sequence[Cell]) -> Iterator[str]:
    """Runs that are too short to learn."""
    updates = {cell.folder: scale.count_updates(cell.config) for cell in cells if cell.config.steps}
    due = {cell.folder for cell in cells if scale.learns(cell.config)}
    idle = [folder for folder, number in updates.items() if not number and folder in due]
    few = [folder for folder, number in updates.items() if 0 < number < scale.FEW_UPDATES]
    if idle:
        yield f"{len(idle)} runs learn nothing, as they end in their warm-up: {idle[0]}"
    if few:
        yield (
            f"{len(few)} runs make fewer than {scale.FEW_UPDATES} updates, such as {few[0]} with "
            f"{updates[few[0]]}: they show how it works, not how well"
        )


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
