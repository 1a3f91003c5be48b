"""An intrinsic reward next to the task's: what the learner maximizes, what is trained, and what a run is called."""

import json

import numpy as np
import pytest
import torch
from helpers import (
    PIXELS,
    Chain,
    Place,
    config,
    fill_replay,
    line_replay,
    make_agent,
    moved,
    parameters_of,
    small_method,
    snapshot,
    watch_losses,
)

import voidrl
from voidrl import registry
from voidrl.agent.bonus import Bonus
from voidrl.config import Config, update
from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.types import EnvSpec

LINE = EnvSpec((1,), False, 1, num_actions=2, raw_shape=(1,))


def given_rewards(agent, replay):
    """The batch and the rewards of the learner in one update, and its metrics."""
    seen = []
    watch_losses(agent, lambda batch, reward: seen.append((batch, reward.clone())))
    metrics = agent.step(replay)
    return *seen[0], metrics


# What the learner maximizes


@pytest.mark.parametrize("n", [1, 3])
def test_the_rewards_are_added_up_with_the_same_weights(n):
    """`Place` rewards the position of s', which is t + 1; the task rewards step t with 10^t."""
    values, rewards = [0, 1, 2, 3, 4, 5], [1.0, 10.0, 100.0, 1000.0, 10000.0]
    agent = make_agent(
        LINE, phase="train", method=Place, bonus__coefficient=0.5, reward_scale=2.0,
        learner__n_step=n, learner__discount=0.9,
    )  # fmt: skip
    batch, reward, metrics = given_rewards(agent, line_replay(values, rewards, terminated_at=[4]))
    start = batch.obs[:, 0].long()
    for at, found in zip(start.tolist(), reward.tolist(), strict=True):
        steps = range(at, min(at + n, 5))
        task = sum(0.9 ** (t - at) * rewards[t] for t in steps)
        intrinsic = sum(0.9 ** (t - at) * (t + 1) for t in steps)
        assert found == pytest.approx(2 * task + 0.5 * intrinsic, rel=1e-5)
    assert metrics["bonus_coefficient"] == 0.5
    parts = metrics["reward_task"] + metrics["reward_intrinsic"]
    torch.testing.assert_close(parts, metrics["reward_mean"])
    torch.testing.assert_close(metrics["intrinsic_mean"], (start + 1).float().mean())


def test_only_the_last_of_n_steps_may_be_scored():
    options = {"learner__n_step": 3, "learner__discount": 0.9, "learner__intrinsic_n_step": "single"}
    agent = make_agent(LINE, phase="train", method=Place, bonus__coefficient=0.5, **options)
    batch, reward, _ = given_rewards(agent, line_replay(range(9), [1.0] * 8))
    last = batch.next_obs[:, 0]
    length = last - batch.obs[:, 0]
    torch.testing.assert_close(reward, (1 - 0.9**length) / 0.1 + 0.5 * last)


def test_a_reward_is_normalized_before_it_is_weighted():
    agent = make_agent(
        LINE, phase="train", method=Place, bonus__coefficient=0.5, intrinsic_normalization="standardize"
    )
    batch, reward, _ = given_rewards(agent, line_replay(range(9), [7.0] * 8))
    place = batch.next_obs[:, 0]
    torch.testing.assert_close(
        reward, 7 + 0.5 * (place - place.mean()) / place.std(correction=0), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ({"decay": "none"}, {0: 0.2, 10**6: 0.2}),
        ({"decay": "linear", "decay_steps": 100}, {0: 0.2, 25: 0.15, 100: 0.0, 500: 0.0}),
        ({"decay": "linear"}, {0: 0.2, 250: 0.15, 1000: 0.0}),  # over the whole run
        ({"decay": "geometric", "decay_rate": 1e-5}, {0: 0.2, 100_000: 0.2 * np.exp(-1)}),
        ({"decay": "geometric", "decay_rate": 0.5}, {1: 0.1, 2: 0.05}),
    ],
    ids=str,
)
def test_the_coefficient_follows_its_schedule(decay, expected):
    bonus = Bonus(update(Config(), {"phase": "train", "steps": 1000, "bonus": {"coefficient": 0.2, **decay}}))
    held = bonus.coefficient
    for steps, value in expected.items():
        bonus.set_progress(steps)
        assert float(held) == pytest.approx(value, rel=1e-4, abs=1e-8)


def test_the_learner_sees_the_decayed_coefficient():
    agent = make_agent(
        LINE, phase="train", method=Place, bonus={"coefficient": 1.0, "decay": "linear", "decay_steps": 10}
    )
    agent.set_progress(4)
    batch, reward, metrics = given_rewards(agent, line_replay(range(9), [0.0] * 8))
    torch.testing.assert_close(reward, 0.6 * batch.next_obs[:, 0])
    assert float(metrics["bonus_coefficient"]) == pytest.approx(0.6)


# What is trained


@pytest.mark.parametrize("name", [name for name in registry.names("method") if name != "random"])
def test_every_method_can_be_a_bonus(name):
    """Its networks learn as in pre-training, and the learner from a reward that holds its own."""
    method = small_method(name)
    agents = {phase: make_agent(PIXELS, phase=phase, method=method, bonus__coefficient=0.5) for phase in
              ("pretrain", "train")}  # fmt: skip
    trained = {}
    for phase, agent in agents.items():
        replay = fill_replay(PIXELS, skill_dim=agent.method.skill_dim, note_dim=agent.note_dim)
        before = snapshot(parameters_of(agent))
        torch.manual_seed(1)
        batch, reward, metrics = given_rewards(agent, replay)
        assert torch.isfinite(reward).all()
        trained[phase] = moved(before, parameters_of(agent))
        assert {"bonus_coefficient", "reward_task"} <= metrics.keys() or phase == "pretrain"
        if agent.method.skill_dim:  # transitions keep the skills that they were made with
            assert len(batch.skill.unique(dim=0)) > 1
    own = {phase: {n for n in names if not n.startswith("learner.")} for phase, names in trained.items()}
    assert own["train"] == own["pretrain"]
    assert any(name.startswith("learner.") for name in trained["train"])


def test_f_is_trained_by_contrast_and_the_shared_encoder_by_the_task_too():
    options = {"method": "apt", "representation": "simclr", "share_encoder": "all", "bonus__coefficient": 0.1}
    assert make_agent(PIXELS, phase="train", **options).trainers == {"representation", "learner"}
    assert make_agent(PIXELS, phase="pretrain", **options).trainers == {"representation"}
    alone = make_agent(PIXELS, phase="train", **options | {"bonus__coefficient": 0.0})
    assert alone.trainers == {"learner"}
    rnd = make_agent(PIXELS, phase="train", **options | {"method": "rnd"})  # which does not read f
    assert rnd.trainers == {"learner"}


def test_a_frozen_encoder_stays_frozen_while_the_method_learns():
    """Proto-RL's second phase: prototypes may move, the encoder does not."""
    options = {"method": small_method("proto"), "encoder_trainers": ("method", "learner")}
    agent = make_agent(
        PIXELS, phase="finetune", bonus__coefficient=0.2, finetune__encoder_learning_rate=0.0, **options
    )
    before = snapshot(parameters_of(agent))
    agent.step(fill_replay(PIXELS))
    changed = moved(before, parameters_of(agent))
    assert not any(name.startswith(("learner.encoder", "representation.")) for name in changed)
    assert any(name.startswith("method.") for name in changed)


def test_random_actions_are_no_bonus_and_one_skill_needs_none():
    with pytest.raises(ConfigError, match="method 'random' cannot be used as a bonus"):
        make_agent(phase="train", method="random", bonus__coefficient=0.1)
    with pytest.raises(ConfigError, match="while fine-tuning an agent of method 'diayn'.*use 0"):
        make_agent(phase="finetune", method="diayn", bonus__coefficient=0.1)
    for wrong in ({"coefficient": -1.0}, {"decay_rate": 1.0}, {"decay_steps": 0}):
        with pytest.raises(ConfigError, match="cannot be used: expected"):
            update(Config(), {"bonus": wrong})


# Runs


class Counted(Method):
    """1 / √N of the room, counted as the states are reached."""

    reads_latents = False

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.register_buffer("visits", torch.zeros(spec.obs_shape[0]))

    def observe(self, obs, skill, env):
        self.visits.add_(obs.sum(0))

    def reward(self, batch, latents):
        return (batch.next_obs @ self.visits.clamp(min=1)).rsqrt()


class Trap(Chain):
    """A chain whose first room pays a little at every step to the left, and which takes long to cross."""

    def step(self, action):
        obs, reward, done, truncated, info = super().step(action)
        return obs, reward + (0.002 if action == 0 else 0.0), done, truncated, info


def trap():
    return Trap(12)


QUICK = {"learner__epsilon_decay_steps": 300, "learner__discount": 0.95, "learner__learning_rate": 1e-3}


def test_a_bonus_finds_what_random_actions_do_not(tmp_path):
    changes = config(**QUICK, learner__epsilon_end=0.05, updates_per_step=0.5)
    found = {}
    for name, bonus in {"scratch": {}, "counted": {"bonus": Counted}}.items():
        agent = voidrl.train(
            trap, steps=2500, out=tmp_path / name, config={**changes, **COEFFICIENT[name]}, seed=1, **bonus
        )
        found[name] = voidrl.evaluate(agent, trap, episodes=1).mean_return
    assert found["scratch"] < 0.5 < 1.0 <= found["counted"]
    rows = [json.loads(line) for line in (tmp_path / "counted" / "metrics.jsonl").open()]
    assert 0 < rows[-1]["train/reward_intrinsic"] < rows[1]["train/reward_intrinsic"]


COEFFICIENT = {"scratch": {}, "counted": {"bonus": {"coefficient": 0.2}}}
