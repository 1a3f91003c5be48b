"""Intrinsic rewards on a common scale: moments that forget, n-step sums by hand, exact resume."""

import math

import pytest
import torch
from helpers import LINE, Place, line_replay, make_agent, watched_update

from voidrl.agent.rewards import RewardNormalizer
from voidrl.config import Config
from voidrl.entropy import RunningMoments
from voidrl.errors import ConfigError

# Moments


def test_moments_that_forget_are_weighted_ones():
    moments = RunningMoments(momentum=0.5)
    batches = [torch.tensor([1.0, 3.0]), torch.tensor([10.0]), torch.tensor([4.0, 4.0, 7.0])]
    for batch in batches:
        moments.update(batch)
    x, weight = torch.cat(batches), torch.tensor([0.25, 0.25, 0.5, 1, 1, 1])
    mean = (weight * x).sum() / weight.sum()
    variance = (weight * (x - mean).square()).sum() / weight.sum()
    torch.testing.assert_close(moments.mean, mean[None])
    torch.testing.assert_close(moments.std, variance.sqrt()[None])


# Rewards


def normalizer(variant, **options):
    return RewardNormalizer(Config(intrinsic_normalization=variant, **options))


def test_rewards_by_hand():
    reward = torch.tensor([1.0, 2.0, 3.0, 6.0])  # mean 3, variance 14 / 4
    for variant, mean in (("scale", 0.0), ("standardize", 3.0)):
        module = normalizer(variant)
        normalized, seen = module.observe(reward)
        assert seen["intrinsic_mean"] == 3
        assert seen["intrinsic_std"].item() == pytest.approx(math.sqrt(3.5))
        assert seen["reward_std"].item() == pytest.approx(1)
        torch.testing.assert_close(normalized, (reward - mean) / math.sqrt(3.5))
        assert torch.equal(module(reward), normalized)
    unused = normalizer("none")
    assert unused(reward) is reward
    assert not list(unused.buffers())
    assert not list(normalizer("scale", phase="finetune").buffers())  # whose rewards are the task's


@pytest.mark.parametrize("value", [0.0, 0.1, -7.0])
def test_a_constant_reward_is_not_divided(value):
    reward = torch.full((64,), value) + 1e-7 * value * torch.randn(64)
    for variant, expected in (("scale", value), ("standardize", 0.0)):
        module = normalizer(variant)
        module.observe(reward)
        torch.testing.assert_close(module(reward), torch.full((64,), expected), rtol=1e-5, atol=1e-5)


def rewards_seen(values, **options):
    """The learner's batch and reward in one update on a line whose states are `values`."""
    agent = make_agent(
        LINE, method=Place, learner={"discount": 0.5, "batch_size": 64} | options.pop("learner"), **options
    )
    return agent, *watched_update(agent, line_replay(values, terminated_at=(7,)))


@pytest.mark.parametrize("n_step", [1, 3])
def test_each_reward_of_an_n_step_return_is_standardized_before_it_is_summed(n_step):
    values = [float(v) for v in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2)]
    agent, batch, reward, metrics = rewards_seen(
        values, intrinsic_normalization="standardize", learner={"n_step": n_step}, intrinsic_scale=10.0
    )
    mean, std = agent.normalizer.moments.mean, agent.normalizer.moments.std
    assert agent.normalizer.moments.count == 64
    torch.testing.assert_close(metrics["intrinsic_mean"], mean[0])  # the first update: the batch's own
    torch.testing.assert_close(metrics["reward_std"], torch.tensor(1.0))
    plain = rewards_seen(values, learner={"n_step": n_step})
    assert torch.equal(plain[1].obs, batch.obs)
    # Σ γ^i of the steps that count: that of a reward of 1.
    one = rewards_seen([1.0] * len(values), learner={"n_step": n_step})[2]
    torch.testing.assert_close(reward, 10 * (plain[2] - mean * one) / std)
    assert "intrinsic_mean" not in plain[3]


def test_bad_scales_are_refused():
    with pytest.raises(ConfigError, match=r"intrinsic_scale = 'gamma' cannot be used.*'horizon'"):
        make_agent(intrinsic_scale="gamma")
    with pytest.raises(ConfigError, match=r"intrinsic_momentum = 1\.0 cannot be used"):
        make_agent(intrinsic_momentum=1.0)
