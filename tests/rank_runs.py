"""Runs on several ranks: processes forked from the test, and an environment that fails in one of them."""

import os
import signal
import socket
import sys
import time
import traceback

import torch
from tiny_runs import Walk

from voidrl.cli.main import main
from voidrl.envs.spaces import spec_from_json
from voidrl.methods.base import Method
from voidrl.replay import Replay
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.training.build import config_from_json
from voidrl.training.saved_run import latest_run, load_replay

FAULT = "VOIDRL_TEST_FAULT"  # rank, step of its first environment, and what happens there
ENV = "rank_runs:make_walk"
OPTIONS = {
    "--method": "rnd",
    "--device": "cpu",
    "--env.num-envs": "4",
    "--warmup-steps": "12",
    "--updates-per-step": "0.5",
    "--learner.batch-size": "12",
    "--learner.hidden-dim": "8",
    "--learner.encoder.feature-dim": "4",
    "--learner.encoder.hidden-dim": "4",
    "--method.hidden-dim": "4",
    "--replay.capacity-steps": "48",  # less than the runs have: it wraps
    "--log.tensorboard": "false",
    "--log.log-every-steps": "16",
    "--log.checkpoint-every-steps": "40",
    "--log.keep-last": "1",
    "--steps": "120",
}


class FaultyWalk(Walk):
    """A walk; what `FAULT` says happens once, in the first environment of a rank."""

    made = 0

    def __init__(self):
        super().__init__()
        FaultyWalk.made += 1
        self.number, self.count = FaultyWalk.made, 0

    def step(self, action):
        self.count += 1
        rank, step, what = os.environ.get(FAULT, "-1 0 nothing").split()
        if os.environ.get("RANK", "0") == rank and self.count == int(step):
            os.environ.pop(FAULT)
            if what == "raise":
                raise RuntimeError("the wheel fell off")
            os.kill(os.getpid(), getattr(signal, what))
        return super().step(action)


def make_walk():
    return FaultyWalk()


class Drifting(Method):
    """A method that counts what its own process has seen."""

    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("seen", torch.zeros(()))

    def reward(self, batch, latents):
        self.seen += batch.obs.sum()
        return batch.obs.sum(1)


def words(**changes):
    """The options of a tiny run; `__` stands for a dot."""
    options = OPTIONS | {f"--{k.replace('__', '.').replace('_', '-')}": str(v) for k, v in changes.items()}
    if options["--method"] != OPTIONS["--method"]:
        options.pop("--method.hidden-dim")
    return [word for pair in options.items() for word in pair]


def run(size, argv, folder, fault=""):
    """Exit codes and messages of `size` ranks of one command; none may be left after a minute."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    pids = []
    for rank in range(size):
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        log = folder / f"messages-{rank}.txt"
        if not (pid := os.fork()):
            _become_rank(meeting | group if size > 1 else {}, argv, log, fault)
        pids.append(pid)
    statuses = {}
    deadline = time.monotonic() + 60
    while len(statuses) < size:
        for rank in {*range(size)} - {*statuses}:
            pid, status = os.waitpid(pids[rank], os.WNOHANG)
            if pid:
                statuses[rank] = os.waitstatus_to_exitcode(status)
        if fault.endswith("SIGSTOP") and len(statuses) == size - 1:  # as good as a machine without power
            os.kill(pids[int(fault.split()[0])], signal.SIGKILL)
        if time.monotonic() > deadline:
            for rank in {*range(size)} - {*statuses}:
                os.kill(pids[rank], signal.SIGKILL)
                os.waitpid(pids[rank], 0)
            raise AssertionError(f"ranks {sorted({*range(size)} - {*statuses})} did not end")
        time.sleep(0.01)
    codes = [statuses[rank] for rank in range(size)]
    return codes, [(folder / f"messages-{rank}.txt").read_text() for rank in range(size)]


def _become_rank(variables, argv, log, fault):
    code = 70
    try:
        torch.set_num_threads(1)
        os.environ.update({name: str(value) for name, value in variables.items()})
        os.environ["OMP_NUM_THREADS"] = "1"
        if fault:
            os.environ[FAULT] = fault
        stream = log.open("w")
        os.dup2(stream.fileno(), 2)
        sys.stdout = sys.stderr = stream
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        code = main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def pretrain(size, out, fault="", **changes):
    """Pre-train on `size` ranks."""
    out.parent.mkdir(exist_ok=True)
    return run(size, ["pretrain", ENV, "--out", str(out), *words(**changes)], out.parent, fault)


def resume(size, out, fault="", *more):
    """Resume on `size` ranks."""
    return run(size, ["resume", str(out), *more], out.parent, fault)


def saved_tensors(out):
    """All tensors of the newest checkpoint by rank, file and name, and the meta."""
    saved = latest_run(RunFolder(out), lambda text: None)
    parts = [saved]
    others = range(1, saved.meta["ranks"])
    parts += [checkpoint.load_step(out / "ranks" / str(rank), saved.step) for rank in others]
    tensors = {
        f"{rank}/{file}/{name}": tensor
        for rank, part in enumerate(parts)
        for file in part.files
        for name, tensor in part.tensors(file).items()
    }
    return tensors, {k: v for k, v in saved.meta.items() if k != "metrics_bytes"}


def assert_same(one, other):
    """Bit for bit: weights, optimizers, replays, random numbers and rows of two runs."""
    (mine, meta), (others, other_meta) = saved_tensors(one), saved_tensors(other)
    assert meta == other_meta
    assert mine.keys() == others.keys()
    assert [name for name, tensor in mine.items() if not torch.equal(tensor, others[name])] == []
    rows = [
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(run)]
        for run in (one, other)
    ]
    assert rows[0] == rows[1]


def transitions(out):
    """The set of transitions in the newest checkpoint, of all ranks."""
    saved = latest_run(RunFolder(out), lambda text: None)
    config, cpu = config_from_json(saved.meta["config"]), torch.device("cpu")
    spec = spec_from_json(saved.meta["spec"])
    replay = Replay(spec, config.env.num_envs, config.replay.capacity_steps, 0, cpu, cpu, config.replay)
    load_replay(saved, replay)
    batch = replay.batch(replay.newest(len(replay)), 1, 1.0)
    columns = [
        part.reshape(len(part), -1).float()
        for part in (batch.obs, batch.action, batch.reward, batch.next_obs)
    ]
    found = {tuple(row) for row in torch.cat(columns, 1).tolist()}
    assert len(found) == len(replay)
    return found
