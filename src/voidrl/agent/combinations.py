"""Combinations of pieces and fields that cannot work, each with a remedy.

Pieces declare what they need and offer as class attributes (`actions`, `has_loss`, `learner`, …), or refuse a
config themselves (`Method.check`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

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


def refuse(what: str, other: str, why: str) -> NoReturn:
    """Refuse a piece or field, with what it conflicts with, and the reason with a remedy."""
    raise ConfigError(f"{what} cannot be used with {other}: {why}")


class Combination:
    """The pieces and fields of a run; its checks are grouped by when they can be made."""

    def __init__(self, spec: EnvSpec, config: Config) -> None:
        self.spec, self.config, self.phase = spec, config, config.effective
        self.pieces = Pieces.of(config)
        self.training = decide(config, self.pieces)
        self.f, self.own, self.acts = (f"{kind} {getattr(config, kind).name!r}" for kind in Pieces._fields)

    def check(self) -> None:
        """Refuse pieces and fields that cannot work together, before any network is built."""
        self._check_pieces()
        if self.config.learner.on_policy:
            self._check_on_policy()
        self._check_sharing()
        self._check_encoder_losses()
        if self.phase.uses_method:
            self.pieces.method.check(self.spec, self.config)

    def _check_pieces(self) -> None:
        """Method, learner, bonus and skills."""
        config, phase, own, acts = self.config, self.phase, self.own, self.acts
        method, learner = self.pieces.method, self.pieces.learner
        taken, use = ("discrete", "dqn") if self.spec.discrete else ("continuous", "sac or ddpg")
        if learner.actions not in ("both", taken):
            refuse(acts, self.spec.describe(), f"it takes {learner.actions} actions; use {use}")
        if phase.pretrains and method.learner not in ("", config.learner.name):
            follows = f"its own learner {method.learner!r} follows the gradient of what it maximizes"
            refuse(own, acts, f"it has no reward, and {follows}; leave the learner out")
        if (exponent := config.replay.priority_exponent) and not learner.has_priorities:
            why = "its losses have no priority; use 0, or a learner with has_priorities, such as dqn or sac"
            refuse(f"replay.priority_exponent = {exponent}", acts, why)
        has_skills = isinstance(config.method, SkillConfig)
        bonus = f"bonus.coefficient = {config.bonus.coefficient:g}"
        if phase.has_bonus and (not method.learns or method.learner):
            why = "it has no reward of a transition that could be added to the task's; use apt or rnd"
            refuse(own, bonus, why)
        if phase.has_bonus and has_skills and not phase.samples_skills:
            why = "its reward tells skills apart, and fine-tuning follows the one chosen for the task"
            remedy = "use 0, or an agent of a method without skills such as apt"
            refuse(bonus, f"an agent of {own} in fine-tuning", f"{why}; {remedy}")
        n, period = config.learner.longest_n_step, getattr(config.method, "skill_every_steps", 0)
        if (phase.uses_method or phase.adapts) and 0 < period < n:
            field = "n_step" if n == config.learner.n_step else "n_step_end"
            why = f"a return must not be longer than the skill that earns it; use {n} or more, or a smaller"
            refuse(f"method.skill_every_steps = {period}", f"learner.{field} = {n}", f"{why} {field}")
        if has_skills and phase.tuning.warmup_actions == "random" and not method.regresses_skill:
            why = "the warm-up tries the skills from which the task's is chosen, by the policy; use 'policy'"
            refuse("finetune.warmup_actions = 'random'", own, why)

    def _check_on_policy(self) -> None:
        """A learner that learns from rollouts of its own policy."""
        config, phase, acts = self.config, self.phase, self.acts
        if phase.pretrains and self.pieces.method.learner != config.learner.name:
            why = "its rewards need a learner that samples the replay; use dqn or sac, or method 'mepol'"
            refuse(acts, self.own, why)
        if isinstance(config.method, SkillConfig):
            refuse(acts, self.own, "it follows no skills; use dqn or sac")
        steps, num_envs = int(getattr(config.learner, "rollout_steps", 0)), config.env.num_envs
        if config.replay.capacity_steps < (needed := 2 * steps * num_envs):
            rollout = f"learner.rollout_steps = {steps} and env.num_envs = {num_envs}"
            why = f"a rollout and its resets must fit; use {needed} or more, or shorter rollouts"
            refuse(f"replay.capacity_steps = {config.replay.capacity_steps}", rollout, why)
        unused = {
            "reset.every_updates": config.reset.every_updates,
            "bonus.coefficient": config.bonus.coefficient if phase.has_bonus else 0,
            "replay.data": config.replay.data,
        }
        for field, value in unused.items():
            if value:
                remedy = "use 0 or leave it out, or use a learner that samples the replay, such as dqn or sac"
                why = f"it learns from each step of its own policy once; {remedy}"
                refuse(f"{field} = {value!r}", acts, why)

    def _check_sharing(self) -> None:
        """Layers that f and the learner share."""
        config, representation = self.config, self.pieces.representation
        share = f"share_encoder = {config.share_encoder!r}"
        if config.share_encoder != "nothing" and not representation.has_encoder:
            refuse(share, self.f, "it has no encoder; use simclr or fixed")
        if config.share_encoder != "stack":
            return
        if representation.uses_learner_encoder:
            refuse(share, self.f, "it uses the learner's encoder as a whole; use 'nothing'")
        if not self.spec.pixels:
            why = "vectors pass no convolutions that could be shared; use 'nothing' or 'all'"
            refuse(share, self.spec.describe(), why)
        mine, other = config.representation.encoder, config.learner.encoder
        # A custom stack has its own layers.
        for field in STACK_FIELDS[: 1 if ":" in other.stack else None]:
            ours, wanted = (f"encoder.{field} = {getattr(each, field)!r}" for each in (mine, other))
            if ours != wanted:
                both = f"representation.{ours} and learner.{wanted}"
                refuse(share, both, f"expected the same for both; set representation.{wanted}")

    def _check_encoder_losses(self) -> None:
        """Losses that train f."""
        config, phase, training, f = self.config, self.phase, self.training, self.f
        method, representation = self.pieces.method, self.pieces.representation
        if representation.loss is not Representation.loss and not representation.has_loss:
            why = "its loss would never be minimized; set has_loss = True in its class"
            refuse(f, "has_loss = False", why)
        is_read = training.is_shared or (phase.uses_method and method.uses_latents(config))
        if representation.reads_files and not phase.pretrains and not phase.adapts and not is_read:
            scratch = "share_encoder = 'nothing' when training from scratch"
            refuse(f, scratch, "the learner would not read it; use share_encoder = 'all'")
        auxiliary = "representation.auxiliary"
        if not phase.pretrains and training.trains_representation and not is_read:
            remedy = f"use share_encoder = 'stack' or 'all' from pre-training on, or {auxiliary} = False"
            why = f"its loss would train an encoder that nothing reads; {remedy}"
            refuse(f"{auxiliary} = True", f"{f} and share_encoder = 'nothing'", why)
        if phase.encoder_is_frozen and config.representation.auxiliary and representation.has_loss:
            why = f"the loss of {f} would train an encoder that stays as it was pre-trained"
            rate = "finetune.encoder_learning_rate = 0"
            refuse(rate, f"{auxiliary} = True", f"{why}; set {auxiliary} = False")
        trains = training.trains_representation
        able = {
            "representation": (trains, "it has no loss, or nothing reads it", "simclr"),
            "method": (method.can_train_encoder, "its losses do not reach the encoder", "diayn"),
            "learner": (training.is_shared, "it does not use that encoder", "share_encoder = 'all'"),
        }
        for kind in config.encoder_trainers if phase.uses_method and not phase.encoder_is_frozen else ():
            can, why, remedy = able[kind]
            if not can:
                piece = f"{kind} {getattr(config, kind).name!r} and share_encoder = {config.share_encoder!r}"
                chosen = f"encoder_trainers = {config.encoder_trainers}"
                refuse(chosen, piece, f"{why}; leave out {kind!r}, or use {remedy}")

    def check_critic(self, method: Method, critic: nn.Module | None) -> None:
        """Refuse a critic or vector rewards of the method, before the learner is built."""
        learner = self.pieces.learner
        if method.reward_dim and self.phase.pretrains:
            rewards = f"{self.own}, whose rewards are vectors of {method.reward_dim} numbers"
            assert method.reward_dim == method.skill_dim, f"{rewards}: expected as many as the skill has"
            if not learner.takes_vector_rewards:
                refuse(self.acts, rewards, "use dqn")
            if self.config.intrinsic_normalization == "standardize":
                why = "there is no one mean to subtract; use 'scale' or 'none'"
                refuse("intrinsic_normalization = 'standardize'", rewards, why)
        if critic is not None and learner.has_bounded_values:
            why = "it learns the distribution of returns by its own; use dqn"
            refuse(self.acts, f"the critic of {self.own}", why)

    def check_networks(self, agent: Agent) -> None:
        """Refuse weights, heads and layers that do not fit, once they are built."""
        learner, trainers, encoder = agent.learner, self.training.trainers, agent.representation.encoder
        is_frozen = is_trainable(encoder) is False
        if is_frozen and "representation" in trainers:
            given = "an encoder whose weights are all frozen (requires_grad = False)"
            why = "leave some trainable, or add layers behind it with representation.encoder.feature_dim"
            refuse(f"the loss of {self.f}", given, why)
        chosen = self.config.encoder_trainers
        if self.phase.uses_method and chosen and (encoder is None or is_frozen):
            which = "which has no encoder" if encoder is None else "whose encoder never learns"
            given = f"encoder_trainers = {chosen}"
            refuse(given, f"{self.f}, {which}", "leave it out, or use simclr or icm")
        if len(trainers) > 1 and "critic" not in learner.groups():
            why = f"a joint loss needs a group 'critic', and it has {', '.join(learner.groups())}"
            remedy = "['representation'], or representation.auxiliary = False for a task"
            losses = f"the losses of {' and '.join(sorted(trainers))} on one encoder"
            refuse(losses, self.acts, f"{why}; use encoder_trainers = {remedy}")
        tuning, has_encoder = self.phase.tuning, any(True for _ in learner.encoder.parameters())
        for part, has in {"actor": hasattr(learner, "actor"), "first_layer": learner.first_layers}.items():
            if tuning.heads == part and not has:
                why = f"it has no {part.replace('_', ' ')}; use 'auto', 'pretrained' or 'random'"
                refuse(f"finetune.heads = {part!r}", self.acts, why)
        for part, has in {"encoder": has_encoder, "first_layer": learner.first_layers}.items():
            rate = getattr(tuning, f"{part}_learning_rate")
            if rate is not None and not has and agent.learns:
                why = f"it has no {part.replace('_', ' ')} with weights; leave it out"
                field = f"finetune.{part}_learning_rate = {rate}"
                given = f"{self.acts} on {agent.spec.describe()}"
                refuse(field, given, f"{why}, for finetune.learning_rate")


def check_ranks(config: Config, size: int) -> None:
    """Refuse a run that `size` ranks cannot divide."""
    if size == 1:
        return
    pieces, phase, num_envs = Pieces.of(config), config.effective, config.env.num_envs
    own, ranks = f"method {config.method.name!r}", f"{size} ranks"
    batches = {"learner": config.learner.batch_size}
    if decide(config, pieces).trains_representation:
        batches["representation"] = config.representation.batch_size
    for kind, n in batches.items():
        if n % size:
            remedy = f"use {max(1, n // size) * size}, a multiple of {size}"
            refuse(f"{kind}.batch_size = {n}", ranks, remedy)
    if config.learner.on_policy:
        refuse(f"learner {config.learner.name!r}", ranks, "use 1 rank, or a learner such as dqn")
    # With latents, the sample of visits is that of all ranks.
    if phase.uses_method and pieces.method.counts_visits and not pieces.method.uses_latents(config):
        refuse(f"the visits of {own}", ranks, "use 1 rank, or a representation such as simclr")
    if phase.adapts and isinstance(config.method, SkillConfig):
        refuse(f"fine-tuning of {own}", ranks, "one chooses a skill for the task; use 1 rank")
    if num_envs < size:
        refuse(f"env.num_envs = {num_envs}", ranks, f"use {size} or more, or fewer ranks")
