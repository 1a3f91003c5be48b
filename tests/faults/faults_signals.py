"""Signals to the process or its group × environments × phases of a run; hanging and dead environments."""

import itertools
import os
import re
import signal
import time
from contextlib import suppress

from fault_catalogue import Seen, fault, package
from faults_output import complete

# Small replays, since every checkpoint holds the whole of one.
SLOW = "fault_worlds:Slow --env.num-envs 2 --env.backend"
PONG = "atari/pong --env.num-envs 2 --learner.encoder.width 0.1 --representation.encoder.width 0.1"
ENVS = {
    "sync": (f"{SLOW} sync", {}),
    "async": (f"{SLOW} async", {}),
    "Atari": (PONG, {"needs": package("ale_py")}),
    "DMControl": ("dmc/cartpole_swingup --env.num-envs 2", {"needs": package("dm_control")}),
}
KINDS = tuple(ENVS)
COUNTING = "Atari with counters of states"
ENVS[COUNTING] = (f"{PONG} --env.count-states true", {"needs": package("ale_py")})
TOTAL = 120
SAVING = r"/checkpoints/\.tmp[^/]*/optimizers"


def command_for(env, name="SIGTERM", *, group=True, more=""):
    target = "-$!" if group else "$!"
    words = f"voidrl pretrain {ENVS[env][0]} --steps {TOTAL} --out run $TINY{more}"
    return f"{words} & kill -{name.removeprefix('SIG')} {target}"


def sentence(name):
    """What a run says that was stopped by this signal."""
    return rf"stopped by {name} at step \d+ of \d+; checkpoint step_\d+ written"


def stopped(bench, running):
    """There must be a checkpoint of the step that the sentence names, and it is resumed."""
    done = running.wait(60)
    if done.code != 75:
        return Seen(done)
    taken = bench.checkpoints()
    named = re.search(r"stopped by SIG\w+ at step (\d+) of", done.err)
    if not taken or (named and int(named[1]) != taken[-1]):
        return Seen(done, problem=f"exit code 75 with checkpoints at {taken}")
    return Seen(done, resumed=bench.voidrl(f"voidrl resume run --steps {taken[-1] + 10}"))


def training(bench, running):
    """Wait until it has been training for some steps."""
    return bench.wait_for(lambda: any(row.get("updates", 0) > 2 for row in bench.rows()), running)


def as_a_shell(done):
    """The exit code that a shell reports for a process that a signal ended."""
    if done.code in (-signal.SIGTERM, -signal.SIGINT):
        done.code = 128 - done.code
    return done


def add_stop(env, phase, ready, *, name="SIGTERM", group=True, more="", delay="0.1", quick=False):
    """A signal once `ready(bench, running)` has waited for a phase of the run."""
    title = f"{name}{' to the group' if group else ''}, {env}, {phase}"
    command = command_for(env, name, group=group, more=more)

    @fault("signals", title, command, "stopped", says=sentence(name), quick=quick, **ENVS[env][1])
    def inject(bench, command):
        running = bench.start(command, FAULT_DELAY=delay)
        ready(bench, running)
        running.send(name, group=group)
        return stopped(bench, running)


for env, name, group in itertools.product(KINDS, ("SIGTERM", "SIGINT", "SIGHUP"), (False, True)):
    quick = (env, name, group) == ("async", "SIGTERM", True)
    add_stop(env, "training", training, name=name, group=group, quick=quick)
add_stop(COUNTING, "training", training)


def warming_up(bench, running):
    bench.wait_for(bench.rows, running)


def evaluating(bench, running):
    bench.wait_for(lambda: bench.rows() and bench.rows()[-1]["step"] >= 25, running)
    taken = bench.steps()
    bench.wait_for(lambda: bench.steps() > taken + 30, running)


def add_saves(env):
    title, needs = f"SIGTERM to the group, {env}, in the", ENVS[env][1]
    command = command_for(env)

    @fault("signals", f"{title} middle of a save", command, "stopped", says=sentence("SIGTERM"), **needs)
    def save(bench, command):
        return stopped(bench, bench.start(command, hook={"match": SAVING, "do": "SIGTERM-group"}))

    @fault("signals", f"{title} last save", command, "survived", **needs)
    def last_save(bench, command):
        hook = {"match": SAVING, "do": "SIGTERM-group", "nth": TOTAL // 20 * 2}
        done = bench.voidrl(command, hook=hook, limit=60)
        if done.code != 75 or f"stopped by SIGTERM after the last of {TOTAL} steps" not in done.err:
            return Seen(done, problem=f"exit code {done.code}: {done.last_line}")
        done.code = 0  # complete, and said so
        return complete(bench, done, TOTAL)


def add_building(env):
    title = f"SIGTERM to the group, {env}, while environments are built"
    command = command_for(env).replace(":Slow", ":Slow?build_s=4")

    @fault("signals", title, command, "stopped", ended_by="SIGTERM")
    def building(bench, command):
        running = bench.start(command, FAULT_DELAY="0.1")
        bench.wait_for(bench.marks.exists, running)
        running.send("SIGTERM", group=True)
        return Seen(as_a_shell(running.wait(60)), resumed=bench.voidrl(command))


for env in KINDS:
    add_stop(env, "warm-up", warming_up, more=" --warmup-steps 1000")
    add_saves(env)
    if env in ("sync", "async"):
        often = " --log.eval-every-steps 30 --log.eval-episodes 8"
        add_stop(env, "evaluation", evaluating, more=often, delay="0.05")
        add_building(env)


# A second signal


def add_second(how, what, backend):
    command = (
        f"voidrl pretrain 'fault_worlds:Fickle?how={how}' --env.backend {backend} --steps {TOTAL} "
        f"--out run $TINY & kill -INT $!; kill -INT $!"
    )
    title = f"a second Ctrl-C, {backend} environment {what}"

    @fault("hangs", title, command, "stopped", ended_by="SIGINT")
    def second(bench, command):
        running = bench.start(command)
        bench.wait_for(lambda: bench.marks.exists() and "h" in bench.marks.read_text(), running)
        time.sleep(0.3)
        running.send("SIGINT")
        time.sleep(1)
        running.send("SIGINT")
        if not bench.wait_for(lambda: running.poll() is not None, seconds=10):
            running.send("SIGINT")
        done = as_a_shell(running.wait(5))
        kept = 20 in bench.checkpoints()
        return Seen(done, problem="" if kept else "the checkpoint of step 20 is gone")


for backend in ("sync", "async"):
    add_second("hang", "that hangs", backend)
    add_second("swallow", "that catches every exception", backend)


# Workers that hang or die


def resumed_after(bench, done, steps, **environ):
    """What was seen of a command that has to end by naming the environment; the run can be resumed."""
    if done.code != 2 or not bench.checkpoints():
        return Seen(done)
    more = steps or bench.checkpoints()[-1] + 10
    return Seen(done, bench.voidrl(f"voidrl resume run --steps {more}", **environ))


def add_fickle(how, name, says, backend="async"):
    command = (
        f"voidrl pretrain 'fault_worlds:Fickle?how={how}' --env.backend {backend} --env.num-envs 2 "
        f"--env.timeout-s 3 --steps {TOTAL} --out run $TINY"
    )

    @fault("hangs", name, command, "refused", says=says)
    def inject(bench, command):
        return resumed_after(bench, bench.voidrl(command, limit=60), TOTAL, FAULT_CURED="1")


NO_ANSWER = r"worker process \d+ has given no answer for {} s"
AT_STEP = r".*environment \d .*at its own step 25"
IN_RESET = r".*environment \d .*in reset after \d+ steps"
RAISED = r"environment \d .*raised RuntimeError.*the wheel fell off.*at its own step 25"
add_fickle("hang", "a worker that hangs in step", NO_ANSWER.format(3) + AT_STEP)
add_fickle("hang reset", "a worker that hangs in reset", NO_ANSWER.format(3) + IN_RESET)
add_fickle("os exit", "a worker that ends in step", r"worker process \d+ ended with exit" + AT_STEP)
add_fickle("raise", "an environment that raises, async", RAISED)
add_fickle("raise", "an environment that raises, sync", RAISED, backend="sync")


def add_worker(env, name, what, says, more=""):
    words = f"voidrl pretrain {ENVS[env][0]}{more} --env.timeout-s 20 --steps 3000 --out run $TINY"
    title, command = f"SIG{name} of a worker, {what}", f"{words} & kill -{name} worker"

    @fault("hangs", title, command, "refused", says=says, **ENVS[env][1])
    def inject(bench, command):
        running = bench.start(command, FAULT_DELAY="0.05")
        training(bench, running)
        workers = [pid for pid in running.processes() if pid != running.pid]
        if not workers:
            return Seen(running.wait(1), problem="no worker was found")
        bench.wait_for(bench.checkpoints, running)
        with suppress(ProcessLookupError):
            os.kill(workers[-1], getattr(signal, f"SIG{name}"))
        return resumed_after(bench, running.wait(75), None)


ENDS = {"KILL": r"worker process \d+ ended by signal SIGKILL", "STOP": NO_ANSWER.format(20)}
for name, says in ENDS.items():
    add_worker("async", name, "Gymnasium", says)
    add_worker("DMControl", name, "DMControl", says)
    add_worker("Atari", name, "Atari's counters of states", says, more=" --env.count-states true")
