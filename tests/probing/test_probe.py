"""Probes of agents on labelled play, the command, and probes while a run trains."""

import json

import numpy as np
import pytest
import torch
from helpers import make_agent
from tiny_runs import MAZE, Walk, assert_same_run, newest, tiny

import voidrl
from voidrl.cli.main import main
from voidrl.errors import NonFiniteError
from voidrl.probing import probe as probing
from voidrl.probing.play import collect
from voidrl.probing.probe import RunProbe, probe_play
from voidrl.probing.result import heading, notes
from voidrl.report.page import write_report
from voidrl.runs.metrics import read_metrics
from voidrl.training.build import layers_for, probe

PROBED = {"log__probe_every_steps": 10}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe") / "run"
    voidrl.pretrain(MAZE, steps=24, out=folder, config=tiny())
    return folder


@pytest.fixture(scope="module")
def walk():
    probed = probe(Walk, layers_for(Walk, "pretrain"))
    return collect(probed.env, 240, ["random", "sticky"], num_envs=8, factory=probed.factory)


def walker(walk):
    return make_agent(walk.replay.spec, method={"name": "apt"}, representation={"name": "identity"})


def test_the_command_prints_a_table_and_writes_it_into_the_run(run, capsys, tmp_path):
    assert main(["probe", str(run), "--steps", "300", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    saved = json.loads((run / "probe.json").read_text())
    assert [each["name"] for each in saved["variables"]] == ["x", "y"]
    assert {"z", "convolutions", "learner", "pixels", "random"} == set(saved["variables"][0]["scores"])
    assert saved["variables"][0]["scores"]["pixels"] > 0.9  # the player can be seen
    assert saved["agent"]["steps"] == 24
    for word in ("x *", "pixels", "random f", "mean of all", "probe.json"):
        assert word in text
    again = voidrl.probe(run, steps=300, device="cpu")
    assert again.to_json()["variables"] == saved["variables"]  # the same seed
    write_report([run], tmp_path / "report.html", media=False, say=lambda text: None)
    report = (tmp_path / "report.html").read_text()
    assert 'id="probes"' in report
    assert "random f" in report


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "90"], "90 steps are too few for a probe"),
        (["--policy", "best"], "invalid choice"),
        (["--num-envs", "2"], "3 policies cannot play in 2 environments"),
        (["--num-envs", "1000000000"], "num_envs = 1000000000 cannot be used: expected 1 to 8192"),
        (["--steps", "1000000000000"], "or fewer, whose frames fit into memory"),
    ],
)
def test_bad_input_is_answered_by_one_sentence(run, capsys, arguments, sentence):
    given = [] if arguments[0] == "--steps" else ["--steps", "100"]
    assert main(["probe", str(run), "--device", "cpu", *given, *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_result_on_vectors_leaves_the_agent_as_it_is(walk):
    """The observation is the true state."""
    agent, state = walker(walk), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in agent.tensors().items()}
    result = probe_play(agent, walk)
    assert [v.name for v in result.variables] == [v.name for v in walk.variables]
    assert result.metrics()["probe/controllable"] == result.mean_score("z") > 0.4
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["means"]["all"]["z"] > 0.4
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.tensors().items())


def test_probes_in_training_change_nothing_and_survive_a_resume(tmp_path):
    """Bit for bit the same weights, replay and random numbers; a resumed run probes on the same play."""
    voidrl.pretrain(MAZE, steps=30, out=tmp_path / "plain", config=tiny())
    voidrl.pretrain(MAZE, steps=30, out=tmp_path / "probed", config=tiny(**PROBED))
    plain, probed = newest(tmp_path / "plain")[0], newest(tmp_path / "probed")[0]
    assert plain.keys() == probed.keys()
    assert all(torch.equal(tensor, probed[name]) for name, tensor in plain.items())
    voidrl.pretrain(MAZE, steps=20, out=tmp_path / "resumed", config=tiny(**PROBED))
    voidrl.resume(tmp_path / "resumed", steps=30)
    assert_same_run(tmp_path / "probed", tmp_path / "resumed")
    rows = [row for row in read_metrics(tmp_path / "probed") if "probe/variables" in row]
    assert [row["step"] for row in rows] == [10, 20, 30]


def test_the_play_of_a_run_follows_from_its_seed(walk):
    one, other = RunProbe(walker(walk), Walk).play, RunProbe(walker(walk), Walk).play
    assert np.array_equal(one.state, other.state)
    assert torch.equal(one.replay.action, other.replay.action)


def test_probed_steps_of_long_play_come_from_all_environments(walk, monkeypatch):
    monkeypatch.setattr(probing, "MAX_PROBED_STEPS", len(walk) // 4)
    split, _ = probing._split(walk, seed=0)
    rows = np.concatenate([split.fit, split.validation, split.test])
    assert len(rows) <= len(walk) // 4 + 3
    assert {*walk.episode[rows]} == {*walk.episode}
    assert not {*walk.episode[split.train]} & {*walk.episode[split.test]}


def test_a_diverged_agent_is_refused(walk):
    agent = make_agent(walk.replay.spec, method={"name": "apt"}, representation={"name": "icm"})
    with torch.no_grad():
        next(agent.representation.encoder.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="training has diverged"):
        probe_play(agent, walk)


def test_sentences_name_what_there_is(walk):
    saved = probe_play(walker(walk), walk).to_json()
    assert "pixels" not in " ".join(notes(saved))
    assert "apt on identity after" in heading(saved)
    nothing = {**saved, "variables": [], "constant": [], "task_reward": None}
    assert "return numbers by name as info['variables']" in notes(nothing)[0]
