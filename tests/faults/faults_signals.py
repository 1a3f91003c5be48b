"""Signals to the process or its group × environments × phases of a run; hanging and dead environments."""

import itertools
import os
import re
import signal
import time
from contextlib import suppress

from fault_catalogue import Seen, fault, last_line
from fault_needs import nothing, package
from faults_output import complete

# Small replays, since every checkpoint holds the whole of one.
ENVS = {
    "sync": ("fault_worlds:Slow --env.num-envs 2 --env.backend sync", nothing),
    "async": ("fault_worlds:Slow --env.num-envs 2 --env.backend async", nothing),
    "Atari": (
        "atari/pong --env.num-envs 2 --learner.encoder.width 0.1 --representation.encoder.width 0.1",
        package("ale_py"),
    ),
    "DMControl": ("dmc/cartpole_swingup --env.num-envs 2", package("dm_control")),
}
KINDS = tuple(ENVS)
COUNTING = "Atari with counters of states"
ENVS[COUNTING] = (f"{ENVS['Atari'][0]} --env.count-states true", package("ale_py"))
SUFFIX = {False: "", True: " to the group"}
TOTAL = 120


def command_for(env, name, *, group, more=""):
    target = "-$!" if group else "$!"
    words = f"voidrl pretrain {ENVS[env][0]} --steps {TOTAL} --out run $TINY{more}"
    return f"{words} & kill -{name.removeprefix('SIG')} {target}"


def start(bench, command, **options):
    """Start what stands before `&`, slowly, so that there is time for a signal."""
    return bench.start(command.partition(" &")[0], **options)


def sentence(name):
    """What a run says that was stopped by this signal."""
    return rf"stopped by {name} at step \d+ of \d+; checkpoint step_\d+ written"


def stopped(bench, running):
    """What came of it: there must be a checkpoint of the step that the sentence names, and it is resumed."""
    done = running.wait(60)
    taken = bench.checkpoints()
    if done.code == 0 and (not taken or taken[-1] < TOTAL):
        return Seen(done, problem=("silent", f"exit code 0 with checkpoints at {taken or 'no step'}"))
    if done.code == 2:
        return Seen(done, problem=("lost", f"no checkpoint of where it was: {last_line(done)}"))
    if done.code != 75:
        return Seen(done)
    if not taken:
        return Seen(done, problem=("lost", "exit code 75 without a checkpoint"))
    named = re.search(r"stopped by SIG\w+ at step (\d+) of", done.err)
    if named and int(named[1]) != taken[-1]:
        return Seen(done, problem=("lost", f"says step {named[1]}, and the checkpoints are of {taken}"))
    return Seen(done, resumed=bench.voidrl(f"voidrl resume run --steps {taken[-1] + 10}"))


def training(bench, running):
    """Wait until it has been training for some steps."""
    return bench.wait_for(
        lambda: any(row["updates"] > 2 for row in bench.rows() if "updates" in row), running
    )


def add_signal(env, name, group):
    _, needs = ENVS[env]
    command = command_for(env, name, group=group)
    quick = (env, name, group) == ("async", "SIGTERM", True)

    @fault(
        "signals",
        f"{name}{SUFFIX[group]}, {env}, training",
        command,
        "stopped",
        says=sentence(name),
        needs=needs,
        quick=quick,
    )
    def inject(bench, command):
        running = start(bench, command, FAULT_DELAY="0.1")
        training(bench, running)
        running.send(name, group=group)
        return stopped(bench, running)


for env, name, group in itertools.product(KINDS, ("SIGTERM", "SIGINT", "SIGHUP"), (False, True)):
    add_signal(env, name, group)
add_signal(COUNTING, "SIGTERM", True)


def add_phases(env):
    _, needs = ENVS[env]
    made_here = ENVS[env][0].startswith("fault_worlds")
    saves = {"says": sentence("SIGTERM"), "needs": needs}

    command = command_for(env, "SIGTERM", group=True, more=" --warmup-steps 1000")

    @fault("signals", f"SIGTERM to the group, {env}, warm-up", command, "stopped", **saves)
    def warm_up(bench, command):
        running = start(bench, command, FAULT_DELAY="0.1")
        bench.wait_for(lambda: bench.rows(), running)
        running.send("SIGTERM", group=True)
        return stopped(bench, running)

    command = command_for(env, "SIGTERM", group=True)

    @fault("signals", f"SIGTERM to the group, {env}, in the middle of a save", command, "stopped", **saves)
    def save(bench, command):
        hook = {"match": r"/checkpoints/\.tmp[^/]*/optimizers", "do": "SIGTERM-group"}
        return stopped(bench, start(bench, command, hook=hook))

    @fault("signals", f"SIGTERM to the group, {env}, in the last save", command, "survived", needs=needs)
    def last_save(bench, command):
        hook = {"match": r"/checkpoints/\.tmp[^/]*/optimizers", "do": "SIGTERM-group", "nth": TOTAL // 20 * 2}
        done = start(bench, command, hook=hook).wait(60)
        if done.code == 75 and f"stopped by SIGTERM after the last of {TOTAL} steps" in done.err:
            done.code = 0  # complete, and said so
            return complete(bench, done, TOTAL)
        return Seen(done, problem=("silent", f"exit code {done.code}: {last_line(done)}"))

    if not made_here:
        return

    command = command_for(env, "SIGTERM", group=True, more=" --log.eval-every-steps 30 --log.eval-episodes 8")

    @fault("signals", f"SIGTERM to the group, {env}, evaluation", command, "stopped", **saves)
    def evaluation(bench, command):
        running = start(bench, command, FAULT_DELAY="0.05")
        bench.wait_for(lambda: bench.rows() and bench.rows()[-1]["step"] >= 25, running)
        taken = bench.steps()
        bench.wait_for(lambda: bench.steps() > taken + 30, running)
        running.send("SIGTERM", group=True)
        return stopped(bench, running)

    command = command_for(env, "SIGTERM", group=True).replace(":Slow", ":Slow?build_s=4")

    @fault(
        "signals",
        f"SIGTERM to the group, {env}, while environments are built",
        command,
        "stopped",
        ended_by="SIGTERM",
        needs=needs,
    )
    def building(bench, command):
        running = start(bench, command, FAULT_DELAY="0.1")
        bench.wait_for(lambda: bench.marks.exists(), running)
        running.send("SIGTERM", group=True)
        done = running.wait(60)
        if done.code == -signal.SIGTERM:
            done.code = 128 + signal.SIGTERM  # as a shell reports it
        return Seen(done, resumed=bench.voidrl(command.partition(" &")[0]))


for env in KINDS:
    add_phases(env)


# A second signal


def add_second(how, backend):
    command = (
        f"voidrl pretrain 'fault_worlds:Fickle?how={how}' --env.backend {backend} --steps {TOTAL} "
        f"--out run $TINY & kill -INT $!; kill -INT $!"
    )
    what = {"hang": "that hangs", "swallow": "that catches every exception"}[how]

    @fault(
        "hangs",
        f"a second Ctrl-C, {backend} environment {what}",
        command,
        "stopped",
        ended_by="SIGINT",
    )
    def second(bench, command):
        running = start(bench, command)
        bench.wait_for(bench.hangs, running)
        time.sleep(0.3)
        running.send("SIGINT")
        time.sleep(1)
        running.send("SIGINT")
        if not bench.wait_for(lambda: running.poll() is not None, seconds=10):
            running.send("SIGINT")
        done = running.wait(5)
        if done.code == -signal.SIGINT:
            done.code = 128 + signal.SIGINT  # as a shell reports it
        if 20 not in bench.checkpoints():
            return Seen(done, problem=("lost", "the checkpoint of step 20 is gone"))
        return Seen(done)


for how, backend in itertools.product(("hang", "swallow"), ("sync", "async")):
    add_second(how, backend)


# Workers that hang or die


def with_limit(bench, command, **options):
    """Run with a short limit; where that option is not known, there is no limit to set."""
    running = bench.start(command, **options)
    bench.wait_for(lambda: bench.marks.exists() or bench.rows(), running)
    if running.poll() == 2 and re.search("(?i)unknown|no option|unrecognized", running.err.read_text()):
        return bench.start(re.sub(r" --env.timeout-s \d+", "", command), **options)
    return running


def failed(bench, running, limit=45):
    """It ended by naming the environment, and the run can be resumed once that is repaired."""
    done = running.wait(limit)
    resumed = None
    if done.code == 2 and bench.checkpoints():
        resumed = bench.voidrl(f"voidrl resume run --steps {TOTAL}", FAULT_CURED="1")
    return Seen(done, resumed)


def add_fickle(how, backend, name, says):
    command = (
        f"voidrl pretrain 'fault_worlds:Fickle?how={how}' --env.backend {backend} --env.num-envs 2 "
        f"--env.timeout-s 3 --steps {TOTAL} --out run $TINY"
    )

    @fault("hangs", name, command, "refused", says=says)
    def inject(bench, command):
        return failed(bench, with_limit(bench, command))


NO_ANSWER = r"worker process \d+ has given no answer for {} s"
AT_STEP = r".*environment \d .*at its own step 25"
IN_RESET = r".*environment \d .*in reset after \d+ steps"
RAISED = r"environment \d .*raised RuntimeError.*the wheel fell off.*at its own step 25"
add_fickle("hang", "async", "a worker that hangs in step", NO_ANSWER.format(3) + AT_STEP)
add_fickle("hang reset", "async", "a worker that hangs in reset", NO_ANSWER.format(3) + IN_RESET)
add_fickle("os exit", "async", "a worker that ends in step", r"worker process \d+ ended with exit" + AT_STEP)
add_fickle("raise", "async", "an environment that raises, async", RAISED)
add_fickle("raise", "sync", "an environment that raises, sync", RAISED)


def add_worker(env, name, what, more="", needs=None):
    words = f"voidrl pretrain {ENVS[env][0]}{more} --env.timeout-s 20 --steps 3000 --out run $TINY"
    command = f"{words} & kill -{name} worker"
    says = {"KILL": r"worker process \d+ ended by signal SIGKILL", "STOP": NO_ANSWER.format(20)}[name]

    @fault(
        "hangs",
        f"{name.replace('KILL', 'SIGKILL').replace('STOP', 'SIGSTOP')} of a worker, {what}",
        command,
        "refused",
        says=says,
        needs=needs or ENVS[env][1],
    )
    def inject(bench, command):
        words = command.partition(" &")[0]
        running = bench.start(words, FAULT_DELAY="0.05")
        training(bench, running)
        if running.poll() == 2:  # before there was one limit for all environments
            words = (
                words.replace("--env.timeout-s", "--env.dmc.timeout-s")
                if env == "DMControl"
                else re.sub(r" --env.timeout-s \d+", "", words)
            )
            running = bench.start(words, FAULT_DELAY="0.05")
            training(bench, running)
        workers = running.workers()
        if not workers:
            return Seen(running.wait(1), problem=("lost", "no worker was found"))
        bench.wait_for(lambda: bench.checkpoints(), running)
        with suppress(ProcessLookupError):
            os.kill(workers[-1], getattr(signal, f"SIG{name}"))
        done = running.wait(75)
        resumed = None
        if done.code == 2 and bench.checkpoints():
            resumed = bench.voidrl(f"voidrl resume run --steps {bench.checkpoints()[-1] + 10}")
        return Seen(done, resumed)


for name in ("KILL", "STOP"):
    add_worker("async", name, "Gymnasium")
    add_worker("DMControl", name, "DMControl")
    add_worker("Atari", name, "Atari's counters of states", more=" --env.count-states true")
