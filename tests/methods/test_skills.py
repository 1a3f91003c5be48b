"""Skills: the contract that DIAYN, CIC, VISR and APS need, shown by small methods of the tests' own."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hand_batches import batch_of, latents_of
from helpers import (
    CPU,
    Point,
    fill_replay,
    make_agent,
    moved,
    parameters_of,
    points,
    run_loop,
    small_method,
    snapshot,
    spec_of,
    watch_losses,
)
from torch import nn

import voidrl
from voidrl.agent.agent import SELECTION_STEPS
from voidrl.config import SkillConfig, registry
from voidrl.errors import SpaceError
from voidrl.methods.base import Latents, Method, Option
from voidrl.nets import TwinQ
from voidrl.replay import SKILL_ENDED, Replay

AT_START = torch.zeros(1, dtype=torch.int64)
PLANE = spec_of(Point)


class Directions(Method):
    """A skill per episode that says where to go."""

    skill_dim = 2

    def sample_skill(self, episode_steps):
        return torch.randn(len(episode_steps), 2)

    def reward(self, batch, latents):
        return (batch.next_obs * batch.skill).sum(-1)


class Short(Point):
    """Episodes of four steps."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.time >= 4, info


def walk(sample_skill, steps, reward=lambda before, after: 0.0):
    """Random steps of a point that moves by 0.3 · action; a skill for each."""
    rng = np.random.default_rng(0)
    replay = Replay(PLANE, 1, steps + 10, 2, CPU, CPU)
    at = np.zeros((1, 2), np.float32)
    replay.reset(at)
    for t in range(steps):
        action = rng.uniform(-1, 1, (1, 2)).astype(np.float32)
        after = np.clip(at + 0.3 * action, -1, 1).astype(np.float32)
        no, end = np.array([False]), np.array([t % 20 == 19])
        replay.add(action, np.array([reward(at, after)]), no, end, after, sample_skill(AT_START))
        at = after
    return replay


def test_fine_tuning_chooses_a_skill_after_the_warm_up_and_then_uses_it_everywhere(tmp_path):
    spec = spec_of(Short)
    agent = make_agent(spec, method=Directions, phase="finetune", steps=60, finetune__warmup_steps=30)
    agent.load_pretrained(make_agent(spec, method=Directions).tensors())
    batches = []
    watch_losses(agent, lambda batch, reward: batches.append(batch))
    replay = run_loop(tmp_path / "run", Short, agent).replay
    starts = sorted(replay.starts[: len(replay)].tolist())
    tried = [tuple(skill) for skill in replay.skill[starts[:30]].tolist()]
    chosen, rewards = tuple(agent.task_skill.tolist()), replay.reward[starts[:30]]
    earned = {s: np.mean([r for t, r in zip(tried, rewards, strict=True) if t == s]) for s in tried}
    assert len(earned) >= 7  # a new skill for each episode
    assert earned[chosen] > np.median(list(earned.values()))  # by default one of those, the best rewarded
    # It is chosen with the first update, due after step 31, when the actions of step 32 are under way.
    assert (replay.skill[starts[32:]] == agent.task_skill).all()  # the policy's from then on
    assert all((batch.skill == agent.task_skill).all() for batch in batches)  # every batch's, old data too
    assert (agent.new_skills(torch.zeros(3, dtype=torch.int64)) == agent.task_skill).all()  # and evaluation's
    obs = np.ones(2, np.float32)
    assert np.array_equal(agent.act(obs), agent.act(obs, skill=agent.task_skill.numpy()))
    again = make_agent(spec, method=Directions, phase="finetune")
    again.load_pretrained(agent.tensors())
    assert not again.task_skill_chosen  # another task chooses again


@pytest.mark.parametrize("chosen", [True, False])
def test_evaluation_uses_the_chosen_skill_or_draws_one_for_each_episode(chosen):
    agent = make_agent(spec_of(Short), method=Directions, phase="finetune" if chosen else "pretrain")
    agent.task_skill.copy_(torch.tensor([3.0, -2.0]))
    agent.task_skill_chosen.fill_(chosen)
    _, skills = watch_policy(agent)
    voidrl.evaluate(agent, Short, episodes=3, num_envs=1)
    lasted = [skills.count(skill) for skill in dict.fromkeys(skills)]
    if chosen:
        assert set(skills) == {(3.0, -2.0)}
    else:  # four steps, and the reset in between, whose action is ignored
        assert len(lasted) == 3
        assert set(lasted) <= {4, 5}


def test_act_follows_one_skill_until_one_is_chosen():
    agent = make_agent(spec_of(Point), method=Directions)
    obs = np.ones((4, 2), np.float32)
    assert np.array_equal(agent.act(obs), agent.act(obs))
    assert not np.array_equal(agent.act(obs, skill=[5.0, 0.0]), agent.act(obs, skill=[-5.0, 0.0]))
    each = agent.act(obs, skill=np.array([[5.0, 0.0], [-5.0, 0.0]] * 2))
    np.testing.assert_allclose(each[1], agent.act(obs[0], skill=[-5.0, 0.0]), rtol=1e-5)
    with pytest.raises(
        SpaceError, match=r"skill of shape \(3,\) cannot be followed: expected \(2,\) or \(4, 2\)"
    ):
        agent.act(obs, skill=np.zeros(3))


def test_methods_without_skills_need_no_choice():
    agent, replay = make_agent(phase="finetune"), fill_replay()
    agent.choose_task_skill(replay)
    assert agent.task_skill_chosen
    assert agent.new_skills(torch.zeros(3, dtype=torch.int64)).shape == (3, 0)


# What every registered method with skills must do


def with_skills():
    """The methods of the registry whose config is one of skills."""
    classes = {name: registry.find("method", name) for name in registry.names("method")}
    return [name for name, cls in classes.items() if issubclass(cls.Config, SkillConfig)]


def with_each_kind_of_skills():
    """All of them, of which one of a kind is quick: categories, directions, stages, planning."""
    quick = ("aps", "dads", "diayn", "edl", "metra")
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in with_skills()]


def skilled_agent(name, **changes):
    """Small, with a skill for 3 steps and episodes of 8."""
    method = small_method(name, skill_every_steps=3)
    return make_agent(spec_of(Unique), method=method, updates_per_step=0.25, **changes)


class Unique(gym.Env):
    """Every observation occurs once; the first action pays."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self.time += 1
        obs = self.np_random.normal(size=3).astype(np.float32)
        return obs, float(action == 0), False, self.time >= 8, {}


def watch_policy(agent):
    """The observations that the policy is given from now on, and the skills."""
    seen, skills, act = [], [], agent.learner.act

    def watched(obs, skill, deterministic):
        seen.extend(map(tuple, obs.tolist()))
        skills.extend(map(tuple, skill.tolist()))
        return act(obs, skill, deterministic=deterministic)

    agent.learner.act = watched
    return seen, skills


@pytest.mark.parametrize("name", with_each_kind_of_skills())
def test_skills_are_stored_with_the_transition_that_followed_them(tmp_path, name):
    agent = skilled_agent(name, steps=60, warmup_steps=6)
    watched = watch_policy(agent)
    replay = run_loop(tmp_path / "run", Unique, agent, num_envs=2).replay
    given = dict(zip(*watched, strict=True))
    slots = replay.starts[: len(replay)].sort().values
    obs, skills = replay.observations(slots), replay.skill[slots]
    assert skills.shape[1] == agent.method.skill_dim > 0
    stored = {tuple(o): tuple(s) for o, s in zip(obs.tolist(), skills.tolist(), strict=True)}
    followed = given.keys() & stored.keys()
    assert len(followed) >= 50  # all but the warm-up
    assert all(stored[key] == given[key] for key in followed)
    ended = replay.ending[slots]
    assert (ended == SKILL_ENDED).sum() >= 14  # after 3 and 6 of 8 steps
    for env in range(2):
        mine = slots % 2 == env
        goes_on = ended[mine][:-1] == 0
        assert torch.equal(skills[mine][1:][goes_on], skills[mine][:-1][goes_on])  # never changes unmarked


@pytest.mark.parametrize("name", with_each_kind_of_skills())
def test_fine_tuning_from_a_saved_agent_chooses_a_skill_says_how_and_keeps_it(tmp_path, name, capsys):
    voidrl.save_pretrained(skilled_agent(name), tmp_path / "before")
    agent = skilled_agent(name, seed=1, phase="finetune", steps=60, finetune__warmup_steps=30)
    agent.load_pretrained(voidrl.load(tmp_path / "before", device="cpu").tensors())
    _, given = watch_policy(agent)
    replay = run_loop(tmp_path / "run", Unique, agent).replay
    skill = agent.task_skill
    assert agent.task_skill_chosen
    assert skill.shape == (agent.method.skill_dim,)
    assert skill.isfinite().all()
    assert f"is used for the task, {agent.method.skill_choice}\n" in capsys.readouterr().out
    slots = replay.starts[: len(replay)].sort().values
    assert (replay.skill[slots[40:]] == skill).all()  # the first update is due after 34 steps
    assert given[-15:] == [tuple(skill.tolist())] * 15
    assert not (replay.ending[slots[40:]] == SKILL_ENDED).any()
    voidrl.save_pretrained(agent, tmp_path / "after")
    assert torch.equal(voidrl.load(tmp_path / "after", device="cpu").task_skill, skill)


def skills_for(method):
    """As they are drawn, each twice, so that discrete ones have pairs."""
    torch.manual_seed(0)
    return method.sample_skill(torch.zeros(8, dtype=torch.int64)).repeat_interleave(2, 0)


@pytest.mark.parametrize("name", ["diayn", "smm", "aps", "cic", "moss", "becl"])
def test_the_reward_is_that_of_the_state_reached(name):
    method = skilled_agent(name).method
    batch, latents = batch_of(skills_for(method)), latents_of(None, points(16, 3))  # s must not be read
    with torch.no_grad():
        assert method.reward(batch, latents).std() > 0
    if name not in ("cic", "moss"):  # the losses too, but for those that read whole transitions
        assert all(loss.value.isfinite() for loss in method.losses(batch, latents))


@pytest.mark.parametrize("name", with_skills())
def test_states_of_zeros_give_finite_rewards_and_small_gradients(name):
    """Biases are 0 at first, and so are the outputs: normalizing them must give no gradient of 1e12."""
    method = skilled_agent(name).method
    skill, some = skills_for(method), points(16, 3)
    some[::5] = 0.0
    for z in (some, torch.zeros(16, 3)):
        option = Option(z, z, torch.ones(16), torch.ones(16))
        latents = Latents(lambda z=z: z, lambda z=z: z, lambda n, z=z: z, lambda n, option=option: option)
        for loss in method.losses(batch_of(skill, z), latents):
            loss.value.backward()
        gradients = [p.grad for p in method.parameters() if p.grad is not None]
        assert all(gradient.isfinite().all() and gradient.abs().max() < 1e3 for gradient in gradients)
        with torch.no_grad():
            assert method.reward(batch_of(skill, z), latents).isfinite().all()


@pytest.mark.parametrize("name", ["aps", "cic", "moss"])
def test_distances_between_near_states_are_those_of_float32(name):
    method = skilled_agent(name).method
    latents = latents_of(None, 1 + 1e-3 * points(16, 3))  # equal in bf16
    fresh, rewards = snapshot(dict(method.named_buffers())), []
    for on in (True, False):
        method.load_state_dict(fresh, strict=False)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=on):
            rewards.append(method.reward(batch_of(skills_for(method)), latents))
    torch.testing.assert_close(*rewards)


def test_a_long_warm_up_counts_from_its_beginning(monkeypatch):
    """The first skill earned most per step, before more steps with another than are read."""
    monkeypatch.setitem(SELECTION_STEPS, "vectors", 20)
    agent = make_agent(method="diayn", method__num_skills=2, phase="finetune")
    replay = fill_replay(num_envs=1, steps=60, skill_dim=2)
    slots = replay.starts[: len(replay)]
    second = (torch.arange(len(slots)) >= 12).long()
    replay.skill[slots], replay.reward[slots] = torch.eye(2)[second], 1 - second / 2
    seen, select = [], agent.method.select_skill
    agent.method.select_skill = lambda batch, latents: (seen.append(batch), select(batch, latents))[1]
    agent.choose_task_skill(replay)
    assert agent.task_skill.tolist() == [1, 0]
    assert len(seen[0].reward) <= 20


# Successor features: Q(s, a, w) = ψ(s, a, w) · w, in VISR's and APS's way.


class Psi(nn.Module):
    def __init__(self, inputs, dim):
        super().__init__()
        self.psi = TwinQ(inputs, 64, 2, outputs=dim)

    def forward(self, features, skill, action):
        return (self.psi(features, skill, action) * skill).sum(-1)  # (2, B)


class Successor(Method):
    """The feature is the displacement; the skill weighs it; a task's weights are found by regression."""

    skill_dim = 2

    def sample_skill(self, episode_steps):
        return nn.functional.normalize(torch.randn(len(episode_steps), 2), dim=-1)

    def feature(self, batch):
        return (batch.next_obs - batch.obs) / 0.3

    def reward(self, batch, latents):
        return (self.feature(batch) * batch.skill).sum(-1)

    def select_skill(self, batch, latents):
        weights = torch.linalg.lstsq(self.feature(batch), batch.reward[:, None]).solution[:, 0]
        return nn.functional.normalize(weights, dim=-1)

    def make_critic(self, feature_dim, config):
        self.critic = Psi(feature_dim + self.skill_dim + self.spec.action_dim, self.skill_dim)  # and keeps it
        return self.critic


def test_the_policy_follows_its_skill_and_successor_features_rank_actions_by_the_task():
    learner = {"name": "sac", "discount": 0.5, "learning_rate": 3e-3, "batch_size": 64, "target_tau": 0.05}
    options = {"method": Successor, "learner": learner}
    before = make_agent(PLANE, **options)
    replay = walk(before.method.sample_skill, steps=600)
    for i in range(300):
        before.update(replay, i % before.learner.period)
    obs = np.random.default_rng(0).uniform(-0.5, 0.5, (9, 2)).astype(np.float32)
    for axis in np.float32(np.eye(2)):  # the policy has learned to follow the skill
        forth, back = (before.act(obs, skill=sign * axis) @ axis for sign in (1, -1))
        assert (forth - back).mean() > 1.5  # of at most 4

    agent = make_agent(PLANE, phase="finetune", seed=1, **options)
    agent.load_pretrained(before.tensors())
    wanted = np.float32([0.5, -np.sqrt(0.75)])
    task = walk(agent.method.sample_skill, steps=200, reward=lambda a, b: ((b - a) / 0.3 @ wanted).item())
    agent.choose_task_skill(task)
    torch.testing.assert_close(agent.task_skill, torch.from_numpy(wanted), atol=1e-4, rtol=0)

    center, angle = agent.learner.features(torch.zeros(1, 2)), torch.arange(8) * torch.pi / 4
    actions = torch.stack([angle.cos(), angle.sin()], -1)
    with torch.no_grad():
        q = agent.learner.critic(center.expand(8, -1), agent.task_skill.expand(8, -1), actions).mean(0)
    assert torch.corrcoef(torch.stack([q, actions @ agent.task_skill]))[0, 1] > 0.95
    # Fine-tuning goes on training the critic that the method brought.
    weights = snapshot(parameters_of(agent.learner.critic))
    agent.update(task)
    assert moved(weights, parameters_of(agent.learner.critic)) == set(weights)

    agent = make_agent(PLANE, phase="finetune", seed=1, finetune__heads="random", **options)
    agent.load_pretrained(before.tensors())
    assert moved(parameters_of(before.learner.critic), parameters_of(agent.learner.critic))
