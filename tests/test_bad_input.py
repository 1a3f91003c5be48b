"""What a user can get wrong: one sentence each, the right class, exit code 2, and nothing left on disk."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tiny_runs import MAZE, Walk, make_continuous, tiny

import voidrl
from voidrl import errors
from voidrl.cli import main as cli


class Spaced(gym.Env):
    def __init__(self, observation=None, action=None):
        self.observation_space = observation or spaces.Box(-1, 1, (3,))
        self.action_space = action or spaces.Discrete(2)


class Broken(gym.Env):
    def __init__(self):
        raise OSError("no simulator here")


class BrokenLater(Walk):
    """Can be created once."""

    created = 0

    def __init__(self):
        super().__init__()
        BrokenLater.created += 1
        if BrokenLater.created > 1:
            raise OSError("no second simulator here")


def spaced(**options):
    return lambda: Spaced(**options)


def setting(field, value):
    return {"config": {field: value}}


WITHOUT_SKILLS = {"diayn": "num_skills", "aps": "skill_dim"}
# The environment, what else is passed, and what the sentence holds.
UNKNOWN_NAMES = [
    ("CartPole-v7x", {}, "'CartPole-v7x'.*did you mean 'CartPole-v1'.*'module:factory'"),
    (Walk, {"method": "atp"}, "unknown method 'atp'; did you mean 'apt'"),
    (Walk, {"preset": "maze-demi"}, "preset 'maze-demi'; did you mean 'maze-demo'"),
    ("tiny_runs.Walk", {}, "unknown environment 'tiny_runs.Walk'; did you mean 'tiny_runs:Walk'"),
    (Walk, setting("learner.n_steps", 3), "'learner.n_steps'; did you mean 'learner.n_step'"),
    (Walk, setting("learner", {"encoder": {"stak": "drq"}}), "did you mean 'learner.encoder.stack'"),
    (Walk, setting("lr", 0.1), "config field 'lr'; did you mean 'learner.learning_rate' or"),
    (Walk, {"method": "auto"}, "unknown method 'auto'"),
]
SPACES = [
    (spaced(observation=spaces.Dict({"a": spaces.Text(2)})), {}, r"Dict\('a'.* is not supported"),
    (spaced(action=spaces.Box(-np.inf, np.inf, (2,))), {}, "finite bounds"),
]
NEIGHBORS = [
    (Walk, setting("method.k", 8),
     r"k = 8 cannot be used with learner\.batch_size = 8: .*k = 7 or less, or .* such as rnd"),
    (Walk, {"config": {"method.pool": 4, "method.k": 5}},
     r"k = 5 cannot be used with method\.pool = 4: .*k = 4 or less, or .* such as rnd"),
]  # fmt: skip
VALUES = [
    ("voidrl/PixelMaze-v0?sise=5", {}, "cannot be made.*sise"),
    ("voidrl/PixelMaze-v0?size=4", {}, "size=4; pass"),
    ("nowhere:make", {}, "'nowhere:make' cannot be imported"),
    ("tiny_run:Walk-v0", {}, "cannot be made: No module named 'tiny_run'"),
    ("tiny_runs:walk", {}, "'tiny_runs' has no 'walk', did you mean 'Walk'"),
    (Walk(), {}, "expected an id or a function"),
    (lambda: 3, {}, "returned int: expected a gymnasium.Env"),
    (lambda: 3, setting("env.backend", "async"), "returned int: expected a gymnasium.Env"),
    (spaced(observation=spaces.Dict({"image": spaces.Discrete(2)})), setting("env.keys", ["imag"]),
     "did you mean 'image'"),
    (spaced(), setting("env.action_masks", "method"), "env.action_masks = 'method' cannot be used"),
    (Walk, setting("env.wrappers", ["gymnasium.wrappers:TimeLimits"]), "imported .*did you mean 'TimeLimit'"),
    (Walk, setting("env.backend", "native"), "'native' cannot be used: .*vectorized version; use sync or"),
    (Walk, {"config": "fast"}, "config = 'fast'.*expected a mapping"),
    (Walk, {"method": Walk}, "expected a subclass of voidrl.methods.base.Method"),
    (Walk, setting("learner", "sac"), "takes continuous actions.*use dqn"),
    (make_continuous, {"preset": "atari-fast"}, "preset 'atari-fast' sets learner 'dqn'"),
    (Walk, {"preset": "atari-demo"}, r"count_states.*\(preset atari-demo sets it\)"),
    (MAZE, {"preset": "urlb-states"}, r"stack = 'mlp'.*\(preset urlb-states sets it\)"),
    (MAZE, setting("representation", "identity"), "'identity' cannot be used on pixels .* use simclr, fixed"),
    (Walk, {"steps": "-5"}, "steps must be a positive whole number.*got '-5'"),
    (Walk, {"steps": None, "config": {"steps": -1}}, "steps = -1"),
    (Walk, {"seed": "one"}, "seed = 'one' .* a whole number"),
    (Walk, {"device": "tpu"}, "device = 'tpu'.*expected auto, cpu, cuda"),
    (Walk, {"method": {"name": "metra", "skill_dim": 1, "discrete_skills": True}}, "dim = 1 .*expected 2"),
    *((Walk, {"method": {"name": name, field: 0}}, rf"{field} = 0 cannot be used: expected [12] .*(apt|rnd)")
      for name, field in WITHOUT_SKILLS.items()),
]  # fmt: skip
CALLS = [
    *((errors.UnknownNameError, *call) for call in UNKNOWN_NAMES),
    *((errors.SpaceError, *call) for call in SPACES),
    *((errors.NeighborError, *call) for call in NEIGHBORS),
    *((errors.ConfigError, *call) for call in VALUES),
]


@pytest.mark.parametrize(("error", "env", "changes", "sentence"), CALLS)
def test_the_call_is_refused_and_leaves_nothing(tmp_path, monkeypatch, error, env, changes, sentence):
    monkeypatch.chdir(tmp_path)
    config = changes.get("config", {})
    config = config if isinstance(config, str) else {**tiny(), **config}
    with pytest.raises(error, match=f"(?s){sentence}"):
        voidrl.pretrain(env, **{"steps": 9, "out": "run", **changes, "config": config})
    assert not [path for path in tmp_path.iterdir() if path.name != "__pycache__"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "cuda:3"}, "device = 'cuda:3'.*torch sees no CUDA device here; use auto or cpu"),
        ({"config": tiny(replay__device="cuda")}, "replay.device = 'cuda' .*cpu: expected 'auto' or 'cpu'"),
    ],
)
def test_cuda_without_cuda(tmp_path, changes, sentence):
    with pytest.raises(errors.ConfigError, match=sentence):
        voidrl.pretrain(Walk, **{"steps": 9, "out": tmp_path / "run", "config": tiny(), **changes})
    assert not (tmp_path / "run").exists()


def test_a_replay_that_does_not_fit_says_what_there_is_and_what_to_lower(tmp_path, monkeypatch):
    monkeypatch.setattr("voidrl.replay.make.free_bytes", lambda device: 2**30)
    says = r"needs \d+\.\d+ GiB .* 1\.00 GiB free .*lower replay.capacity_steps"
    with pytest.raises(errors.ReplayMemoryError, match=says):
        voidrl.pretrain(MAZE, steps=9, out=tmp_path / "run", config=tiny(replay__capacity_steps=10**7))
    assert not (tmp_path / "run").exists()


# The command line

WALK = "pretrain tiny_runs:Walk"
COMMAND_LINES = [
    ("pretrian", "unknown command 'pretrian'; did you mean 'pretrain'"),
    ("config pretran x", "unknown command 'pretran'; did you mean 'pretrain'"),
    ("bench trian", "unknown measurement 'trian'; did you mean 'train'"),
    ("pretrain --steps 3", "no ENV was given: expected `voidrl pretrain ENV"),
    (f"{WALK} --stepz 3", "unknown option '--stepz'; did you mean '--steps'"),
    (f"{WALK} --lr 1", "did you mean '--learner.learning-rate' or"),
    (f"{WALK} --steps", "option --steps has no value"),
    (f"{WALK} fast", "'fast' was not expected here"),
    (f"{WALK} --learner.n-step x", "learner.n_step = 'x' cannot be used: expected a whole number"),
    (f"{WALK} --learner.batch-size 5", "--method.k 4 or less"),
    ("resume nowhere", "there is no run at nowhere"),
    ("resume .", "is no run: it holds no config.json"),
    ("evaluate nowhere", "there is nothing at nowhere"),
    ("finetune mine:Env?n=2", "begin with `voidrl pretrain 'mine:Env?n=2'`"),
    ("pretrain mine.py:Env", "expected 'module:name', here mine:Env"),
    ("evaluate . --episodes 0", "episodes must be a positive whole number"),
    ("list nonsense", "unknown kind 'nonsense'; known: envs, experiments"),
    ("status --intervall 3", "did you mean '--interval'?"),
]


@pytest.mark.parametrize(("words", "sentence"), COMMAND_LINES)
def test_the_command_line_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["resume", "finetune", "status", "report", "experiment"])
@pytest.mark.parametrize("path", ["run/maze.toml", "runs/maz.toml"])  # the first could also be on the Hub
def test_a_misspelled_path_suggests_one_that_is_there(tmp_path, monkeypatch, capsys, command, path):
    monkeypatch.chdir(tmp_path)
    Path("runs/maze.toml").mkdir(parents=True)
    assert cli.main([command, path]) == 2
    assert "did you mean runs/maze.toml?" in capsys.readouterr().err


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / "run"
    voidrl.pretrain(make_continuous, steps=9, out=path, config=tiny())
    return path


@pytest.mark.parametrize("text", ["{", "[]", '{"steps": -4}'])
def test_a_damaged_config_is_named(tmp_path, capsys, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(errors.VoidrlError):
        voidrl.resume(tmp_path)
    assert cli.main(["resume", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_file_or_a_foreign_folder_is_not_taken_for_a_run(tmp_path):
    file = tmp_path / "thesis.tex"
    file.write_text("mine")
    refused = [
        (tmp_path, "not empty and holds no voidrl run"),
        (file, "is a file"),
        (file / "run", "cannot make the run folder"),
    ]
    for overwrite in (False, True):
        for out, sentence in refused:
            with pytest.raises(errors.RunFolderError, match=sentence):
                voidrl.pretrain(Walk, steps=9, out=out, config=tiny(), overwrite=overwrite)
    with pytest.raises(errors.EnvironmentFailedError, match=r"when it was created$"):
        voidrl.pretrain(Broken, steps=9, out=tmp_path, config=tiny())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


OTHER_SPACES = [
    (f"{MAZE}&continuous=true", "vector 3, 2-d continuous actions and .* pixels 3×36×36, 2-d continuous"),
    ("tiny_runs:Walk", "2-d continuous actions and .* 3 actions"),
    (lambda: Halved(), r"action_low \(-2.0, -2.0\).* against action_low \(-1.0, -1.0\)"),
]


class Halved(Walk):
    def __init__(self):
        super().__init__(continuous=True)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(("env", "sentence"), OTHER_SPACES)
def test_other_spaces_are_refused_with_both_sides(tmp_path, run, env, sentence):
    with pytest.raises(errors.SpaceError, match=sentence):
        voidrl.finetune(run, env, steps=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(errors.SpaceError, match="expected the same spaces on both sides"):
        voidrl.resume(run, steps=20, env=Walk)


def test_a_random_agent_cannot_be_fine_tuned(tmp_path):
    agent = voidrl.pretrain(Walk, "random", steps=9, out=tmp_path / "random", config=tiny())
    says = r"'random' cannot be fine-tuned, it learned nothing.*voidrl train"
    with pytest.raises(errors.ConfigError, match=says):
        voidrl.finetune(agent, steps=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("env", [Broken, BrokenLater])  # in the probe, and after it
def test_an_environment_that_cannot_be_built_is_named_with_its_line(tmp_path, monkeypatch, env):
    monkeypatch.setattr(BrokenLater, "created", 0)
    what = r"raised OSError\('no .*simulator here'\) in \S*test_bad_input.py:\d+ when it was created$"
    with pytest.raises(errors.EnvironmentFailedError, match=what):
        voidrl.pretrain(env, steps=9, out=tmp_path / "run", config=tiny())
    assert not (tmp_path / "run").exists()


def test_a_failing_run_exits_with_2_and_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["tiny_runs:Fickle?how=raise&at=3", "--steps", "9", "--out", "run", "--log.tensorboard", "False"]
    assert cli.main(["train", *words, "--env.num-envs", "1"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("voidrl: environment 0 ('tiny_runs:Fickle?how=raise&at=3') raised RuntimeError")
    assert "at step 2 of the run; no checkpoint was written yet" in said
    assert said.endswith("the traceback is in run/log.txt")
    log = Path("run/log.txt").read_text()
    assert "tiny_runs.py" in log[log.index("Traceback") :]
    last = [line for line in log.splitlines() if not line.startswith(" ")][-1]
    assert last.partition(" ")[2].startswith("failed: environment 0")  # what a report tells of the run
