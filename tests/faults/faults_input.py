"""What a user, an environment or a downloaded file may hand over: values, paths, agents, experiment files."""

import hashlib
import json
import shutil
import sys

from fault_catalogue import Seen, fault, last_line
from fault_needs import nothing, package, root
from faults_output import EXPERIMENT, PRETRAIN

# Odd paths and limits


def add_path(name, out, says):
    command = PRETRAIN.replace("--out run", f"--out {out}")

    @fault("odd paths", name, command, "refused", says=says)
    def inject(bench, command):
        return Seen(bench.shell(command))


add_path("a name of 300 characters", "$(printf 'a%.0s' {1..300})", says="file name too long")
add_path("the home of an unknown user", "'~nosuchuser/run'", says="there is no user 'nosuchuser'")
add_path("a path that is not UTF-8", "$'run\\xff'", says="it is not UTF-8")


@fault(
    "odd paths",
    "no write permission in a parent",
    PRETRAIN.replace("--out run", "--out /proc/run"),
    "refused",
    says="cannot make the run folder /proc/run",
)
def unwritable(bench, command):
    return Seen(bench.voidrl(command))


@fault(
    "odd paths",
    "evaluate a name of 300 characters",
    "voidrl evaluate $(printf 'a%.0s' {1..300})",
    "refused",
    says="file name too long",
)
def evaluate_long(bench, command):
    return Seen(bench.shell(command))


@fault(
    "memory",
    "an address space of 4 GB, a replay of more",
    "ulimit -v 4000000; voidrl pretrain voidrl/PixelMaze-v0 --replay.capacity-steps 1M --steps 60 --out run "
    "--device cpu",
    "refused",
    says="the replay of 1000000 steps needs .* GiB and there is .* GiB free",
)
def address_space(bench, command):
    return Seen(bench.shell(command))


SHARED = "voidrl pretrain {env} --env.num-envs 2 --steps 60 --out run $TINY"
READ_ONLY = "mount -t tmpfs -o ro tmpfs /dev/shm"
FULL = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/ballast"
SHARING = {
    "DMControl": ("dmc/cartpole_swingup", package("dm_control")),
    "async": ("fault_worlds:Slow --env.backend async", nothing),
}


def add_shared(what, prepare, name):
    """Without usable /dev/shm, in a mount namespace of its own."""
    env, needs = SHARING[name]
    command = f"{SHARED.format(env=env)}  # /dev/shm is {what}"

    @fault("memory", f"/dev/shm is {what}, {name}", command, "survived", needs=lambda: root() or needs())
    def inject(bench, command):
        inner = command.partition("  #")[0].replace("voidrl", f"{sys.executable} -m voidrl.cli.main", 1)
        done = bench.shell(f"unshare -m bash -c '{prepare} && {inner}'; echo $? > code")
        seen = Seen(done)
        if done.code == 2 and "/dev/shm" not in done.err:
            seen.problem = ("misleading", f"does not name /dev/shm: {last_line(done)}")
        return seen


for name in SHARING:
    add_shared("read-only", READ_ONLY, name)
    add_shared("full", FULL, name)


# Environments

FICKLE = "voidrl pretrain 'fault_worlds:{env}?how={how}' --env.num-envs 2 --steps 60 --out run $TINY"


def add_fickle(how, name, says, quick=False, more="", env="Fickle"):
    command = FICKLE.format(how=how, env=env) + more

    @fault("environments", name, command, "refused", says=says, quick=quick)
    def inject(bench, command):
        done = bench.voidrl(command)
        resumed = None
        if done.code == 2 and bench.checkpoints():
            resumed = bench.voidrl("voidrl resume run", FAULT_CURED="1")
        return Seen(done, resumed)


add_fickle("reward nan", "a reward of NaN", r"environment 0 .*returned reward nan at its own step 25")
add_fickle("reward none", "a reward of None", r"environment 0 .*returned None .*a number as reward")
add_fickle("reward str", "a reward that is a string", r"environment 0 .*returned '7' .*a number as reward")
add_fickle("flag none", "terminated is None", r"environment 0 .*returned None .*as terminated")
add_fickle("flag str", "truncated is a string", r"environment 0 .*returned 'no' .*as truncated")
add_fickle("obs nan", "an observation with NaN", r"environment 0 .*returned observation\[0\] = nan")
add_fickle(
    "obs outside",
    "an observation outside its Box",
    r"environment 0 .*returned observation\[0\] = \d+.*in \[-10, 10\]",
)
add_fickle(
    "obs dtype",
    "floats for the bytes of an image",
    r"environment 0 .*of type float32.*expected uint8",
    env="Image",
)
add_fickle(
    "raise",
    "an exception in step",
    r"environment 0 .*raised RuntimeError.*the wheel fell off.*fault_worlds\.py",
)
add_fickle("exit", "SystemExit in step", r"environment 0 .*raised SystemExit")
add_fickle(
    "exit", "SystemExit in step, async", r"environment [01] .*raised SystemExit", more=" --env.backend async"
)
add_fickle(
    "reward none", "a reward of None, async", r"environment [01] .*returned None", more=" --env.backend async"
)
add_fickle(
    "constructor",
    "an exception in the constructor",
    r"environment 0 .*raised RuntimeError.*the wheel fell off.*fault_worlds\.py",
)
add_fickle(
    "constructor exit",
    "SystemExit in the constructor",
    r"environment 0 .*raised SystemExit.*the wheel fell off",
)

NAN = "voidrl pretrain fault_worlds:Slow --method fault_worlds:NanReward --steps 60 --out run $TINY"


@fault(
    "blame",
    "a method whose reward is NaN",
    NAN,
    "refused",
    says="intrinsic reward of method .*NanReward.* is not finite",
)
def nan_method(bench, command):
    return Seen(bench.voidrl(command))


COLLAPSE = "voidrl pretrain fault_worlds:Constant --representation simclr --steps 300 --out run $TINY"


@fault("blame", "a collapsed representation", COLLAPSE, "survived", says="the representation has collapsed")
def collapsed(bench, command):
    done = bench.voidrl(command)
    said = [line for line in done.err.splitlines() if "has collapsed" in line]
    seen = Seen(done)
    if len(said) > 1:
        seen.problem = ("misleading", f"said {len(said)} times")
    return seen


# Agents from elsewhere

SAVE = """
import voidrl, json
agent = voidrl.load("run", device="cpu")
voidrl.save_pretrained(agent, "agent")
"""
EVALUATE = "voidrl evaluate agent --episodes 1 --device cpu"


def agent_folder(bench):
    """A saved agent, made once."""
    known = bench.lab.straight_runs
    if "agent" not in known:
        with bench.lab.bench() as maker:
            shutil.copytree(maker.straight(PRETRAIN), maker.folder / "run")
            maker.python(SAVE)
            known["agent"] = bench.lab.root / "agent"
            (maker.folder / "agent").rename(known["agent"])
    return shutil.copytree(known["agent"], bench.folder / "agent")


def rewrite(folder, change):
    """Change the config of a saved agent as an attacker would: its hash is made to fit."""
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data.pop("sha256")
    change(data)
    path.write_text(json.dumps({**data, "sha256": hashlib.sha256(json.dumps(data).encode()).hexdigest()}))


def add_agent(name, change, says, limited=False):
    command = f"ulimit -v 8000000; {EVALUATE}" if limited else EVALUATE

    @fault("downloaded agents", name, command, "refused", says=says)
    def inject(bench, command):
        rewrite(agent_folder(bench), change)
        done = bench.shell(command, limit=60) if limited else bench.voidrl(command)
        if limited and "memory" in done.err.lower():
            return Seen(done, problem=("misleading", "allocated until memory ran out"))
        return Seen(done)


def setting(section, name, value):
    def change(data):
        place = data["config"][section] if section else data
        place[name] = value

    return change


def without(name):
    return lambda data: data.pop(name)


add_agent(
    "a layer of 10⁸ units",
    setting("learner", "hidden_dim", 10**8),
    r"does not fit its config: .*of shape \(100000000, ",
    limited=True,
)
add_agent("format null", setting("", "format", None), "its format is None")
add_agent("format 0", setting("", "format", 0), "its format is 0")
add_agent('format "1"', setting("", "format", "1"), "its format is '1'")
add_agent("no weights in the manifest", without("weights"), "it has no 'weights'")
add_agent("no spaces in the manifest", without("spec"), "spec = None cannot be used")


@fault("downloaded agents", "nested JSON", EVALUATE, "refused", says="nested more than .* levels")
def nested(bench, command):
    (agent_folder(bench) / "config.json").write_text(
        '{"library_name": "voidrl", "a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    )
    return Seen(bench.voidrl(command, limit=60))


NAN_WEIGHTS = """
from safetensors.torch import load_file, save_file
import hashlib, json, pathlib
path = pathlib.Path("agent/model.safetensors")
tensors = load_file(path)
name = next(k for k, v in tensors.items() if v.is_floating_point() and v.numel() > 3)
tensors[name] = tensors[name] * float("nan")
save_file(tensors, path)
config = pathlib.Path("agent/config.json")
data = json.loads(config.read_text())
data.pop("sha256")
data["weights"] = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
data["sha256"] = hashlib.sha256(json.dumps(data).encode()).hexdigest()
config.write_text(json.dumps(data))
"""


@fault("downloaded agents", "weights of NaN", EVALUATE, "refused", says="has 8 values that are NaN")
def nan_weights(bench, command):
    agent_folder(bench)
    bench.python(NAN_WEIGHTS)
    return Seen(bench.voidrl(command))


@fault(
    "downloaded agents",
    "a W&B project of somebody else",
    "voidrl finetune agent --env CartPole-v1 --steps 30 --out run",
    "survived",
)
def wandb_project(bench, command):
    rewrite(agent_folder(bench), setting("log", "wandb_project", "theirs"))
    bench.write("wandb/__init__.py", 'open("wandb_was_called", "w").close()\nraise ImportError\n')
    done = bench.voidrl(command)
    seen = Seen(done)
    if (bench.folder / "wandb_was_called").exists():
        seen.problem = ("silent", "would have logged to the project that the file names")
    return seen


CARD = """
import voidrl
agent = voidrl.load("run", device="cpu")
voidrl.save_pretrained(agent, "agent")
"""
MARKUP = "'fault_worlds:called?x=` <img src=a onerror=alert(1)>\n\n# Heading'"


@fault(
    "downloaded agents",
    "markup in an environment's id",
    f"voidrl pretrain {MARKUP} --steps 20 --out run $TINY  # then voidrl.save_pretrained",
    "survived",
    needs=package("huggingface_hub"),
)
def markup(bench, command):
    done = bench.voidrl(command.partition("  #")[0])
    if done.code == 2:
        return Seen(done)
    bench.python(CARD)
    card = (bench.folder / "agent" / "README.md").read_text()
    seen = Seen(done)
    if has_markup(card):
        seen.problem = ("silent", "the model card contains the markup")
    return seen


def has_markup(card):
    """Whether `<img` or the heading stand in the card outside of code."""
    inside = False
    for line in card.splitlines():
        if line.strip().startswith("```"):
            inside = not inside
        elif not inside and ("<img" in "".join(line.split("`")[::2]) or line.startswith("# Heading")):
            return True
    return False


@fault(
    "experiment files",
    "nested TOML",
    "voidrl experiment deep.toml --dry-run",
    "refused",
    says="deep.toml cannot be read: it is nested",
)
def nested_toml(bench, command):
    bench.write("deep.toml", "tasks = " + "[" * 20_000 + "]" * 20_000)
    return Seen(bench.voidrl(command))


@fault(
    "experiment files",
    "a dry run calls no factory",
    "voidrl experiment tiny.toml --device cpu --dry-run",
    "survived",
)
def dry_run(bench, command):
    bench.write("tiny.toml", EXPERIMENT.format(env="fault_worlds:called", steps=20))
    done = bench.voidrl(command)
    seen = Seen(done)
    if (bench.folder / "factory_was_called").exists():
        seen.problem = ("silent", "the factory was called")
    return seen
