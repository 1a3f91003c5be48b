"""The public functions, called as the README calls them."""

import functools
import importlib
import json
import runpy
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from tiny_runs import MAZE, Walk, assert_same_run, make_continuous, rows, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.config import Config, EnvConfig, to_json
from voidrl.envs.make import probe_env
from voidrl.errors import MissingExtraError
from voidrl.runs.folder import default_run_path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A small pre-trained run."""
    run = tmp_path_factory.mktemp("source") / "run"
    voidrl.pretrain(Walk, steps=20, out=run, config=tiny(env__num_envs=2, log__checkpoint_every_steps=10))
    return run


def snapshot(agent):
    return {name: tensor.clone() for name, tensor in agent.tensors().items()}


def test_every_public_name_is_there():
    for name in voidrl.__all__:
        assert getattr(voidrl, name) is not None
    assert dir(voidrl) == sorted([*voidrl.__all__, "__version__"])
    code = "import voidrl; voidrl.report([])"  # a subpackage, as long as nothing has imported it
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "no attribute 'report'; reports are written by voidrl.write_report" in done.stderr
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        voidrl.pretrian  # noqa: B018


def test_the_whole_way_with_nothing_but_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"warmup_steps": 10, "finetune.warmup_steps": 10, "learner.batch_size": 8}
    agent = voidrl.pretrain("CartPole-v1", steps="15", config=config, device="cpu")
    task = voidrl.finetune(agent, "CartPole-v1", steps=15)
    scratch = voidrl.train("CartPole-v1", steps=15.0, config=config, device="cpu")
    result = voidrl.evaluate(task, episodes=2)
    assert len(result.returns) == 2
    assert result.returns == [float(n) for n in result.lengths]
    names = {"CartPole-v1_apt_s0", "CartPole-v1_apt-finetune_s0", "CartPole-v1_scratch_s0"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    assert (agent.steps, task.steps, scratch.steps) == (15, 30, 15)


ENVIRONMENTS = {
    "id": (MAZE, MAZE),
    "module:class with options": ("tiny_runs:Walk?length=5", "tiny_runs:Walk?length=5"),
    "function": (make_continuous, "tiny_runs:make_continuous"),
    "lambda": (lambda: Walk(length=3), "test_api:<lambda>"),
    "partial": (functools.partial(Walk, length=3), "functools:partial()"),
}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_environments_come_as_ids_functions_and_classes(tmp_path, kind):
    env, name = ENVIRONMENTS[kind]
    agent = voidrl.pretrain(env, steps=10, out=tmp_path / "run", config=tiny(augment__shift_pixels=1))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env"]["id"] == name
    again = voidrl.evaluate(tmp_path / "run", None if isinstance(env, str) else env, episodes=1, device="cpu")
    assert len(again.returns) == 1
    assert agent.config.env.id == name


@pytest.mark.parametrize("kind", ["agent", "run", "checkpoint", "saved"])
def test_finetune_takes_every_form_of_an_agent_and_leaves_it_alone(tmp_path, source, kind):
    agent = voidrl.load(source, device="cpu")
    checkpoints = sorted((source / "checkpoints").iterdir())
    given = {"agent": agent, "run": source, "checkpoint": checkpoints[0], "saved": tmp_path / "saved"}[kind]
    voidrl.save_pretrained(agent, tmp_path / "saved")
    before, files = snapshot(agent), {p: p.read_bytes() for p in source.rglob("*") if p.is_file()}
    tuned = voidrl.finetune(given, steps=12, out=tmp_path / "run")
    assert tuned.config.phase == "finetune"
    assert tuned.steps == (10 if kind == "checkpoint" else 20) + 12
    assert tuned.config.env == agent.config.env
    after = snapshot(agent)
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert files == {p: p.read_bytes() for p in source.rglob("*") if p.is_file()}
    found = tuned.tensors()
    assert found.keys() - before.keys() == {"task_scale"}
    moved = [k for k, v in before.items() if not torch.equal(v, found[k])]
    assert any(name.startswith("learner.critic") for name in moved)
    assert not any(name.startswith(("representation", "method")) for name in moved if kind != "checkpoint")


def test_the_callers_random_numbers_are_left_alone(tmp_path, source):
    torch.manual_seed(11)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    voidrl.pretrain(Walk, steps=12, out=tmp_path / "run", config=tiny(log__eval_every_steps=5))
    voidrl.resume(tmp_path / "run", steps=15)
    voidrl.finetune(source, steps=9, out=tmp_path / "tuned")
    voidrl.evaluate(source, episodes=1, device="cpu")
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


# Configs


def test_config_json_makes_the_same_run_again(tmp_path):
    config = tiny(env__num_envs=2, learner__n_step=2, method__k=4, updates_per_step=0.5)
    voidrl.pretrain(Walk, steps=20, seed=4, out=tmp_path / "first", config=config)
    written = json.loads((tmp_path / "first" / "config.json").read_text())
    voidrl.pretrain(Walk, out=tmp_path / "from json", config=written)
    assert_same_run(tmp_path / "first", tmp_path / "from json", steps=20)

    from voidrl.training.build import config_from_json

    as_object = config_from_json(written)
    assert isinstance(as_object, Config)
    assert to_json(as_object) == written
    voidrl.pretrain(Walk, out=tmp_path / "from object", config=as_object)
    assert_same_run(tmp_path / "first", tmp_path / "from object", steps=20)


def test_arguments_win_over_config_over_preset_over_what_is_automatic(tmp_path):
    config = {"env.num_envs": 2, "steps": 5, "device": "cpu", "log.tensorboard": False}
    agent = voidrl.pretrain(
        MAZE, "random", steps=8, seed=9, preset="maze-demo", out=tmp_path / "maze", config=config
    )
    assert (agent.config.method.name, agent.config.steps, agent.config.seed) == ("random", 8, 9)
    assert agent.config.env.num_envs == 2
    assert agent.config.learner.n_step == 5  # the preset's
    for env, more, pieces in (
        (Walk, {"method": "random"}, ("random", "dqn", "identity")),
        (make_continuous, {}, ("apt", "sac", "identity")),
        (MAZE, {}, ("apt", "dqn", "simclr")),
    ):
        out = tmp_path / "-".join(pieces)
        config = voidrl.pretrain(env, steps=8, out=out, config=tiny(**more)).config
        assert (config.method.name, config.learner.name, config.representation.name) == pieces
    assert config.learner.encoder.stack == "nature"


def test_missing_wandb_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"needs wandb, .*pip install 'wandb"):
        voidrl.pretrain(Walk, steps=9, out=tmp_path / "run", config=tiny(log__wandb_project="mine"))
    assert not (tmp_path / "run").exists()


def test_a_run_too_short_to_learn_says_so(tmp_path, capsys):
    voidrl.pretrain(Walk, steps=6, out=tmp_path / "run", config=tiny())
    assert (
        "nothing will be learned: 6 steps are less than the 9 of the warm-up and one step (warmup_steps)"
        in capsys.readouterr().err
    )
    learner = {"name": "mepol", "rollout_steps": 15, "hidden_dim": 8}
    config = tiny(learner=learner, method={"name": "mepol", "k": 2})
    voidrl.pretrain(Walk, steps=9, out=tmp_path / "rollout", config=config)
    assert "nothing will be learned: 9 steps are less than the 15 of one rollout" in capsys.readouterr().err


def test_a_run_on_a_function_is_importable_goes_on_from_the_shell(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, voidrl\n"
        "from tiny_runs import Walk\n"
        "class Mine(Walk):\n"
        "    def step(self, action):\n"
        "        if self.seen > 20: os.kill(os.getpid(), signal.SIGTERM)\n"
        "        Mine.seen += 1\n"
        "        return super().step(action)\n"
        "Mine.seen = 0\n"
        "voidrl.pretrain(Mine, 'random', steps=400, out='run', config={'log.tensorboard': False})\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(voidrl.RunInterrupted, match=r"resume with `voidrl\.resume\('run', env=Mine\)`"):
            runpy.run_path(str(script), run_name="__main__")
    run = str(tmp_path / "run")
    assert cli.main(["resume", run]) == 2
    assert "name one that can, such as --env my_script:make_env" in capsys.readouterr().err
    assert cli.main(["resume", run, "--env", "tiny_runs:Walk"]) == 0
    assert rows(run)[-1]["step"] >= 400


def test_a_run_on_a_function_is_named_by_the_id_of_its_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unnamed = EnvConfig("a:<lambda>")
    for make in (lambda: gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")), Walk):
        assert probe_env(unnamed, make)[1].id == "a:<lambda>"
    make = lambda: gym.make("CartPole-v1")  # noqa: E731
    assert probe_env(EnvConfig("module:make"), make)[1].id == "module:make"  # it has a name of its own
    voidrl.pretrain(make, "random", steps=40, config={"log.tensorboard": False})
    run = tmp_path / "runs/CartPole-v1_random_s0"
    assert cli.main(["evaluate", str(run), "--episodes", "1"]) == 0  # in any process
    assert default_run_path("__main__:make_env", "apt", 0).name == "make_env_apt_s0"


OWN_ENV = """
import gymnasium as gym
class Corridor(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    def __init__(self, size=5, render_mode=None): self.size, self.render_mode = size, render_mode
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}
    def step(self, action): return self.observation_space.low, 0.0, False, False, {}
gym.register("Registered-v0", "own_corridor:Corridor", max_episode_steps=9)
"""


@pytest.fixture
def corridor(tmp_path, monkeypatch):
    """A module with an environment; Gymnasium's registry forgets it afterwards."""
    (tmp_path / "own_corridor.py").write_text(OWN_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym.envs.registration, "registry", {**gym.registry})
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    sys.modules.pop("own_corridor", None)
    return tmp_path / "own_corridor.py"


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (("Registered-v0", {}), None),  # another process may not register it
        (("CartPole-v1", {"max_episode_steps": 7}), "CartPole-v1?max_episode_steps=7"),
        (("CartPole-v1", {"sutton_barto_reward": True}), "CartPole-v1?sutton_barto_reward=true"),
    ],
)
@pytest.mark.usefixtures("corridor")
def test_an_environment_is_named_so_that_another_process_finds_it(made, found):
    importlib.import_module("own_corridor")
    name, options = made
    assert probe_env(EnvConfig("__main__:make"), lambda: gym.make(name, **options))[1].id == (
        found or "__main__:make"
    )


def test_a_run_whose_environment_is_gone_resumes_in_another_function(tmp_path, corridor):
    run = str(tmp_path / "run")
    voidrl.pretrain("own_corridor:Corridor", "random", steps=20, out=run, config={"log.tensorboard": False})
    corridor.rename(tmp_path / "moved_corridor.py")
    del sys.modules["own_corridor"]
    assert cli.main(["resume", run, "--steps", "40", "--env", "moved_corridor:Corridor"]) == 0
    assert rows(run)[-1]["step"] >= 40
    assert cli.main(["resume", run, "--steps", "60", "--env", "tiny_runs:nothing"]) == 2
