"""What a user, an environment or a downloaded file may hand over: values, paths, agents, experiment files."""

import hashlib
import json
import os
import sys

import torch
from fault_catalogue import Seen, fault, package, refused, root
from faults_output import PRETRAIN
from safetensors.torch import load, save
from tiny_runs import sealed

import voidrl

# Odd paths and limits


def in_shell(group, name, command, says):
    """A line of bash that is refused."""

    @fault(group, name, command, "refused", says=says)
    def inject(bench, command):
        return Seen(bench.shell(command))


def into(folder):
    return PRETRAIN.replace("--out run", f"--out {folder}")


LONG = "$(printf 'a%.0s' {1..300})"
TOO_LONG = "file name too long"
NO_USER = "there is no user 'nosuchuser'"
in_shell("odd paths", "a name of 300 characters", into(LONG), TOO_LONG)
in_shell("odd paths", "the home of an unknown user", into("'~nosuchuser/run'"), NO_USER)
in_shell("odd paths", "a path that is not UTF-8", into("$'run\\xff'"), "it is not UTF-8")
in_shell("odd paths", "evaluate a name of 300 characters", f"voidrl evaluate {LONG}", TOO_LONG)
NO_FOLDER = "cannot make the run folder /proc/run"
refused("odd paths", "no write permission in a parent", into("/proc/run"), NO_FOLDER)
MAZE = "voidrl pretrain voidrl/PixelMaze-v0 --steps 60 --out run --device cpu"
LARGER = f"ulimit -v 4000000; {MAZE} --replay.capacity-steps 1M"
NO_MEMORY = "the replay of 1000000 steps needs .* GiB and there is .* GiB free"
in_shell("memory", "an address space of 4 GB, a replay of more", LARGER, NO_MEMORY)
FILE_LIMIT = "the file would be too large.*raise `ulimit -f`"
in_shell("memory", "a limit of 20 kB on files", f"ulimit -f 20; {PRETRAIN}", FILE_LIMIT)


def add_shared(what, prepare, name, env, needs=lambda: ""):
    """Without usable /dev/shm, in a mount namespace of its own."""
    command = f"voidrl pretrain {env} --env.num-envs 2 --steps 60 --out run $TINY  # /dev/shm is {what}"

    @fault("memory", f"/dev/shm is {what}, {name}", command, "survived", needs=lambda: root() or needs())
    def inject(bench, command):
        inner = command.partition("  #")[0].replace("voidrl", f"{sys.executable} -m voidrl.cli.main", 1)
        return Seen(bench.shell(f"unshare -m bash -c '{prepare} && {inner}'; echo $? > code"))


READ_ONLY = "mount -t tmpfs -o ro tmpfs /dev/shm"
FULL = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/ballast"
for what, prepare in (("read-only", READ_ONLY), ("full", FULL)):
    add_shared(what, prepare, "DMControl", "dmc/cartpole_swingup", package("dm_control"))
    add_shared(what, prepare, "async", "fault_worlds:Slow --env.backend async")


# Permissions


def add_unreadable(name, command, says):
    """Root without its privileges on files, in a run of somebody else."""
    command = f"{command}  # {name or 'run'} may not be read"

    @fault("permissions", command, command, "refused", says=says, needs=root)
    def inject(bench, command):
        bench.voidrl(PRETRAIN)
        (bench.folder / "run" / name).chmod(0)
        inner = command.partition("  #")[0].replace("voidrl", f"{sys.executable} -m voidrl.cli.main", 1)
        drop = "--bounding-set=-dac_override,-dac_read_search --inh-caps=-all"
        return Seen(bench.shell(f"setpriv {drop} {inner}; echo $? > code"))


FORBIDDEN = "Permission denied"
add_unreadable("", "voidrl status run", f"run cannot be read.*{FORBIDDEN}|cannot be read .{FORBIDDEN}")
add_unreadable("", "voidrl report .", f"run.*cannot be read .{FORBIDDEN}")
add_unreadable("status.json", "voidrl evaluate run --episodes 1 --device cpu", f"status.json: {FORBIDDEN}$")
add_unreadable("config.json", "voidrl resume run --steps 80", f"config.json: {FORBIDDEN}$")


# Environments


def add_fickle(how, name, says, more="", env="Fickle"):
    made = f"'fault_worlds:{env}?how={how}' --env.num-envs 2"
    command = f"voidrl pretrain {made} --steps 60 --out run $TINY{more}"

    @fault("environments", name, command, "refused", says=says)
    def inject(bench, command):
        done = bench.voidrl(command)
        resumed = None
        if done.code == 2 and bench.checkpoints():
            resumed = bench.voidrl("voidrl resume run", FAULT_CURED="1")
        return Seen(done, resumed)


FIRST, EITHER, ASYNC = "environment 0 .*", r"environment [01] .*", " --env.backend async"
WHEEL = r"environment 0 .*raised RuntimeError.*the wheel fell off.*fault_worlds\.py"
OUTSIDE = rf"{FIRST}returned observation\[0\] = \d+.*in \[-10, 10\]"
FLOATS = f"{FIRST}of type float32.*expected uint8"
EXITED = f"{FIRST}raised SystemExit.*the wheel fell off"
for how, name, says, *more in (
    ("reward nan", "a reward of NaN", f"{FIRST}returned reward nan at its own step 25"),
    ("reward none", "a reward of None", f"{FIRST}returned None .*a number as reward"),
    ("reward str", "a reward that is a string", f"{FIRST}returned '7' .*a number as reward"),
    ("flag none", "terminated is None", f"{FIRST}returned None .*as terminated"),
    ("flag str", "truncated is a string", f"{FIRST}returned 'no' .*as truncated"),
    ("obs nan", "an observation with NaN", rf"{FIRST}returned observation\[0\] = nan"),
    ("obs outside", "an observation outside its Box", OUTSIDE),
    ("obs dtype", "floats for the bytes of an image", FLOATS, "", "Image"),
    ("raise", "an exception in step", WHEEL),
    ("exit", "SystemExit in step", f"{FIRST}raised SystemExit"),
    ("exit", "SystemExit in step, async", f"{EITHER}raised SystemExit", ASYNC),
    ("reward none", "a reward of None, async", f"{EITHER}returned None", ASYNC),
    ("constructor", "an exception in the constructor", WHEEL),
    ("constructor exit", "SystemExit in the constructor", EXITED),
):
    add_fickle(how, name, says, *more)

NAN = "voidrl pretrain fault_worlds:Slow --method fault_worlds:NanReward --steps 60 --out run $TINY"
NAN_BLAMED = "intrinsic reward of method .*NanReward.* is not finite"
refused("blame", "a method whose reward is NaN", NAN, NAN_BLAMED)

COLLAPSE = "voidrl pretrain fault_worlds:Constant --representation simclr --steps 300 --out run $TINY"
COLLAPSED = "the representation has collapsed"


@fault("blame", "a collapsed representation", COLLAPSE, "survived", says=COLLAPSED)
def collapsed(bench, command):
    done = bench.voidrl(command)
    times = done.err.count(COLLAPSED)
    return Seen(done, problem=f"said {times} times" if times > 1 else "")


# Agents from elsewhere

EVALUATE = "voidrl evaluate agent --episodes 1 --device cpu"


def save_agent(run, folder):
    voidrl.save_pretrained(voidrl.load(run, device="cpu"), folder)


def agent_folder(bench):
    """A saved agent."""
    save_agent(bench.straight(PRETRAIN), bench.folder / "agent")
    return bench.folder / "agent"


def rewrite(bench, change):
    """A saved agent whose config was changed as an attacker would: its hash is made to fit."""
    path = agent_folder(bench) / "config.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(sealed(data))


def setting(name, value):
    return lambda data: data.update({name: value})


HUGE, TOO_WIDE = f"ulimit -v 8000000; {EVALUATE}", "hidden-dim 100000000 cannot be used: expected 1 to 65536"


@fault("downloaded agents", "a layer of 10⁸ units", HUGE, "refused", says=TOO_WIDE)
def large_layer(bench, command):
    rewrite(bench, lambda data: data["config"]["learner"].update(hidden_dim=10**8))
    return Seen(bench.shell(command, limit=60))


for name, change, says in (
    ("format null", setting("format", None), "its format is None"),
    ("format 0", setting("format", 0), "its format is 0"),
    ('format "1"', setting("format", "1"), "its format is '1'"),
    ("no weights in the manifest", lambda data: data.pop("weights"), "it has no 'weights'"),
    ("no spaces in the manifest", lambda data: data.pop("spec"), "spec = None cannot be used"),
):
    refused("downloaded agents", name, EVALUATE, says, lambda bench, change=change: rewrite(bench, change))


def nest(bench):
    deep = '{"library_name": "voidrl", "a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    (agent_folder(bench) / "config.json").write_text(deep)


refused("downloaded agents", "nested JSON", EVALUATE, "nested more than .* levels", nest)


def spoil_weights(bench):
    path = agent_folder(bench) / "model.safetensors"
    tensors = load(path.read_bytes())
    name = next(k for k, v in tensors.items() if v.is_floating_point() and v.numel() == 8)
    spoiled = save({**tensors, name: torch.full_like(tensors[name], torch.nan)})
    weights = {"bytes": len(spoiled), "sha256": hashlib.sha256(spoiled).hexdigest()}
    rewrite(bench, setting("weights", weights))
    path.write_bytes(spoiled)


def pipe_weights(bench):
    path = agent_folder(bench) / "model.safetensors"
    path.unlink()
    os.mkfifo(path)


PIPE = r"model\.safetensors cannot be read: it is not a regular file"
refused("downloaded agents", "weights in a pipe", EVALUATE, PIPE, pipe_weights)
refused("downloaded agents", "weights of NaN", EVALUATE, "has 8 values that are NaN", spoil_weights)


TUNE = "voidrl finetune agent --env CartPole-v1 --steps 30 --out run"


@fault("downloaded agents", "a W&B project of somebody else", TUNE, "survived")
def wandb_project(bench, command):
    rewrite(bench, lambda data: data["config"]["log"].update(wandb_project="theirs"))
    bench.write("wandb/__init__.py", 'open("wandb_was_called", "w").close()\nraise ImportError\n')
    done = bench.voidrl(command)
    called = (bench.folder / "wandb_was_called").exists()
    return Seen(done, problem="would have logged to the project that the file names" if called else "")


MARKUP = "'fault_worlds:called?x=` <img src=a onerror=alert(1)>'"
SAVED = f"voidrl pretrain {MARKUP} --steps 20 --out run $TINY  # then voidrl.save_pretrained"
HUB = package("huggingface_hub")


@fault("downloaded agents", "markup in an environment's id", SAVED, "survived", needs=HUB)
def markup(bench, command):
    done = bench.voidrl(command)
    save_agent(bench.folder / "run", bench.folder / "agent")
    card = (bench.folder / "agent" / "README.md").read_text()
    return Seen(done, problem="the model card contains the markup" if has_markup(card) else "")


def has_markup(card):
    """Whether `<img` stands in the card outside of code."""
    prose = "".join(card.split("```")[::2])
    return any("<img" in "".join(line.split("`")[::2]) for line in prose.splitlines())


# Experiment files


def write_nested(bench):
    bench.write("deep.toml", "tasks = " + "[" * 20_000 + "]" * 20_000)


NESTED = "deep.toml cannot be read: it is nested"
refused("experiment files", "nested TOML", "voidrl experiment deep.toml --dry-run", NESTED, write_nested)
