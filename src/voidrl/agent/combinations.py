"""Combinations of pieces and fields that cannot work, in one table, each with a remedy.

Pieces declare what they need and offer as class attributes (`actions`, `has_loss`, `learner`, …), or refuse a
config themselves (`Method.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from voidrl.agent.encoder_training import Pieces, decide, is_trainable
from voidrl.config import Config, SkillConfig
from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.representations.base import Representation
from voidrl.types import EnvSpec

if TYPE_CHECKING:
    from voidrl.agent.agent import Agent

STACK_FIELDS = ("stack", "activation", "width", "spectral_norm_iterations")
Row = tuple[Any, str, str, str]
"""Condition, offending piece or field, what it conflicts with, and the reason with a remedy."""


def refuse(rows: Iterator[Row]) -> None:
    """Refuse the first combination that is there."""
    for is_there, what, other, why in rows:
        if is_there:
            raise ConfigError(f"{what} cannot be used with {other}: {why}")


class Combination:
    """The pieces and fields of a run; its generators are the table, by when each row can be judged."""

    def __init__(self, spec: EnvSpec, config: Config) -> None:
        self.spec, self.config, self.phase = spec, config, config.effective
        self.pieces = Pieces.of(config)
        self.training = decide(config, self.pieces)
        self.f, self.own, self.acts = (f"{kind} {getattr(config, kind).name!r}" for kind in Pieces._fields)
        self.has_skills = isinstance(config.method, SkillConfig)

    def check(self) -> None:
        """Refuse pieces and fields that cannot work together, before any network is built."""
        refuse(self._pieces())
        if self.config.learner.on_policy:
            refuse(self._on_policy())
        refuse(self._encoders())
        if self.phase.uses_method:
            self.pieces.method.check(self.spec, self.config)

    def _pieces(self) -> Iterator[Row]:
        """Method, learner, bonus and skills."""
        config, phase, own, acts = self.config, self.phase, self.own, self.acts
        method, learner, is_discrete = self.pieces.method, self.pieces.learner, self.spec.discrete
        yield (
            learner.actions not in ("both", "discrete" if is_discrete else "continuous"),
            *(acts, self.spec.describe()),
            f"it takes {learner.actions} actions; use {'dqn' if is_discrete else 'sac or ddpg'}",
        )
        yield (
            phase.pretrains and method.learner not in ("", config.learner.name),
            *(own, acts),
            f"it has no reward, and its own learner {method.learner!r} follows the gradient of what it "
            f"maximizes; leave the learner out",
        )
        exponent = config.replay.priority_exponent
        yield (
            exponent and not learner.has_priorities,
            *(f"replay.priority_exponent = {exponent}", acts),
            "its losses have no priority; use 0, or a learner with has_priorities, such as dqn or sac",
        )
        if phase.has_bonus:
            bonus = f"bonus.coefficient = {config.bonus.coefficient:g}"
            yield (
                not method.learns or method.learner,
                *(own, bonus),
                "it has no reward of a transition that could be added to the task's; use apt or rnd",
            )
            yield (
                self.has_skills and not phase.samples_skills,
                *(bonus, f"an agent of {own} in fine-tuning"),
                "its reward tells skills apart, and fine-tuning follows the one that was chosen for the "
                "task; use 0, or an agent of a method without skills such as apt",
            )
        n, period = config.learner.longest_n_step, getattr(config.method, "skill_every_steps", 0)
        field = "n_step" if n == config.learner.n_step else "n_step_end"
        yield (
            (phase.uses_method or phase.adapts) and 0 < period < n,
            *(f"method.skill_every_steps = {period}", f"learner.{field} = {n}"),
            f"a return must not be longer than the skill that earns it; use {n} or more, or a smaller "
            f"{field}",
        )
        yield (
            self.has_skills and phase.tuning.warmup_actions == "random" and not method.regresses_skill,
            *("finetune.warmup_actions = 'random'", own),
            "the warm-up follows the skills from which one is chosen for the task, which takes the policy; "
            "use 'policy'",
        )

    def _on_policy(self) -> Iterator[Row]:
        """A learner that learns from rollouts of its own policy."""
        config, phase, own, acts = self.config, self.phase, self.own, self.acts
        yield (
            phase.pretrains and self.pieces.method.learner != config.learner.name,
            *(acts, own),
            "its rewards need a learner that samples the replay; use dqn or sac, or method 'mepol'",
        )
        yield self.has_skills, acts, own, "it follows no skills; use dqn or sac"
        steps = int(getattr(config.learner, "rollout_steps", 0))
        needed = 2 * steps * config.env.num_envs
        yield (
            config.replay.capacity_steps < needed,
            f"replay.capacity_steps = {config.replay.capacity_steps}",
            f"learner.rollout_steps = {steps} and env.num_envs = {config.env.num_envs}",
            f"a rollout and its resets must fit; use {needed} or more, or shorter rollouts",
        )
        unused = {
            "reset.every_updates": config.reset.every_updates,
            "bonus.coefficient": config.bonus.coefficient if phase.has_bonus else 0,
            "replay.data": config.replay.data,
        }
        for field, value in unused.items():
            yield (
                value,
                *(f"{field} = {value!r}", acts),
                "it learns from each step of its own policy once; use 0 or leave it out, or use a learner "
                "that samples the replay, such as dqn or sac",
            )

    def _encoders(self) -> Iterator[Row]:
        """Encoders that are shared, kept or trained by several losses."""
        config, phase, training, f = self.config, self.phase, self.training, self.f
        method, representation = self.pieces.method, self.pieces.representation
        share = f"share_encoder = {config.share_encoder!r}"
        yield (
            representation.loss is not Representation.loss and not representation.has_loss,
            *(f, "has_loss = False", "its loss would never be minimized; set has_loss = True in its class"),
        )
        yield (
            config.share_encoder != "nothing" and not representation.has_encoder,
            *(share, f, "it has no encoder; use simclr or fixed"),
        )
        if config.share_encoder == "stack":
            yield (
                representation.uses_learner_encoder,
                *(share, f, "it uses the learner's encoder as a whole; use 'nothing'"),
            )
            why = "vectors pass no convolutions that could be shared; use 'nothing' or 'all'"
            yield not self.spec.pixels, share, self.spec.describe(), why
            mine, other = config.representation.encoder, config.learner.encoder
            # A custom stack has its own layers.
            for field in STACK_FIELDS[: 1 if ":" in other.stack else None]:
                given, wanted = getattr(mine, field), getattr(other, field)
                yield (
                    given != wanted,
                    share,
                    f"representation.encoder.{field} = {given!r} and learner.encoder.{field} = {wanted!r}",
                    f"expected the same for both; set representation.encoder.{field} = {wanted!r}",
                )
        is_read = training.is_shared or (phase.uses_method and method.uses_latents(config))
        yield (
            representation.reads_files and not phase.pretrains and not phase.adapts and not is_read,
            *(f, "share_encoder = 'nothing' when training from scratch"),
            "the learner would not read it; use share_encoder = 'all'",
        )
        yield (
            not phase.pretrains and training.trains_representation and not is_read,
            *("representation.auxiliary = True", f"{f} and share_encoder = 'nothing'"),
            "its loss would train an encoder that nothing reads; use share_encoder = 'stack' or 'all' from "
            "pre-training on, or representation.auxiliary = False",
        )
        yield (
            phase.encoder_is_frozen and config.representation.auxiliary and representation.has_loss,
            *("finetune.encoder_learning_rate = 0", "representation.auxiliary = True"),
            f"the loss of {f} would train an encoder that stays as it was pre-trained; set "
            f"representation.auxiliary = False",
        )
        trains = training.trains_representation
        able = {
            "representation": (trains, "it has no loss, or nothing reads it", "simclr"),
            "method": (method.can_train_encoder, "its losses do not reach the encoder", "diayn"),
            "learner": (training.is_shared, "it does not use that encoder", "share_encoder = 'all'"),
        }
        for kind in config.encoder_trainers if phase.uses_method and not phase.encoder_is_frozen else ():
            can, why, remedy = able[kind]
            yield (
                not can,
                f"encoder_trainers = {config.encoder_trainers}",
                f"{kind} {getattr(config, kind).name!r} and {share}",
                f"{why}; leave out {kind!r}, or use {remedy}",
            )

    def with_critic(self, method: Method, critic: nn.Module | None) -> Iterator[Row]:
        """The method's critic and vector rewards, which show before the learner is built."""
        learner = self.pieces.learner
        if method.reward_dim and self.phase.pretrains:
            rewards = f"{self.own}, whose rewards are vectors of {method.reward_dim} numbers"
            assert method.reward_dim == method.skill_dim, f"{rewards}: expected as many as the skill has"
            yield not learner.takes_vector_rewards, self.acts, rewards, "use dqn"
            yield (
                self.config.intrinsic_normalization == "standardize",
                *("intrinsic_normalization = 'standardize'", rewards),
                "there is no one mean to subtract; use 'scale' or 'none'",
            )
        yield (
            critic is not None and learner.has_bounded_values,
            *(self.acts, f"the critic of {self.own}"),
            "it learns the distribution of returns by its own; use dqn",
        )

    def with_networks(self, agent: Agent) -> Iterator[Row]:
        """Weights, heads and layers."""
        learner, trainers, encoder = agent.learner, self.training.trainers, agent.representation.encoder
        is_frozen, chosen = is_trainable(encoder) is False, self.config.encoder_trainers
        yield (
            is_frozen and "representation" in trainers,
            *(f"the loss of {self.f}", "an encoder whose weights are all frozen (requires_grad = False)"),
            "leave some trainable, or add layers behind it with representation.encoder.feature_dim",
        )
        yield (
            self.phase.uses_method and chosen and (encoder is None or is_frozen),
            f"encoder_trainers = {chosen}",
            f"{self.f}, {'which has no encoder' if encoder is None else 'whose encoder never learns'}",
            "leave it out, or use simclr or icm",
        )
        yield (
            len(trainers) > 1 and "critic" not in learner.groups(),
            *(f"the losses of {' and '.join(sorted(trainers))} on one encoder", self.acts),
            f"a joint loss needs a group 'critic', and it has {', '.join(learner.groups())}; use "
            f"encoder_trainers = ['representation'], or representation.auxiliary = False for a task",
        )
        tuning, has_encoder = self.phase.tuning, any(True for _ in learner.encoder.parameters())
        for wanted, has in {"actor": hasattr(learner, "actor"), "first_layer": learner.first_layers}.items():
            yield (
                tuning.heads == wanted and not has,
                *(f"finetune.heads = {wanted!r}", self.acts),
                f"it has no {wanted.replace('_', ' ')}; use 'auto', 'pretrained' or 'random'",
            )
        for part, has in {"encoder": has_encoder, "first_layer": learner.first_layers}.items():
            rate = getattr(tuning, f"{part}_learning_rate")
            yield (
                rate is not None and not has and agent.learns,
                *(f"finetune.{part}_learning_rate = {rate}", f"{self.acts} on {agent.spec.describe()}"),
                f"it has no {part.replace('_', ' ')} with weights; leave it out, for finetune.learning_rate",
            )


def check_ranks(config: Config, size: int) -> None:
    """Refuse a run that `size` ranks cannot divide."""
    if size > 1:
        refuse(_ranks(config, size))


def _ranks(config: Config, size: int) -> Iterator[Row]:
    pieces, phase, num_envs = Pieces.of(config), config.effective, config.env.num_envs
    own, ranks = f"method {config.method.name!r}", f"{size} ranks"
    batches = {"learner": config.learner.batch_size}
    if decide(config, pieces).trains_representation:
        batches["representation"] = config.representation.batch_size
    for kind, n in batches.items():
        remedy = f"use {max(1, n // size) * size}, a multiple of {size}"
        yield n % size, f"{kind}.batch_size = {n}", ranks, remedy
    acts = f"learner {config.learner.name!r}"
    yield config.learner.on_policy, acts, ranks, "use 1 rank, or a learner such as dqn"
    # With latents, the sample of visits is that of all ranks.
    counts = phase.uses_method and pieces.method.counts_visits and not pieces.method.uses_latents(config)
    yield counts, f"the visits of {own}", ranks, "use 1 rank, or a representation such as simclr"
    chooses = phase.adapts and isinstance(config.method, SkillConfig)
    yield chooses, f"fine-tuning of {own}", ranks, "one chooses a skill for the task; use 1 rank"
    yield num_envs < size, f"env.num_envs = {num_envs}", ranks, f"use {size} or more, or fewer ranks"
