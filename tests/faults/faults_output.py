"""The terminal is not the run: pipes that break, streams that are full or closed; other loggers."""

import os
import shutil
from functools import partial

from fault_catalogue import Seen, fault, root

PRETRAIN = "voidrl pretrain CartPole-v1 --steps 60 --out run $TINY"
SLOW = "voidrl pretrain fault_worlds:Slow --steps 60 --out run $TINY"
# A run for each of two seeds.
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
    missing = done.code == 0 and (not taken or taken[-1] < steps)
    return Seen(done, problem=f"exit code 0 with checkpoints at {taken}" if missing else "")


def noted(bench, done):
    """The run is complete although it dropped its output, and its log has a note of that."""
    seen, log = complete(bench, done), bench.folder / "run" / "log.txt"
    if not seen.problem and done.code == 0 and "output was lost" not in log.read_text(errors="replace"):
        seen.problem = "completed, without a note in log.txt that the output was lost"
    return seen


pipe = partial(fault, "broken pipe", expect="survived")


@pipe("a pipe whose reader ends", f"{SLOW} 2>&1 | head -1")
def head(bench, command):
    return noted(bench, bench.shell(f"export FAULT_DELAY=0.05; {command}"))


@pipe("a `tee` that dies", f"{SLOW} 2>&1 | tee log", quick=True)
def tee(bench, command):
    read, write = os.pipe()
    running = bench.start(SLOW, stderr=f"/proc/{os.getpid()}/fd/{write}", FAULT_DELAY="0.02")
    bench.wait_for(lambda: bench.steps() > 12, running)
    os.close(write)
    os.close(read)
    return noted(bench, running.wait())


@pipe("stderr on a full disk", f"{PRETRAIN} 2>/dev/full")
def full_stderr(bench, command):
    return noted(bench, bench.voidrl(PRETRAIN, stderr="/dev/full"))


@pipe("stdout and stderr closed", f"{PRETRAIN} >&- 2>&-")
def closed(bench, command):
    return complete(bench, bench.shell(command))


@pipe("a list whose reader ends", "voidrl list envs | head -1")
def list_head(bench, command):
    done = bench.shell(command)
    done.code = 0 if done.code == 141 else done.code  # as other commands end that lose their reader
    return Seen(done)


@pipe(
    "an experiment whose reader ends", "voidrl experiment tiny.toml --device cpu --no-report 2>&1 | head -1"
)
def experiment_head(bench, command):
    bench.write("tiny.toml", EXPERIMENT.format(env="CartPole-v1", steps=40))
    done = bench.shell(command)
    seen = [complete(bench, done, 40, f"runs/tiny/CartPole-v1/apt/seed{seed}") for seed in (1, 2)]
    return max(seen, key=lambda one: bool(one.problem))


# Other loggers

TB_WARNS = "TensorBoard is turned off"
tensorboard = partial(fault, "loggers", expect="survived", says=TB_WARNS)


def resume_with_tensorboard(bench, command, prepare):
    """A run with TensorBoard to step 20; then its folder for TensorBoard fails, and it is resumed to 60."""
    bench.voidrl(f"{PRETRAIN.replace('60', '20')} --log.tensorboard true")
    shutil.rmtree(bench.folder / "run" / "tb")
    prepare(bench.folder / "run" / "tb")
    seen = complete(bench, bench.voidrl(command))
    if seen.done.code == 0 and bench.rows()[-1]["step"] < 60:
        seen.problem = "metrics.jsonl ends before the run"
    return seen


ON_DISK = "voidrl resume run --steps 60  # run/tb is on a full disk"


@tensorboard("TensorBoard on a full disk", ON_DISK, needs=root)
def tensorboard_full(bench, command):
    def prepare(tb):
        disk = bench.disk(16, "run/tb")
        with (disk / "ballast").open("wb") as file:
            file.write(b"x" * (16 << 10))

    return resume_with_tensorboard(bench, command, prepare)


@tensorboard("TensorBoard without its folder", "voidrl resume run --steps 60  # run/tb is a file")
def tensorboard_file(bench, command):
    return resume_with_tensorboard(bench, command, lambda tb: tb.write_text(""))


LINKED = "voidrl resume run --steps 60  # run/tb is a link"


@tensorboard("TensorBoard in a linked folder", LINKED)
def tensorboard_link(bench, command):
    elsewhere = bench.folder / "elsewhere"
    elsewhere.mkdir()
    seen = resume_with_tensorboard(bench, command, lambda tb: tb.symlink_to(elsewhere))
    seen.problem = seen.problem or ", ".join(path.name for path in elsewhere.iterdir())
    return seen


# A stand-in of wandb that fails as the library does without network or key
FAKE = """
class CommError(Exception): pass
class Run:
    id = "1"
    def log(self, *args, **kwargs): {log}
    def finish(self, *args, **kwargs): {finish}
def init(**kwargs):
    {init}
    return Run()
"""


def add_wandb(name, where, **options):
    command = f"{PRETRAIN} --log.wandb-project p"
    says = "Weights & Biases is turned off .network is unreachable"

    @fault("loggers", name, command, "survived", says=says, **options)
    def inject(bench, command):
        parts = dict.fromkeys(("init", "log", "finish"), "pass")
        source = FAKE.format(**{**parts, where: "raise CommError('network is unreachable')"})
        bench.write("wandb/__init__.py", source)
        return complete(bench, bench.voidrl(command))


add_wandb("W&B without network", "init", quick=True)
add_wandb("W&B loses its network in a run", "log")
add_wandb("W&B cannot finish", "finish")


def add_wandb_link(name, inside):
    """What W&B writes goes to a folder of the run, never through a link out of it or into a pipe."""
    command = "voidrl resume run --steps 60"

    @fault("loggers", name, command, "survived", says="Weights & Biases is turned off")
    def inject(bench, command):
        bench.write("wandb/__init__.py", FAKE.format(init="pass", log="pass", finish="pass"))
        bench.voidrl(f"{PRETRAIN.replace('60', '20')} --log.wandb-project p")
        folder = bench.folder / "run" / "wandb"
        elsewhere = folder.rename(bench.folder / "elsewhere")
        before = (elsewhere / "run_id.txt").stat().st_mtime_ns
        inside(folder, elsewhere)
        seen = complete(bench, bench.voidrl(command, limit=60))
        if (elsewhere / "run_id.txt").stat().st_mtime_ns != before:
            seen.problem = "W&B wrote outside of the run"
        return seen


def piped(folder, elsewhere):
    folder.mkdir()
    os.mkfifo(folder / "run_id.txt")


def linked(folder, elsewhere):
    folder.mkdir()
    (folder / "run_id.txt").symlink_to(elsewhere / "run_id.txt")


add_wandb_link("W&B in a linked folder", lambda folder, elsewhere: folder.symlink_to(elsewhere))
add_wandb_link("the id of W&B is a pipe", piped)
add_wandb_link("the id of W&B is a link", linked)
