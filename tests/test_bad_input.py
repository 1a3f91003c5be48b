"""What a user can get wrong: one sentence each, the right class, exit code 2, and nothing left on disk."""

import re
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
from voidrl.methods.base import Method


class Spaced(gym.Env):
    def __init__(self, observation=None, action=None):
        self.observation_space = observation or spaces.Box(-1, 1, (3,))
        self.action_space = action or spaces.Discrete(2)


class Wide(Method):
    """Rewards of a wrong shape."""

    def reward(self, batch, latents):
        return batch.reward[:, None]


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


# what is called, the class of the error, and what the sentence must hold
CALLS = {
    "unknown environment": (
        "CartPole-v7x",
        {},
        errors.UnknownNameError,
        "'CartPole-v7x'.*did you mean 'CartPole-v1'",
    ),
    "unknown maze": (
        "voidrl/PixelMaze-v1",
        {},
        errors.UnknownNameError,
        "did you mean 'voidrl/PixelMaze-v0'",
    ),
    "unknown option of an environment": (
        "voidrl/PixelMaze-v0?sise=5",
        {},
        errors.ConfigError,
        "cannot be made.*sise",
    ),
    "bad option of an environment": ("voidrl/PixelMaze-v0?size=4", {}, errors.ConfigError, "size=4; pass"),
    "no module": ("nowhere:make", {}, errors.ConfigError, "'nowhere:make' cannot be imported"),
    "no name in module": ("tiny_runs:nothing", {}, errors.ConfigError, "cannot be imported .*nothing"),
    "an instance": (Walk(), {}, errors.ConfigError, "expected an id or a function"),
    "no environment": (lambda: 3, {}, errors.ConfigError, "returned int: expected a gymnasium.Env"),
    "text": (
        spaced(observation=spaces.Dict({"a": spaces.Text(2)})),
        {},
        errors.SpaceError,
        r"Dict\('a'.* is not supported",
    ),
    "dict actions": (
        spaced(action=spaces.Dict({"a": spaces.Discrete(2)})),
        {},
        errors.SpaceError,
        r"Dict\('a': Discrete\(2\)\) is not supported",
    ),
    "unknown key": (
        spaced(observation=spaces.Dict({"image": spaces.Discrete(2)})),
        {"config": {"env.keys": ["imag"]}},
        errors.ConfigError,
        "did you mean 'image'",
    ),
    "no masks": (
        spaced(action=spaces.Discrete(2)),
        {"config": {"env.action_masks": "method"}},
        errors.ConfigError,
        "env.action_masks = 'method' cannot be used",
    ),
    "no wrapper": (
        Walk,
        {"config": {"env.wrappers": ["gymnasium.wrappers:TimeLimits"]}},
        errors.ConfigError,
        "wrapper 'gymnasium.wrappers:TimeLimits' cannot be imported",
    ),
    "unbounded actions": (
        spaced(action=spaces.Box(-np.inf, np.inf, (2,))),
        {},
        errors.SpaceError,
        "finite bounds",
    ),
    "unknown method": (
        Walk,
        {"method": "atp"},
        errors.UnknownNameError,
        "unknown method 'atp'; did you mean 'apt'",
    ),
    "unknown learner": (
        Walk,
        {"config": {"learner": "dqm"}},
        errors.UnknownNameError,
        "learner 'dqm'; did you mean 'dqn'",
    ),
    "unknown representation": (
        Walk,
        {"config": {"representation.name": "simclear"}},
        errors.UnknownNameError,
        "'simclr'",
    ),
    "unknown preset": (
        Walk,
        {"preset": "maze-demi"},
        errors.UnknownNameError,
        "preset 'maze-demi'; did you mean 'maze-demo'",
    ),
    "unknown field": (
        Walk,
        {"config": {"learner.n_steps": 3}},
        errors.UnknownNameError,
        "'learner.n_steps'; did you mean 'learner.n_step'",
    ),
    "unknown field at the top": (
        Walk,
        {"config": {"stepz": 3}},
        errors.UnknownNameError,
        "config field 'stepz'.*'steps'",
    ),
    "unknown field of env": (
        Walk,
        {"config": {"env.n_envs": 3}},
        errors.UnknownNameError,
        "'env.n_envs'.*'env.num_envs'",
    ),
    "no mapping": (Walk, {"config": "fast"}, errors.ConfigError, "config = 'fast'.*expected a mapping"),
    "env as a word": (Walk, {"config": {"env": "CartPole-v1"}}, errors.ConfigError, "env = 'CartPole-v1'"),
    "piece as a number": (Walk, {"config": {"learner": 3}}, errors.ConfigError, "learner = 3 cannot be used"),
    "auto method": (Walk, {"method": "auto"}, errors.ConfigError, "method"),
    "method that is none": (
        Walk,
        {"method": Walk},
        errors.ConfigError,
        "expected a subclass of voidrl.methods.base.Method",
    ),
    "rewards of a wrong shape": (
        Walk,
        {"method": Wide},
        errors.ConfigError,
        r"rewards of shape \(8, 1\).*expected \(8,\)",
    ),
    "learner for other actions": (
        Walk,
        {"config": {"learner": "sac"}},
        errors.ConfigError,
        "takes continuous actions.*use dqn",
    ),
    "k and batch": (
        Walk,
        {"config": {"method.k": 8}},
        errors.NeighborError,
        r"method\.k = 8 cannot be used with learner\.batch_size = 8: .*k = 7 or less, or .* such as rnd",
    ),
    "k and pool": (
        Walk,
        {"config": {"method.pool": 4, "method.k": 5}},
        errors.NeighborError,
        r"method\.k = 5 cannot be used with method\.pool = 4: .*k = 4 or less, or .* such as rnd",
    ),
    "k of a method with a pool": (
        Walk,
        {"method": "re3", "config": {"method.k": 2000}},
        errors.NeighborError,
        r"method\.k = 2000 cannot be used with method\.pool = 1024: .*k = 1024 or less, or .* such as rnd",
    ),
    **{
        f"no skills for {method}": (
            Walk,
            {"method": method, "config": {"method": {"name": method, **fields}}},
            errors.ConfigError,
            rf"{next(iter(fields))} = 0 cannot be used: expected [12] .*(apt|rnd)",
        )
        for method, fields in {
            "diayn": {"num_skills": 0},
            "smm": {"num_skills": 0},
            "becl": {"num_skills": 0},
            "aps": {"skill_dim": 0},
            "cic": {"skill_dim": 0},
            "moss": {"skill_dim": 0},
            "metra": {"skill_dim": 0, "discrete_skills": True},
        }.items()
    },
    "a skill shorter than a return": (
        Walk,
        {"method": "diayn", "config": {"method.skill_every_steps": 2, "learner.n_step": 3}},
        errors.ConfigError,
        r"method\.skill_every_steps = 2 cannot be used with learner\.n_step = 3: .* use 3 or more",
    ),
    "raw states of images": (
        MAZE,
        {"config": {"representation": "identity"}},
        errors.ConfigError,
        "representation 'identity' cannot be used on pixels .* use simclr, fixed",
    ),
    "negative steps": (
        Walk,
        {"steps": "-5"},
        errors.ConfigError,
        "steps must be a positive whole number.*got '-5'",
    ),
    "half a step": (Walk, {"steps": 1.5}, errors.ConfigError, "whole number"),
    "steps in words": (Walk, {"steps": "many"}, errors.ConfigError, "such as 1M, 100k.*got 'many'"),
    "no steps in config": (Walk, {"steps": None, "config": {"steps": -1}}, errors.ConfigError, "steps = -1"),
    "seed in words": (
        Walk,
        {"seed": "one"},
        errors.ConfigError,
        "seed = 'one' .* a whole number",
    ),
    "negative seed": (Walk, {"seed": -1}, errors.ConfigError, "seed = -1"),
    "text for a number": (
        Walk,
        {"config": {"learner.n_step": "3"}},
        errors.ConfigError,
        "learner.n_step = '3'.*expected a whole number",
    ),
    "a number for a switch": (
        Walk,
        {"config": {"share_encoder": 1}},
        errors.ConfigError,
        "share_encoder = 1.*expected 'nothing' or 'stack'",
    ),
    "one of a few": (
        Walk,
        {"config": {"finetune.noise": "off"}},
        errors.ConfigError,
        "'off'.*'end' or 'restart'",
    ),
    "no environments": (Walk, {"config": {"env.num_envs": 0}}, errors.ConfigError, "num_envs = 0"),
    "native backend": (
        Walk,
        {"config": {"env.backend": "native"}},
        errors.ConfigError,
        "no vectorized version",
    ),
    "unknown device": (
        Walk,
        {"device": "tpu"},
        errors.ConfigError,
        "device = 'tpu'.*expected auto, cpu, cuda",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_the_call_is_refused_and_leaves_nothing(tmp_path, monkeypatch, case):
    env, changes, error, sentence = CALLS[case]
    monkeypatch.chdir(tmp_path)
    arguments = {"steps": 9, "out": "run", **changes}
    arguments["config"] = (
        given if isinstance(given := changes.get("config", {}), str) else {**tiny(), **given}
    )
    with pytest.raises(error, match=f"(?s){sentence}"):
        voidrl.pretrain(env, **arguments)
    assert not [path for path in tmp_path.iterdir() if path.name != "__pycache__"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_cuda_without_cuda(tmp_path, device):
    with pytest.raises(
        errors.ConfigError, match=rf"device = '{device}'.*torch sees no CUDA device here; use auto or cpu"
    ):
        voidrl.pretrain(Walk, steps=9, out=tmp_path / "run", config=tiny(), device=device)
    with pytest.raises(errors.ConfigError, match=r"replay.device = 'cuda'"):
        voidrl.pretrain(Walk, steps=9, out=tmp_path / "run", config=tiny(replay__device="cuda"))
    assert not (tmp_path / "run").exists()


def test_a_replay_that_does_not_fit_says_what_there_is_and_what_to_lower(tmp_path, monkeypatch):
    monkeypatch.setattr("voidrl.replay.make.free_bytes", lambda device: 2**30)
    with pytest.raises(
        errors.ReplayMemoryError, match=r"needs \d+\.\d+ GiB .* 1\.00 GiB free .*lower replay.capacity_steps"
    ):
        voidrl.pretrain(MAZE, steps=9, out=tmp_path / "run", config=tiny(replay__capacity_steps=10**7))
    assert not (tmp_path / "run").exists()


# The command line

COMMAND_LINES = {
    "command": (["pretrian"], "unknown command 'pretrian'; did you mean 'pretrain'"),
    "environment": (["pretrain", "CartPole-v7x"], "did you mean 'CartPole-v1'"),
    "no environment": (["pretrain", "--steps", "3"], "no ENV was given: expected `voidrl pretrain ENV"),
    "no run": (["finetune"], "no RUN was given"),
    "option": (
        ["pretrain", "tiny_runs:Walk", "--stepz", "3"],
        "unknown option '--stepz'; did you mean '--steps'",
    ),
    "option of experiments": (
        ["pretrain", "tiny_runs:Walk", "--set", "learner.n_step=5", "seed=3"],
        "every field of the config is an option, so use `--learner.n-step 5`",
    ),
    "hidden option": (["pretrain", "tiny_runs:Walk", "--phase", "train"], "unknown option '--phase'"),
    "misspelled own option": (["train", "tiny_runs:Walk", "--outt", "x"], "did you mean '--out'"),
    "lr": (["pretrain", "tiny_runs:Walk", "--lr", "1"], "did you mean '--learner.learning-rate' or"),
    "num_envs": (["pretrain", "tiny_runs:Walk", "--num-envs", "4"], "did you mean '--env.num-envs'?"),
    "no own flag": (
        ["pretrain", "tiny_runs:Walk", "--no-overwrite"],
        "did you mean to leave out --overwrite?",
    ),
    "no flag": (["pretrain", "tiny_runs:Walk", "--no-steps"], "unknown option '--no-steps'"),
    "no value": (["pretrain", "tiny_runs:Walk", "--steps"], "option --steps has no value"),
    "no value before another": (
        ["pretrain", "tiny_runs:Walk", "--out", "--overwrite"],
        "option --out has no value",
    ),
    "a value for a flag": (
        ["pretrain", "tiny_runs:Walk", "--overwrite=false"],
        "option --overwrite takes no value, got 'false'",
    ),
    "a stray word": (["pretrain", "tiny_runs:Walk", "fast"], "'fast' was not expected here"),
    "method": (["pretrain", "tiny_runs:Walk", "--method", "atp"], "did you mean 'apt'"),
    "no skills": (
        ["pretrain", "tiny_runs:Walk", "--method", "diayn", "--method.num-skills", "0"],
        "num_skills = 0 cannot be used: expected 2 to 65536, since",
    ),
    "learner": (["pretrain", "tiny_runs:Walk", "--learner", "dqm"], "did you mean 'dqn'"),
    "preset": (["train", "tiny_runs:Walk", "--preset", "maze"], "unknown preset 'maze'"),
    "steps": (["pretrain", "tiny_runs:Walk", "--steps", "many"], "steps = 'many' cannot be used"),
    "no steps": (["train", "tiny_runs:Walk", "--steps", "0"], "steps = 0 cannot be used"),
    "type": (
        ["pretrain", "tiny_runs:Walk", "--learner.n-step", "x"],
        "learner.n_step = 'x' cannot be used: expected a whole number",
    ),
    "choice": (
        ["pretrain", "tiny_runs:Walk", "--finetune.heads", "x"],
        "expected 'auto' or 'pretrained' or 'actor' or 'first_layer' or 'random'",
    ),
    "sign": (["pretrain", "tiny_runs:Walk", "--learner.learning-rate", "-1"], "learning_rate = -1.0"),
    "k": (["pretrain", "tiny_runs:Walk", "--learner.batch-size", "5"], "--method.k 4 or less"),
    "resume nothing": (["resume", "nowhere"], "there is no run at nowhere"),
    "resume no run": (["resume", "."], "is no run: it holds no config.json"),
    "resume unknown option": (
        ["resume", ".", "--stepz", "3"],
        "unknown option '--stepz'; did you mean '--steps'",
    ),
    "evaluate nothing": (["evaluate", "nowhere"], "there is nothing at nowhere"),
    "no episodes": (["evaluate", ".", "--episodes", "0"], "episodes must be a positive whole number"),
    "seed": (["evaluate", ".", "--seed", "x"], "invalid int value: 'x'"),
    "finetune nothing": (["finetune", "nowhere"], "there is nothing at nowhere"),
    "list": (["list", "learner"], "did you mean 'learners'"),
    "list of nothing": (["list", "nonsense"], "unknown kind 'nonsense'; known: agents, envs"),
    "rank": (["pretrain", "tiny_runs:Walk", "--rank", "2"], "did you mean '--ranks'?"),
    "status": (["status", "--intervall", "3"], "did you mean '--interval'?"),
    "count": (["pretrain", "tiny_runs:Walk", "--steps", "3oo"], "a whole number such as 5000, 100k or 2M"),
}


@pytest.mark.parametrize("case", COMMAND_LINES)
def test_the_command_line_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys, case):
    words, sentence = COMMAND_LINES[case]
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert re.search(re.escape(sentence), said.err), said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert not list(tmp_path.iterdir())


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / "run"
    voidrl.pretrain(make_continuous, steps=9, out=path, config=tiny())
    return path


@pytest.mark.parametrize("text", ["{", "[]", '{"steps": -4}', '{"unknown": 1}', '{"steps": NaN}', ""])
def test_a_damaged_config_is_named(tmp_path, capsys, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(errors.VoidrlError):
        voidrl.resume(tmp_path)
    assert cli.main(["resume", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_file_or_a_foreign_folder_is_not_taken_for_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(errors.RunFolderError, match="not empty and holds no voidrl run"):
            voidrl.pretrain(Walk, steps=9, out=tmp_path, config=tiny(), overwrite=overwrite)
        with pytest.raises(errors.RunFolderError, match="is a file"):
            voidrl.pretrain(Walk, steps=9, out=tmp_path / "thesis.tex", config=tiny(), overwrite=overwrite)
        with pytest.raises(errors.RunFolderError, match="cannot make the run folder"):
            voidrl.pretrain(
                Walk, steps=9, out=tmp_path / "thesis.tex" / "run", config=tiny(), overwrite=overwrite
            )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


OTHER_SPACES = {
    "pixels": (
        f"{MAZE}&continuous=true",
        "vector 3, 2-d continuous actions and .* pixels 3×36×36, 2-d continuous",
    ),
    "actions": ("tiny_runs:Walk", "2-d continuous actions and .* 3 actions"),
    "bounds": (lambda: Halved(), r"action_low \(-2.0, -2.0\).* against action_low \(-1.0, -1.0\)"),
}


class Halved(Walk):
    def __init__(self):
        super().__init__(continuous=True)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("case", OTHER_SPACES)
def test_fine_tuning_on_other_spaces_shows_both_sides(tmp_path, run, case):
    env, sentence = OTHER_SPACES[case]
    with pytest.raises(errors.SpaceError, match=sentence):
        voidrl.finetune(run, env, steps=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resuming_on_other_spaces_is_refused(run):
    with pytest.raises(errors.SpaceError, match="expected the same spaces on both sides"):
        voidrl.resume(run, steps=20, env=Walk)


def test_a_random_agent_cannot_be_fine_tuned(tmp_path):
    agent = voidrl.pretrain(Walk, "random", steps=9, out=tmp_path / "random", config=tiny())
    with pytest.raises(
        errors.ConfigError, match=r"'random' cannot be fine-tuned, it learned nothing.*voidrl train"
    ):
        voidrl.finetune(agent, steps=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("out", ["run", None])
@pytest.mark.parametrize("env", [Broken, BrokenLater])  # in the probe, and after it
def test_an_environment_that_cannot_be_built_leaves_its_traceback_alone(tmp_path, monkeypatch, out, env):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(BrokenLater, "created", 0)
    log = f"{out or f'runs/test_bad_input-{env.__name__}_apt_s1'}/log.txt"
    what = r"raised OSError\('no .*simulator here'\) in \S*test_bad_input.py:\d+ when it was created"
    with pytest.raises(errors.EnvironmentFailedError, match=f"{what}; the traceback is in {log}$"):
        voidrl.pretrain(env, steps=9, out=out, seed=1, config=tiny())
    assert 'raise OSError("no' in Path(log).read_text()
    folder = Path(log).parent
    assert {path.name for path in folder.iterdir()} == {"environment.json", "log.txt"}
    voidrl.pretrain(Walk, steps=9, out=folder, config=tiny())  # the folder is free


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_the_command_line_names_the_line_and_the_log(tmp_path, monkeypatch, capsys, backend):
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "test_bad_input:Broken", "--steps", "9", "--out", "run", "--env.backend", backend]
    assert cli.main(["config", *words]) == 2
    assert cli.main([*words, "--help"]) == 2
    assert not list(tmp_path.iterdir())  # neither of them is a run
    capsys.readouterr()
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert re.search(r"raised OSError\('no simulator here'\) in \S*test_bad_input.py:\d+", said)
    assert said.endswith("the traceback is in run/log.txt\n")
    assert 'raise OSError("no simulator here")' in Path("run/log.txt").read_text()


def test_nothing_is_written_into_a_folder_that_holds_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(errors.EnvironmentFailedError, match=r"when it was created$"):
        voidrl.pretrain(Broken, steps=9, out=tmp_path, config=tiny())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_environment_that_cannot_be_built_on_resume(tmp_path):
    voidrl.pretrain(lambda: Walk(), steps=9, out=tmp_path / "own", config=tiny())
    with pytest.raises(errors.EnvironmentFailedError, match=r"when it was created; .* is in .*own/log.txt$"):
        voidrl.resume(tmp_path / "own", steps=20, env=Broken)
    assert 'raise OSError("no simulator here")' in (tmp_path / "own/log.txt").read_text()


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


def test_unknown_arguments_are_answered_with_what_is_meant():
    for function, arguments, sentence in (
        (
            voidrl.resume,
            {"lr": 1e-3},
            r"voidrl.resume 'lr'; did you mean .*config=\{'learner.learning_rate': 0.001\}",
        ),
        (voidrl.evaluate, {"episode": 3}, "voidrl.evaluate 'episode'; did you mean 'episodes'"),
        (voidrl.probe, {"step": 3}, "voidrl.probe 'step'; did you mean 'steps'"),
    ):
        with pytest.raises(errors.UnknownNameError, match=sentence):
            function("nowhere", **arguments)
