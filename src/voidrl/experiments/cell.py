"""One cell in its own process: `python -m voidrl.experiments.cell`, started by an executor.

The job comes as a line of JSON on standard input. When the parent closes that pipe, or dies, this process
stops as on SIGTERM, with a checkpoint: no run is left training unnoticed. A scheduler may signal parent and
child, so that this process is asked twice: the checkpoint is still written.

It holds the cell's lock to its end. The process before it may still be ending, though its node counts as
lost, or another command may have done the cell meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl.errors import CheckpointError, RunInterrupted, StoppedBySignal, VoidrlError
from voidrl.experiments.executors.base import INTERRUPTED, Job
from voidrl.runs import locks
from voidrl.runs.experiment_record import write_failure
from voidrl.runs.status import sentence_of
from voidrl.system.terminal.output import durable_output, end_process, say
from voidrl.system.terminal.signals import StopSignals

DONE, CRASHED, BAD_INPUT, HELD = 0, 1, 2, 73
"""Exit codes; `HELD`: another process is working on the cell."""
PATIENCE_SECONDS = 60.0  # with a process that holds the lock: a lost one may still be writing a checkpoint
RETRY_SECONDS = 0.5


def main() -> int:
    """Run the missing parts of one cell; returns the exit code."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM may send it to all processes of a job
    try:
        with durable_output(), StopSignals(raises=True, ends_at_once=False):
            return _work()
    except (RunInterrupted, StoppedBySignal) as stop:
        say(f"voidrl: {stop}")
        return INTERRUPTED


def _work() -> int:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        say("voidrl: the command that started this process has ended")
        return INTERRUPTED
    job: Job = json.loads(line)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.argv = job["command"]
    try:
        path = locks.cell_lock_path(Path(job["root"]), job["cell"])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (lock := locks.acquire(path)) is None:
            if time.monotonic() > deadline:
                say(f"voidrl: process {locks.holder(path)} is working on {job['cell']}")
                return HELD
            time.sleep(RETRY_SECONDS)
        locks.adopt(lock)
        if not _is_done(job):
            do_job(job)
    except Exception as error:
        known = isinstance(error, VoidrlError)
        say(f"voidrl: {error}" if known else traceback.format_exc())
        with suppress(VoidrlError, OSError):  # of a full disk
            write_failure(Path(job["root"]), job["cell"], sentence_of(error))
        return BAD_INPUT if known else CRASHED
    return DONE


def _is_done(job: Job) -> bool:
    """Judge a cell that was queued: meanwhile others may have done it, or something else in its folder."""
    from voidrl.experiments.state import Wanted, require_same_settings, state_of
    from voidrl.training import build

    folder = Path(job["root"], job["cell"])
    wanted = Wanted(build.config_from_json(job["config"]), job["evaluation"])
    require_same_settings(wanted, folder)
    return state_of(wanted, folder).kind == "done"


def _stop_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def do_job(job: Job) -> None:
    """Train and evaluate in this process, as far as that is not done."""
    from voidrl.runs import checkpoint
    from voidrl.runs.evaluations import FILE_NAME

    folder = Path(job["root"], job["cell"])
    _train(job, folder)
    if job["evaluation"] is None:
        return
    saved = _evaluate(job, folder, job["evaluation"])
    if job["zero_shot"] is not None:
        assert job["source"] is not None
        saved["zero_shot"] = _evaluate(job, Path(job["root"], job["source"]), job["zero_shot"])
    checkpoint.remove_leftovers(folder / FILE_NAME)  # of processes that died: this one holds the cell's lock
    checkpoint.write_json_atomic(folder / FILE_NAME, saved)


def _evaluate(job: Job, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the agent of a run, as JSON."""
    from voidrl import api
    from voidrl.training.evaluation import evaluation_record

    length = f"{settings['steps']} steps" if settings["steps"] else f"{settings['episodes']} episodes"
    say(f"{folder}: evaluating for {length}")
    agent = api.load(folder, device=job["config"]["device"])
    options = {k: v for k, v in settings.items() if k != "env" and (k != "episodes" or v is not None)}
    env = None if settings["env"] == agent.config.env.id else settings["env"]
    return evaluation_record(agent, folder, api.evaluate(agent, env, **options), settings)


def _train(job: Job, folder: Path) -> None:
    """Start, resume or keep the run."""
    from voidrl import api
    from voidrl.experiments.state import last_checkpoint
    from voidrl.runs import checkpoint
    from voidrl.training import build

    config, checkpoints = build.config_from_json(job["config"]), folder / "checkpoints"
    if checkpoint.list_steps(checkpoints):
        if checkpoint.latest(checkpoints, say).step < config.steps:
            api.resume(folder, device=config.device, engine=config.engine)
        return
    if folder.exists() and last_checkpoint(folder) >= config.steps:
        raise CheckpointError(
            f"{folder} is complete, but its checkpoint, which would be evaluated, is no longer there: bring "
            f"it back, or use another --out"
        )
    # Without a checkpoint there is nothing to resume: the remains of a killed run are replaced.
    how: Any = {"config": config, "out": folder, "overwrite": True}
    if config.phase == "finetune":
        assert job["source"] is not None
        api.finetune(Path(job["root"], job["source"]), config.env.id, **how)
    else:
        start = api.train if config.phase == "train" else api.pretrain
        start(config.env.id, **how)


if __name__ == "__main__":
    end_process(status := main())
    sys.exit(status)
