"""Skills: the contract that DIAYN, CIC, VISR and APS need, shown by small methods of the tests' own."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import Point, make_agent, run_loop, small_method, spec_of, watch_losses

import voidrl
from voidrl.config import SkillConfig, registry
from voidrl.methods.base import Method
from voidrl.replay import SKILL_ENDED


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


# Successor features: Q(s, a, w) = ψ(s, a, w) · w, in VISR's and APS's way.
