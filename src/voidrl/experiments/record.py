"""Write `experiment.json`, with the cells of every command line that has worked in the folder."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from voidrl.config import flat, merge
from voidrl.errors import RunFolderError, VoidrlError
from voidrl.experiments.grid import short_names
from voidrl.experiments.planner import Cell, Plan
from voidrl.experiments.tasks import task_name
from voidrl.runs import locks
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord, GridRecord, read_experiment_record

PATIENCE_SECONDS = 10.0  # others hold the lock for a moment; one that holds it for long was suspended


def make_record(plan: Plan, command: Sequence[str]) -> ExperimentRecord:
    """Describe a plan; a command line determines the description, in every process."""
    experiment, changes = plan.experiment, flat(merge(plan.request.changes))
    own, preset, parts = experiment.preset, plan.request.preset, []
    if preset not in (None, own):
        parts.append(f"preset {preset} instead of the experiment's {own or 'own'}")
    if changes:
        parts.append(f"changed: {', '.join(f'{name}={value}' for name, value in changes.items())}")
    grid, log = None, {axis.name: axis.log for axes in plan.axes.values() for axis in axes}
    if log:
        grid = GridRecord(
            log=log,
            chosen="product" if plan.request.tune is None else "tune",
            metric=experiment.measures[0],
            direction=experiment.direction,
            short=short_names([*log]),
            labels={arm.name: arm.label for arm in experiment.arms.values()},
        )
    return ExperimentRecord(
        root=plan.out,
        name=experiment.name,
        title=experiment.title,
        about=experiment.about,
        published=plan.published,
        command=shlex.join(command),
        cells=[_cell_record(cell) for cell in plan.cells],
        departure="; ".join(parts),
        grid=grid,
    )


def _cell_record(cell: Cell) -> CellRecord:
    same = ("folder", "label", "task", "seed", "phase", "source", "protocol_steps", "pretrain_seed", "point")
    method, name = cell.config.method.name, cell.folder.partition("/")[0]
    if cell.phase == "train":
        method = f"scratch + {method}" if cell.config.effective.has_bonus else "scratch"
    return CellRecord(
        **{name: getattr(cell, name) for name in same},
        method=method,
        steps=cell.config.steps,
        evaluated=cell.evaluation is not None,
        arm=cell.arm.name,
        like=cell.arm.like,
        task_name="" if name == task_name(cell.task) else name,
    )


def write_record(plan: Plan, command: Sequence[str]) -> None:
    """Write the record of a plan, with the cells of other commands."""
    with _locked(plan):
        old, new = read_experiment_record(plan.out), make_record(plan, command)
        if old is not None and old.name != new.name:
            raise RunFolderError(
                f"{plan.out} holds the experiment {old.name!r} and not {new.name!r}: use another --out"
            )
        if old is not None:
            own = {cell.folder for cell in new.cells}
            others = [cell for cell in old.cells if cell.folder not in own]
            commands = dict.fromkeys([*old.earlier_commands, old.command])
            if new.command in commands:
                del commands[new.command]
            else:  # of earlier commands, only what they have started is kept
                others = [cell for cell in others if (plan.path(cell.folder) / "config.json").is_file()]
            new = dataclasses.replace(
                new,
                cells=sorted([*new.cells, *others], key=lambda cell: cell.seed),
                earlier_commands=[*commands],
            )
        if new != old:
            new.write()


def try_to_write_record(plan: Plan, command: Sequence[str], *, say: Callable[[str], None]) -> None:
    """Write the record, or say why that failed: the runs themselves are there, if only to be read."""
    try:
        write_record(plan, command)
    except VoidrlError as error:
        say(str(error))


@contextmanager
def _locked(plan: Plan) -> Iterator[None]:
    """Hold the lock of files of the whole experiment, unless another process does not give it back."""
    path, deadline = locks.cell_lock_path(plan.out, "experiment"), time.monotonic() + PATIENCE_SECONDS
    while (lock := locks.acquire(path)) is None and time.monotonic() < deadline:
        pass  # acquiring waits a little
    try:
        yield
    finally:
        if lock is not None:
            locks.release(lock)
