"""Sentences for a run that fails or is interrupted: the cause, the checkpoint that is kept, how to resume."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from voidrl import dist
from voidrl.agent import diagnosis
from voidrl.config import Config
from voidrl.envs.ids import is_importable
from voidrl.errors import (
    CallbackFailedError,
    CheckpointError,
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
    log = f"the traceback is in {folder.shown / folder.log_path.name}"
    try:
        yield
    except RankLostError as error:
        folder.log_traceback(error)  # which says how the connection was lost
        again = f"resume with `{resume_command(folder, run.config)}`"
        raise RankLostError(f"{error}; {_kept(run)}, {again}") from error
    except (CallbackFailedError, EnvironmentFailedError) as error:
        where = f", at step {state.steps} of the run" * isinstance(error, EnvironmentFailedError)
        raise type(error)(f"{error}{where}; {_kept(run)}, {log}") from error
    except Exception as error:
        if not (failure := diagnosis.failed_piece(run.config, error)):
            raise
        where = f"at step {state.steps}, update {state.updates}; {_kept(run)}"
        raise PieceFailedError(f"{failure}, {where}, {log}") from error


def needs_traceback(error: Exception) -> bool:
    """Whether the line is needed to fix an error: it is in code of the user, or in ours."""
    in_user_code = CallbackFailedError | EnvironmentFailedError | PieceFailedError
    return isinstance(error, in_user_code) or not isinstance(error, VoidrlError)


def say_how_it_ended(run: Run) -> None:
    """Record whether the run is complete or was stopped, and by whom; a signal raises."""
    steps, total = run.state.steps, run.config.steps
    stops = dist.all_gather_object((run.stop.requested, run.callbacks.stopped_by))  # of all ranks
    signal, callback = (next(filter(None, each), None) for each in zip(*stops, strict=True))
    if signal:
        run.folder.log(f"stopped by {signal} at step {steps}")
    if steps >= total:
        run.folder.status.end("done", steps)
        if signal:
            raise RunInterrupted(f"stopped by {signal} after the last of {total} steps; the run is complete")
        return
    run.folder.status.end("stopped", steps, signal=signal, callback=None if signal else callback)
    assert run.checkpoint is not None
    sentence = (
        f"stopped by {signal or f'callback {callback}'} at step {steps} of {total}; checkpoint "
        f"{run.checkpoint.name} written, resume with `{resume_command(run.folder, run.config)}`"
    )
    if signal:
        raise RunInterrupted(sentence)
    run.engine.say(sentence)


def require_finite_weights(run: Run) -> None:
    """Refuse to save an agent with weights that are not finite."""
    if culprit := diagnosis.diagnose_weight(run.agent):
        raise not_finite(run, culprit)


def bad_action(run: Run) -> NonFiniteError:
    """Explain an action that is not finite; a loss that broke before it is the cause."""
    run.engine.metrics.flush()
    policy = diagnosis.diagnose(run.agent, "learner", "the action", "act")
    return not_finite(run, first_culprit(run) or policy)


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
    try:
        steps = checkpoint.list_steps(run.folder.checkpoints_path)
    except CheckpointError:  # the error to be explained matters more
        return "the last checkpoint is kept"
    return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint was written yet"


def resume_command(folder: RunFolder, config: Config) -> str:
    """The command that resumes a run on as many ranks, or a call if its environment cannot be imported."""
    if not is_importable(config.env.id):
        return f"voidrl.resume({str(folder.shown)!r}, env={config.env.id.rpartition(':')[2]})"
    group, resume = dist.current(), f"resume {shlex.quote(str(folder.shown))}"
    if group.size == group.local_size > 1:
        return f"torchrun --nproc-per-node {group.size} -m voidrl {resume}"
    return f"voidrl {resume}"
