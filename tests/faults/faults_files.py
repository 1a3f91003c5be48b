"""Full disks, kills at every file event, damaged files, several processes, folders that are taken."""

import json
import os
import re
import shutil
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from fault_catalogue import Seen, fault, refused, root
from faults_output import EXPERIMENT, PRETRAIN, SLOW, complete

DISK = "voidrl pretrain fault_worlds:Slow --steps 60 --out disk/run $TINY"
NO_ROOM = r"the disk of disk/run has \S+ \w+ free, and by its end the run needs \S+ \w+ for a checkpoint"
FULL = "cannot save step {} .*too little disk space"
NO_ROW = r"cannot write to \S*disk/run/metrics\.jsonl .No space left"


# Full disks


full_disk = partial(fault, "full disk", expect="refused", needs=root)


def fill(disk, leave=0):
    """Take all space but some."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with suppress(OSError), (disk / "ballast").open("ab") as file:  # the run itself may take the rest first
        file.write(b"x" * max(free - leave, 0))


def filled(bench, command, ready, leave):
    """The disk fills up while a run is under way; once there is space again, it must be resumed exactly."""
    straight, disk = bench.straight(command.replace("disk/run", "run")), bench.disk(64 << 10)
    running = bench.start(command, FAULT_DELAY="0.05")
    bench.wait_for(ready, running)
    fill(disk, leave)
    done = running.wait()
    (disk / "ballast").unlink(missing_ok=True)
    seen = Seen(done)
    if done.code == 2:
        seen.resumed = bench.voidrl("voidrl resume disk/run")
        seen.exact = seen.resumed.code == 0 and bench.same("disk/run", straight)
    return seen


def names_whole(bench, seen):
    """The sentence has to name at least what a whole checkpoint takes."""
    newest = max((bench.straight(SLOW) / "checkpoints").glob("step_*"))
    whole = sum(path.stat().st_size for path in newest.iterdir())
    units = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    sizes = re.findall(rf"([\d.]+) ({'|'.join(units)})", seen.done.err)
    named = [float(number) * units[unit] for number, unit in sizes]
    if max(named, default=0) < 0.9 * whole:
        seen.problem = f"names {named} bytes, and a checkpoint takes {whole}"
    return seen


@full_disk("no space at the start", DISK, says=NO_ROOM)
def at_start(bench, command):
    fill(bench.disk(2 << 10))
    return Seen(bench.voidrl(command))


LARGE = "voidrl pretrain CartPole-v1 --steps 2M --replay.capacity-steps 1M --out disk/run --device cpu"


@full_disk("less space than a checkpoint needs", LARGE, says=NO_ROOM)
def estimated(bench, command):
    bench.disk(2 << 10)
    return Seen(bench.voidrl(command, limit=25))  # otherwise it trains for hours


@full_disk("at the first checkpoint", DISK, says=FULL.format(20))
def at_first(bench, command):
    return names_whole(bench, filled(bench, command, lambda: bench.steps() > 10, 16 << 10))


@full_disk("at a later checkpoint", DISK, says=FULL.format(40))
def at_later(bench, command):
    return names_whole(bench, filled(bench, command, lambda: bench.checkpoints("disk/run"), 16 << 10))


ROWS = f"{DISK} --log.log-every-steps 1"  # they outgrow the last block of the file before the next checkpoint


@full_disk("in metrics.jsonl", ROWS, says=NO_ROW)
def in_metrics(bench, command):
    return filled(bench, command, lambda: bench.checkpoints("disk/run"), 0)


# Kills at every file event

SHORT_RUN = "voidrl pretrain fault_worlds:Slow --steps 20 --log.keep-last 1 --out run"
KILLED = f"{SHORT_RUN} $TINY --log.checkpoint-every-steps 10"
UNDER = r"/run(/|$)"


def kill_everywhere(bench, command, straight, prepare=lambda: None):
    """SIGKILL at every event under the run folder; the same command or `voidrl resume` must complete it."""
    run, log = bench.folder / "run", bench.folder / "events"
    prepare()
    saved = shutil.copytree(run, bench.folder / "saved", copy_function=shutil.copy2) if run.exists() else None
    bench.voidrl(command, hook={"match": UNDER, "nth": 0, "do": "", "log": str(log)})
    events = log.read_text().splitlines()
    killed = []
    for nth, event in enumerate(events, 1):
        shutil.rmtree(run)
        if saved:
            shutil.copytree(saved, run)
        done = bench.voidrl(command, hook={"match": UNDER, "nth": nth, "do": "SIGKILL"})
        if done.code != -signal.SIGKILL:
            continue  # the last ones may come in another order
        killed.append(done)
        born = (run / "config.json").exists()
        resumed = bench.voidrl("voidrl resume run --steps 20" if born else command)
        if resumed.code != 0 or not bench.same("run", straight):
            where = f"event {nth} of {len(events)}, {event}: {resumed.last_line}"
            return Seen(done, problem=where, killed=True)
    enough = len(killed) >= max(1, 0.9 * len(events))
    problem = "" if enough else f"only {len(killed)} kills at {len(events)} file events"
    return Seen(killed[-1] if killed else done, problem=problem, killed=True)


kills = partial(fault, "kills", expect="survived")


@kills("SIGKILL at every file event of a run", KILLED)
def kill_run(bench, command):
    return kill_everywhere(bench, command, bench.straight(command))


@kills("SIGKILL at every file event of a resumed run", "voidrl resume run --steps 20")
def kill_resume(bench, command):
    shorter = KILLED.replace("--steps 20", "--steps 10")
    return kill_everywhere(bench, command, bench.straight(KILLED), lambda: bench.voidrl(shorter))


@kills("SIGKILL before the run has its config", f"{KILLED}  # killed, and typed again", quick=True)
def kill_birth(bench, command):
    done = bench.voidrl(command, hook={"match": r"config\.json$", "do": "SIGKILL"})
    resumed = bench.voidrl(command)
    exact = resumed.code == 0 and bench.same("run", bench.straight(KILLED))
    return Seen(done, resumed, exact, killed=True)


@kills("temporary files of killed processes", "voidrl resume run")
def leftovers(bench, command):
    killed = bench.voidrl(KILLED, hook={"match": r"step_0*20$|\.tmp.*/manifest", "do": "SIGKILL", "nth": 2})
    if killed.code != -signal.SIGKILL:
        return Seen(killed, problem=f"exit code {killed.code}, although it was to be killed")
    for name in (".tmp-1-config.json", ".tmp-1-status.json", "checkpoints/.tmp-1-host/agent.safetensors"):
        bench.write(f"run/{name}", "{")
    done = bench.voidrl(command)
    return Seen(done, exact=done.code == 0 and bench.same("run", bench.straight(KILLED)))


# Damage

DAMAGED = "voidrl pretrain fault_worlds:Slow --steps 40 --out run $TINY"


def made(bench):
    """A copy of a complete run of 40 steps."""
    return shutil.copytree(bench.straight(DAMAGED), bench.folder / "run")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def add_damage(name, how):
    """Damage each file of the newest checkpoint in turn: it is skipped, and the result is the same."""

    @fault("damage", name, "voidrl resume run", "survived")
    def inject(bench, command):
        run, straight = bench.folder / "run", bench.straight(DAMAGED)
        for path in sorted((straight / "checkpoints" / "step_000000000040").iterdir()):
            made(bench)
            how(run / path.relative_to(straight))
            done = bench.voidrl(command)
            if done.code == 0 and "skipped step_000000000040" not in done.err:
                return Seen(done, problem=f"{path.name} is damaged, and nothing was said")
            if done.code != 0 or not bench.same("run", straight):
                return Seen(done, exact=False)
            shutil.rmtree(run)
        return Seen(done)


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


add_damage("a bit flipped in any file of the newest checkpoint", flip)
add_damage("any file of the newest checkpoint cut in half", halve)
add_damage("any file of the newest checkpoint missing", Path.unlink)


def damage_manifests(bench):
    for path in made(bench).glob("checkpoints/*/manifest.json"):
        path.write_text("{")


def shorten(name):
    return lambda bench: os.truncate(made(bench) / name, 100)


def make_folder(bench):
    path = made(bench) / "metrics.jsonl"
    path.unlink()
    path.mkdir()


damaged = partial(refused, "damage")
BOTH = "step_000000000020.*step_000000000040|step_000000000040.*step_000000000020"
damaged("every checkpoint damaged", "voidrl resume run", BOTH, damage_manifests)
damaged("config.json is damaged", "voidrl resume run", r"config\.json is damaged", shorten("config.json"))
FURTHER, SHORT = "voidrl resume run --steps 60", r"metrics\.jsonl holds 100 bytes"
damaged("metrics.jsonl was shortened", FURTHER, SHORT, shorten("metrics.jsonl"))
A_FOLDER = f"{FURTHER}  # metrics.jsonl is a folder"
damaged("metrics.jsonl cannot be written", A_FOLDER, r"metrics\.jsonl is no ordinary file", make_folder)


def add_vanishing(when, match, do, expect, says=""):
    """Another process removes the newest checkpoint; the one before it is as good, if there is time."""
    name, command = f"the newest checkpoint vanishes {when}", "voidrl evaluate run --episodes 1 --device cpu"

    @fault("damage", name, command, expect, says=says)
    def inject(bench, command):
        made(bench)
        return Seen(bench.voidrl(command, hook={"match": match, "reads": True, "do": do}))


add_vanishing("before it is checked", r"/step_0*40/manifest\.json$", "remove", "survived")
add_vanishing("while it is checked", r"/step_0*40/agent\.safetensors$", "remove", "survived")
UNREADABLE = r"agent\.safetensors cannot be read"
LAST = r"/step_0*40/optimizers"  # of the files that are checked
add_vanishing("after its check", LAST, "remove agent.safetensors", "refused", UNREADABLE)


# Edited configs


def add_edit(field, value):
    def edit(bench):
        path = made(bench) / "config.json"
        config = json.loads(path.read_text())
        section, _, name = field.rpartition(".")
        (config[section] if section else config)[name] = value
        path.write_text(json.dumps(config))

    says = rf"config\.json was edited .*: {re.escape(field)}\b.* was .* and is "
    name = f"{field} changed in config.json"
    refused("edited config", name, "voidrl resume run --steps 60", says, edit)


add_edit("seed", 7)
add_edit("learner.discount", 0.5)
add_edit("method", {"name": "positive", "learning_rate": 0.0001})


# Several processes

EXPERIMENT_COMMAND = "voidrl experiment tiny.toml --device cpu --no-report"
processes = partial(fault, "two processes")


@processes("a second command on a run", f"{SLOW} & voidrl resume run", "survived")
def second_process(bench, command):
    running = bench.start(SLOW, FAULT_DELAY="0.1")
    bench.wait_for(bench.checkpoints, running)
    other = bench.voidrl("voidrl resume run")
    seen = complete(bench, running.wait())
    if other.code != 2 or str(running.pid) not in other.err:
        seen.problem = f"the second command ended with {other.code}"
    elif seen.done.code == 0:
        seen.exact = bench.same("run", bench.straight(SLOW))
    return seen


def slow_experiment(bench, steps=60):
    bench.write("tiny.toml", EXPERIMENT.format(env="fault_worlds:Slow", steps=steps))


def cells(bench):
    return sorted(bench.folder.glob("runs/tiny/*/apt/seed*/checkpoints/step_*"))


def every_cell_done(bench, seen):
    """All runs of the experiment have their last step."""
    done = {path.parent.parent.name for path in cells(bench) if path.name.startswith("step_000000000060")}
    if len(done) != 2:
        seen.problem = f"step 60 was reached by {done or 'no run'}"
    return seen


def start_experiment(bench):
    """One under way, that has written a checkpoint."""
    slow_experiment(bench)
    running = bench.start(EXPERIMENT_COMMAND, FAULT_DELAY="0.1")
    bench.wait_for(lambda: cells(bench), running)
    return running


@processes("two commands on one experiment", f"{EXPERIMENT_COMMAND} & {EXPERIMENT_COMMAND}", "survived")
def two_experiments(bench, command):
    slow_experiment(bench)
    one, other = bench.start(EXPERIMENT_COMMAND), bench.start(EXPERIMENT_COMMAND)
    return every_cell_done(bench, Seen(one.wait(), resumed=other.wait()))


def add_driver_kill(moment, ready):
    """The processes of its runs end by themselves: `wait` counts what is left after 20 seconds."""

    @processes(f"SIGKILL of an experiment {moment}", f"{EXPERIMENT_COMMAND} & kill -KILL $!", "survived")
    def inject(bench, command):
        evaluated = EXPERIMENT.replace("evaluation = false", "") + "[evaluation]\nepisodes = 20\n"
        bench.write("tiny.toml", evaluated.format(env="fault_worlds:Slow", steps=60))
        running = bench.start(EXPERIMENT_COMMAND, FAULT_DELAY="0.05")
        reached = bench.wait_for(lambda: ready(bench, running), running)
        running.send("SIGKILL")
        seen = Seen(running.wait(), problem="" if reached else "it ended before", killed=True)
        seen.resumed = bench.voidrl(EXPERIMENT_COMMAND)
        return every_cell_done(bench, seen)


def evaluates(bench, running):
    return any("evaluating" in path.read_text() for path in bench.folder.glob("runs/tiny/logs/*/apt/*.log"))


add_driver_kill("as a run starts", lambda bench, running: len(running.processes()) > 1)
add_driver_kill("while a run trains", lambda bench, running: cells(bench))
add_driver_kill("while a run is evaluated", evaluates)


def add_experiment_signal(name, group):
    title = f"{name} to an experiment{' and its group' if group else ''}"
    command = f"{EXPERIMENT_COMMAND} & kill -{name[3:]} {'-$!' if group else '$!'}"

    @processes(title, command, "stopped", says=rf"stopped by {name} with \d of 2 runs done")
    def inject(bench, command):
        running = start_experiment(bench)
        running.send(name, group=group)
        seen = Seen(running.wait())
        seen.resumed = bench.voidrl(EXPERIMENT_COMMAND)
        return every_cell_done(bench, seen)


add_experiment_signal("SIGTERM", True)
add_experiment_signal("SIGHUP", False)


@processes(
    "a run is moved while it trains", f"{SLOW} & mv run moved", "refused", says="run is gone.*resume it there"
)
def moved(bench, command):
    running = bench.start(SLOW, FAULT_DELAY="0.1")
    bench.wait_for(bench.checkpoints, running)
    (bench.folder / "run").rename(bench.folder / "moved")
    seen = Seen(running.wait(), resumed=bench.voidrl("voidrl resume moved"))
    seen.problem = "a second folder was made" if (bench.folder / "run").exists() else ""
    return seen


# Folders that are taken

taken = partial(fault, "taken folders", expect="refused")
refused("taken folders", "a run into a run's folder", f"{DAMAGED}  # twice", "run already holds a run", made)


@taken("a run into other files", f"{DAMAGED} --overwrite", says="run is not empty")
def run_into_files(bench, command):
    bench.write("run/thesis.tex", "x")
    return untouched(bench, command, "run")


def untouched(bench, command, folder):
    """The command is refused, and changes nothing in the folder but locks."""

    def files():
        found = (path for path in (bench.folder / folder).rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found if not path.name.startswith(".")}

    before = files()
    done = bench.voidrl(command)
    return Seen(done, problem="" if files() == before else f"the files in {folder} have changed")


INTO = f"{PRETRAIN} --out runs/tiny"


@taken("a run into an experiment's folder", INTO, says="runs/tiny holds an experiment")
def run_into_experiment(bench, command):
    slow_experiment(bench, 20)
    bench.voidrl(EXPERIMENT_COMMAND)
    return untouched(bench, PRETRAIN.replace("--out run", "--out runs/tiny --overwrite"), "runs/tiny")


OUT_RUN = f"{EXPERIMENT_COMMAND} --out run"


@taken("an experiment into a run's folder", OUT_RUN, says="run holds a run, so no experiment")
def experiment_into_run(bench, command):
    made(bench)
    slow_experiment(bench, 20)
    return untouched(bench, command, "run")
