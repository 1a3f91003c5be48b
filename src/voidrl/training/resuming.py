"""Finds the checkpoint and the config with which a run is resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from voidrl import dist
from voidrl.config import Config, update
from voidrl.config.fields import RESUMABLE_FIELDS, may_change
from voidrl.config.registry import import_path
from voidrl.config.updating import differences
from voidrl.envs.ids import is_importable, parse_id
from voidrl.envs.make import EnvFactory
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    RunInterrupted,
    StoppedBySignal,
    by_caller,
    shown,
)
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder, overwriting
from voidrl.runs.status import read_status
from voidrl.training import build
from voidrl.training.failures import resume_command
from voidrl.training.layers import Env
from voidrl.training.saved_run import latest_run, require_as_many_ranks, sweep_parts


@contextmanager
def explained_stop(folder: RunFolder, config: Config) -> Iterator[None]:
    """Treat a signal before or after training as an interruption, not as a failure."""
    try:
        yield
    except StoppedBySignal as stop:
        if folder.status.is_done:  # it came while the environments were being closed
            raise RunInterrupted(f"{stop} after the last step; the run is complete") from None
        remedy = f"resume with `{resume_command(folder, config)}`"
        raise RunInterrupted(f"{stop} before training; the run is as it was, {remedy}") from None


def resumed_config(
    folder: RunFolder, saved: checkpoint.Checkpoint | None, written: Config, changes: Mapping[str, Any]
) -> tuple[Config, list[str]]:
    """The config with which a run is resumed, and a sentence for each field that has changed.

    The checkpoint decides what the run is; `config.json` and the command may change the rest.
    """
    if saved is None and written.effective.adapts:
        raise CheckpointError(
            f"{folder.shown} has no checkpoint to resume from: start it again, "
            f"{by_caller('with overwrite=True', 'with `voidrl finetune … --overwrite`')}"
        )
    if saved is not None:
        require_as_many_ranks(folder.path, saved.count("ranks"), dist.current().size)
    trained = written if saved is None else config_of(saved)
    requested = update(written, changes)
    for field, (old, new) in differences(written, requested).items():
        if not may_change(field, written.phase):
            raise ConfigError(
                f"{field} = {shown(new)} cannot be set when a run is resumed: it is {shown(old)} there and "
                f"defines the run; start a new run, or change only {', '.join(RESUMABLE_FIELDS)}"
            )
    refused = [
        f"{field} was {shown(old)} and is {shown(new)}"
        for field, (old, new) in differences(trained, written).items()
        if not may_change(field, trained.phase)
    ]
    if refused and saved is not None:
        raise ConfigError(
            f"{folder.config_path} was edited since {saved.path.name} in what defines the run: "
            f"{', '.join(refused)}; restore it, or start a new run with these values"
        )
    changed = differences(trained, requested).items()
    return requested, [f"{field} was {old!r}, is {new!r}" for field, (old, new) in changed]


def config_of(saved: checkpoint.Checkpoint) -> Config:
    """The config in the manifest of a checkpoint."""
    path = saved.path / checkpoint.MANIFEST
    try:
        return build.config_from_json(checkpoint.require_field(path, saved.meta, "config", dict))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def resumable_factory(env: Env | None, trained_in: str) -> EnvFactory | None:
    """The function that makes environments of a resumed run, where the original cannot be imported."""
    if env is None or not isinstance(env, str):
        return cast(EnvFactory | None, env)
    name, options = parse_id(env)
    found = import_path("environment", name) if ":" in name else None
    if not callable(found) or is_importable(trained_in):
        raise ConfigError(
            f"env = {env!r} cannot be used to resume in {trained_in!r}: expected module:function, for a run "
            f"on a function that cannot be imported by its name"
        )
    return partial(found, **options)


def latest_of_all(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """The newest valid checkpoint, which the first rank finds for all; None if there never was one."""
    root, saved = folder.checkpoints_path, None
    if not dist.current().is_main:
        step = dist.broadcast_object(None)
        return None if step is None else checkpoint.load_step(root, step)
    folder.sweep()
    status = read_status(folder.path)
    if root.is_dir() and checkpoint.list_steps(root):
        saved = latest_run(folder, say)
    elif not root.is_dir() or (status is not None and status.checkpoint is not None):
        raise CheckpointError(
            f"the checkpoints of the run in {root} are gone: bring them back, or start again with "
            f"{overwriting()}"
        )
    sweep_parts(folder)
    dist.broadcast_object(None if saved is None else saved.step)
    return saved


def nothing_to_train(folder: RunFolder, written: int, done: int, asked: int) -> str:
    """A sentence for a run that already has as many steps as were asked for; fewer steps are refused."""
    if asked < min(written, done):
        raise ConfigError(
            f"steps = {asked} cannot be used: it is a total, and {folder.shown} is at step {done}; give more"
        )
    folder.status.complete(written, done)
    return f"{folder.shown} is complete at step {done}; to train longer, give more steps"
