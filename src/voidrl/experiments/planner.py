"""Makes the plan of an experiment: its cells in the order in which they start, at every point of its grid.

A field of `[grid]` varies in a run if its values make different configs there. So an agent from scratch has
no points that differ only in the reward of pre-training, and points that differ only in how they are
fine-tuned share one pre-training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from voidrl.config import Config, bonus_method, flat, merge, require, to_json
from voidrl.envs.ids import DMC
from voidrl.errors import ConfigError, RunFolderError, UnknownNameError
from voidrl.experiments import scale
from voidrl.experiments.configs import Configs
from voidrl.experiments.format import ArmSpec, ExperimentSpec
from voidrl.experiments.grid import Axis, Point, all_points, point_folder, point_text, short_names
from voidrl.experiments.request import (
    RESERVED_REMEDY,
    ExperimentRequest,
    RunSeeds,
    check_request,
    is_reserved,
    run_seeds,
    select_arms,
)
from voidrl.experiments.tasks import NamedEnv, Task, select
from voidrl.runs.folder import RunFolder
from voidrl.system.files import user_path
from voidrl.training.evaluation import EVALUATION_STREAM, run_seed
from voidrl.types import EnvSpec


@dataclass(frozen=True)
class Cell:
    """One run."""

    folder: str
    """Run folder, relative to the experiment's: `walker_run/apt/seed1`, `freeway/apt/pretrain2-seed4`."""
    arm: ArmSpec
    label: str
    """Label of its row in tables."""
    config: Config
    protocol_steps: int
    """Steps in the experiment's own protocol, regardless of the request."""
    spec: EnvSpec = field(repr=False, compare=False)
    source: str | None = None
    """Folder of the pre-training that it starts from."""
    evaluation: dict[str, Any] | None = None
    """Settings of its evaluation, as in evaluation.json."""
    is_final: bool = False
    """Whether it is the last run of an arm, rather than a pre-training for another."""
    pretrain_seed: int | None = None
    """Seed of the pre-training that it is, or starts from."""
    zero_shot: dict[str, Any] | None = None
    """Settings of the evaluation of the agent that it fine-tunes, in the environment of the task."""
    point: Mapping[str, Any] = field(default_factory=dict)
    """Values of the fields that vary in a grid."""

    @property
    def task(self) -> str:
        """The environment's id."""
        return self.config.env.id

    @property
    def phase(self) -> str:
        """Pre-training, fine-tuning or training from scratch."""
        return self.config.phase

    @property
    def seed(self) -> int:
        """Seed of everything random in the run."""
        return self.config.seed


@dataclass(frozen=True)
class Plan:
    """All cells, in the order in which they start."""

    experiment: ExperimentSpec
    request: ExperimentRequest
    out: Path
    cells: list[Cell]
    notes: list[str]
    """Notes to the user."""
    axes: Mapping[str, Sequence[Axis]]
    """Fields that vary in each arm of an experiment with a grid."""
    cells_at: Callable[[str, Point], list[Cell]] = field(repr=False, compare=False)
    """All cells of an arm, by its name, at a point of its grid."""

    @property
    def published(self) -> str | None:
        """The published table for comparison; None for DMControl from pixels, as tables are from states."""
        pixels = any(c.task.startswith(DMC) and c.config.env.dmc.observation == "pixels" for c in self.cells)
        return None if pixels else self.experiment.published

    def path(self, cell: Cell | str) -> Path:
        """The run folder of a cell."""
        return self.out / (cell if isinstance(cell, str) else cell.folder)


def make_plan(experiment: ExperimentSpec, request: ExperimentRequest, out: str | Path | None = None) -> Plan:
    """Plan every requested run, and the pre-trainings that these start from."""
    check_request(experiment, request)
    arms, left_out = select_arms(experiment, request)
    planner = Planner(experiment, request, arms)
    runs, tuned = planner.runs, request.tune is not None
    most = max(map(len, runs.values()))
    require(most > 0, "seeds", [*request.seeds, *request.pretrain_seeds], "seeds that one of the methods has")
    points = {arm: [] if tuned and axes else all_points(axes) for arm, axes in planner.axes.items()}

    cells: dict[str, Cell] = {}
    for place, task, arm in product(range(most), planner.tasks, arms):  # one seed of everything is done first
        for seeds, point in product(runs[arm.name][place : place + 1], points[arm.name]):
            for cell in planner.cells(arm, task, seeds, point):
                if cell.is_final or cell.folder not in cells:  # a pre-training may be both
                    cells[cell.folder] = cell
    if not experiment.grid:
        planner.base.require_effect()
    out = user_path(Path("runs", experiment.name) if out is None else out)
    if RunFolder(out).holds_run:
        raise RunFolderError(f"{out} holds a run, so no experiment can be kept there: use another --out")
    notes = [*planner.base.notes, *left_out]
    return Plan(experiment, request, out, [*cells.values()], notes, planner.axes, planner.cells_at)


class Planner:
    """Makes the cells of an experiment's methods, at any point of its grid."""

    def __init__(
        self, experiment: ExperimentSpec, request: ExperimentRequest, arms: Sequence[ArmSpec]
    ) -> None:
        self.experiment, self.request = experiment, request
        self.tasks = select(experiment.tasks, request.tasks) if request.tasks else [*experiment.tasks]
        self.runs = {arm.name: run_seeds(experiment, request, arm) for arm in arms}
        self.base = Configs(experiment, request)
        self.short = short_names([*experiment.grid])
        self.axes: dict[str, list[Axis]] = {arm.name: [] for arm in arms}
        """Fields that vary in an arm."""
        self._pretrained: set[tuple[str, str]] = set()
        """Arms, and the fields that vary in the pre-trainings that they start from."""
        self._configs: dict[str, Configs] = {}
        if experiment.grid:
            self._find_varying(arms)

    def cells_at(self, name: str, point: Point) -> list[Cell]:
        """All cells of an arm at a point of its grid."""
        arm, every = self.experiment.arms[name], product(self.runs[name], self.tasks)
        found = [cell for seeds, task in every for cell in self.cells(arm, task, seeds, point)]
        return [*{cell.folder: cell for cell in found}.values()]

    def cells(self, arm: ArmSpec, task: Task, seeds: RunSeeds, point: Point) -> Iterator[Cell]:
        """The runs of an arm at a point: the pre-training first, which other points may share."""
        configs = self._at(point)
        more: dict[str, Any] = {}
        if seeds.pretrain is not None:
            source_arm = self.experiment.pretrained(arm)
            part = {k: value for k, value in point.items() if (arm.name, k) in self._pretrained}
            source = self._cell(source_arm, "pretrain", task, RunSeeds(seeds.pretrain), part)
            if task.pretrain.env == task.env and configs.is_zero_shot(source_arm):
                evaluation = configs.evaluation(source_arm, source.config)
                source = dataclasses.replace(source, evaluation=evaluation)
            yield source
            more = {"source": source.folder}
        final = self._cell(arm, arm.phases[-1], task, seeds, point)
        evaluation = configs.evaluation(arm, final.config)
        if more and source.evaluation is None and evaluation and configs.is_zero_shot(arm):
            seed = run_seed(source.seed, EVALUATION_STREAM)
            more["zero_shot"] = {**evaluation, "seed": seed, "count_states": False}
        yield dataclasses.replace(final, is_final=True, evaluation=evaluation, **more)

    def _cell(self, arm: ArmSpec, phase: str, task: Task, seeds: RunSeeds, point: Point) -> Cell:
        configs = self._at(point)
        config, spec = configs.prepare(arm, phase, task)
        where: NamedEnv = task.pretrain if phase == "pretrain" else task
        # Where a task is pre-trained in itself, the two runs of an arm need two folders.
        both = phase == "pretrain" and arm.phases[-1] == "finetune" and task.pretrain.env == task.env
        name = f"{arm.name}-pretrain" if both else arm.name
        parts = [where.name, name, *([point_folder(point, self.short)] if point else []), seeds.folder]
        return Cell(
            folder="/".join(parts),
            arm=arm,
            label=f"{arm.label} ({point_text(point, self.short)})" if point else arm.label,
            config=scale.scale_config(dataclasses.replace(config, seed=seeds.seed), configs.scale(phase)),
            protocol_steps=configs.protocol_steps(arm, phase, task),
            spec=spec,
            pretrain_seed=seeds.seed if phase == "pretrain" else seeds.pretrain,
            point=dict(point),
        )

    def _at(self, point: Point) -> Configs:
        """The configs at a point, whose values are set as `--set` would set them."""
        key = repr(sorted(point.items()))
        if key not in self._configs:
            request = dataclasses.replace(self.request, changes={**self.request.changes, **point})
            self._configs[key] = Configs(self.experiment, request, self.base) if point else self.base
        return self._configs[key]

    def _find_varying(self, arms: Sequence[ArmSpec]) -> None:
        file, given = self.experiment.path, flat(merge(self.request.changes))
        for name in self.experiment.grid:
            if is_reserved(name) or name.startswith("evaluation."):
                raise ConfigError(f"{file}: a grid cannot vary {name}: {RESERVED_REMEDY}")
            if name in given:
                raise ConfigError(
                    f"{name} varies in the grid of {file}: leave out --set {name}={given[name]}"
                )
        try:
            for arm in arms:
                self._vary(arm)
        except ConfigError as error:
            raise ConfigError(f"{file}: [grid]: {str(error).removeprefix(f'{file}: ')}") from None
        varying = {axis.name for axes in self.axes.values() for axis in axes}
        for name in self.experiment.grid.keys() - varying:
            known = self.base.known_fields()
            if name.removeprefix("pretrain.").removeprefix("train.") not in (*known, "steps"):
                raise UnknownNameError(f"field of the grid of {file}:", name, known)
            raise ConfigError(f"{file}: {name} changes none of the runs: leave it out of the grid")

    def _vary(self, arm: ArmSpec) -> None:
        """Find the fields that vary in an arm, and those that vary in its pre-training."""
        task, runs = self.tasks[0], {arm.phases[-1]: arm}
        if "finetune" in runs:
            runs["pretrain"] = self.experiment.pretrained(arm)
        for phase, own in runs.items():
            self.base.config(own, phase, task)  # whose notes are shown, and whose fields are known
        first = {axis.name: axis.values[0] for axis in self.experiment.grid.values()}
        for axis in self.experiment.grid.values():
            points = [self._at({**first, axis.name: value}) for value in axis.values]
            varying = [
                phase
                for phase, own in runs.items()
                if len({repr(_used(each.config(own, phase, task), axis.name)) for each in points}) > 1
            ]
            self.axes[arm.name] += [axis] if varying else []
            if "pretrain" in varying:
                self._pretrained.add((arm.name, axis.name))


def _used(config: Config, name: str) -> dict[str, Any]:
    """The fields that have a meaning in the phase of a run; none where `name` is for another phase."""
    if name.startswith("train.") and config.phase != "train":
        return {}
    values = to_json(config)
    unused: dict[str, tuple[str, ...]] = {
        "pretrain": ("finetune.", "bonus.", "reward_scale"),
        "train": ("finetune.",) if bonus_method(values) else ("finetune.", "method.", "intrinsic_"),
        "finetune": (),
    }
    return {k: v for k, v in flat(values).items() if not k.startswith(unused[config.phase])}
