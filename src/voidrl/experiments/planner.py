"""Makes the plan of an experiment: its cells in the order in which they start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from voidrl.config import require
from voidrl.errors import RunFolderError
from voidrl.experiments import scale
from voidrl.experiments.format import ExperimentSpec
from voidrl.experiments.grid import Point, all_points
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.points import Points
from voidrl.experiments.request import ExperimentRequest, check_request, left_out, select_arms
from voidrl.experiments.seeds import require_seeds, run_seeds
from voidrl.experiments.tasks import select
from voidrl.runs.folder import RunFolder
from voidrl.system.files import user_path


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
