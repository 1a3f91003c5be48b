"""Skills: the contract that DIAYN, CIC, VISR and APS need, shown by small methods of the tests' own."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import (
    CPU,
    Point,
    fill_replay,
    make_agent,
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
from voidrl.nets import TwinQ, mlp
from voidrl.replay import SKILL_ENDED, Replay
from voidrl.types import Batch, EnvSpec, Loss

AT_START = torch.zeros(1, dtype=torch.int64)


class Sides(Method):
    """DIAYN in small: a skill of ±1, a discriminator of its own, rewarded where the skill can be read off."""

    skill_dim = 1

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.discriminator = mlp([representation.dim, 16, 1])

    def sample_skill(self, episode_steps):
        return torch.randint(0, 2, (len(episode_steps), 1)) * 2.0 - 1

    def losses(self, batch, latents):
        logit = self.discriminator(latents.z_next)
        loss = nn.functional.softplus(-logit * batch.skill).mean()
        yield Loss("method", loss, {"discriminator_loss": loss.detach()})

    def reward(self, batch, latents):
        return nn.functional.logsigmoid(self.discriminator(latents.z_next) * batch.skill)[:, 0]


class Directions(Sides):
    """The same with skills from a continuum, as CIC has them; the skill says where to go."""

    skill_dim = 2

    def __init__(self, spec, config, representation):
        Method.__init__(self, spec, config, representation)

    def sample_skill(self, episode_steps):
        return torch.randn(len(episode_steps), 2)

    def losses(self, batch, latents):
        return iter(())

    def reward(self, batch, latents):
        return (batch.next_obs * batch.skill).sum(-1)


class Short(Point):
    """Episodes of four steps."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.time >= 4, info


def by_episode(replay, slots):
    """Groups the slots of one environment into episodes."""
    episodes, current = [], []
    for slot in slots:
        current.append(slot)
        if replay.ending[slot]:
            episodes.append(current)
            current = []
    return episodes


def test_a_skill_is_constant_within_an_episode_and_drawn_anew_at_its_border(tmp_path):
    agent = make_agent(spec_of(Short), method=Directions, steps=60, warmup_steps=10)
    loop = run_loop(tmp_path / "run", Short, agent, num_envs=2)
    replay = loop.replay
    starts = sorted(replay.starts[: len(replay)].tolist())
    skills = set()
    for env in range(2):
        episodes = by_episode(replay, [slot for slot in starts if slot % 2 == env])
        assert len(episodes) >= 5
        assert all(len(slots) == 4 for slots in episodes)
        for slots in episodes:
            assert (replay.skill[slots] == replay.skill[slots[0]]).all()
            skills.add(tuple(replay.skill[slots[0]].tolist()))
        total = len(skills)
    assert total == len(skills) >= 10  # every episode had its own


def test_the_policy_sees_the_skill_and_learns_to_follow_it():
    learner = {"name": "sac", "discount": 0.5, "learning_rate": 3e-3, "batch_size": 64, "hidden_dim": 64}
    agent = make_agent(spec_of(Point), method=Directions, learner=learner)
    replay = walk(agent.spec, agent.method.sample_skill, steps=600)
    for i in range(200):
        agent.update(replay, i % agent.learner.period)
    obs = np.random.default_rng(0).uniform(-0.5, 0.5, (9, 2)).astype(np.float32)
    for axis in np.eye(2):
        forth, back = (agent.act(obs, skill=sign * 2 * axis) @ axis for sign in (1, -1))
        assert (forth - back).mean() > 1.5  # of at most 4


def walk(spec, sample_skill, steps, reward=lambda before, after: 0.0):
    """Random steps of a point that moves by 0.3 · action; a skill for each."""
    rng = np.random.default_rng(0)
    dim = spec.frame_shape[0]
    replay = Replay(spec, 1, steps + 10, sample_skill(AT_START).shape[1], CPU, CPU)
    at = np.zeros((1, dim), np.float32)
    replay.reset(at)
    for t in range(steps):
        if spec.discrete:
            action = rng.integers(spec.num_actions, size=1)
            move = COMPASS[action]
        else:
            action = rng.uniform(-1, 1, (1, dim)).astype(np.float32)
            move = action
        after = np.clip(at + 0.3 * move, -1, 1).astype(np.float32)
        no, end = np.array([False]), np.array([t % 20 == 19])
        replay.add(action, np.array([reward(at, after)]), no, end, after, sample_skill(AT_START))
        at = after
    return replay


def test_fine_tuning_chooses_a_skill_after_the_warm_up_and_then_uses_it_everywhere(tmp_path):
    spec = spec_of(Short)
    before = make_agent(spec, method=Directions)
    agent = make_agent(spec, method=Directions, phase="finetune", steps=60, finetune__warmup_steps=30)
    agent.load_pretrained(before.tensors())
    batches = []
    watch_losses(agent, lambda batch, reward: batches.append(batch))
    loop = run_loop(tmp_path / "run", Short, agent)
    replay = loop.replay
    starts = sorted(replay.starts[: len(replay)].tolist())
    warm = {tuple(skill) for skill in replay.skill[starts[:30]].tolist()}
    assert len(warm) >= 7  # the warm-up tried many
    assert agent.task_skill_chosen
    assert tuple(agent.task_skill.tolist()) in warm  # by default one of those, the best rewarded
    means = {
        s: replay.reward[[i for i in starts[:30] if tuple(replay.skill[i].tolist()) == s]].mean()
        for s in warm
    }
    assert means[tuple(agent.task_skill.tolist())] > np.median(list(means.values()))
    # It is chosen with the first update, due after step 31, when the actions of step 32 are under way.
    assert (replay.skill[starts[32:]] == agent.task_skill).all()  # the policy's from then on
    assert all(
        (batch.skill == agent.task_skill).all() for batch in batches
    )  # and every batch's, old data too
    assert (agent.new_skills(torch.zeros(3, dtype=torch.int64)) == agent.task_skill).all()  # and evaluation's
    obs = np.ones(2, np.float32)
    assert np.array_equal(agent.act(obs), agent.act(obs, skill=agent.task_skill.numpy()))
    voidrl.save_pretrained(agent, tmp_path / "saved")
    assert np.array_equal(voidrl.load(tmp_path / "saved", device="cpu").act(obs), agent.act(obs))

    again = make_agent(spec, method=Directions, phase="finetune")
    again.load_pretrained(agent.tensors())
    assert not again.task_skill_chosen  # another task chooses anew


@pytest.mark.parametrize("chosen", [True, False])
def test_evaluation_uses_the_chosen_skill_or_draws_one_for_each_episode(chosen):
    agent = make_agent(spec_of(Short), method=Directions, phase="finetune" if chosen else "pretrain")
    agent.task_skill.copy_(torch.tensor([3.0, -2.0]))
    agent.task_skill_chosen.fill_(chosen)
    seen = []
    act = agent.learner.act
    agent.learner.act = lambda obs, skill, deterministic: (
        seen.append(skill),
        act(obs, skill, deterministic=deterministic),
    )[1]
    voidrl.evaluate(agent, Short, episodes=3, num_envs=1)
    skills = [tuple(skill) for skill in torch.cat(seen).tolist()]
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


def test_the_discriminator_learns_in_its_own_optimizer_alone():
    agent = make_agent(spec_of(Point), method=Sides)
    replay = fill_replay(spec_of(Point), skill_dim=1)
    before = snapshot(dict(agent.method.named_parameters()))
    metrics = agent.update(replay)
    assert "discriminator_loss" in metrics
    assert all(not torch.equal(before[n], p) for n, p in agent.method.named_parameters())
    tuned = make_agent(spec_of(Point), method=Sides, phase="finetune")
    assert "method" not in tuned.optimizers
    assert not any(p.requires_grad for p in tuned.method.parameters())


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
    """A dictionary of the skill that the policy was given with each observation."""
    given, act = {}, agent.learner.act

    def watched(obs, skill, deterministic):
        given.update({tuple(o): tuple(s) for o, s in zip(obs.tolist(), skill.tolist(), strict=True)})
        return act(obs, skill, deterministic=deterministic)

    agent.learner.act = watched
    return given


@pytest.mark.parametrize("name", with_each_kind_of_skills())
def test_skills_are_stored_with_the_transition_that_followed_them(tmp_path, name):
    agent = skilled_agent(name, steps=60, warmup_steps=6)
    given = watch_policy(agent)
    replay = run_loop(tmp_path / "run", Unique, agent, num_envs=2).replay
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
    given = watch_policy(agent)
    replay = run_loop(tmp_path / "run", Unique, agent).replay
    skill = agent.task_skill
    assert agent.task_skill_chosen
    assert skill.shape == (agent.method.skill_dim,)
    assert skill.isfinite().all()
    assert f"is used for the task, {agent.method.skill_choice}\n" in capsys.readouterr().out
    slots = replay.starts[: len(replay)].sort().values
    assert (replay.skill[slots[40:]] == skill).all()  # the first update is due after 34 steps
    assert list(given.values())[-15:] == [tuple(skill.tolist())] * 15
    assert not (replay.ending[slots[40:]] == SKILL_ENDED).any()
    voidrl.save_pretrained(agent, tmp_path / "after")
    assert torch.equal(voidrl.load(tmp_path / "after", device="cpu").task_skill, skill)


def skills_for(method, n=16):
    """As they are drawn, each twice, so that discrete ones have pairs."""
    torch.manual_seed(0)
    return method.sample_skill(torch.zeros(n, dtype=torch.int64)).repeat_interleave(2, 0)[:n]


def batch_of(skill, obs=None):
    nothing = torch.zeros(len(skill))
    return Batch(obs, nothing, nothing, nothing, obs, skill, nothing, nothing, nothing)


@pytest.mark.parametrize("name", ["diayn", "smm", "aps", "cic", "moss", "becl"])
def test_the_reward_is_that_of_the_state_reached(name):
    method = skilled_agent(name).method
    batch = batch_of(skills_for(method))
    latents = Latents(lambda: pytest.fail("s is read"), lambda: points(16, 3), None)
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
    latents = Latents(None, lambda: 1 + 1e-3 * points(16, 3), None)  # equal in bf16
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

COMPASS = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
GRID = EnvSpec((2,), False, 1, num_actions=4, raw_shape=(2,))
PLANE = spec_of(Point)


class DiscretePsi(nn.Module):
    def __init__(self, inputs, num_actions, dim):
        super().__init__()
        self.psi, self.shape = mlp([inputs, 64, num_actions * dim]), (num_actions, dim)

    def forward(self, features, skill):
        psi = self.psi(torch.cat([features, skill], -1)).unflatten(-1, self.shape)  # (B, A, dim)
        return (psi * skill[:, None]).sum(-1)


class ContinuousPsi(nn.Module):
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
        inputs = feature_dim + self.skill_dim
        if self.spec.discrete:
            return DiscretePsi(inputs, self.spec.num_actions, self.skill_dim)
        return ContinuousPsi(inputs + self.spec.action_dim, self.skill_dim)


class KeepsCritic(Successor):
    """A method that holds on to the critic it made."""

    def make_critic(self, feature_dim, config):
        self.critic = super().make_critic(feature_dim, config)
        return self.critic


@pytest.mark.parametrize(
    ("spec", "method"),
    [pytest.param(GRID, Successor, marks=pytest.mark.slow), (PLANE, KeepsCritic)],
    ids=["discrete", "continuous"],
)
def test_successor_features_rank_actions_by_the_task(spec, method):
    learner = {
        "name": "dqn" if spec.discrete else "sac",
        "discount": 0.5,
        "learning_rate": 3e-3,
        "batch_size": 64,
    }
    options = {"method": method, "learner": {**learner, "target_tau": 0.05}}
    before = make_agent(spec, **options)
    replay = walk(spec, before.method.sample_skill, steps=600)
    for i in range(300):
        before.update(replay, i % before.learner.period)

    agent = make_agent(spec, phase="finetune", seed=1, **options)
    agent.load_pretrained(before.tensors())
    wanted = np.float32([0.5, -np.sqrt(0.75)])
    task = walk(
        spec, agent.method.sample_skill, steps=200, reward=lambda a, b: ((b - a) / 0.3 @ wanted).item()
    )
    agent.choose_task_skill(task)
    torch.testing.assert_close(agent.task_skill, torch.from_numpy(wanted), atol=1e-4, rtol=0)

    center = agent.learner.features(torch.zeros(1, 2))
    with torch.no_grad():
        if spec.discrete:
            q = agent.learner.critic(center, agent.task_skill[None])[0]
            assert q.argsort().tolist() == np.argsort(COMPASS @ wanted).tolist()  # up, left, right, down
            assert agent.act(np.zeros(2, np.float32)) == 3
        else:
            angle = torch.arange(8) * torch.pi / 4
            actions = torch.stack([angle.cos(), angle.sin()], -1)
            q = agent.learner.critic(center.expand(8, -1), agent.task_skill.expand(8, -1), actions).mean(0)
            assert torch.corrcoef(torch.stack([q, actions @ agent.task_skill]))[0, 1] > 0.95
    # Fine-tuning goes on training the critic that the method brought.
    weights = snapshot(dict(agent.learner.critic.named_parameters()))
    agent.update(task)
    assert all(not torch.equal(weights[n], p) for n, p in agent.learner.critic.named_parameters())


@pytest.mark.parametrize("method", [Successor, KeepsCritic])
def test_new_heads_replace_the_methods_critic_too(method):
    before = make_agent(GRID, method=method)
    agent = make_agent(GRID, method=method, phase="finetune", finetune__heads="random", seed=1)
    agent.load_pretrained(before.tensors())
    weight = "psi.0.weight"
    assert not torch.equal(
        agent.learner.critic.get_parameter(weight), before.learner.critic.get_parameter(weight)
    )


def test_a_skill_method_runs_through_the_whole_api(tmp_path):
    class Tiny(gym.Wrapper):
        def __init__(self):
            super().__init__(Point(1, goal=1.0))

    assert isinstance(Tiny().observation_space, spaces.Box)
    quick = {
        "learner": {"batch_size": 16, "hidden_dim": 16},
        "warmup_steps": 20,
        "log.tensorboard": False,
        "device": "cpu",
    }
    agent = voidrl.pretrain(Tiny, Sides, steps=40, out=tmp_path / "a", config=quick)
    tuned = voidrl.finetune(
        tmp_path / "a", Tiny, steps=60, out=tmp_path / "b", device="cpu", config={"finetune.warmup_steps": 45}
    )
    assert not agent.task_skill_chosen
    assert tuned.task_skill_chosen
    assert tuned.task_skill.abs() == 1
