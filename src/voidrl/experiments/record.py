"""`experiment.json`: what an experiment consists of, for whoever looks at its folder later."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voidrl import checkpoint
from voidrl.errors import CheckpointError, RunFolderError
from voidrl.experiments.plan import Cell, Plan
from voidrl.runs import locks

FILE_NAME = "experiment.json"
FORMAT = 1
PATIENCE_SECONDS = 10.0


def describe(plan: Plan, command: Sequence[str]) -> dict[str, Any]:
    """The same for every process with the same command line."""
    experiment = plan.experiment
    return {
        "format": FORMAT,
        "name": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "published": plan.published,
        "preset": plan.request.preset or experiment.preset,
        "default_preset": experiment.preset,
        "changes": dict(plan.request.changes),
        "command": shlex.join(command),
        "earlier_commands": [],
        "steps_scale": plan.request.steps_scale,
        "missing": plan.missing,
        "cells": [_cell(cell) for cell in plan.cells],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "folder": cell.folder,
        "label": cell.label,
        "task": cell.task,
        "method": "scratch" if cell.phase == "train" else cell.config.method.name,
        "seed": cell.seed,
        "phase": cell.phase,
        "source": cell.source,
        "steps": cell.config.steps,
        "protocol_steps": cell.protocol_steps,
        "evaluated": cell.evaluation is not None,
    }


def write(plan: Plan, command: Sequence[str]) -> None:
    """Write it into the experiment's folder, with the cells that other command lines have begun there."""
    path, mine = plan.out / FILE_NAME, describe(plan, command)
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot make {plan.out} ({error.strerror or error}); choose another --out"
        ) from error
    lock = _take(locks.lock_path(plan.out, "experiment"))
    try:
        there = _read(path)
        if there is not None:
            if there.get("name") != mine["name"]:
                raise RunFolderError(
                    f"{plan.out} holds the experiment {there.get('name')!r} and not {mine['name']!r}: use "
                    f"another --out"
                )
            mine["cells"] = _joined(plan, mine["cells"], there["cells"])
            typed = dict.fromkeys([*there["earlier_commands"], there["command"]])
            mine["earlier_commands"] = [line for line in typed if line != mine["command"]]
        if mine != there:
            checkpoint.write_json_atomic(path, mine)
    finally:
        if lock is not None:
            locks.release(lock)


def _take(path: Path) -> int | None:
    """Others hold it for a moment; whoever holds it for long has been stopped, and is not waited for."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (lock := locks.take(path)) is None and time.monotonic() < end:
        time.sleep(0.01)
    return lock


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = checkpoint.read_json(path, "the experiment")
        if isinstance(found["format"], int) and found["format"] > FORMAT:
            raise RunFolderError(
                f"{path} has format {found['format']}, newer than {FORMAT}: upgrade voidrl, or use another "
                f"--out"
            )
        texts = [found["name"], found["command"], *found["earlier_commands"]]
        texts += [cell["folder"] for cell in found["cells"]]
        whole = all(isinstance(text, str) for text in texts)
        whole = whole and all(isinstance(cell["seed"], int) for cell in found["cells"])
    except (CheckpointError, KeyError, TypeError):
        whole = False
    if not whole:
        raise RunFolderError(
            f"{path} is damaged: remove it, and the same command writes it anew; the runs stay as they are"
        )
    return dict(found)


def _joined(plan: Plan, mine: list[dict[str, Any]], others: Any) -> list[dict[str, Any]]:
    """With the cells of other command lines that have been begun, in the order of the experiment's file."""
    folders = {cell["folder"] for cell in mine}
    kept = [
        cell
        for cell in others
        if cell["folder"] not in folders and (plan.path(cell["folder"]) / "config.json").is_file()
    ]
    if not kept:
        return mine
    tasks = [place.name for task in plan.experiment.tasks for place in (task.pretrain, task)]
    arms = [name for arm in plan.experiment.arms for name in (f"{arm}-pretrain", arm)]

    def place(cell: Mapping[str, Any]) -> tuple[int, int, int, str]:
        task, arm, _ = cell["folder"].split("/")
        at = tasks.index(task) if task in tasks else len(tasks)
        return cell["seed"], at, arms.index(arm) if arm in arms else len(arms), cell["folder"]

    return sorted([*mine, *kept], key=place)
