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


def check_combination(spec: EnvSpec, config: Config, pieces: Pieces) -> None:
    """Refuse pieces and fields that cannot work together, before any network is built."""
    refuse(_piece_rows(spec, config, pieces))
    if config.learner.on_policy:
        refuse(_on_policy_rows(config, pieces))
    refuse(_encoder_rows(spec, config, pieces))
    if config.effective.uses_method:
        pieces.method.check(spec, config)


def refuse(rows: Iterator[Row]) -> None:
    """Refuse the first combination that is there."""
    for is_there, what, other, why in rows:
        if is_there:
            raise ConfigError(f"{what} cannot be used with {other}: {why}")


def _name(config: Config, kind: str) -> str:
    return f"{kind} {getattr(config, kind).name!r}"


def _piece_rows(spec: EnvSpec, config: Config, pieces: Pieces) -> Iterator[Row]:
    """Method, learner, bonus and skills."""
    method, learner, phase = pieces.method, pieces.learner, config.effective
    own, acts = _name(config, "method"), _name(config, "learner")
    yield (
        learner.actions not in ("both", "discrete" if spec.discrete else "continuous"),
        *(acts, spec.describe()),
        f"it takes {learner.actions} actions; use {'dqn' if spec.discrete else 'sac or ddpg'}",
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
    bonus, has_skills = f"bonus.coefficient = {config.bonus.coefficient:g}", _has_skills(config)
    yield (
        phase.has_bonus and (not method.learns or method.learner),
        *(own, bonus),
        "it has no reward of a transition that could be added to the task's; use apt or rnd",
    )
    yield (
        phase.has_bonus and has_skills and not phase.samples_skills,
        *(bonus, f"an agent of {own} in fine-tuning"),
        "its reward tells skills apart, and fine-tuning follows the one that was chosen for the task; use 0, "
        "or an agent of a method without skills such as apt",
    )
    n, field = config.learner.longest_n_step, "n_step"
    if n != config.learner.n_step:
        field = "n_step_end"
    period = getattr(config.method, "skill_every_steps", 0)
    yield (
        (phase.uses_method or phase.adapts) and 0 < period < n,
        *(f"method.skill_every_steps = {period}", f"learner.{field} = {n}"),
        f"a return must not be longer than the skill that earns it; use {n} or more, or a smaller {field}",
    )
    at_random = phase.may_adapt and config.finetune.warmup_actions == "random"
    yield (
        has_skills and at_random and not method.regresses_skill,
        *("finetune.warmup_actions = 'random'", own),
        "the warm-up follows the skills from which one is chosen for the task, which takes the policy; use "
        "'policy'",
    )


def _on_policy_rows(config: Config, pieces: Pieces) -> Iterator[Row]:
    """A learner that learns from rollouts of its own policy."""
    acts, own = _name(config, "learner"), _name(config, "method")
    yield (
        config.effective.pretrains and pieces.method.learner != config.learner.name,
        *(acts, own, "its rewards need a learner that samples the replay; use dqn or sac, or method 'mepol'"),
    )
    yield _has_skills(config), acts, own, "it follows no skills; use dqn or sac"
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
        "bonus.coefficient": config.bonus.coefficient if config.effective.has_bonus else 0,
        "replay.data": config.replay.data,
    }
    for field, value in unused.items():
        yield (
            value,
            *(f"{field} = {value!r}", acts),
            "it learns from each step of its own policy once; use 0 or leave it out, or use a learner that "
            "samples the replay, such as dqn or sac",
        )


def _encoder_rows(spec: EnvSpec, config: Config, pieces: Pieces) -> Iterator[Row]:
    """Encoders that are shared, kept or trained by several losses."""
    method, representation, phase = pieces.method, pieces.representation, config.effective
    training, share = decide(config, pieces), f"share_encoder = {config.share_encoder!r}"
    f = _name(config, "representation")
    yield (
        representation.loss is not Representation.loss and not representation.has_loss,
        *(f, "has_loss = False", "its loss would never be minimized; set has_loss = True in its class"),
    )
    yield (
        config.share_encoder != "nothing" and not representation.has_encoder,
        *(share, f, "it has no encoder; use simclr or fixed"),
    )
    mine, other = config.representation.encoder, config.learner.encoder
    if config.share_encoder == "stack":
        yield (
            representation.uses_learner_encoder,
            *(share, f, "it uses the learner's encoder as a whole; use 'nothing'"),
        )
        why = "vectors pass no convolutions that could be shared; use 'nothing' or 'all'"
        yield not spec.pixels, share, spec.describe(), why
        for field in STACK_FIELDS[: 1 if ":" in other.stack else None]:  # a custom stack has its own layers
            values = getattr(mine, field), getattr(other, field)
            yield (
                values[0] != values[1],
                share,
                f"representation.encoder.{field} = {values[0]!r} and learner.encoder.{field} = {values[1]!r}",
                f"expected the same for both; set representation.encoder.{field} = {values[1]!r}",
            )
    is_read = phase.has_bonus and method.uses_latents(config)
    yield (
        representation.reads_files and not phase.may_adapt and not training.is_shared and not is_read,
        *(f, "share_encoder = 'nothing' when training from scratch"),
        "the learner would not read it; use share_encoder = 'all'",
    )
    unread = phase.learns_task and not training.is_shared and not is_read
    yield (
        unread and training.trains_representation,
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
    if phase.encoder_is_frozen or not phase.uses_method:
        return
    able = {
        "representation": (training.trains_representation, "it has no loss, or nothing reads it", "simclr"),
        "method": (method.can_train_encoder, "its losses do not reach the encoder", "diayn"),
        "learner": (training.is_shared, "it does not use that encoder", "share_encoder = 'all'"),
    }
    for kind, (can, why, remedy) in able.items():
        yield (
            kind in config.encoder_trainers and not can,
            *(f"encoder_trainers = {config.encoder_trainers}", f"{_name(config, kind)} and {share}"),
            f"{why}; leave out {kind!r}, or use {remedy}",
        )


def critic_rows(config: Config, pieces: Pieces, method: Method, critic: nn.Module | None) -> Iterator[Row]:
    """The method's critic and vector rewards, which show before the learner is built."""
    acts, own = _name(config, "learner"), _name(config, "method")
    if method.reward_dim and config.effective.pretrains:
        rewards = f"{own}, whose rewards are vectors of {method.reward_dim} numbers"
        assert method.reward_dim == method.skill_dim, f"{rewards}: skills weigh them, so they have as many"
        yield not pieces.learner.takes_vector_rewards, acts, rewards, "use dqn"
        yield (
            config.intrinsic_normalization == "standardize",
            *("intrinsic_normalization = 'standardize'", rewards),
            "there is no one mean to subtract; use 'scale' or 'none'",
        )
    yield (
        critic is not None and pieces.learner.has_bounded_values,
        *(acts, f"the critic of {own}", "it learns the distribution of returns by its own; use dqn"),
    )


def network_rows(agent: Agent) -> Iterator[Row]:
    """Weights, heads and layers, which show in the networks."""
    config, learner, phase, trainers = agent.config, agent.learner, agent.effective, agent.encoder_trainers
    acts, f, encoder = _name(config, "learner"), _name(config, "representation"), agent.representation.encoder
    is_frozen = is_trainable(encoder) is False
    yield (
        is_frozen and "representation" in trainers,
        *(f"the loss of {f}", "an encoder whose weights are all frozen (requires_grad = False)"),
        "leave some trainable, or add layers behind it with representation.encoder.feature_dim",
    )
    yield (
        phase.uses_method and config.encoder_trainers and (encoder is None or is_frozen),
        f"encoder_trainers = {config.encoder_trainers}",
        f"{f}, {'which has no encoder' if encoder is None else 'whose encoder never learns'}",
        "leave it out, or use simclr or icm",
    )
    both = " and ".join(sorted(trainers))
    remedy = "representation.auxiliary = False"
    if phase.pretrains:
        remedy = "encoder_trainers = ['representation']"
    yield (
        len(trainers) > 1 and "critic" not in learner.groups(),
        *(f"the losses of {both} on one encoder", acts),
        f"a joint loss needs a group 'critic', and it has {', '.join(learner.groups())}; use {remedy}",
    )
    heads = config.finetune.heads if phase.may_adapt else "auto"
    for wanted, has in {"actor": hasattr(learner, "actor"), "first_layer": learner.first_layers}.items():
        yield (
            heads == wanted and not has,
            *(f"finetune.heads = {heads!r}", acts),
            f"it has no {wanted.replace('_', ' ')}; use 'auto', 'pretrained' or 'random'",
        )
    parts = {"encoder": any(True for _ in learner.encoder.parameters()), "first_layer": learner.first_layers}
    for part, has in parts.items():
        rate = getattr(config.finetune, f"{part}_learning_rate")
        yield (
            rate is not None and not has and phase.may_adapt and agent.learns,
            *(f"finetune.{part}_learning_rate = {rate}", f"{acts} on {agent.spec.describe()}"),
            f"it has no {part.replace('_', ' ')} with weights; leave it out, for finetune.learning_rate",
        )


def _has_skills(config: Config) -> bool:
    return isinstance(config.method, SkillConfig)
