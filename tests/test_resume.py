"""A run that was stopped, killed or damaged goes on exactly as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from functools import partial

import pytest
from helpers import moved, small_method
from tiny_runs import (
    MAZE,
    Placed,
    Skilled,
    Walk,
    assert_same_run,
    callback,
    copy_as_of,
    make_continuous,
    newest,
    rows,
    tiny,
)
from tiny_weights import NARROW, resnet_weights, write_weights

import voidrl
from voidrl.cli import main as cli
from voidrl.config import registry
from voidrl.errors import CheckpointError
from voidrl.representations import imagenet
from voidrl.runs import checkpoint

EVALUATED = {"log__eval_every_steps": 10, "log__eval_episodes": 3}
NORMALIZED = {"intrinsic_normalization": "standardize", **EVALUATED}
PIXELS = {"augment__shift_pixels": 1, "env__frame_stack": 2, **EVALUATED}
WIDTHS = {  # of representations whose default width would take most of the time
    "atc": {"encoder": {"feature_dim": 6}},
    "curl": {"projection_dim": 4},
}
ANNEALED = {"learner__n_step": 10, "learner__n_step_end": 3, "learner__discount": 0.97,
            "learner__discount_end": 0.997, "learner__anneal_updates": 9, "representation": "spr",
            "reset__every_updates": 12, "reset__last_steps": 0}  # fmt: skip
CASES = {
    "dqn": (Walk, "apt", tiny(env__num_envs=3, learner__n_step=3, **NORMALIZED)),
    "sac pixels": (f"{MAZE}&continuous=true", "apt", tiny(learner="sac", share_encoder="all", **PIXELS)),
    "skills": (Walk, Skilled, tiny(env__num_envs=2, learner__intrinsic_n_step="single", learner__n_step=2)),
    "workers": (Walk, "apt", tiny(env__num_envs=2, env__backend="async")),
    "priorities": (Walk, "apt", tiny(env__num_envs=2, replay__priority_exponent=0.5)),
    "positions": (Placed, "apt", tiny(env__num_envs=2)),
    "annealing and resets": (Walk, "apt", tiny(**ANNEALED)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_stopped_half_way_ends_as_the_straight_one_bit_for_bit(tmp_path, case):
    env, method, config = CASES[case]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    agent = voidrl.pretrain(env, method, steps=40, seed=3, out=straight, config=config)
    middle, end = checkpoint.list_steps(straight / "checkpoints")
    assert 20 <= middle < 40 <= end
    copy_as_of(straight, resumed, middle)
    again = voidrl.resume(resumed, env=None if isinstance(env, str) else env)
    assert_same_run(straight, resumed, steps=40)
    assert agent.steps == again.steps == end
    assert not moved(agent.tensors(), again.tensors())
    assert newest(straight)[1]["updates"] == agent.steps - 8


# The state of the other methods is tested by test_method_contract.
PIECES = [(kind, name) for kind in ("learner", "representation") for name in registry.names(kind)]
PIECES += [("method", name) for name in ("aps", "apt", "diayn", "mepol", "proto", "random", "rnd")]


@pytest.mark.parametrize(("kind", "name"), PIECES)
def test_every_registered_piece_resumes_bit_for_bit(tmp_path, monkeypatch, kind, name):
    """Each learner, each method with its own representation, each representation."""
    changes = {kind: name, "warmup_steps": 4, "log__log_every_steps": 5, "log__checkpoint_every_steps": 8}
    continuous = kind == "learner" and registry.find(kind, name).actions == "continuous"
    env = make_continuous if continuous else Walk
    if (kind, name) == ("representation", "curl"):  # contrasts images
        env, changes = MAZE, {**changes, "augment__shift_pixels": 1}
    if (kind, name) == ("representation", "imagenet"):
        monkeypatch.setattr(imagenet, "CHANNELS", NARROW)
        weights = write_weights(tmp_path / "weights.pth", resnet_weights(channels=NARROW))
        env, changes = MAZE, {**changes, kind: {"name": name, "weights": str(weights)}}
    if name == "mepol":  # which learns from rollouts, and has both
        learner = {"name": name, "rollout_steps": 3, "max_updates": 3, "hidden_dim": 8}
        changes |= {"method": small_method(name, k=2), "learner": learner}
    elif kind == "method":
        changes[kind] = small_method(name)
    elif name in WIDTHS:
        changes[kind] = {"name": name, **WIDTHS[name]}
    config = tiny(**changes)
    straight = voidrl.pretrain(env, steps=16, seed=5, out=tmp_path / "straight", config=config)
    middle, end = checkpoint.list_steps(tmp_path / "straight" / "checkpoints")
    assert 8 <= middle < end
    voidrl.resume(copy_as_of(tmp_path / "straight", tmp_path / "resumed", middle))
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=16)
    assert getattr(straight.config, kind).name == name
    tensors, meta = newest(tmp_path / "resumed")
    assert meta["updates"] == (5 if name == "mepol" else 12 if straight.learns else 0)
    assert any(file.startswith("optimizers") for file in tensors) == straight.learns


def test_trials_of_skills_in_fine_tuning_resume_bit_for_bit(tmp_path, capsys):
    """Stopped after some of the skills were tried, before one is chosen for the task."""
    skills = {"name": "diayn", "num_skills": 6, "skill_every_steps": 3, "hidden_dim": 8}
    config = tiny(method=skills, finetune__warmup_steps=30, log__checkpoint_every_steps=8)
    source = voidrl.pretrain(Walk, steps=16, out=tmp_path / "source", config=config)
    voidrl.finetune(source, Walk, steps=40, out=tmp_path / "straight")
    assert "were tried" not in capsys.readouterr().err
    voidrl.finetune(source, Walk, steps=8, out=tmp_path / "resumed")
    stopped = newest(tmp_path / "resumed")[0]
    assert 1 < stopped["agent.safetensors/trials_dealt"] < 6
    assert not stopped["agent.safetensors/task_skill_chosen"]
    voidrl.resume(tmp_path / "resumed", steps=40)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=40)
    assert newest(tmp_path / "resumed")[0]["agent.safetensors/task_skill_chosen"]
    voidrl.finetune(source, Walk, steps=12, out=tmp_path / "short", config={"finetune.warmup_steps": 6})
    said = "of 6 skills were tried before one was chosen: raise finetune.warmup_steps"
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("phase", "method"), [("finetune", Skilled), ("train", "apt")])
def test_the_other_phases_resume_exactly(tmp_path, phase, method):
    config = tiny(env__num_envs=2, learner__n_step=2, finetune__noise="restart", **EVALUATED)
    # Stopped and not extended: the schedules of adaptation depend on the length of the run.
    stop = callback(on_step=lambda run: voidrl.STOP if run.step == 20 else None)
    if phase == "finetune":
        source = voidrl.pretrain(Walk, method, steps=15, out=tmp_path / "source", config=config)
        start = partial(voidrl.finetune, source, Walk, steps=40)
    else:
        start = partial(voidrl.train, Walk, steps=40, config={**config, "method": method})
    start(out=tmp_path / "straight")
    start(out=tmp_path / "resumed", callbacks=[stop])
    assert newest(tmp_path / "resumed")[1]["steps"] == 20
    voidrl.resume(tmp_path / "resumed")
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=40)
    assert newest(tmp_path / "straight")[0]["agent.safetensors/task_skill_chosen"]


def test_the_seed_decides_everything(tmp_path):
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    for out, seed in ((first, 5), (again, 5), (other, 6)):
        voidrl.pretrain(Walk, steps=30, seed=seed, out=out, config=tiny(env__num_envs=2))
    assert_same_run(first, again)
    assert rows(first) != rows(other)
    weights, others = newest(first)[0], newest(other)[0]
    assert moved(weights, others) >= {k for k in weights if k.endswith("weight") and "norm" not in k}


def test_a_resume_of_a_complete_run_says_so_and_changes_nothing(tmp_path, capsys):
    run = tmp_path / "run"
    voidrl.pretrain(Walk, steps=12, out=run, config=tiny())
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "log.txt"]
    before = {path: path.read_bytes() for path in files}
    agent = voidrl.resume(run)
    assert "is complete at step 12" in capsys.readouterr().err
    assert agent.steps == 12
    assert before == {path: path.read_bytes() for path in files}
    assert cli.main(["resume", str(run), "--steps", "4"]) == 2
    assert "steps = 4 cannot be used: it is a total" in capsys.readouterr().err
    assert cli.main(["resume", str(run)]) == 0


def test_a_complete_run_without_replay_is_fine_tuned_and_not_extended(tmp_path, capsys):
    run = tmp_path / "run"
    changes = tiny(log__keep_replay=False, log__keep_last=2, log__checkpoint_every_steps=10)
    agent = voidrl.pretrain(Walk, steps=24, out=run, config=changes)
    before, last = ({f.name for f in path.iterdir()} for path in sorted((run / "checkpoints").iterdir()))
    assert {name for name in before - last if "replay" not in name} == set()
    assert {name for name in last if "replay" in name} == set() != before - last
    assert voidrl.resume(run).steps == 24
    assert "is complete at step 24" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=r"holds no replay, .* be extended to 40 steps: fine-tune its"):
        voidrl.resume(run, steps=40)
    tuned = voidrl.finetune(run, Walk, steps=12, out=tmp_path / "tuned", config={"log.keep_replay": True})
    assert tuned.steps == agent.steps + 12
    assert "replay.safetensors/starts" in newest(tmp_path / "tuned")[0]


# Damage


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path, capsys):
    config = tiny(log__keep_last=3, log__checkpoint_every_steps=10)
    voidrl.pretrain(Walk, steps=30, out=tmp_path / "straight", config=config)
    run = tmp_path / "run"
    voidrl.pretrain(Walk, steps=30, out=run, config=config)
    damaged = run / "checkpoints" / "step_000000000030" / "agent.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)

    assert voidrl.load(run).steps == 20
    assert "skipped step_000000000030" in capsys.readouterr().err
    assert voidrl.resume(run).steps == 30
    assert "skipped step_000000000030" in capsys.readouterr().err
    assert "skipped step_000000000030" in (run / "log.txt").read_text()
    assert_same_run(tmp_path / "straight", run)


# Signals


def wait_for(ready, child, seconds=60):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it never came"
        assert not os.waitpid(child, os.WNOHANG)[0], "it ended before"
        time.sleep(0.001)


def forked(call):
    """Run `call` in a fork of this process; its exit code is what `call` returns."""
    child = os.fork()
    if child == 0:
        code = 99
        with suppress(BaseException):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            code = call() or 0
        os._exit(code)
    return child


def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def logged_step(run):
    """Step of the last complete row of metrics; 0 before the first."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else ()
    return json.loads(lines[-1])["step"] if lines else 0


def test_sigkill_at_any_moment_loses_nothing(tmp_path):
    """Killed at random steps and in the middle of saves; in the end all is as if it had never been killed."""
    config = tiny(env__num_envs=2, log__checkpoint_every_steps=10, log__log_every_steps=3, **EVALUATED)
    steps = 200  # more than all kills wait for
    voidrl.pretrain(Walk, steps=steps, out=tmp_path / "straight", config=config)
    run, rng = tmp_path / "run", random.Random(0)
    saving = run / "checkpoints"

    def start():
        if (run / "config.json").exists():
            voidrl.resume(run)
        else:
            voidrl.pretrain(Walk, steps=steps, out=run, config=config, overwrite=True)

    def unfinished():
        return saving.is_dir() and any(path.name.startswith(".tmp-") for path in saving.iterdir())

    reached = 0
    for attempt in range(8):
        child = forked(start)
        if attempt == 0:  # while the run is being built
            wait_for(run.exists, child)
        else:
            goal = reached + rng.randint(1, 15)
            wait_for(lambda goal=goal: logged_step(run) >= goal, child)
        if attempt % 2:
            wait_for(lambda goal=goal: unfinished() or logged_step(run) >= goal + 10, child)
        time.sleep(rng.uniform(0, 0.003))  # less than a step or a save
        os.kill(child, signal.SIGKILL)
        assert wait(child) == -signal.SIGKILL
        reached = logged_step(run)
    assert 0 < reached < steps
    assert wait(forked(start)) == 0
    assert_same_run(tmp_path / "straight", run)


def test_a_kill_before_the_first_checkpoint_begins_again_without_repeated_rows(tmp_path):
    start = partial(voidrl.pretrain, Walk, steps=19, config=tiny(log__log_every_steps=2))
    start(out=tmp_path / "straight")

    def die():
        from voidrl.training.trainer import OffPolicyTrainer

        update = OffPolicyTrainer.update

        def killed(self):
            update(self)
            if self.run.state.steps == 15:
                os.kill(os.getpid(), signal.SIGKILL)

        OffPolicyTrainer.update = killed
        start(out=tmp_path / "run")

    assert wait(forked(die)) == -signal.SIGKILL
    assert sum("updates" in row for row in rows(tmp_path / "run")) == 7
    voidrl.resume(tmp_path / "run")
    assert_same_run(tmp_path / "straight", tmp_path / "run")


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("short") / "run"
    voidrl.pretrain(Walk, steps=12, out=path, config=tiny())
    return path


def test_a_run_whose_checkpoints_are_gone_does_not_start_over(tmp_path, short_run):
    run = shutil.copytree(short_run, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    says = "the checkpoints of the run in .* are gone: bring them back, .*overwrite=True"
    with pytest.raises(CheckpointError, match=says):
        voidrl.resume(run, steps=20)
    assert rows(run) == rows(short_run)


@pytest.mark.parametrize("lost", ["manifest.json/agent_steps", "loop.safetensors/rng_cpu"])
def test_what_a_checkpoint_lacks_is_one_sentence(tmp_path, short_run, lost):
    run = shutil.copytree(short_run, tmp_path / "run")
    file, _, name = lost.partition("/")
    saved = checkpoint.latest(run / "checkpoints", pytest.fail)
    groups = {each: checkpoint.Group(saved.tensors(each)) for each in saved.files}
    del (saved.meta if file == "manifest.json" else groups[file].tensors)[name]
    checkpoint.save(run / "checkpoints", saved.step, groups, saved.meta, keep_last=1)
    with pytest.raises(CheckpointError, match=rf"{file} is damaged, .*no .*'{name}'"):
        voidrl.resume(run)


def test_a_run_on_a_lambda_asks_for_its_factory(tmp_path):
    voidrl.pretrain(lambda: Walk(length=4), steps=12, out=tmp_path / "run", config=tiny())
    with pytest.raises(voidrl.VoidrlError, match=r"cannot be imported .*env="):
        voidrl.resume(tmp_path / "run", steps=14)
    assert voidrl.resume(tmp_path / "run", steps=14, env=lambda: Walk(length=4)).steps == 14


def test_a_run_of_an_older_version_is_refused_with_that_version(tmp_path):
    """Before its config is read, whose fields may have had other names."""
    voidrl.pretrain(MAZE, steps=20, out=tmp_path / "run", config=tiny())
    (manifest,) = (tmp_path / "run" / "checkpoints").glob(f"*/{checkpoint.MANIFEST}")
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "format": 2, "voidrl": "0.2.0"}))
    (tmp_path / "run" / "config.json").write_text('{"env": {"dmc": {"timeout_s": 300.0}}}')
    for use in (voidrl.resume, voidrl.load):
        with pytest.raises(CheckpointError, match=r"written by voidrl 0\.2\.0 in format 2"):
            use(tmp_path / "run")
