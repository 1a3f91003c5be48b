"""Sentences for a run that fails or is interrupted: the cause, the checkpoint that is kept, how to resume."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voidrl import dist
from voidrl.agent import diagnosis
from voidrl.config import Config
from voidrl.envs.ids import is_importable
from voidrl.errors import (
    CallbackFailedError,
    EnvironmentFailedError,
    NonFiniteError,
    PieceFailedError,
    RankLostError,
    RunInterrupted,
    VoidrlError,
)
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.training.run import Run


@contextmanager
def explained(run: Run) -> Iterator[None]:
    """Inside, errors get the step of the run, the checkpoint that is kept and the place of the traceback."""
    folder, state = run.folder, run.state
    log = f"the traceback is in {folder.log_path}"
    try:
        yield
    except RankLostError as error:
        folder.log_traceback(error)  # which says how the connection was lost
        again = f"resume with `{resume_command(folder, run.config, run.group)}`"
        raise RankLostError(f"{error}; {_kept(run)}, {again}") from error
    except CallbackFailedError as error:
        raise CallbackFailedError(f"{error}; {_kept(run)}, {log}") from error
    except EnvironmentFailedError as error:
        where = f"at step {state.steps} of the run; {_kept(run)}"
        raise EnvironmentFailedError(f"{error}, {where}, {log}") from error
    except Exception as error:
        if not (failure := diagnosis.failed_piece(run.agent, error)):
            raise
        where = f"at step {state.steps}, update {state.updates}; {_kept(run)}"
        raise PieceFailedError(f"{failure}, {where}, {log}") from error


def needs_traceback(error: Exception) -> bool:
    """Whether the line is needed to fix an error: it is in code of the user, or in ours."""
    in_user_code = CallbackFailedError | EnvironmentFailedError | PieceFailedError
    return isinstance(error, in_user_code) or not isinstance(error, VoidrlError)


def say_how_it_ended(run: Run) -> None:
    """Record the end of a run: that it is complete, or who stopped it, which a signal raises."""
    path = run.checkpoint
    assert path is not None
    is_complete = run.state.steps >= run.config.steps
    if is_complete:
        run.folder.status.finish(run.state.steps)
    signal, callback = run.totals.first_text([run.stop.requested, run.callbacks.stopped_by])
    if signal:
        raise interrupted(run, signal, path, is_complete)
    if not is_complete:
        say_who_stopped(run, callback, path)


def interrupted(run: Run, signal: str, path: Path, is_complete: bool) -> RunInterrupted:
    """Record the stop, unless the run is complete; returns the exception that ends the command."""
    steps, total = run.state.steps, run.config.steps
    run.folder.log(f"stopped by {signal} at step {steps}")
    if is_complete:
        return RunInterrupted(
            f"stopped by {signal} after the last of {total} steps; the run is complete, with checkpoint "
            f"{path.name}"
        )
    run.folder.status.stop(steps, signal=signal)
    return RunInterrupted(
        f"stopped by {signal} at step {steps} of {total}; checkpoint {path.name} written, resume with "
        f"`{resume_command(run.folder, run.config, run.group)}`"
    )


def say_who_stopped(run: Run, callback: str, path: Path) -> None:
    """Record that a callback has stopped the run, and say so."""
    steps = run.state.steps
    run.folder.status.stop(steps, callback=callback)
    run.engine.say(
        f"stopped by callback {callback} at step {steps} of {run.config.steps}; checkpoint {path.name} "
        f"written, resume with `{resume_command(run.folder, run.config, run.group)}`"
    )


def require_finite_weights(run: Run) -> None:
    """Refuse to save an agent with weights that are not finite."""
    if culprit := diagnosis.diagnose_weight(run.agent):
        raise not_finite(run, culprit)


def bad_action(run: Run) -> NonFiniteError:
    """Explain an action that is not finite; a loss that broke before it is the cause."""
    run.engine.metrics.flush()
    return not_finite(run, first_culprit(run) or diagnosis.diagnose_policy(run.agent))


def first_culprit(run: Run) -> diagnosis.Culprit | None:
    """The first metric that is not finite among those flushed last, with its piece."""
    updates = range(run.logged_updates, run.state.updates)
    return diagnosis.diagnose_metrics(run.agent, run.engine.metrics.non_finite, updates)


def not_finite(run: Run, culprit: diagnosis.Culprit) -> NonFiniteError:
    """Name the culprit, the update and the checkpoint that is kept."""
    update = run.state.updates if culprit.update is None else culprit.update + 1
    return NonFiniteError(
        f"{culprit.what} is not finite at update {update}, noticed at step {run.state.steps}: "
        f"{culprit.why}; {_kept(run)}"
    )


def _kept(run: Run) -> str:
    steps = checkpoint.list_steps(run.folder.checkpoints_path)
    return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint was written yet"


def resume_command(folder: RunFolder, config: Config, group: dist.ProcessGroup) -> str:
    """The command that resumes a run on as many ranks, or a call if its environment cannot be imported."""
    if is_importable(config.env.id):
        on_ranks = f" --ranks {group.size}" if group.size == group.local_size > 1 else ""
        return f"voidrl resume {shlex.quote(str(folder.path))}{on_ranks}"
    env = config.env.id.rpartition(":")[2]
    return f"voidrl.resume({str(folder.path)!r}, env={env})"
