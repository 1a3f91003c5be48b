"""Write `experiment.json`, with the cells of every command line that has worked in the folder."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence

from voidrl.config import Config, flat, merge
from voidrl.errors import RunFolderError
from voidrl.experiments.grid import short_names
from voidrl.experiments.plan import Cell, Plan
from voidrl.report.scores.panel import write_panel
from voidrl.runs import locks
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord, GridRecord, read_experiment_record

PATIENCE_SECONDS = 10.0  # others hold the lock for a moment; one that holds it for long was suspended


def make_record(plan: Plan, command: Sequence[str]) -> ExperimentRecord:
    """Describe a plan; a command line determines the description, in every process."""
    experiment = plan.experiment
    return ExperimentRecord(
        root=plan.out,
        name=experiment.name,
        title=experiment.title,
        about=experiment.about,
        published=plan.published,
        command=shlex.join(command),
        steps_scale=float(plan.request.steps_scale),
        missing=dict(experiment.missing),
        cells=[_cell_record(cell) for cell in plan.cells],
        preset=plan.request.preset or experiment.preset,
        default_preset=experiment.preset,
        changes=flat(merge(plan.request.changes)),
        scale=experiment.scale,
        default_scale=next(iter(experiment.scales), None),
        grid=_grid_record(plan),
    )


def _grid_record(plan: Plan) -> GridRecord | None:
    """The fields that vary, how points were chosen, and their ranking; None without a grid."""
    if not plan.has_grid:
        return None
    request, tune = plan.request, plan.experiment.tune
    chosen = (
        "product" if request.samples is None else f"{request.samples} drawn with seed {request.grid_seed}"
    )
    return GridRecord(
        log={axis.name: axis.log for axes in plan.axes.values() for axis in axes},
        chosen="tune" if request.tune is not None else chosen,
        metric=tune.metric,
        direction=tune.direction,
        measures={arm.name: arm.measures[0] for arm in plan.experiment.arms.values()},
        short=short_names([*dict.fromkeys(axis.name for axes in plan.axes.values() for axis in axes)]),
        labels={arm.name: arm.label for arm in plan.experiment.arms.values()},
    )


def _cell_record(cell: Cell) -> CellRecord:
    return CellRecord(
        folder=cell.folder,
        label=cell.label,
        task=cell.task,
        method=_method_name(cell.config),
        seed=cell.seed,
        phase=cell.phase,
        source=cell.source,
        steps=cell.config.steps,
        protocol_steps=cell.protocol_steps,
        evaluated=cell.evaluation is not None,
        arm=cell.arm.name,
        pretrain_seed=cell.pretrain_seed,
        like=cell.arm.like,
        point=dict(cell.point),
    )


def _method_name(config: Config) -> str:
    """The method of a run; from scratch none, unless its reward is a bonus."""
    if config.phase != "train":
        return config.method.name
    return f"scratch + {config.method.name}" if config.effective.has_bonus else "scratch"


def update_record(plan: Plan) -> None:
    """Add the runs that have started since another command wrote the record, and write `panel.json` again."""
    lock = _lock(plan)
    try:
        record = read_experiment_record(plan.out)
        if record is not None:
            known = {cell.folder for cell in record.cells}
            new = [
                cell for cell in plan.cells if cell.folder not in known and _has_started(plan, cell.folder)
            ]
            if new:
                cells = [*record.cells, *map(_cell_record, new)]
                record = dataclasses.replace(record, cells=sorted(cells, key=lambda cell: cell.seed))
                record.write()
            write_panel(record)
    finally:
        if lock is not None:
            locks.release(lock)


def _lock(plan: Plan) -> int | None:
    """The lock of files of the whole experiment; None if another process does not give it back."""
    path, deadline = locks.cell_lock_path(plan.out, "experiment"), time.monotonic() + PATIENCE_SECONDS
    while (lock := locks.acquire(path)) is None and time.monotonic() < deadline:
        pass  # acquiring waits a little
    return lock


def write_record(plan: Plan, command: Sequence[str]) -> None:
    """Write the record of a plan, with the started cells of earlier command lines."""
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot make {plan.out} ({error.strerror or error}); choose another --out"
        ) from error
    lock = _lock(plan)
    try:
        new, old = make_record(plan, command), read_experiment_record(plan.out)
        if old is not None and old.name != new.name:
            raise RunFolderError(
                f"{plan.out} holds the experiment {old.name!r} and not {new.name!r}: use another --out"
            )
        commands = [] if old is None else dict.fromkeys([*old.earlier_commands, old.command])
        earlier = [line for line in commands if line != new.command]
        cells = _merge_cells(plan, new.cells, [] if old is None else old.cells)
        new = dataclasses.replace(new, cells=cells, earlier_commands=earlier)
        if new != old:
            new.write()
    finally:
        if lock is not None:
            locks.release(lock)


def _merge_cells(plan: Plan, new: list[CellRecord], old: list[CellRecord]) -> list[CellRecord]:
    """Keep the started cells of earlier command lines, in their order; one seed after the other."""
    cells = {cell.folder: cell for cell in old if _has_started(plan, cell.folder)}
    cells |= {cell.folder: cell for cell in new}
    return sorted(cells.values(), key=lambda cell: cell.seed)


def _has_started(plan: Plan, folder: str) -> bool:
    return (plan.path(folder) / "config.json").is_file()
