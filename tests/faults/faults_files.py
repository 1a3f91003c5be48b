"""Full disks, kills at every file event, damaged files, several processes, folders that are taken."""

import json
import os
import re
import shutil
import signal
from contextlib import suppress

from fault_catalogue import Seen, fault
from fault_needs import root
from faults_output import EXPERIMENT, PRETRAIN, SLOW, complete

DISK = "voidrl pretrain fault_worlds:Slow --steps 60 --out disk/run $TINY"
NO_ROOM = r"the disk of disk/run has \S+ \w+ free, and by its end the run needs \S+ \w+ for a checkpoint"
FULL = "cannot save step {} .*too little disk space"
NO_ROW = r"cannot write to disk/run/metrics\.jsonl .No space left"


# Full disks


def whole_checkpoint(bench):
    """The bytes of a checkpoint of this run, from one without a fault."""
    newest = max((bench.straight(SLOW) / "checkpoints").glob("step_*"))
    return sum(path.stat().st_size for path in newest.iterdir())


def numbers_in(text):
    """Sizes that a sentence names, in bytes."""
    units = {
        "": 1,
        "B": 1,
        "bytes": 1,
        "k": 1e3,
        "kB": 1e3,
        "KiB": 1024,
        "MB": 1e6,
        "MiB": 1 << 20,
        "GB": 1e9,
    }
    found = re.findall(r"([\d.,]+)\s?(bytes|kB|KiB|MB|MiB|GB|GiB)", text)
    return [float(number.replace(",", "").rstrip(".")) * units.get(unit, 1 << 30) for number, unit in found]


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
        if seen.resumed.code == 0:
            seen.exact = bench.same("disk/run", straight)
    return seen


def names_whole(bench, seen):
    """The sentence has to name at least what a whole checkpoint takes."""
    whole, named = whole_checkpoint(bench), numbers_in(seen.done.err)
    if seen.done.code == 2 and max(named, default=0) < 0.9 * whole:
        seen.problem = ("misleading", f"names {named} bytes, and a checkpoint takes {whole}")
    return seen


@fault("full disk", "no space at the start", DISK, "refused", says=NO_ROOM, needs=root)
def at_start(bench, command):
    fill(bench.disk(2 << 10))
    return Seen(bench.voidrl(command))


LARGE = "voidrl pretrain CartPole-v1 --steps 2M --replay.capacity-steps 1M --out disk/run --device cpu"


@fault("full disk", "less space than a checkpoint needs", LARGE, "refused", says=NO_ROOM, needs=root)
def estimated(bench, command):
    bench.disk(2 << 10)
    done = bench.voidrl(command, limit=25)
    if done.code is None:
        done.code = 0
        return Seen(done, problem=("silent", "trains for hours, although its first checkpoint cannot fit"))
    return Seen(done)


@fault("full disk", "at the first checkpoint", DISK, "refused", says=FULL.format(20), needs=root)
def at_first(bench, command):
    return names_whole(bench, filled(bench, command, lambda: bench.steps() > 10, 16 << 10))


@fault("full disk", "at a later checkpoint", DISK, "refused", says=FULL.format(40), needs=root)
def at_later(bench, command):
    return names_whole(bench, filled(bench, command, lambda: bench.checkpoints("disk/run"), 16 << 10))


ROWS = f"{DISK} --log.log-every-steps 1"  # they outgrow the last block of the file before the next checkpoint


@fault("full disk", "in metrics.jsonl", ROWS, "refused", says=NO_ROW, needs=root)
def in_metrics(bench, command):
    return filled(bench, command, lambda: bench.checkpoints("disk/run"), 0)


# Kills at every file event

KILLED = (
    "voidrl pretrain fault_worlds:Slow --steps 20 --log.keep-last 1 --out run $TINY "
    "--log.checkpoint-every-steps 10"
)
UNDER = r"/run(/|$)"


def kill_everywhere(bench, command, straight, prepare=None):
    """SIGKILL at every event under the run folder; the same command or `voidrl resume` must complete it."""
    run = bench.folder / "run"
    if prepare:
        prepare()
        saved = shutil.copytree(run, bench.folder / "saved", copy_function=shutil.copy2)
    log = bench.folder / "events"
    done = bench.voidrl(command, hook={"match": UNDER, "nth": 0, "do": "", "log": str(log)})
    events = log.read_text().splitlines() if log.exists() else []
    killed = []
    for nth in range(1, len(events) + 1):
        shutil.rmtree(run)
        if prepare:
            shutil.copytree(saved, run)
        done = bench.voidrl(command, hook={"match": UNDER, "nth": nth, "do": "SIGKILL"})
        if done.code != -signal.SIGKILL:
            continue  # the last ones may come in another order
        killed.append(done)
        born = (run / "config.json").exists()
        resumed = bench.voidrl("voidrl resume run --steps 20" if born else command)
        exact = bench.same("run", straight) if resumed.code == 0 else None
        if resumed.code != 0 or not exact:
            event = events[nth - 1].replace(str(bench.folder), "")
            where = f"event {nth} of {len(events)}, {event}: {resumed.err.strip().splitlines()[-1:]}"
            return Seen(done, problem=("lost", where), killed=True)
    note = f"{len(killed)} kills at {len(events)} file events, each resumed bit for bit"
    if not killed or len(killed) < 0.9 * len(events):
        return Seen(done, problem=("silent", f"only {note}"), killed=True)
    return Seen(killed[-1], killed=True, note=note)


@fault("kills", "SIGKILL at every file event of a run", KILLED, "survived")
def kill_run(bench, command):
    return kill_everywhere(bench, command, bench.straight(command))


@fault("kills", "SIGKILL at every file event of a resumed run", "voidrl resume run --steps 20", "survived")
def kill_resume(bench, command):
    def prepare():
        bench.voidrl(KILLED.replace("--steps 20", "--steps 10"))

    return kill_everywhere(bench, command, bench.straight(KILLED), prepare)


@fault(
    "kills",
    "SIGKILL before the run has its config",
    f"{KILLED}  # killed, and typed again",
    "survived",
    quick=True,
)
def kill_birth(bench, command):
    command = command.partition("  #")[0]
    done = bench.voidrl(command, hook={"match": r"config\.json$", "do": "SIGKILL"})
    resumed = bench.voidrl(command)
    exact = bench.same("run", bench.straight(command)) if resumed.code == 0 else None
    return Seen(done, resumed, exact, killed=True)


@fault("kills", "temporary files of killed processes", "voidrl resume run", "survived")
def leftovers(bench, command):
    killed = bench.voidrl(KILLED, hook={"match": r"step_0*20$|\.tmp.*/manifest", "do": "SIGKILL", "nth": 2})
    if killed.code != -signal.SIGKILL:
        return Seen(killed, problem=("silent", f"exit code {killed.code}, although it was to be killed"))
    for name in (".tmp-1-config.json", ".tmp-1-status.json", "checkpoints/.tmp-1-host/agent.safetensors"):
        bench.write(f"run/{name}", "{")
    done = bench.voidrl(command)
    exact = bench.same("run", bench.straight(KILLED)) if done.code == 0 else None
    return Seen(done, exact=exact)


# Damage

DAMAGED = "voidrl pretrain fault_worlds:Slow --steps 40 --out run $TINY"


def damage(bench, how):
    """Damage each file of the newest checkpoint in turn: it is skipped, and the result is the same."""
    straight = bench.straight(DAMAGED)
    names = sorted(path.name for path in (straight / "checkpoints" / "step_000000000040").iterdir())
    done = None
    for name in names:
        shutil.rmtree(bench.folder / "run", ignore_errors=True)
        shutil.copytree(straight, bench.folder / "run")
        how(bench.folder / "run" / "checkpoints" / "step_000000000040" / name)
        done = bench.voidrl("voidrl resume run")
        if done.code == 0 and "skipped step_000000000040" not in done.err:
            return Seen(done, problem=("silent", f"{name} is damaged, and nothing was said"))
        if done.code != 0 or not bench.same("run", straight):
            return Seen(done, exact=False)
    return Seen(done, exact=True, note=f"{len(names)} files, each noticed; resumed bit for bit")


@fault("damage", "a bit flipped in any file of the newest checkpoint", "voidrl resume run", "survived")
def flipped(bench, command):
    def flip(path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return damage(bench, flip)


@fault("damage", "any file of the newest checkpoint cut in half", "voidrl resume run", "survived")
def truncated(bench, command):
    return damage(bench, lambda path: os.truncate(path, path.stat().st_size // 2))


@fault("damage", "any file of the newest checkpoint missing", "voidrl resume run", "survived")
def missing(bench, command):
    return damage(bench, lambda path: path.unlink())


def made(bench):
    """A copy of a complete run of 40 steps."""
    return shutil.copytree(bench.straight(DAMAGED), bench.folder / "run")


@fault(
    "damage",
    "every checkpoint damaged",
    "voidrl resume run",
    "refused",
    says="step_000000000020.*step_000000000040|step_000000000040.*step_000000000020",
)
def all_damaged(bench, command):
    for path in made(bench).glob("checkpoints/*/manifest.json"):
        path.write_text("{")
    return Seen(bench.voidrl(command))


@fault("damage", "config.json is damaged", "voidrl resume run", "refused", says=r"config\.json is damaged")
def config_damaged(bench, command):
    os.truncate(made(bench) / "config.json", 100)
    return Seen(bench.voidrl(command))


@fault(
    "damage",
    "metrics.jsonl was shortened",
    "voidrl resume run --steps 60",
    "refused",
    says=r"metrics\.jsonl holds 100 bytes",
)
def metrics_short(bench, command):
    os.truncate(made(bench) / "metrics.jsonl", 100)
    return Seen(bench.voidrl(command))


@fault(
    "damage",
    "metrics.jsonl cannot be written",
    "voidrl resume run --steps 60  # metrics.jsonl is a folder",
    "refused",
    says=r"metrics\.jsonl is no ordinary file",
)
def metrics_folder(bench, command):
    path = made(bench) / "metrics.jsonl"
    path.unlink()
    path.mkdir()
    return Seen(bench.voidrl("voidrl resume run --steps 60"))


def add_vanishing(when, match, do, expect, says=""):
    """Another process removes the newest checkpoint; the one before it is as good, if there is time."""
    name, command = f"the newest checkpoint vanishes {when}", "voidrl evaluate run --episodes 1 --device cpu"

    @fault("damage", name, command, expect, says=says)
    def inject(bench, command):
        made(bench)
        return Seen(bench.voidrl(command, hook={"match": match, "reads": True, "do": do}))


add_vanishing("before it is checked", r"/step_0*40/manifest\.json$", "remove", "survived")
add_vanishing("while it is checked", r"/step_0*40/agent\.safetensors$", "remove", "survived")
add_vanishing(
    "after its check",
    r"/step_0*40/replay_",
    "remove agent.safetensors",
    "refused",
    r"agent\.safetensors cannot be read",
)


# Edited configs


def add_edit(field, value):
    @fault(
        "edited config",
        f"{field} changed in config.json",
        "voidrl resume run --steps 60",
        "refused",
        says=rf"config\.json was edited .*: {re.escape(field)}\b.* was .* and is ",
    )
    def inject(bench, command):
        path = made(bench) / "config.json"
        config = json.loads(path.read_text())
        section, _, name = field.rpartition(".")
        (config[section] if section else config)[name] = value
        path.write_text(json.dumps(config))
        done = bench.voidrl(command)
        return Seen(done)


add_edit("seed", 7)
add_edit("learner.discount", 0.5)
add_edit("method", {"name": "positive", "learning_rate": 0.0001})


# Several processes


@fault("two processes", "a second command on a run", f"{SLOW} & voidrl resume run", "survived")
def second_process(bench, command):
    running = bench.start(SLOW, FAULT_DELAY="0.1")
    bench.wait_for(lambda: bench.checkpoints(), running)
    other = bench.voidrl("voidrl resume run")
    seen = complete(bench, running.wait())
    if other.code != 2 or str(running.pid) not in other.err:
        seen.problem = ("silent", f"the second command ended with {other.code}")
    elif seen.done.code == 0:
        seen.exact = bench.same("run", bench.straight(SLOW))
    return seen


EXPERIMENT_COMMAND = "voidrl experiment tiny.toml --device cpu --no-report"


def experiment_complete(bench, done, steps=60):
    for seed in (1, 2):
        seen = complete(bench, done, steps, f"runs/tiny/fault_worlds-Slow/apt/seed{seed}")
    return seen


def slow_experiment(bench, steps=60):
    bench.write("tiny.toml", EXPERIMENT.format(env="fault_worlds:Slow", steps=steps))


def cells(bench):
    return sorted(bench.folder.glob("runs/tiny/*/apt/seed*/checkpoints/step_*"))


def every_cell_done(bench, seen, steps=60):
    """All runs of the experiment have their last step."""
    runs = {path.parent.parent for path in cells(bench)}
    newest = [max(int(p.name[5:17]) for p in run.glob("checkpoints/step_*")) for run in runs]
    if len(runs) != 2 or min(newest, default=0) < steps:
        seen.problem = ("silent", f"{len(runs)} runs, at steps {newest}")
    return seen


@fault(
    "two processes",
    "two commands on one experiment",
    f"{EXPERIMENT_COMMAND} & {EXPERIMENT_COMMAND}",
    "survived",
)
def two_experiments(bench, command):
    slow_experiment(bench)
    one, other = bench.start(EXPERIMENT_COMMAND), bench.start(EXPERIMENT_COMMAND)
    done, second = one.wait(), other.wait()
    return every_cell_done(bench, Seen(done, resumed=second))


@fault("two processes", "SIGKILL of an experiment", f"{EXPERIMENT_COMMAND} & kill -KILL $!", "survived")
def driver_killed(bench, command):
    slow_experiment(bench)
    running = bench.start(EXPERIMENT_COMMAND, FAULT_DELAY="0.1")
    bench.wait_for(lambda: cells(bench), running)
    running.send("SIGKILL")
    done = running.wait()
    return every_cell_done(bench, Seen(done, resumed=bench.voidrl(EXPERIMENT_COMMAND), killed=True))


def add_experiment_signal(name, group):
    target = "-$!" if group else "$!"
    title = f"{name} to an experiment{' and its group' if group else ''}"

    @fault(
        "two processes",
        title,
        f"{EXPERIMENT_COMMAND} & kill -{name[3:]} {target}",
        "stopped",
        says=rf"stopped by {name} with \d of 2 runs done",
    )
    def inject(bench, command):
        slow_experiment(bench)
        running = bench.start(EXPERIMENT_COMMAND, FAULT_DELAY="0.1")
        bench.wait_for(lambda: cells(bench), running)
        running.send(name, group=group)
        done = running.wait()
        seen = Seen(done)
        if done.code == 75:
            seen.resumed = bench.voidrl(EXPERIMENT_COMMAND)
            seen = every_cell_done(bench, seen)
        return seen


add_experiment_signal("SIGTERM", True)
add_experiment_signal("SIGHUP", False)


# Folders that are taken


@fault(
    "taken folders",
    "a run into a run's folder",
    f"{DAMAGED}  # twice",
    "refused",
    says="run already holds a run",
)
def run_into_run(bench, command):
    made(bench)
    return Seen(bench.voidrl(DAMAGED))


@fault(
    "taken folders", "a run into other files", f"{DAMAGED} --overwrite", "refused", says="run is not empty"
)
def run_into_files(bench, command):
    bench.write("run/thesis.tex", "x")
    seen = Seen(bench.voidrl(command))
    if not (bench.folder / "run/thesis.tex").exists():
        seen.problem = ("lost", "the file is gone")
    return seen


def untouched(bench, command, folder):
    """The command is refused, and changes nothing in the folder but locks."""

    def files():
        found = (path for path in (bench.folder / folder).rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found if not path.name.startswith(".")}

    before = files()
    seen = Seen(bench.voidrl(command))
    lost = [path for path in before if not path.exists()]
    if lost:
        seen.problem = ("lost", f"{len(lost)} files are gone")
    elif files() != before:
        seen.problem = ("silent", "files of one were written among those of the other")
    return seen


@fault(
    "taken folders",
    "a run into an experiment's folder",
    f"{PRETRAIN} --out runs/tiny",
    "refused",
    says="runs/tiny holds an experiment",
)
def run_into_experiment(bench, command):
    slow_experiment(bench, 20)
    bench.voidrl(EXPERIMENT_COMMAND)
    return untouched(bench, PRETRAIN.replace("--out run", "--out runs/tiny --overwrite"), "runs/tiny")


@fault(
    "taken folders",
    "an experiment into a run's folder",
    f"{EXPERIMENT_COMMAND} --out run",
    "refused",
    says="run holds a run, so no experiment",
)
def experiment_into_run(bench, command):
    made(bench)
    slow_experiment(bench, 20)
    return untouched(bench, command, "run")
