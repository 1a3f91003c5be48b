"""The points of a grid in the plan of an experiment: which fields vary in a method, and the cells of a point.

A field of `[grid]` is set at each point as `--set` would set it, one of `[methods.NAME.grid]` as the method's
own config would. A field varies in a run if its values make different configs there. So an agent from scratch
has no points that differ only in the reward of pre-training, and points that differ only in how they are
fine-tuned share one pre-training.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from voidrl.config import PIECES, Config, bonus_method, field_types, flat, merge, to_json
from voidrl.errors import ConfigError
from voidrl.experiments.format import PHASES, ArmSpec, ExperimentSpec
from voidrl.experiments.grid import (
    Axis,
    Point,
    all_points,
    draw_points,
    point_folder,
    point_text,
    short_names,
)
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.seeds import RunSeeds
from voidrl.experiments.tasks import PhaseSpec, Task
from voidrl.system.units import parse_count

if TYPE_CHECKING:
    from voidrl.experiments.plan import Cell
    from voidrl.experiments.planner import Planner

MakePlanner = Callable[[ExperimentSpec, ExperimentRequest], "Planner"]
# Fields that no grid can have, and their alternatives.
RESERVED = {
    "seed": "list seeds = [1, 2, 3] in the file, or use --seeds",
    "env": "list tasks in the file, or use --tasks",
    "env.id": "list tasks in the file, or use --tasks",
    "method": "make a table [methods.NAME] for each",
    "method.name": "make a table [methods.NAME] for each",
    "device": "use --device",
    "engine": "use --engine",
    "phase": "list phases in the table of a method",
    "steps": "phases differ, so use pretrain.steps, finetune.steps or train.steps",
}


class Points:
    """Varying fields, points and cells of the methods of an experiment."""

    def __init__(
        self,
        experiment: ExperimentSpec,
        request: ExperimentRequest,
        tasks: Sequence[Task],
        arms: Sequence[ArmSpec],
        make_planner: MakePlanner,
        *,
        run_code: bool = True,
    ) -> None:
        self.experiment, self.request, self.make_planner = experiment, request, make_planner
        self.run_code = run_code
        """False in a dry run."""
        self.base = make_planner(experiment, request)  # without a grid
        self.short: dict[str, str] = {}
        self.axes: dict[str, list[Axis]] = {arm.name: [] for arm in arms}
        """Fields that vary in an arm."""
        self._pretraining: dict[str, list[str]] = {arm.name: [] for arm in arms}
        """The subset that varies in the pre-training that the arm starts from."""
        self._planners: dict[str, Planner] = {}
        if experiment.has_grid:
            self._read(tasks[0], arms)

    @property
    def planners(self) -> list[Planner]:
        """All planners; the first is without a grid."""
        return [self.base, *self._planners.values()]

    def points(self, arm: ArmSpec) -> list[Point]:
        """The requested points: all of them, or some that are drawn."""
        axes = self.axes[arm.name]
        number = self.request.samples or self.request.tune
        if number is None or not axes:
            return all_points(axes)
        if self.request.tune is not None and self.run_code:
            return []  # Optuna chooses them one after the other
        return draw_points(axes, number, self.request.grid_seed)

    def cells(self, arm: ArmSpec, task: Task, seeds: RunSeeds, point: Point) -> Iterator[Cell]:
        """The runs of an arm at a point: the pre-training first, which other points may share."""
        if not point:
            yield from self.base.cells(arm, task, seeds)
            return
        planner = self._planner(arm, point)
        *sources, final = planner.cells(planner.experiment.arms[arm.name], task, seeds)
        source = None
        if sources:
            part = {name: value for name, value in point.items() if name in self._pretraining[arm.name]}
            planner = self._planner(arm, part)
            source = self._at(next(planner.cells(planner.experiment.arms[arm.name], task, seeds)), part)
            yield source
        yield self._at(dataclasses.replace(final, source=None if source is None else source.folder), point)

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

    def _read(self, task: Task, arms: Sequence[ArmSpec]) -> None:
        own = {name: axis for arm in self.experiment.arms.values() for name, axis in arm.grid.items()}
        names = [*dict.fromkeys([*self.experiment.grid, *own])]
        given = flat(merge(self.request.changes))
        for name in names:
            field = name if name in RESERVED else name.partition(".")[2]
            is_reserved = name in RESERVED or (name.startswith(PHASES) and field in {*RESERVED} - {"steps"})
            if is_reserved or name.startswith("evaluation."):
                remedy = RESERVED.get(field, "evaluations are the same at all points")
                raise ConfigError(f"{self.experiment.path}: a grid cannot vary {name}: {remedy}")
            if name in given:
                raise ConfigError(
                    f"{name} varies in the grid of {self.experiment.path} and cannot be set for all runs: "
                    f"leave out --set {name}={given[name]}"
                )
        self.short = short_names(names)
        with self._naming_grid():
            self._find_varying(task, arms)

    @contextmanager
    def _naming_grid(self) -> Iterator[None]:
        """Have errors about a field of a grid name the file and the grid."""
        tables = {"grid": self.experiment.grid}
        tables |= {f"methods.{name}.grid": arm.grid for name, arm in self.experiment.arms.items()}
        try:
            yield
        except ConfigError as error:
            text = str(error)
            if self.experiment.path in text:
                raise
            for table, axes in tables.items():
                for name in axes:
                    field = re.sub(r"^(pre)?train\.", "", name)
                    if not re.search(rf"(?<![\w.]){re.escape(field)}(?![\w.])", text):
                        continue
                    about = f"[{table}]: {text}"
                    if text.startswith(field):
                        about = f"{table}.{name}{text.removeprefix(field)}"
                    raise ConfigError(f"{self.experiment.path}: {about}") from None
            raise

    def _find_varying(self, task: Task, arms: Sequence[ArmSpec]) -> None:
        first = {name: axis.values[0] for name, axis in self.experiment.grid.items()}
        together = self.make_planner(*self._with(first, ()))
        for arm in arms:  # refuses a field that no run has
            for source, phase in self._runs(arm):
                together.config(together.experiment.arms[source], phase, task)
        together.require_effect()
        known = [
            self.base.config(self.experiment.arms[name], phase, task)
            for arm in arms
            for name, phase in self._runs(arm)
        ]
        for arm in arms:
            candidates = dict(self.experiment.grid)
            for each in reversed(self._settings_of(arm)):
                candidates |= each.grid
            axes = [self._typed(axis, known) for axis in candidates.values()]
            base = {axis.name: axis.values[0] for axis in axes}
            for axis in axes:
                phases = self._varies(arm, axis, base, task)
                if phases:
                    self.axes[arm.name].append(axis)
                elif axis.name in arm.grid:
                    raise ConfigError(
                        f"{self.experiment.path}: methods.{arm.name}.grid.{axis.name} changes none of its "
                        f"runs, which have the phases {', '.join(arm.phases)}: leave it out"
                    )
                if "pretrain" in phases and arm.phases[-1] == "finetune":
                    self._pretraining[arm.name].append(axis.name)
        varying = {axis.name for axes in self.axes.values() for axis in axes}
        for name in self.experiment.grid:
            if name not in varying:
                raise ConfigError(
                    f"{self.experiment.path}: grid.{name} changes none of the runs: leave it out, or add a "
                    f"method to which it matters"
                )

    def _runs(self, arm: ArmSpec) -> list[tuple[str, str]]:
        """The runs of an arm, each as an arm and a phase."""
        last = (arm.name, arm.phases[-1])
        return [(arm.source or arm.name, "pretrain"), last] if last[1] == "finetune" else [last]

    def _settings_of(self, arm: ArmSpec) -> list[ArmSpec]:
        """An arm and the arms whose settings it starts from, the nearest first."""
        others = [self.experiment.arms[name] for name in (arm.source, arm.like) if name is not None]
        return [arm, *(each for other in others for each in self._settings_of(other))]

    def _typed(self, axis: Axis, known: Sequence[Config]) -> Axis:
        """The axis restricted to whole numbers, if the field is one."""
        phase, _, rest = axis.name.partition(".")
        name = rest if phase in ("pretrain", "train") else axis.name
        whole = any(_is_whole(config, name) for config in known)
        return axis.as_whole(self.experiment.path) if whole else axis

    def _varies(self, arm: ArmSpec, axis: Axis, base: Point, task: Task) -> set[str]:
        """The phases of an arm in which the values of a field make different runs."""
        runs: dict[str, list[Config]] = {}
        for value in axis.values:
            planner = self._planner(arm, {**base, axis.name: value})
            for name, phase in self._runs(arm):
                runs.setdefault(phase, []).append(planner.config(planner.experiment.arms[name], phase, task))
        return {phase for phase, configs in runs.items() if _differ(configs, axis.name)}

    # Planners

    def _planner(self, arm: ArmSpec, point: Point) -> Planner:
        """The planner of an arm at a point."""
        key = f"{arm.name} {sorted(point.items())!r}" if self._has_own(arm) else f"{sorted(point.items())!r}"
        if key not in self._planners:
            self._planners[key] = self.make_planner(*self._with(point, self._settings_of(arm)))
        return self._planners[key]

    def _has_own(self, arm: ArmSpec) -> bool:
        return any(each.grid for each in self._settings_of(arm))

    def _with(self, point: Point, arms: Sequence[ArmSpec]) -> tuple[ExperimentSpec, ExperimentRequest]:
        """The experiment and the request at a point; each field belongs to the first arm that has it."""
        left, changed = dict(point), dict(self.experiment.arms)
        for arm in arms:
            own = {name: left.pop(name) for name in arm.grid if name in left}
            if own:
                changed[arm.name] = _with_values(arm, own)
        changes = {**self.request.changes, **left}
        return (
            dataclasses.replace(self.experiment, arms=changed),
            dataclasses.replace(self.request, changes=changes),
        )


def _with_values(arm: ArmSpec, values: Mapping[str, Any]) -> ArmSpec:
    """An arm with changed settings; `pretrain.` and `train.` before a name limit it to a phase."""
    config, by_phase = dict(arm.config), dict(arm.by_phase)
    for name, value in values.items():
        phase, _, rest = name.partition(".")
        old = by_phase.get(phase, PhaseSpec())
        if phase in PHASES and rest == "steps":
            by_phase[phase] = dataclasses.replace(
                old, steps=parse_count(value, name, zero=phase == "pretrain")
            )
        elif phase in ("pretrain", "train"):
            by_phase[phase] = dataclasses.replace(old, config=merge(old.config, {rest: value}))
        else:
            config = merge(config, {name: value})
    return dataclasses.replace(arm, config=config, by_phase=by_phase)


def _is_whole(config: Config, name: str) -> bool:
    """Whether a field takes whole numbers and no others; a field that the config does not have takes none."""
    *parts, last = name.split(".")
    owner: Any = config
    for part in parts:
        owner = getattr(owner, part, None)
    hint = field_types(type(owner)).get(last) if dataclasses.is_dataclass(owner) else None
    kinds = {*get_args(hint)} or {hint}
    return int in kinds and float not in kinds


def _differ(configs: Sequence[Config], name: str) -> bool:
    """Whether runs differ in a field; one value makes no difference, but is set where it has a meaning."""
    if name.startswith(("pretrain.", "train.")):
        limit, _, name = name.partition(".")
        if (limit == "train") != (configs[0].phase == "train"):
            return False  # fine-tuning starts from the settings of its pre-training
    used = [_used(config) for config in configs]
    if len(configs) > 1 and len({repr(sorted(values.items())) for values in used}) > 1:
        return True
    if len(configs) == 1 and name in used[0]:
        return True
    return _may_have(configs[0], name)


def _may_have(config: Config, name: str) -> bool:
    """Whether a field belongs to code that is not run: a custom piece, or one that such a piece chooses."""
    kind = name.partition(".")[0]
    if kind not in PIECES or name in flat(to_json(config)) or name.startswith(_unused(config)):
        return False
    piece = getattr(config, kind).name
    return ":" in piece or piece == "auto"


def _unused(config: Config) -> tuple[str, ...]:
    """Prefixes of fields that have no meaning in the phase of a run."""
    values = to_json(config)
    unused: tuple[str, ...] = {
        "pretrain": ("finetune.", "bonus.", "reward_scale"),
        "train": ("finetune.",) if bonus_method(values) else ("finetune.", "method."),
        "finetune": (),
    }[config.phase]
    if config.phase == "train" and not bonus_method(values):
        unused += ("intrinsic_",)
    return unused


def _used(config: Config) -> dict[str, Any]:
    """The fields that have a meaning in the phase of a run."""
    unused = _unused(config)
    return {name: value for name, value in flat(to_json(config)).items() if not name.startswith(unused)}
