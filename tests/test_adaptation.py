"""Adaptation to a task: the scale of values, what is kept of the heads, who waits, and exact resuming."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from helpers import CONTINUOUS, DISCRETE, fill_replay, line_replay, make_agent, moved, snapshot
from tiny_runs import Walk, assert_same_run, callback, copy_as_of, make_continuous, newest, tiny

import voidrl
from voidrl.agent.adaptation import RETURN_RANGE, adapt, discounted_returns, fit, rewards_differ
from voidrl.agent.exploration import DETOUR_STEPS, Detours
from voidrl.engine.engine import Engine
from voidrl.nets.bounds import ValueBounds
from voidrl.runs import checkpoint
from voidrl.training import adapting
from voidrl.training.adapting import Adapter
from voidrl.training.saved_run import LoopState
from voidrl.types import EnvSpec

CASES = {
    "dqn": (DISCRETE, {}),
    "sac": (CONTINUOUS, {"learner": "sac"}),
    "ddpg": (CONTINUOUS, {"learner": "ddpg"}),
    "trunk": (CONTINUOUS, {"learner": {"name": "ddpg", "trunk_dim": 6}}),
}


def tuned_agent(case, **changes):
    spec, options = CASES[case]
    return make_agent(spec, phase="finetune", **options, **changes)


def agent_and_replay(case, **changes):
    return tuned_agent(case, **changes), fill_replay(CASES[case][0])


def values(agent, replay):
    batch = replay.batch(replay.newest(len(replay)), 1, 1.0)
    return agent.learner.q(batch.obs, batch.skill, batch.action)


def best_actions(agent, replay):
    batch = replay.batch(replay.newest(len(replay)), 1, 1.0)
    return agent.learner.act(batch.obs, batch.skill, deterministic=True)


# Returns


def test_returns_are_discounted_up_to_termination():
    # The fourth step is the reset of the terminated episode, and no transition.
    replay = line_replay(range(6), rewards=[1, 0, 4, 99, 8], terminated_at=(2,))
    _, found = discounted_returns(replay, 0.5, 2.0)
    # The last step begins an episode that is cut: worth 16 and half of V, the mean of all returns.
    v = (4 + 4 + 8 + 16) / (3 + 0.5)
    assert found.tolist() == pytest.approx([2 * (1 + 0 + 1), 2 * (0 + 2), 2 * 4, 16 + 0.5 * v])
    assert np.mean(found) == pytest.approx(v)


def test_rewards_differ_if_returns_can():
    def differ(rewards, terminated_at=()):
        replay = line_replay(range(4), rewards, terminated_at)
        return rewards_differ(replay, len(replay))

    assert not differ([0, 0, 0], (1,))
    assert not differ([-1, -1, -1])  # until the goal is reached, every step costs the same
    assert differ([-1, -1, -1], (1,))
    assert differ([0, 0, 1])


# Values


@pytest.mark.parametrize("case", CASES)
def test_values_are_mapped_and_a_fit_recovers_the_map(case):
    agent, replay = agent_and_replay(case)
    q, chosen = values(agent, replay), best_actions(agent, replay)
    slots, returns = replay.newest(len(replay)), 4 * q.double().detach().numpy() - 7
    largest = q.abs().max().item()
    assert fit(agent, replay, slots, returns) == pytest.approx((1.0, 4.0, -7.0, largest), abs=1e-4)
    assert agent.learner.rescale_values(torch.tensor([0.25]), torch.tensor([-3.0]))
    assert torch.allclose(values(agent, replay), 0.25 * q - 3, atol=1e-5)
    assert torch.equal(best_actions(agent, replay), chosen)
    assert not moved(agent.learner.critic.state_dict(), agent.learner.target_critic.state_dict())


def pay_values(agent, replay, sign):
    """Rewards whose returns are the agent's own values, or their opposite: each step ends an episode."""
    slots = replay.newest(len(replay))
    replay.ending[slots] = 1
    replay.reward[slots] = sign * 50 * values(agent, replay).detach() + 10


@pytest.mark.parametrize("case", ["dqn", "sac", "ddpg"])
def test_aligned_values_are_kept_on_the_scale_of_the_task(case):
    agent, replay = agent_and_replay(case)
    pay_values(agent, replay, 1)
    chosen = best_actions(agent, replay)
    outcome = adapt(agent, replay)
    assert (outcome.kept, outcome.explorer) == ("values", None)
    assert outcome.alignment == pytest.approx(1)
    rewards = replay.reward[replay.newest(len(replay))]
    assert outcome.return_range == pytest.approx(float(rewards.max() - rewards.min()), rel=1e-5)
    assert float(agent.task_scale) == pytest.approx(1 / outcome.return_range)
    assert torch.allclose(values(agent, replay), rewards * agent.task_scale, atol=1e-3)
    if case == "sac":
        assert agent.learner.log_alpha.exp().item() == pytest.approx(0.1 * (1 - 0.99), rel=1e-4)
    assert torch.equal(best_actions(agent, replay), chosen)


@pytest.mark.parametrize("case", ["sac", "ddpg"])
def test_opposed_values_give_way_to_a_new_critic_and_the_actor_is_kept(case):
    agent, replay = agent_and_replay(case)
    pay_values(agent, replay, -1)
    chosen, critic = best_actions(agent, replay), agent.learner.critic.layers[0].weight.clone()
    outcome = adapt(agent, replay)
    assert outcome.kept == "actor"
    assert outcome.alignment == pytest.approx(-1)
    assert torch.equal(best_actions(agent, replay), chosen)
    assert not torch.equal(agent.learner.critic.layers[0].weight, critic)
    mean = replay.reward[replay.newest(len(replay))].mean() * agent.task_scale
    assert values(agent, replay).mean().item() == pytest.approx(mean.item(), abs=0.1)  # of a range of 1


def test_opposed_values_of_a_learner_without_an_actor_become_its_explorer():
    agent, replay = agent_and_replay("dqn", learner__discount=0.9, learner__n_step=1)
    pay_values(agent, replay, -1)
    obs = replay.batch(replay.newest(len(replay)), 1, 1.0).obs
    chosen = agent.learner.act(obs, torch.zeros(len(obs), 0), deterministic=True)
    outcome = adapt(agent, replay)
    assert outcome.kept == "policy"
    assert torch.equal(outcome.explorer.policy.act(obs, torch.zeros(len(obs), 0), deterministic=True), chosen)
    assert not torch.equal(agent.learner.act(obs, torch.zeros(len(obs), 0), deterministic=True), chosen)
    # New heads have limits from the rewards seen.
    highest = replay.reward[replay.newest(len(replay))].max() * agent.task_scale
    assert float(agent.learner.bounds.high) == pytest.approx(highest.item(), rel=1e-4)


def test_values_that_have_led_to_the_first_reward_are_kept_and_rewards_take_their_scale():
    agent, replay = agent_and_replay("dqn")
    pay_values(agent, replay, -1)
    agent.learner.rescale_values(torch.full((1,), 100.0), torch.zeros(1))
    q = values(agent, replay)
    outcome = adapt(agent, replay, has_learned=True)
    assert outcome.kept == "all"
    assert torch.equal(values(agent, replay), q)
    largest = q.abs().max().item()
    assert largest > RETURN_RANGE
    assert float(agent.task_scale) == pytest.approx(largest / outcome.return_range)


# Bounds


def test_targets_are_clamped_to_what_rewards_add_up_to():
    config = make_agent(learner__discount=0.5, learner__n_step=2).config.learner
    bounds = ValueBounds(config)
    wild = torch.tensor([-1e3, 0.5, 1e3])
    assert torch.equal(bounds.clamp(wild), wild)  # nothing is known yet
    bounds.observe(torch.tensor([1.0, 3.0]))
    assert bounds.clamp(wild).tolist() == [0, 0.5, 4]  # 3 / (1 − 0.5²), and an end is always possible
    bounds.observe(torch.tensor([[-6.0], [0.0]]))
    assert bounds.clamp(wild).tolist() == [-8, 0.5, 4]
    assert bounds.clamp(wild, below=1.0, above=2.0).tolist() == [-9, 0.5, 6]
    assert float(bounds.limit) == 8
    off = ValueBounds(make_agent(learner__clamp_targets=False).config.learner)
    off.observe(torch.ones(2))
    assert torch.equal(off.clamp(wild), wild)


# Detours


def test_detours_hold_one_random_action_for_some_steps():
    agent = make_agent(CONTINUOUS)
    torch.manual_seed(0)
    detours, obs = Detours(agent, 50), torch.zeros(50, *CONTINUOUS.frame_shape)
    policy = torch.full((50, CONTINUOUS.action_dim), 2.0)  # which no random action is
    taken = torch.stack([detours.replace(policy, obs, 0.05, DETOUR_STEPS) for _ in range(400)])  # (T, N, A)
    away = (taken != 2.0).all(-1)
    expected = 0.05 * DETOUR_STEPS / (1 + 0.05 * DETOUR_STEPS)
    assert away.float().mean().item() == pytest.approx(expected, abs=0.04)
    inside = away[1:] & away[:-1]
    same = (taken[1:] == taken[:-1]).all(-1)
    assert (same[inside].float().mean() > 0.85).item()  # the others are new detours right behind old ones
    assert torch.equal(detours.replace(policy, obs, 0.0, DETOUR_STEPS)[~away[-1]], policy[~away[-1]])


def test_a_held_action_that_is_not_allowed_any_more_is_replaced():
    spec = EnvSpec((1 + 3,), False, 1, num_actions=3, raw_shape=(1,), masked=True)
    agent = make_agent(spec)
    detours = Detours(agent, 64)
    for allowed in ([1, 0, 0], [0, 1, 1], [0, 0, 1]):
        obs = torch.tensor([0.0, *allowed]).repeat(64, 1)
        taken = detours.replace(torch.full((64,), allowed.index(1)), obs, 1.0, DETOUR_STEPS)
        assert torch.tensor(allowed)[taken].all()


# Schedules


def adapter_of(case="dqn", warmup_steps=10, **changes):
    """The adapter of a run of 110 steps, and its state."""
    tuning = {"warmup_steps": warmup_steps, **changes}
    agent, state = tuned_agent(case, steps=110, finetune=tuning), LoopState()
    return Adapter(Engine(agent, fill_replay(CASES[case][0]), print), state), state


def test_detours_end_halfway_and_grow_longer_while_an_actor_waits():
    adapter, state = adapter_of("sac")
    adapter.replay.reward.fill_(0.0)
    state.steps = 40
    assert adapter.in_warmup
    assert adapter.detour_probability == 0.05
    assert adapter.detour_steps == 4 * DETOUR_STEPS
    state.learning_from = state.adapted_from = 50
    for steps, left in {50: 1, 65: 0.5, 80: 0, 110: 0}.items():
        state.steps = steps
        assert adapter.detour_probability == pytest.approx(0.05 * left)
    assert adapter.detour_steps == DETOUR_STEPS


# In runs


class Paid(Walk):
    """Pays what a function of the walk and of its steps, counted over episodes, says."""

    count = 0

    def __init__(self, pays, continuous=False):
        super().__init__(continuous)
        self.pays = pays

    def step(self, action):
        self.count += 1
        obs, reward, *rest = super().step(action)
        return obs, self.pays(self, reward), *rest


def never(walk, reward):
    return 0.0


def late(walk, reward):
    return reward if walk.count > 25 else 0.0


def rarely(border, walk, reward):
    """Pays 1 where few episodes go."""
    return float(walk.at[2] > border)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Pre-trained agents with discrete and with continuous actions."""
    root = tmp_path_factory.mktemp("sources")
    voidrl.pretrain(Walk, steps=12, out=root / "dqn", config=tiny())
    for learner in ("sac", "ddpg"):
        voidrl.pretrain(make_continuous, steps=12, out=root / learner, config=tiny(learner__name=learner))
    return root


def tuned_run(sources, learner, pays, out, **changes):
    """Fine-tune for 40 steps; returns the agent and the numbers of its last checkpoint."""
    config = {"log.eval_episodes": 0} | changes
    factory = partial(Paid, pays, continuous=learner != "dqn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapting, "DETOURS", 0.0)
        agent = voidrl.finetune(sources / learner, factory, steps=40, out=out, config=config)
    return agent, checkpoint.latest(out / "checkpoints", lambda text: None).meta


@pytest.mark.parametrize("learner", ["sac", "ddpg"])
def test_an_actor_does_not_learn_without_a_reward_so_nothing_is_lost(tmp_path, sources, capfd, learner):
    before = voidrl.load(sources / learner).tensors()
    agent, meta = tuned_run(sources, learner, never, tmp_path / "run")
    said = capfd.readouterr().err
    assert said.count("rewards were all equal in 8 steps") == 1
    assert said.count("the task gave no reward in the last 25 steps: check the environment's reward") == 1
    assert meta["updates"] == 0
    assert meta["adaptation"]["learning_from"] is meta["adaptation"]["adapted_from"] is None
    after = agent.tensors()
    weights = [name for name, _ in agent.learner.named_parameters(prefix="learner")]
    assert {name.split(".")[1] for name in weights} >= {"actor", "critic"}
    assert [name for name in weights if not torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize(("learner", "changes"), [("dqn", {}), ("sac", {"bonus.coefficient": 0.1})])
def test_what_learns_at_once_is_adapted_with_the_first_reward(tmp_path, sources, capfd, learner, changes):
    """Values without an actor learn from equal rewards, and so does an agent with a bonus."""
    agent, meta = tuned_run(sources, learner, late, tmp_path / "run", **changes)
    said = capfd.readouterr().err
    if learner == "dqn":
        assert said.index("rewards were all equal in 8 steps") < said.index("are kept: they have led")
    assert meta["adaptation"]["learning_from"] == 8
    assert meta["adaptation"]["adapted_from"] == 26
    assert meta["adaptation"]["kept"] == "all"
    assert meta["updates"] == 40 - 8
    assert float(agent.task_scale) != 1


def test_the_actor_waits_until_the_critic_has_had_its_updates(tmp_path, sources, monkeypatch):
    monkeypatch.setattr(adapting, "CRITIC_SHARE", Fraction(81, 160))  # within the updates of a step
    before = snapshot(voidrl.load(sources / "ddpg").learner.actor.state_dict())
    changed = {}

    def watch(run):
        changed[run.updates] = bool(moved(before, run.agent.learner.actor.state_dict()))

    config = {"finetune.heads": "actor", "finetune.updates_per_step": 4}
    run = {"steps": 48, "out": tmp_path / "run", "config": config}
    voidrl.finetune(sources / "ddpg", make_continuous, callbacks=[callback(on_step=watch)], **run)
    assert {n for n, has in changed.items() if not has} == {n for n in changed if n <= 81}  # of 160


def resume_from_each(straight, env, steps, total):
    """Resume copies of a run from its checkpoints at these steps; each ends as the run did, bit for bit."""
    for step in steps:
        out = copy_as_of(straight, straight.parent / f"from{step}", step)
        voidrl.resume(out, env=env)
        assert_same_run(straight, out, steps=total)


def test_resuming_is_exact_in_the_warm_up_at_adaptation_and_while_the_actor_waits(
    tmp_path, sources, monkeypatch
):
    monkeypatch.setattr(adapting, "CRITIC_SHARE", Fraction(3, 10))
    config = {"log.checkpoint_every_steps": 3, "log.keep_last": 99}
    straight = tmp_path / "straight"
    voidrl.finetune(sources / "ddpg", make_continuous, steps=32, out=straight, config=config)
    resume_from_each(straight, make_continuous, (3, 6, 9, 12, 18), 32)  # warm-up: 8; the actor waits: 15


@pytest.mark.parametrize(("case", "border"), [("dqn", 1.4), ("sac", 0.9)])
def test_resuming_is_exact_while_rewards_are_equal_and_after(tmp_path, sources, case, border):
    env = partial(Paid, partial(rarely, border), continuous=case == "sac")
    config = {"log.checkpoint_every_steps": 6, "log.keep_last": 99}
    voidrl.finetune(sources / case, env, steps=40, out=tmp_path / "straight", config=config)
    assert 12 < newest(tmp_path / "straight")[1]["adaptation"]["adapted_from"] < 24
    resume_from_each(tmp_path / "straight", env, (12, 24, 30), 40)


@pytest.mark.slow
def test_a_reward_of_one_that_ends_the_episode_does_not_unlearn_what_earned_it(tmp_path):
    """The policy of pre-training reaches a corner; a task that pays 1 there keeps it, as did not before."""
    config = {"log.eval_episodes": 20, "log.eval_every_steps": 5000}
    voidrl.pretrain("voidrl/PointMass-v0", preset="cpu", steps=15_000, seed=1, out=tmp_path / "pre")
    run = {"steps": 5000, "seed": 1, "out": tmp_path / "run", "config": config}
    agent = voidrl.finetune(tmp_path / "pre", "voidrl/PointMass-v0?task=pickup", **run)
    assert voidrl.evaluate(agent, episodes=20).success_rate >= 0.95
