"""One cell in a process of its own: `python -m voidrl.experiments.cell`, started by `voidrl.experiments.run`.

What to do comes as a line of JSON on standard input. The parent closes that pipe to stop it, and so does the
parent's end: this process then stops as on SIGTERM, with a checkpoint, and nobody is left training unseen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypedDict

from voidrl.errors import CheckpointError, RunInterrupted, VoidrlError
from voidrl.runs import locks

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 75
_stopping = threading.Event()  # a signal in the last step of a run would be forgotten with the run


class Job(TypedDict):
    """What the parent says."""

    command: list[str]
    """Of the experiment, for the run's record of where it comes from."""
    folder: str
    phase: str
    config: dict[str, Any]
    source: str | None
    evaluation: dict[str, Any] | None
    threads: int | None
    lock: int
    path: list[str]
    """Where the parent finds modules."""


def main() -> int:
    """Do what is missing of one cell."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to pass on
    try:
        job: Job = json.loads(sys.stdin.buffer.readline())
        locks.keep(job["lock"])
        threading.Thread(target=_stop_with_parent, daemon=True).start()
        sys.argv = job["command"]
        sys.path += [entry for entry in job["path"] if entry not in sys.path]
        _do(job)
    except VoidrlError as error:
        print(f"voidrl: {error}", file=sys.stderr, flush=True)
        return BAD_INPUT
    except RunInterrupted as stop:
        print(f"voidrl: {stop}", file=sys.stderr, flush=True)
        return INTERRUPTED
    return DONE


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Outside the training loop, which has a handler of its own, nothing has to be saved."""
    raise RunInterrupted(f"stopped by {signal.Signals(number).name}")


def _stop_with_parent() -> None:
    while os.read(0, 1):
        pass
    _stopping.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _do(job: Job) -> None:
    import torch

    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    from voidrl import api, build, checkpoint
    from voidrl.scores.score import FILE_NAME, record

    folder, evaluation = Path(job["folder"]), job["evaluation"]
    config = build.config_from_json(job["config"])
    _train(job, folder)
    if evaluation is None:
        return
    if _stopping.is_set():
        raise RunInterrupted(f"stopped after the last step of {folder}, before its evaluation")
    length = f"{evaluation['steps']} steps" if evaluation["steps"] else f"{evaluation['episodes']} episodes"
    print(f"{folder}: evaluating for {length}", file=sys.stderr, flush=True)
    agent = api.load(folder, device=config.device)
    options = {k: v for k, v in evaluation.items() if k != "env" and (k != "episodes" or v is not None)}
    saved = record(agent, folder, api.evaluate(agent, **options), evaluation)
    checkpoint.write_json_atomic(folder / FILE_NAME, saved)


def _train(job: Job, folder: Path) -> None:
    """Begin, go on with, or keep a run."""
    from voidrl import api, build, checkpoint
    from voidrl.experiments.state import reached, wrote_checkpoint

    config, say = build.config_from_json(job["config"]), lambda text: print(text, file=sys.stderr, flush=True)
    root = folder / "checkpoints"
    if checkpoint.list_steps(root):
        if checkpoint.latest(root, say).step < config.steps:
            api.resume(folder, device=config.device, engine=config.engine)
        return
    if reached(folder) >= config.steps and wrote_checkpoint(folder):
        raise CheckpointError(
            f"{folder} is complete, but its checkpoint, which would be evaluated, is no longer there: bring "
            f"it back, or use another --out"
        )
    # Without a checkpoint there is nothing to go on with: what a killed run left behind is replaced.
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
