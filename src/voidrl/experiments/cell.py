"""One cell in its own process: `python -m voidrl.experiments.cell`, started by `voidrl.experiments.run`.

The job comes as a line of JSON on standard input. When the parent closes that pipe, or dies, this process
stops as on SIGTERM, with a checkpoint: no run is left training unnoticed. A scheduler may signal parent and
child, so that this process is asked twice: the checkpoint is written all the same.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from voidrl.errors import CheckpointError, RunInterrupted, StoppedBySignal, VoidrlError
from voidrl.runs import locks
from voidrl.runs.experiment_record import write_failure
from voidrl.runs.status import sentence_of
from voidrl.terminal.output import durable_output, say
from voidrl.terminal.signals import StopSignals

DONE, CRASHED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 75


class Job(TypedDict):
    """What the parent asks for."""

    command: list[str]
    """The experiment's command line, for the run's environment.json."""
    root: str
    """The experiment's folder."""
    cell: str
    """The run folder, relative to the root."""
    phase: str
    config: dict[str, Any]
    source: str | None
    evaluation: dict[str, Any] | None
    threads: int | None
    lock: int
    """The inherited file descriptor of the cell's lock."""


def main() -> int:
    """Run the missing parts of one cell; returns the exit code."""
    try:
        with durable_output(), StopSignals(raises=True, ends_at_once=False):
            return _work()
    except (RunInterrupted, StoppedBySignal) as stop:
        say(f"voidrl: {stop}")
        return INTERRUPTED


def _work() -> int:
    job: Job = json.loads(sys.stdin.buffer.readline())
    locks.adopt(job["lock"])
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.argv = job["command"]
    try:
        do_job(job)
    except Exception as error:
        known = isinstance(error, VoidrlError)
        say(f"voidrl: {error}" if known else traceback.format_exc())
        with suppress(VoidrlError, OSError):  # of a full disk
            write_failure(Path(job["root"]), job["cell"], sentence_of(error))
        return BAD_INPUT if known else CRASHED
    return DONE


def _stop_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def do_job(job: Job) -> None:
    """Train and evaluate in this process, as far as that is not done."""
    import torch

    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    from voidrl import api, checkpoint
    from voidrl.runs.evaluations import FILE_NAME
    from voidrl.scores.score import evaluation_record

    folder, evaluation = Path(job["root"], job["cell"]), job["evaluation"]
    _train(job, folder)
    if evaluation is None:
        return
    length = f"{evaluation['steps']} steps" if evaluation["steps"] else f"{evaluation['episodes']} episodes"
    say(f"{folder}: evaluating for {length}")
    agent = api.load(folder, device=job["config"]["device"])
    options = {k: v for k, v in evaluation.items() if k != "env" and (k != "episodes" or v is not None)}
    saved = evaluation_record(agent, folder, api.evaluate(agent, **options), evaluation)
    checkpoint.remove_leftovers(folder / FILE_NAME)  # of processes that died: this one holds the cell's lock
    checkpoint.write_json_atomic(folder / FILE_NAME, saved)


def _train(job: Job, folder: Path) -> None:
    """Start, resume or keep the run."""
    from voidrl import api, build, checkpoint
    from voidrl.experiments.state import last_checkpoint

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
    # Without a checkpoint there is nothing to resume: what a killed run left behind is replaced.
    env = config.env.id
    if job["phase"] == "finetune":
        assert job["source"] is not None
        api.finetune(job["source"], env, config=config, out=folder, overwrite=True)
    elif job["phase"] == "train":
        api.train(env, config=config, out=folder, overwrite=True)
    else:
        api.pretrain(env, config=config, out=folder, overwrite=True)


if __name__ == "__main__":
    sys.exit(main())
