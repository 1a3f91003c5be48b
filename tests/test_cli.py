"""The command line: every field, the right config, the right exit code."""

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from pseudo_terminals import PseudoTerminal, widest
from tiny_runs import MAZE, QUICK, Walk, newest, rows, tiny

import voidrl
from voidrl import __version__
from voidrl.cli import main as cli
from voidrl.cli.options import config_options, read_as
from voidrl.cli.training import DEFAULT_ENV, read_request
from voidrl.errors import RunFolderError
from voidrl.report.read import read_all
from voidrl.runs.evaluations import final_evaluation


def run(*words):
    return cli.main([str(word) for word in words])


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_at_most_15_commands_whose_help_is_one_screen(monkeypatch, plain_terminal):
    assert len(cli.COMMANDS) <= 15
    for name, command in cli.COMMANDS.items():
        with PseudoTerminal(100) as terminal, monkeypatch.context() as patch, suppress(SystemExit):
            patch.setattr(sys, "stdout", terminal.stream)
            command(["--help"])
        lines = terminal.lines()
        assert len(lines) <= 40, name
        assert widest(lines) <= 100, name


def test_overview_and_version(capsys):
    assert run() == run("--help") == run("-h") == 0
    said = capsys.readouterr().out
    assert all(f"  {command} " in said for command in cli.COMMANDS)
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def test_a_run_through_all_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    walk = ("pretrain", "tiny_runs:Walk", "--out", "a", *QUICK)
    assert run(*walk, "--steps", "12") == 0
    config = config_of(tmp_path / "a")
    assert (config["learner"]["batch_size"], config["learner"]["encoder"]["feature_dim"]) == (8, 4)
    assert (config["steps"], config["warmup_steps"], config["log"]["tensorboard"]) == (12, 8, False)
    names = config["phase"], config["env"]["id"], config["method"]["name"]
    assert names == ("pretrain", "tiny_runs:Walk", "apt")
    words = ["--steps=10", "--finetune.noise", "restart", "--seed", "5", "--env", "tiny_runs:Walk?length=4"]
    assert run("finetune", "a", "--out", "b", *words) == 0
    config = config_of(tmp_path / "b")
    assert (config["phase"], config["steps"], config["seed"]) == ("finetune", 10, 5)
    assert (config["env"]["id"], config["finetune"]["noise"]) == ("tiny_runs:Walk?length=4", "restart")
    assert config["learner"]["batch_size"] == 8
    assert run("train", "tiny_runs:Walk", "--steps", "10", "--out", "c", *QUICK) == 0
    assert config_of(tmp_path / "c")["phase"] == "train"
    assert run("resume", "c", "--steps", "0.012k") == 0
    assert newest(tmp_path / "c")[1]["steps"] == config_of(tmp_path / "c")["steps"] == 12
    capsys.readouterr()
    assert run("evaluate", "b", "--episodes", "3", "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert "over 3 episodes" in said
    assert "length   4.0" in said
    noisy = ("--stochastic", "--epsilon", "0.1")
    assert run("evaluate", "b", "--episodes", "2", "--json", *noisy, "--env", "tiny_runs:Walk") == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == [6, 6]
    assert run(*walk, "--steps", "9") == 2
    assert run(*walk, "--steps", "9", "--overwrite", "--method", "random") == 0
    assert config_of(tmp_path / "a")["method"]["name"] == "random"


@pytest.fixture
def started(monkeypatch):
    """The config with which a command would have started its run."""
    from voidrl import api

    seen = []
    for name in ("pretrain", "train"):
        monkeypatch.setattr(api, name, lambda env, *, config, **rest: seen.append(config))
    return seen


def test_pieces_and_presets_are_switched_and_their_own_fields_follow(started):
    walk = ["pretrain", "tiny_runs:Walk?continuous=true"]
    assert (
        run(*walk, "--learner", "ddpg", "--method", "apt", "--method.k", 3, "--representation", "fixed") == 0
    )
    config = started.pop()
    assert (config.learner.name, config.method.name, config.representation.name) == ("ddpg", "apt", "fixed")
    assert config.method.k == 3
    assert run("train", MAZE, "--preset", "atari-paper", "--learner.n-step", "3") == 0
    config = started.pop()
    assert (config.learner.n_step, config.env.frame_stack, config.learner.adam_eps) == (3, 4, 1.5e-4)
    words = ["--method", "tiny_runs:Skilled", "--learner.log-std-min", "-5", "--updates_per_step=.25"]
    assert run(*walk, *words) == 0
    config = started.pop()
    assert (config.method.name, config.updates_per_step) == ("tiny_runs:Skilled", 0.25)
    assert config.learner.log_std_min == -5


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_every_field_is_an_option_with_help(capsys, command):
    given = [] if command == "finetune" else ["--preset", "atari-paper", "--learner.n-step", "7"]
    assert run(command, *given, "--help-all") == 0
    said = capsys.readouterr().out
    options = dict(config_options(read_request("train", [DEFAULT_ENV]).config))
    assert len(options) > 60
    lines = [line.split(maxsplit=2) for line in said.splitlines()]
    for name, option in options.items():
        (found,) = [words for words in lines if words and words[0] == name]
        assert option.doc in found[2], f"{name} has no help text"
    assert "--overwrite" in said
    (noise,) = (line for line in said.splitlines() if "--finetune.noise" in line)
    assert noise.endswith("One of auto, end, restart.")
    if given:
        assert any(words[:2] == ["--learner.n-step", "7"] for words in lines)
        assert any(words[:2] == ["--learner.adam-eps", "0.00015"] for words in lines)
    assert not any(f"--{hidden} " in said for hidden in ("phase", "env.id", "method.name"))


def test_help_is_short_and_names_the_rest(capsys):
    for command, rare in (("pretrain", "--callback"), ("experiment", "--no-report")):
        for option, shown in (("--help", False), ("--help-all", True)):
            with suppress(SystemExit):
                run(command, option)
            said = capsys.readouterr().out
            assert (f"  {rare}" in said) == shown
            assert ("--help-all" in said) != shown


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_one_sentence(monkeypatch, capsys, error):
    def fail(words):
        raise error

    monkeypatch.setitem(cli.COMMANDS, "list", fail)
    assert run("list") == 2
    assert re.fullmatch(r"voidrl: out of memory \(.+\): lower sizes such as .*\n", capsys.readouterr().err)
    error.args = ("another error",)
    if isinstance(error, RuntimeError):
        with pytest.raises(RuntimeError, match="another error"):
            run("list")


def test_true_and_false_are_flags():
    assert not read_request("train", [DEFAULT_ENV, "--log.tensorboard", "false"]).config.log.tensorboard
    config = read_request("train", [DEFAULT_ENV, "--log.tensorboard", "--steps", "5"]).config
    assert (config.log.tensorboard, config.steps) == (True, 5)


def test_remedies_are_in_the_language_of_the_caller(tmp_path, capsys):
    voidrl.pretrain("tiny_runs:Walk", "random", steps=3, out=tmp_path / "run", config=tiny())
    with pytest.raises(RunFolderError, match=r"voidrl\.resume\(.*overwrite=True"):
        voidrl.pretrain("tiny_runs:Walk", "random", steps=3, out=tmp_path / "run", config=tiny())
    capsys.readouterr()
    assert run("pretrain", "tiny_runs:Walk", "--out", str(tmp_path / "run")) == 2
    assert re.search(r"`voidrl resume .*--overwrite", capsys.readouterr().err)


def test_modules_beside_the_caller_are_found_by_the_installed_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "beside.py").write_text("from tiny_runs import Walk\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as of a script in bin/
    assert run("pretrain", "beside:Walk", "--stepz", "3") == 2
    assert "unknown option '--stepz'" in capsys.readouterr().err  # and not an environment that is not found
    monkeypatch.delitem(sys.modules, "beside")


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1M", int, 1_000_000),
        ("0", int, 0),
        ("-3", int, -3),
        ("1.5", int, "1.5"),  # refused later, with the field's name
        ("1e-3", float, 1e-3),
        ("none", float | None, None),
        ("None", str | None, None),
        ("true", bool, True),
        ("1", bool, "1"),
        ("front", int | str, "front"),
        ("2", int | str, 2),
        ("100k,2M", tuple[int, ...], (100_000, 2_000_000)),
        ("[learner, method]", tuple[str, ...], ("learner", "method")),
        ("[]", tuple[str, ...], ()),
    ],
)
def test_texts_are_read_as_the_type_of_their_field(text, hint, value):
    found = read_as(text, hint)
    assert found == value
    assert type(found) is type(value)


def test_a_fine_tuned_agent_keeps_its_method(capsys):
    assert cli.main(["finetune", "runs/none", "--method", "rnd"]) == 2
    assert "a fine-tuned agent keeps the method of its pre-training" in capsys.readouterr().err


def test_an_evaluation_is_written_into_the_run_and_shown_by_its_report(tmp_path, capsys):
    out = tmp_path / "run"
    voidrl.train(Walk, steps=9, out=out, config=tiny())
    path = out / "evaluation.json"
    result = voidrl.evaluate(out, episodes=2)
    assert json.loads(path.read_text())["returns"] == result.returns
    assert run("evaluate", out, "--episodes", 3) == 0
    assert f"written to {path}" in capsys.readouterr().out
    assert len(final_evaluation(out, 9)["returns"]) == 3
    (found,) = read_all([out], lambda text: None).runs
    assert found.evaluation["settings"]["episodes"] == 3
    assert run("evaluate", out, "--episodes", 1, "--env", "tiny_runs:Walk?length=4") == 0
    assert "evaluation.json was not written" in capsys.readouterr().err
    assert run("evaluate", out, "--num-envs", 10**9) == 2
    assert "num_envs = 1000000000 cannot be used: expected 1 to 8192" in capsys.readouterr().err
    voidrl.evaluate(voidrl.load(out), episodes=5)
    assert len(final_evaluation(out, 9)["returns"]) == 3
    experiments = {k: v for k, v in json.loads(path.read_text()).items() if k != "by"}
    path.write_text(json.dumps(experiments))
    voidrl.evaluate(out, episodes=5)
    assert json.loads(path.read_text()) == experiments  # an experiment's evaluation is kept


def test_what_ranks_would_repeat_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert cli.main(["evaluate", "runs/maze"]) == 2
    sentence = "`voidrl evaluate` cannot be started by torchrun with WORLD_SIZE = 4: start it alone"
    assert sentence in capsys.readouterr().err


class Leaving(Walk):
    """Leaves the working folder when it is made, and with every reset and step."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self):
        os.chdir("/")
        super().__init__()

    def reset(self, **kwargs):
        os.chdir("/")
        return super().reset(**kwargs)

    def step(self, action):
        os.chdir("/usr")
        return super().step(action)

    def render(self):
        return np.zeros((64, 64, 3), np.uint8)


def test_an_environment_that_leaves_the_folder_loses_no_output(tmp_path, monkeypatch, capsys):
    """Relative paths are read and written where the command was given."""
    monkeypatch.chdir(tmp_path)
    voidrl.train(Leaving, steps=9, out="run", config=tiny())
    assert Path.cwd() == tmp_path
    assert not Path("/usr/run").exists()  # the run is not split
    assert newest(Path("run"))[1]["steps"] == rows(Path("run"))[-1]["step"] == 9
    assert run("evaluate", "run", "--episodes", 1) == 0
    assert Path("run/evaluation.json").is_file()
    assert run("evaluate", "run", "--episodes", 1, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["agent"]["steps"] == 9
    assert run("evaluate", "run", "--video", "play.mp4") == 0
    assert Path("play.mp4").is_file()
    assert run("probe", "run", "--steps", 200) == 0
    assert Path("run/probe.json").is_file()
    assert run("resume", "run", "--steps", 20) == 0
    assert Path.cwd() == tmp_path
