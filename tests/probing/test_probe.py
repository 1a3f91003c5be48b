"""Probes of agents on labelled play, the command, and probes while a run trains."""

import json

import numpy as np
import pytest
import torch
from helpers import make_agent, small_method
from tiny_runs import MAZE, Walk, assert_same_run, newest, tiny

import voidrl
from voidrl.cli.main import main
from voidrl.errors import NonFiniteError
from voidrl.methods import ngu
from voidrl.methods.base import Method
from voidrl.probing import probe as probing
from voidrl.probing.play import collect
from voidrl.probing.probe import intrinsic_rewards, probe_play
from voidrl.probing.run import RunProbe
from voidrl.probing.sentences import heading, lines, variable_notes
from voidrl.report.page import write_report
from voidrl.runs.metrics import read_metrics

PROBED = {"log__probe_every_steps": 10}


class Place(Method):
    """Pays for the first coordinate of s', the same in every batch."""

    def reward(self, batch, latents):
        return latents.z_next[:, 0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe") / "run"
    voidrl.pretrain(MAZE, steps=24, out=folder, config=tiny())
    return folder


@pytest.fixture(scope="module")
def walk():
    return collect(Walk, 240, "mixed", 0)


def walker(walk, method, **changes):
    return make_agent(walk.spec, method={"name": method}, representation={"name": "identity"}, **changes)


def test_the_command_prints_a_table_and_writes_it_into_the_run(run, capsys, tmp_path):
    assert main(["probe", str(run), "--steps", "300", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    saved = json.loads((run / "probe.json").read_text())
    assert [each["name"] for each in saved["variables"]] == ["x", "y"]
    assert {"z", "convolutions", "learner", "pixels", "random"} == set(saved["variables"][0]["scores"])
    assert saved["variables"][0]["scores"]["pixels"] > 0.9  # the player can be seen
    assert saved["agent"]["steps"] == 24
    for word in ("x *", "pixels", "survival share", "noise", "probe.json"):
        assert word in text
    again = voidrl.probe(run, steps=300, device="cpu")
    assert again.to_json()["variables"] == saved["variables"]  # the same seed
    write_report([run], tmp_path / "report.md", say=lambda text: None)
    report = (tmp_path / "report.md").read_text()
    assert "## Probes" in report
    assert "survival share" in report


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "90"], "90 steps are too few for a probe"),
        (["--steps", "many"], "positive whole number"),
        (["--policy", "best"], "invalid choice"),
        (["--variables", "x,ghost"], "ghost"),
        (["--num-envs", "2"], "3 policies cannot play in 2 environments"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_bad_input_is_answered_by_one_sentence(run, capsys, arguments, sentence):
    given = [] if arguments[0] == "--steps" else ["--steps", "100"]
    assert main(["probe", str(run), "--device", "cpu", *given, *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_result_on_vectors(walk):
    """The observation is the true state; a reward for one coordinate of it has no noise."""
    agent = walker(walk, f"{__name__}:Place")
    result = probe_play(agent, walk)
    assert [v.name for v in result.variables] == [v.name for v in walk.variables]
    reward = result.reward
    assert reward.noise == 0
    assert result.metrics()["probe/reward_noise"] == 0
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["reward"]["noise"] == 0


def test_the_reward_of_each_step_is_that_of_the_method(walk):
    agent = walker(walk, f"{__name__}:Place")
    obs = walk.observations(np.arange(len(walk)))
    found = intrinsic_rewards(agent, walk, obs, np.arange(len(walk)), np.arange(len(walk)))
    np.testing.assert_allclose(found, np.tile(obs[:, 0].numpy(), (4, 1)))


def test_episodes_and_options_are_those_of_the_play(walk, monkeypatch):
    n = len(walk)
    before, after = walk.observations(np.arange(n), before=True), walk.observations(np.arange(n))
    states = torch.cat([before, after]), np.arange(n), n + np.arange(n)
    last = [
        walk.episode_step[i] == walk.episode_step[walk.episode == walk.episode[i]].max() for i in range(n)
    ]
    agent = make_agent(walk.spec, method=small_method("vic"))
    ends = intrinsic_rewards(agent, walk, *states, repeats=1)[0]
    assert ((ends != 0) == last).all()
    monkeypatch.setattr(ngu, "MAX_SCALE", 1.0)
    monkeypatch.setattr(ngu, "CLUSTER_DISTANCE", 1e9)  # everything is near
    monkeypatch.setattr(ngu, "NEIGHBORS", 3)
    agent = make_agent(walk.spec, method=small_method("ngu"))
    found = intrinsic_rewards(agent, walk, *states, repeats=1)[0]
    remembered = np.minimum(walk.episode_step + 1, 3)
    np.testing.assert_allclose(found, 1 / (np.sqrt(remembered) + 1e-3), rtol=1e-5)


def test_rewards_among_other_states_are_noisy_and_leave_the_agent_as_it_is(walk):
    agent = walker(walk, "apt")
    before = {name: tensor.clone() for name, tensor in agent.tensors().items()}
    state = torch.get_rng_state()
    found = probe_play(agent, walk).reward
    assert 0 < found.noise < 10
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.tensors().items())


@pytest.mark.parametrize("method", ["rnd", "icm", "ngu", "vic", "random", "tiny_runs:Skilled"])
def test_methods_of_every_kind(walk, method):
    options = small_method(method) if ":" not in method else {"name": method}
    result = probe_play(make_agent(walk.spec, method=options), walk, spaces=("z",), variables=["cell"])
    assert (result.reward is None) == (method == "random")
    assert (method in result.reward_note) == (method == "random")


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
    assert {"probe/controllable", "probe/rarity_correlation"} <= set(rows[0])


def test_the_play_of_a_run_follows_from_its_seed(walk):
    agent = walker(walk, "apt")
    one, other = RunProbe(agent, Walk).play, RunProbe(agent, Walk).play
    assert np.array_equal(one.state, other.state)
    assert np.array_equal(one.action, other.action)


def test_probed_steps_of_long_play_come_from_all_environments(walk, monkeypatch):
    monkeypatch.setattr(probing, "MAX_PROBED_STEPS", len(walk) // 4)
    split, _ = probing._split(walk, seed=0)
    rows = np.concatenate([split.fit, split.validation, split.test])
    assert len(rows) <= len(walk) // 4 + 6  # rounded up, in two parts of each policy
    assert {*walk.episode[rows]} == {*walk.episode}
    assert not {*walk.episode[split.train]} & {*walk.episode[split.test]}


def test_noise_takes_two_batches_and_a_reward_of_noise_alone_is_said(walk):
    agent = walker(walk, "apt", learner={"batch_size": len(walk) // 2 + 1})
    saved = probe_play(agent, walk).to_json()
    assert saved["reward"]["noise"] is None
    noise = lines(saved)[-1]
    assert (noise.value, "steps or more" in noise.meaning) == ("–", True)
    saved["reward"]["batch_size"] = 2
    assert lines(saved)[-1].value == "∞"


def test_a_diverged_agent_is_refused(walk):
    agent = make_agent(walk.spec, method={"name": "apt"}, representation={"name": "icm"})
    with torch.no_grad():
        next(agent.representation.encoder.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="training has diverged"):
        probe_play(agent, walk)


def test_sentences_name_what_there_is(walk):
    saved = probe_play(walker(walk, "apt"), walk, settings={"env": "other"}).to_json()
    assert "pixels" not in " ".join(variable_notes(saved))
    assert "play in other," in heading(saved)
    nothing = {**saved, "variables": [], "constant": []}
    assert "return numbers by name as info['variables']" in variable_notes(nothing)[0]
    saved["agent"]["phase"] = "train"
    assert " from scratch on identity after" in heading(saved)
