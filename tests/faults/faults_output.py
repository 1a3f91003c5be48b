"""The terminal is not the run: pipes that break, streams that are full or closed; other loggers."""

import os
import shutil

from fault_catalogue import Seen, fault
from fault_needs import root

PRETRAIN = "voidrl pretrain CartPole-v1 --steps 60 --out run $TINY"
SLOW = "voidrl pretrain fault_worlds:Slow --steps 60 --out run $TINY"
# One run of 40 steps for each of two seeds.
EXPERIMENT = """
tasks = ["{env}"]
seeds = [1, 2]
threads = 1
[config]
warmup_steps = 8
updates_per_step = 1
learner.batch_size = 16
learner.hidden_dim = 8
representation.batch_size = 8
replay.capacity_steps = 40
log.tensorboard = false
log.log_every_steps = 5
log.checkpoint_every_steps = 20
[pretrain]
steps = {steps}
[methods.apt]
label = "APT"
method = "apt"
phases = ["pretrain"]
evaluation = false
"""


def complete(bench, done, steps=60, run="run"):
    """Seen, with a problem unless the run took all its steps."""
    taken = bench.checkpoints(run)
    if done.code == 0 and (not taken or taken[-1] < steps):
        return Seen(done, problem=("silent", f"exit code 0 with checkpoints at {taken or 'no step'}"))
    return Seen(done)


def noted(bench, seen):
    """It dropped its output, and the log has one note of it."""
    if seen.problem is None and seen.done.code == 0 and "output was lost" not in bench.log():
        seen.problem = ("silent", "completed, without a note in log.txt that the output was lost")
    return seen


@fault("broken pipe", "a pipe whose reader ends", f"{SLOW} 2>&1 | head -1", "survived")
def head(bench, command):
    return noted(bench, complete(bench, bench.shell(f"export FAULT_DELAY=0.05; {command}")))


@fault("broken pipe", "a `tee` that dies", f"{SLOW} 2>&1 | tee log", "survived", quick=True)
def tee(bench, command):
    read, write = os.pipe()
    running = bench.start(SLOW, stderr=f"/proc/{os.getpid()}/fd/{write}", FAULT_DELAY="0.02")
    bench.wait_for(lambda: bench.steps() > 12, running)
    os.close(write)
    os.close(read)
    return noted(bench, complete(bench, running.wait()))


@fault("broken pipe", "stderr on a full disk", f"{PRETRAIN} 2>/dev/full", "survived")
def full_stderr(bench, command):
    return noted(bench, complete(bench, bench.voidrl(PRETRAIN, stderr="/dev/full")))


@fault("broken pipe", "stdout and stderr closed", f"{PRETRAIN} >&- 2>&-", "survived")
def closed(bench, command):
    return complete(bench, bench.shell(command))


@fault("broken pipe", "a list whose reader ends", "voidrl list envs | head -1", "survived")
def list_head(bench, command):
    done = bench.shell(command)
    done.code = 0 if done.code == 141 else done.code  # as other commands end that lose their reader
    return Seen(done)


@fault(
    "broken pipe",
    "an experiment whose reader ends",
    "voidrl experiment tiny.toml --device cpu --no-report 2>&1 | head -1",
    "survived",
)
def experiment_head(bench, command):
    bench.write("tiny.toml", EXPERIMENT.format(env="CartPole-v1", steps=40))
    done = bench.shell(command)
    for seed in (1, 2):
        seen = complete(bench, done, 40, f"runs/tiny/CartPole-v1/apt/seed{seed}")
        if seen.problem:
            return seen
    return seen


# Other loggers


def resume_with_tensorboard(bench, prepare):
    """A run with TensorBoard to step 20; then its folder for TensorBoard fails, and it is resumed to 60."""
    bench.voidrl(f"{PRETRAIN.replace('60', '20')} --log.tensorboard true")
    shutil.rmtree(bench.folder / "run" / "tb")
    prepare(bench.folder / "run" / "tb")
    seen = complete(bench, bench.voidrl("voidrl resume run --steps 60"))
    if seen.done.code == 0 and bench.rows()[-1]["step"] < 60:
        seen.problem = ("lost", "metrics.jsonl ends before the run")
    return seen


WARNS = "TensorBoard is turned off"


@fault(
    "loggers",
    "TensorBoard on a full disk",
    "voidrl resume run --steps 60  # run/tb is on a full disk",
    "survived",
    says=WARNS,
    needs=root,
)
def tensorboard_full(bench, command):
    def prepare(tb):
        disk = bench.disk(16)
        tb.symlink_to(disk)
        with (disk / "ballast").open("wb") as file:
            file.write(b"x" * (16 << 10))

    return resume_with_tensorboard(bench, prepare)


@fault(
    "loggers",
    "TensorBoard without its folder",
    "voidrl resume run --steps 60  # run/tb is a file",
    "survived",
    says=WARNS,
)
def tensorboard_file(bench, command):
    return resume_with_tensorboard(bench, lambda tb: tb.write_text(""))


WANDB = f"{PRETRAIN} --log.wandb-project p"
WANDB_WARNS = "Weights & Biases is turned off .network is unreachable"
FAKE = """
import os, time
class CommError(Exception): pass
class Run:
    id = "1"
    def log(self, *args, **kwargs): {log}
    def finish(self, *args, **kwargs): {finish}
def init(**kwargs):
    open("wandb_was_called", "w").close()
    {init}
    return Run()
"""


def with_wandb(bench, command, **parts):
    """Against a stand-in of wandb that fails as the library does without network or key."""
    source = FAKE.format(**{"log": "pass", "finish": "pass", "init": "pass", **parts})
    bench.write("wandb/__init__.py", source)
    return complete(bench, bench.voidrl(command))


@fault("loggers", "W&B without network", WANDB, "survived", says=WANDB_WARNS, quick=True)
def wandb_start(bench, command):
    return with_wandb(bench, command, init="raise CommError('network is unreachable')")


@fault("loggers", "W&B loses its network in a run", WANDB, "survived", says=WANDB_WARNS)
def wandb_log(bench, command):
    return with_wandb(bench, command, log="raise CommError('network is unreachable')")


@fault("loggers", "W&B cannot finish", WANDB, "survived", says=WANDB_WARNS)
def wandb_finish(bench, command):
    return with_wandb(bench, command, finish="raise CommError('network is unreachable')")
