"""`voidrl config`: what a command would do, and where each value comes from."""

import json

import pytest
from tiny_runs import MAZE, Walk, tiny

import voidrl
from voidrl.cli import main as cli


def resolved(capsys, *words):
    assert cli.main(["config", *map(str, words), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    values = {field: entry["value"] for field, entry in found.items()}
    return values, {field: entry["source"] for field, entry in found.items()}


WALKER = ("pretrain", "dmc/walker", "--preset", "urlb-states")  # the default where there is a GPU


def test_what_cannot_work_is_refused_here_already(capsys):
    pytest.importorskip("dm_control")
    assert cli.main(["config", *WALKER, "--method", "icm", "--encoder-trainers", "method"]) == 2
    assert "its losses do not reach the encoder" in capsys.readouterr().err


def test_where_values_come_from(capsys):
    pytest.importorskip("dm_control")
    values, sources = resolved(capsys, *WALKER, "--seed", 3, "--env.dmc.action-repeat", 0)
    expected = {
        "seed": "command",
        "env.id": "command",
        "env.num_envs": "preset urlb-states",
        "method.name": "default",
        "method.k": "recipe apt",
        "representation.name": "recipe apt",
        "representation.encoder.feature_dim": "preset urlb-states",
        "learner.adam_eps": "default",
        "env.dmc.action_repeat": "environment",
    }
    assert {field: sources[field] for field in expected} == expected
    assert values["steps"] == 2_000_000
    values, sources = resolved(capsys, "pretrain", "tiny_runs:Walk")
    assert (values["learner.name"], sources["learner.name"]) == ("dqn", "environment")
    assert (values["learner.encoder.stack"], sources["learner.encoder.stack"]) == ("mlp", "environment")
    assert sources["learner.encoder.hidden_dim"] == "environment"
    assert (values["representation.name"], sources["representation.name"]) == ("identity", "method apt")
    values, sources = resolved(capsys, "train", MAZE, "--preset", "atari-paper")
    assert (values["phase"], values["steps"], values["learner.learning_rate"]) == ("train", 100_000, 1e-3)
    assert sources["phase"] == "command"
    assert sources["steps"] == sources["learner.learning_rate"] == "preset atari-paper"


def test_a_run_starts_with_what_config_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["tiny_runs:Walk", "--steps", "9", "--log.tensorboard", "false", "--learner.batch-size", "8"]
    for command in ("pretrain", "train"):
        values, _ = resolved(capsys, command, *words)
        assert not [path for path in tmp_path.iterdir() if path.name not in ("pretrain", "train")]
        assert cli.main([command, *words, "--out", command]) == 0
        capsys.readouterr()
        from voidrl.config import flat

        assert flat(json.loads((tmp_path / command / "config.json").read_text())) == values


def test_fine_tuning_shows_the_values_of_the_pre_trained_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    voidrl.pretrain(Walk, steps=9, out="run", config=tiny(finetune__steps=12, learner__n_step=2))
    before = sorted(tmp_path.rglob("*"))
    values, sources = resolved(
        capsys, "finetune", "run", "--finetune.heads", "random", "--env", "tiny_runs:Walk?length=4"
    )
    assert sorted(tmp_path.rglob("*")) == before
    assert (values["phase"], values["steps"], values["learner.n_step"]) == ("finetune", 12, 2)
    assert sources["learner.n_step"] == "pre-trained run"
    assert (values["finetune.heads"], sources["finetune.heads"]) == ("random", "command")
    assert (values["env.id"], sources["env.id"]) == ("tiny_runs:Walk?length=4", "command")


def test_tables_fold_defaults_away(capsys):
    assert cli.main(["config", "pretrain", "tiny_runs:Walk", "--learner.n-step", "2"]) == 0
    short = capsys.readouterr().out
    assert ["learner.n_step", "2", "command"] in [line.split() for line in short.splitlines()]
    assert ["method.name", "apt", "default"] in [line.split() for line in short.splitlines()]
    assert "target_every_updates" not in short
    assert short.rstrip().endswith("defaults; --all shows them")
    assert cli.main(["config", "pretrain", "tiny_runs:Walk", "--all"]) == 0
    whole = capsys.readouterr().out
    assert ["learner.target_every_updates", "1", "default"] in [line.split() for line in whole.splitlines()]
    assert "--all shows them" not in whole
