"""The pre-trained policy as an explorer of fine-tuning: who acts when, and that a resumed run has it."""

import shutil

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, DISCRETE, fill_replay, make_agent, shake
from tiny_runs import Walk, assert_same_run, copy_as_of, newest, tiny

import voidrl
from voidrl.agent.exploration import STRETCH_STEPS, Explorer
from voidrl.engine.engine import Engine
from voidrl.engine.host_reads import HostReads

FIRST, LAST = 0, 2  # the action that an agent is made to prefer, and the pre-trained one's


def prefer(agent, action):
    """Make an action the greedy one in every state."""
    with torch.no_grad():
        agent.learner.critic.advantage[-1].bias[action] += 1e6


@pytest.fixture
def taken(monkeypatch):
    """The actions of the environment, in order; new agents prefer the first one and never learn."""
    actions = []
    step = Walk.step
    monkeypatch.setattr(Walk, "step", lambda self, action: actions.append(int(action)) or step(self, action))
    monkeypatch.setattr(voidrl.agent.Agent, "update", lambda self, replay, index=0: {})
    return actions


def long_walk():
    return Walk(length=999)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A pre-trained agent that always takes the last action."""
    config = tiny(learner__epsilon_start=0.0, learner__epsilon_end=0.0)
    out = tmp_path_factory.mktemp("source") / "run"
    agent = voidrl.pretrain(long_walk, steps=9, out=out, config=config)
    prefer(agent, LAST)
    return agent


def tune(source, out, taken, steps=40, **tuning):
    """Fine-tune with new heads that prefer the first action; returns the actions taken."""
    taken.clear()
    load = voidrl.agent.Agent.load_pretrained

    def loaded(self, tensors):
        load(self, tensors)
        if self.config.finetune.heads != "pretrained":
            prefer(self, FIRST)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voidrl.agent.Agent, "load_pretrained", loaded)
        config = {"finetune": {"heads": "random", "warmup_steps": 9, **tuning}}
        config |= {"log.checkpoint_every_steps": 1000, "log.eval_episodes": 0}  # actions of training only
        agent = voidrl.finetune(source, long_walk, steps=steps, out=out, config=config)
    return agent, list(taken)


@pytest.mark.parametrize("heads", ["random", "first_layer"])
def test_a_warm_up_by_the_policy_is_by_the_pretrained_one_if_heads_are_new(tmp_path, source, taken, heads):
    before = {name: tensor.clone() for name, tensor in source.tensors().items()}
    agent, actions = tune(source, tmp_path / "run", taken, steps=20, heads=heads)
    assert actions == [LAST] * 9 + [FIRST] * 11
    assert all(torch.equal(before[name], tensor) for name, tensor in source.tensors().items())
    assert agent.act(np.zeros(3, np.float32)) == FIRST  # which is all that acts outside the run


def test_stretches_begin_and_last_as_asked():
    probability = 0.1
    torch.manual_seed(0)
    explorer = Explorer.copy_of(make_agent(), torch.device("cpu"))
    explorer.policy.act = lambda obs, skill, deterministic: torch.ones(len(obs), dtype=torch.int64)
    n, steps = 1000, 200
    explorer.begin(n)
    explorer.start_probability.fill_(probability)
    obs, skill, mine = torch.zeros(n, 4), torch.zeros(n, 0), torch.zeros(n, dtype=torch.int64)
    acted = torch.stack([explorer.replace(mine, obs, skill) for _ in range(steps)])
    # A stretch of mean m is followed by 1/p − 1 own steps on average.
    expected = STRETCH_STEPS / (STRETCH_STEPS + 1 / probability - 1)
    assert acted[50:].double().mean() == pytest.approx(expected, rel=0.05)
    explorer.begin(n)
    assert not explorer.remaining.any()
    explorer.start_probability.zero_()
    assert not explorer.replace(mine, obs, skill).any()
    explorer.everywhere.fill_(True)
    assert explorer.replace(mine, obs, skill).all()


@pytest.mark.parametrize("learner", [{"name": "dqn", "act_with": "target"}, "rainbow", "ddpg"], ids=str)
def test_the_copy_acts_as_the_agent_did_and_reads_nothing_on_the_host(learner):
    spec = CONTINUOUS if learner == "ddpg" else DISCRETE
    source = shake(make_agent(spec, learner=learner))
    explorer = Explorer.copy_of(source, torch.device("cpu"))
    obs, skill = torch.randn(5, 4), torch.zeros(5, 0)
    expected = source.learner.act(obs, skill, deterministic=True)
    shake(source)
    assert torch.equal(explorer.policy.act(obs, skill, deterministic=True), expected)
    assert not any(p.requires_grad for p in explorer.policy.parameters())
    explorer.begin(5)
    explorer.start_probability.fill_(0.5)
    with HostReads() as reads:
        explorer.replace(torch.zeros_like(expected), obs, skill)
    assert reads.first is None, reads.what


def test_an_undone_check_of_the_engine_undoes_stretches_too():
    engine = Engine(make_agent(), fill_replay(), print)
    engine.explorer = Explorer.copy_of(make_agent(seed=1), torch.device("cpu"))
    engine.explorer.begin(2)
    engine.explorer.start_probability.fill_(1.0)
    restore = engine._remember()
    engine.choose(torch.zeros(2, 0), explore=True)
    assert engine.explorer.remaining.any()
    restore()
    assert not engine.explorer.remaining.any()


def test_runs_with_an_explorer_resume_bit_for_bit_without_the_pretrained_run(tmp_path):
    config = tiny(env__num_envs=2, log__checkpoint_every_steps=6, learner="rainbow")
    voidrl.pretrain(Walk, steps=12, out=tmp_path / "source", config=config)
    # New heads need not have the size of the pre-trained ones.
    config = {"finetune": {"heads": "random", "warmup_steps": 15}}
    config |= {"learner.hidden_dim": 5, "log.keep_last": 9}
    straight = tmp_path / "straight"
    voidrl.finetune(tmp_path / "source", Walk, steps=24, out=straight, config=config)
    shutil.rmtree(tmp_path / "source")
    out = copy_as_of(straight, tmp_path / "from12", 12)  # within the warm-up
    assert any(name.startswith("explorer.safetensors/") for name in newest(out)[0])
    agent = voidrl.resume(out, env=Walk)
    assert_same_run(straight, out, steps=24)
    assert not any("explorer" in name for name in agent.tensors())
