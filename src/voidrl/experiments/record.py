"""Write `experiment.json`, with the cells of every command line that has worked in the folder."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from voidrl.config import Config, flat, merge
from voidrl.errors import RunFolderError, VoidrlError
from voidrl.experiments.grid import short_names
from voidrl.experiments.plan import Cell, Plan
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
        cells=[_cell_record(cell) for cell in plan.cells],
        default_preset=experiment.preset,
        departure=_departure(plan),
        grid=_grid_record(plan),
    )


def _departure(plan: Plan) -> str:
    """Differences from the experiment's file, in words."""
    own, preset, parts = plan.experiment.preset, plan.request.preset, []
    if preset not in (None, own):
        parts.append(f"preset {preset} instead of the experiment's {own or 'own'}")
    if changes := flat(merge(plan.request.changes)):
        parts.append(f"changed: {', '.join(f'{name}={value}' for name, value in changes.items())}")
    return "; ".join(parts)


def _grid_record(plan: Plan) -> GridRecord | None:
    """The fields that vary, how points were chosen, and their ranking; None without a grid."""
    if not plan.has_grid:
        return None
    tune, log = plan.experiment.tune, {axis.name: axis.log for axes in plan.axes.values() for axis in axes}
    return GridRecord(
        log=log,
        chosen="product" if plan.request.tune is None else "tune",
        metric=tune.metric,
        direction=tune.direction,
        measures={arm.name: arm.measures[0] for arm in plan.experiment.arms.values()},
        short=short_names([*log]),
        labels={arm.name: arm.label for arm in plan.experiment.arms.values()},
    )


def _cell_record(cell: Cell) -> CellRecord:
    same = ("folder", "label", "task", "seed", "phase", "source", "protocol_steps", "pretrain_seed", "point")
    return CellRecord(
        **{name: getattr(cell, name) for name in same},
        method=_method_name(cell.config),
        steps=cell.config.steps,
        evaluated=cell.evaluation is not None,
        arm=cell.arm.name,
        like=cell.arm.like,
    )


def _method_name(config: Config) -> str:
    """The method of a run; from scratch none, unless its reward is a bonus."""
    if config.phase != "train":
        return config.method.name
    return f"scratch + {config.method.name}" if config.effective.has_bonus else "scratch"


def write_record(plan: Plan, command: Sequence[str] | None = None) -> None:
    """Write the record, with the started cells of earlier commands.

    Without a command, the record keeps its description and gets the cells that have started since.
    """
    with _locked(plan):
        old = read_experiment_record(plan.out)
        if old is not None and old.name != plan.experiment.name:
            raise RunFolderError(
                f"{plan.out} holds the experiment {old.name!r} and not {plan.experiment.name!r}: use another "
                f"--out"
            )
        new = old if command is None else make_record(plan, command)
        if new is None:
            return
        kept, own = [] if old is None else old.cells, [_cell_record(cell) for cell in plan.cells]
        if command is None:
            own = _started(plan, own)
        else:
            kept = _started(plan, kept)
        cells = {cell.folder: cell for cell in (*kept, *own)}
        commands = [] if old is None else [*old.earlier_commands, old.command]
        new = dataclasses.replace(
            new,
            cells=sorted(cells.values(), key=lambda cell: cell.seed),
            earlier_commands=[line for line in dict.fromkeys(commands) if line != new.command],
        )
        if new != old:
            new.write()


def try_to_write_record(
    plan: Plan, command: Sequence[str] | None = None, *, say: Callable[[str], None]
) -> None:
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


def _started(plan: Plan, cells: Sequence[CellRecord]) -> list[CellRecord]:
    return [cell for cell in cells if (plan.path(cell.folder) / "config.json").is_file()]
