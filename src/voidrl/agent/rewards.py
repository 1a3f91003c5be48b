"""The method's part of an update: its losses of a sample and its rewards; and what the learner maximizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.agent.optimizers import JointLoss
from voidrl.config import Config
from voidrl.entropy import RunningMoments
from voidrl.errors import ConfigError, shown
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import Latents, Option
from voidrl.replay import Replay, Segment
from voidrl.representations.base import Views
from voidrl.types import Batch, EnvSpec, Loss, Metrics

if TYPE_CHECKING:
    from voidrl.agent.agent import Agent

VALUE_METRICS = ("q_mean", "q_target", "value_limit", "temperature")  # in units of the reward
CONSTANT_SPREAD = 1e-5
"""Largest standard deviation of a constant reward, relative to its mean: above the rounding of float32, 1e-7,
and far below that of any informative reward."""
Pool = Callable[[int], Tensor]
Options = Callable[[int], Option]

# Most steps of the warm-up that are looked at once, for the skill or the values of a task.
WARMUP_STEPS = {"pixels": 2**12, "vectors": 2**17}


class RewardNormalizer(nn.Module):
    """Divides intrinsic rewards by their running deviation, or standardizes them (`intrinsic_normalization`).

    In an n-step return each of the n rewards is normalized by the same moments, then discounted:
    Σ γ^i (r_i − μ) / σ over the steps up to the end of the episode. With `intrinsic_n_step = "single"` it is
    the one reward of n steps.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.variant = config.intrinsic_normalization
        self.is_used = config.effective.uses_method and self.variant != "none"
        self.logs = self.is_used or config.effective.has_bonus
        if self.is_used:
            self.moments = RunningMoments(momentum=config.intrinsic_momentum)

    @fusable
    @torch.no_grad()
    def observe(self, reward: Tensor) -> tuple[Tensor, Metrics]:
        """Update the moments with (B,) rewards; returns these normalized, and what is logged of them."""
        found = reward.float()
        if self.is_used:
            self.moments.update(found)
        normalized = self(reward)
        metrics = {"reward_std": normalized.float().std(correction=0)}
        if self.logs:
            metrics |= {"intrinsic_mean": found.mean(), "intrinsic_std": found.std(correction=0)}
        return normalized, metrics

    def forward(self, reward: Tensor) -> Tensor:
        """(B,) → (B,), by the moments of all that was observed; vectors (B, dim) by those of their scalars.

        A reward that is constant up to rounding is not divided: `scale` would make it huge, and `standardize`
        would make noise of it.
        """
        if not self.is_used:
            return reward
        mean, std = self.moments.mean, self.moments.std
        centered = reward - mean if self.variant == "standardize" else reward
        return centered / std.masked_fill(std <= CONSTANT_SPREAD * mean.abs(), 1.0)


class Step(NamedTuple):
    """The i-th transitions of segments, which the method rewards."""

    batch: Batch
    latents: Latents
    reward_factor: Tensor | None
    """(B,) γ^i, 0 after the end of the episode; None for 1."""


def train_method(agent: Agent, replay: Replay, segment: Segment, step: Step, joint: JointLoss) -> Metrics:
    """Minimize the method's losses of (s, a, s'), together with the encoder's others if it trains that."""
    method, optimizers, metrics = agent.method, agent.optimizers, Metrics()
    config, latents = agent.config.learner, step.latents
    is_single, trains_encoder = config.intrinsic_n_step == "single", "method" in agent.encoder_trainers
    method.train()
    for _ in range(method.loss_batches - 1):  # train the method's own networks, never the encoder
        slots = replay.sample(dist.current().share_of(config.batch_size))
        one_step = (1, config.discount)
        fresh = agent.horizon.segment(replay, slots) if is_single else replay.segment(slots, *one_step)
        other, option = replay.n_step_batch(fresh), encoded_options(agent, replay, fresh)
        for loss in _method_losses(agent, other, batch_latents(agent, other, latents.pool, option)):
            optimizers.minimize([loss.optimizer], loss.value)
    if trains_encoder:
        states = segment if is_single else segment._replace(states=segment.states[:, :2])
        latents = _trained_latents(agent, replay, states, latents.pool)
    for loss in _method_losses(agent, step.batch, latents):
        metrics |= agent.owned("method", loss.metrics, loss)
        if trains_encoder:
            joint.add(loss.value, [loss.optimizer, *agent.encoder_optimizer()])
        else:
            optimizers.minimize([loss.optimizer], loss.value)
    method.eval()
    agent.representation.eval()
    if joint and agent.last_trainer == "method":
        optimizers.minimize(joint.optimizers, joint.total())
    return metrics


def _method_losses(agent: Agent, batch: Batch, latents: Latents) -> Iterator[Loss]:
    """The method's losses, each of which must name an optimizer of its own."""
    name, own = f"method {agent.config.method.name!r}", sorted(agent.method.groups())
    losses: Any = agent.method.losses(batch, latents)  # of a custom method perhaps one, or None
    for loss in losses if isinstance(losses, Iterable) and not isinstance(losses, Tensor) else [losses]:
        is_number = isinstance(loss, Loss) and isinstance(loss.value, Tensor) and loss.value.numel() == 1
        if not is_number or not all(isinstance(metric, Tensor) for metric in loss.metrics.values()):
            raise ConfigError(
                f"losses of {name} yielded {shown(loss)}: expected Loss(optimizer, value, metrics) with a "
                f"single number, as a tensor, for the value and each metric; reduce it, such as with .mean()"
            )
        if loss.optimizer not in own:
            raise ConfigError(
                f"a loss of {name} names optimizer {loss.optimizer!r}: expected one of its groups(), "
                f"{' or '.join(map(repr, own)) or 'no loss, since it has no weights'}"
            )
        yield loss


def reward_of(agent: Agent, batch: Batch, latents: Latents) -> Tensor:
    """(B,), or (B, reward_dim): the method's reward of each transition."""
    method, n, name = agent.method, len(batch.action), agent.config.method.name
    reward = method.reward(batch, latents)
    expected = (n, method.reward_dim) if method.reward_dim else (n,)
    if getattr(reward, "shape", None) != expected:
        given = f"of shape {tuple(reward.shape)}" if isinstance(reward, Tensor) else repr(reward)
        raise ConfigError(f"method {name!r} gave rewards {given} for {n} transitions: expected {expected}")
    return reward


@torch.no_grad()
def intrinsic_reward(agent: Agent, steps: Sequence[Step]) -> tuple[Tensor, Metrics]:
    """(B,): the sum of the steps' discounted rewards, each normalized; (B, dim) if rewards are vectors.

    Moments and metrics are those of the scalar rewards of the first step: only first steps are an unbiased
    sample, since later ones repeat, with factor 0, at the end of an episode.
    """
    method, metrics, is_vector = agent.method, Metrics(), agent.reward_dim > 0
    total: Tensor | None = None
    for batch, latents, factor in steps:
        raw = reward_of(agent, batch, latents)
        scalar = method.scalar_reward(raw, batch.skill)
        if total is None:
            normalized, logged = agent.normalizer.observe(scalar)
            if agent.effective.has_bonus:
                del logged["reward_std"]  # that of the sum with the task's reward is logged
            metrics |= agent.owned("reward", logged)
        if is_vector or total is not None:  # next to a task's reward, vectors are contracted
            normalized = agent.normalizer(raw if is_vector else scalar)
        discounted = normalized.float()
        if factor is not None:
            discounted = factor.view(-1, *[1] * is_vector) * discounted
        total = discounted if total is None else total + discounted
    assert total is not None
    # Copies: by the time they are logged, the next update may have been scored.
    state = {name: value.clone() for name, value in method.metrics().items()}
    return total, metrics | agent.owned("method", state)


def learner_reward(agent: Agent, batch: Batch, intrinsic: Tensor | None) -> tuple[Tensor, Metrics]:
    """(B,) the reward that the learner maximizes, given the n-step intrinsic one where there is one.

    (B, dim) where it learns from vectors.
    """
    config = agent.config
    if agent.effective.pretrains:
        assert intrinsic is not None
        mean, scale = agent.method.scalar_reward(intrinsic, batch.skill).mean(), config.intrinsic_scale
        if scale == "horizon" or (scale is None and agent.learner.has_bounded_values):
            scale = 1 - config.learner.largest_discount
        reward = intrinsic if scale in (None, 1) else intrinsic * scale
        return reward, agent.owned("reward", {"reward_mean": mean})
    reward, metrics = batch.reward * config.reward_scale, Metrics()
    if intrinsic is not None:
        assert agent.bonus is not None
        beta = agent.bonus.coefficient
        bonus = beta * intrinsic
        # The two add up to reward_mean.
        metrics |= agent.owned("reward", {"reward_intrinsic": bonus.mean()})
        metrics |= agent.owned("task", {"reward_task": reward.mean(), "bonus_coefficient": beta.clone()})
        reward = reward + bonus
    metrics |= agent.owned("task", {"reward_std": reward.std(correction=0), "reward_mean": reward.mean()})
    return reward * agent.task_scale if agent.effective.adapts else reward, metrics


def observe_limits(agent: Agent, reward: Tensor) -> Metrics:
    """Widen the limits of values by these rewards of the learner."""
    agent.learner.bounds.observe(reward)
    if reward.ndim > 1:  # the limit of vectors is that of a component
        return {}
    return agent.owned("reward", in_task_units(agent, {"value_limit": agent.learner.bounds.limit}))


def in_task_units(agent: Agent, metrics: Metrics) -> Metrics:
    """The metrics, with values divided by what fine-tuning multiplies rewards with."""
    if not agent.effective.adapts:
        return metrics
    return {k: v / agent.task_scale if k in VALUE_METRICS else v for k, v in metrics.items()}


def rewarded_steps(agent: Agent, replay: Replay, segment: Segment, learner_batch: Batch) -> list[Step]:
    """The steps of each segment, or with `intrinsic_n_step = "single"` one for the n-step transition.

    Observations are not augmented here. Latents are encoded when they are first read, those of all n + 1
    states in one pass.
    """
    config = agent.config.learner
    pool, option = encoded_pool(agent, replay), encoded_options(agent, replay, segment)
    if config.longest_n_step == 1 or config.intrinsic_n_step == "single":
        is_plain = not agent.spec.pixels and config.views == 1  # only images are augmented
        batch = learner_batch if is_plain else replay.n_step_batch(segment)
        return [Step(batch, batch_latents(agent, batch, pool, option), None)]
    shape = segment.states.T.shape
    # s' of a step is s of the next: ((n + 1) · B, *obs_shape) has every state once.
    obs = replay.observations(segment.states.T.flatten())
    z = cache(lambda: agent.encode(obs).unflatten(0, shape))  # (n + 1, B, dim)
    found = []
    for i, (batch, factor) in enumerate(replay.steps(segment, obs.unflatten(0, shape))):
        # All steps of a segment belong to one option.
        states = (lambda i=i: z()[i]), (lambda i=i: z()[i + 1])
        found.append(Step(batch, Latents(*states, pool, option, agent.representation), factor))
    return found


def batch_latents(agent: Agent, batch: Batch, pool: Pool, option: Options | None = None) -> Latents:
    """The representation of a batch's states, without gradients, computed when it is first read."""
    states = partial(agent.encode, batch.obs), partial(agent.encode, batch.next_obs)
    return Latents(*states, pool, option, agent.representation)


def warmup_stride(steps: int, spec: EnvSpec) -> int:
    """The distance of those steps of a warm-up that are looked at; 1 where all are."""
    return -(-steps // WARMUP_STEPS["pixels" if spec.pixels else "vectors"])


def encoded_options(
    agent: Agent, replay: Replay, segment: Segment, encode: Callable[[Tensor], Tensor] | None = None
) -> Options:
    """The options that segments belong to, each encoded once; `encode` takes (n,) slots to (n, dim)."""

    def option(longest: int) -> Option:
        found = replay.options(segment.slots[:, 0], longest)
        slots = torch.cat([found.first, found.last])
        z = encode(slots) if encode is not None else agent.encode(replay.observations(slots))
        first, last = z.chunk(2)
        return Option(first, last, found.steps.to(agent.device), found.complete.float().to(agent.device))

    return cache(option)


def encoded_pool(agent: Agent, replay: Replay) -> Pool:
    """Encoded states drawn from the replay: the same n for everything that one update scores.

    Where ranks have a part of the replay each, all draw as many from theirs and search all of them.
    """

    def draw(n: int) -> Tensor:
        mine = -(-n // dist.current().size)
        return dist.all_gather(agent.encode(replay.observations(replay.sample(mine))))[:n]

    return cache(draw)


def _trained_latents(agent: Agent, replay: Replay, segment: Segment, pool: Pool) -> Latents:
    """The representation of augmented observations s and s', with gradients."""
    representation = agent.representation
    views = Views(replay, segment, agent.augment, representation.layout)
    representation.train()

    def encode(obs: Tensor) -> Tensor:
        return representation.encode(obs).float()

    def encode_slots(slots: Tensor) -> Tensor:
        return encode(agent.augment(replay.frames_of(slots), representation.layout))

    option = encoded_options(agent, replay, segment, encode_slots)
    states = (lambda: encode(views.obs()), lambda: encode(views.next_obs()))
    return Latents(*states, pool, option, representation)
