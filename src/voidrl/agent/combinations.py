"""Combinations of pieces and fields that cannot work, in one table, each with a remedy.

Pieces declare what they need and offer as class attributes (`actions`, `has_loss`, `learner`, …), or refuse a
config themselves (`Method.check`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from voidrl.agent.encoder_training import Pieces, decide
from voidrl.config import Config, SkillConfig
from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.types import EnvSpec

STACK_FIELDS = ("stack", "activation", "width", "spectral_norm_iterations")
Row = tuple[Any, str, str, str]
"""Condition, offending piece or field, what it conflicts with, and the reason with a remedy."""


def check_combination(spec: EnvSpec, config: Config, pieces: Pieces) -> None:
    """Refuse pieces and fields that cannot work together, with a combination that does."""
    for is_there, what, other, why in _table(spec, config, pieces):
        if is_there:
            raise ConfigError(f"{what} cannot be used with {other}: {why}")
    if config.effective.uses_method:
        pieces.method.check(spec, config)


def _table(spec: EnvSpec, config: Config, pieces: Pieces) -> Iterator[Row]:
    method, representation, learner = pieces.method, pieces.representation, pieces.learner
    names = {kind: f"{kind} {getattr(config, kind).name!r}" for kind in Pieces._fields}
    training, phase, share = decide(config, pieces), config.effective, config.share_encoder
    has_skills = isinstance(config.method, SkillConfig)
    actions = "discrete" if spec.discrete else "continuous"
    takes = "dqn" if spec.discrete else "sac or ddpg"
    yield (
        learner.actions not in ("both", actions),
        *(names["learner"], spec.describe(), f"it takes {learner.actions} actions; use {takes}"),
    )

    bonus = f"bonus.coefficient = {config.bonus.coefficient:g}"
    yield (
        phase.has_bonus and (not method.learns or method.learner),
        *(names["method"], bonus),
        "it has no reward of a transition that could be added to the task's; use apt or rnd",
    )
    yield (
        phase.has_bonus and phase.adapts and has_skills,
        *(bonus, f"an agent of {names['method']} in fine-tuning"),
        "its reward tells skills apart, and fine-tuning follows the one that was chosen for the task; use 0, "
        "or an agent of a method without skills such as apt",
    )

    yield (
        phase.pretrains and method.learner not in ("", config.learner.name),
        *(names["method"], names["learner"]),
        f"it has no reward, and its own learner {method.learner!r} follows the gradient of what it "
        f"maximizes; leave the learner out",
    )
    yield from _on_policy_rows(config, pieces, names, training.trains_representation)

    yield (
        share == "stack" and representation.uses_learner_encoder,
        *("share_encoder = 'stack'", names["representation"]),
        "it uses the learner's encoder as a whole; use 'nothing'",
    )
    yield (
        share == "stack" and not spec.pixels,
        *("share_encoder = 'stack'", spec.describe()),
        "vectors pass no convolutions that could be shared; use 'nothing' or 'all'",
    )
    mine, other = config.representation.encoder, config.learner.encoder
    custom = ":" in other.stack  # whose layers are its own
    for field in STACK_FIELDS[: 1 if custom else None]:
        values = getattr(mine, field), getattr(other, field)
        yield (
            share == "stack" and values[0] != values[1],
            "share_encoder = 'stack'",
            f"representation.encoder.{field} = {values[0]!r} and learner.encoder.{field} = {values[1]!r}",
            f"expected the same for both; set representation.encoder.{field} = {values[1]!r}",
        )
    is_read = phase.has_bonus and method.uses_latents(config)
    yield (
        representation.reads_files and not phase.may_adapt and share == "nothing" and not is_read,
        *(names["representation"], "share_encoder = 'nothing' when training from scratch"),
        "the learner would not read it; use share_encoder = 'all'",
    )
    unread = phase.learns_task and not training.is_shared and not is_read
    yield (
        unread and training.trains_representation,
        *("representation.auxiliary = True", f"{names['representation']} and share_encoder = 'nothing'"),
        "its loss would train an encoder that nothing reads; use share_encoder = 'stack' or 'all' from "
        "pre-training on, or representation.auxiliary = False",
    )

    keeps_encoder = phase.encoder_is_frozen or phase.frozen_column != "none"
    given = config.encoder_trainers if phase.uses_method and not keeps_encoder else ()
    trainers = f"encoder_trainers = {config.encoder_trainers}"
    yield (
        "representation" in given and not representation.has_loss,
        *(trainers, names["representation"]),
        "it has no loss; leave out 'representation', or use simclr, icm, curl or spr",
    )
    yield (
        "representation" in given and not training.trains_representation,
        *(trainers, f"{names['method']} and share_encoder = 'nothing'"),
        f"nothing reads {names['representation']}, so its loss would serve nothing; leave encoder_trainers "
        f"out, or use share_encoder = 'all'",
    )
    yield (
        "learner" in given and not training.is_shared,
        *(trainers, "share_encoder = 'nothing'"),
        "the learner cannot train an encoder that it does not use; leave out 'learner', or use "
        "share_encoder = 'all'",
    )
    yield (
        "method" in given and not method.can_train_encoder,
        *(trainers, names["method"]),
        "its losses do not reach the encoder; leave out 'method', or use diayn",
    )
    kept = "finetune.encoder_learning_rate = 0"
    if phase.frozen_column != "none":
        kept = f"finetune.frozen_column = {phase.frozen_column!r}"
    yield (
        keeps_encoder and config.representation.auxiliary and representation.has_loss,
        *(kept, "representation.auxiliary = True"),
        f"the loss of {names['representation']} would train an encoder that stays as it was pre-trained; set "
        f"representation.auxiliary = False",
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
    yield (
        has_skills
        and phase.may_adapt
        and config.finetune.warmup_actions == "random"
        and not method.regresses_skill,
        *("finetune.warmup_actions = 'random'", names["method"]),
        "the warm-up follows the skills from which one is chosen for the task, which takes the policy; use "
        "'policy'",
    )


def _on_policy_rows(
    config: Config, pieces: Pieces, names: dict[str, str], trains_representation: bool
) -> Iterator[Row]:
    if not config.learner.on_policy:
        return
    phase, num_envs, capacity = config.effective, config.env.num_envs, config.replay.capacity_steps
    steps = int(getattr(config.learner, "rollout_steps", 0))
    yield (
        phase.pretrains and pieces.method.learner != config.learner.name,
        *(names["learner"], names["method"]),
        "its rewards need a learner that samples the replay; use dqn or sac, or method 'mepol'",
    )
    yield (
        isinstance(config.method, SkillConfig),
        *(names["learner"], names["method"], "it follows no skills; use dqn or sac"),
    )
    needed = 2 * steps * num_envs
    yield (
        capacity < needed,
        f"replay.capacity_steps = {capacity}",
        f"learner.rollout_steps = {steps} and env.num_envs = {num_envs}",
        f"a rollout and its resets must fit; use {needed} or more, or shorter rollouts",
    )
    yield (
        config.replay.data is not None and not trains_representation,
        f"replay.data = {config.replay.data!r}",
        f"{names['learner']}, which learns from its own rollouts, and {names['representation']}",
        "nothing would sample it; leave it out, or use a representation with a loss such as simclr",
    )
    for field, value in {
        "replay.priority_exponent": config.replay.priority_exponent,
        "reset.every_updates": config.reset.every_updates,
        "bonus.coefficient": config.bonus.coefficient if phase.has_bonus else 0,
    }.items():
        yield (
            value,
            *(f"{field} = {value}", names["learner"]),
            "it learns from each step of its own policy once; use 0, or a learner that samples the replay, "
            "such as dqn or sac",
        )


def check_vector_rewards(config: Config, method: Method, pieces: Pieces, critic: object) -> None:
    """Refuse vector rewards where they cannot be learned from; `critic` is the method's."""
    dim, name = method.reward_dim, f"method {config.method.name!r}"
    if not dim or config.effective.learns_task:
        return
    rewards = f"{name}, whose rewards are vectors of {dim} numbers"
    if dim != method.skill_dim:
        raise ConfigError(
            f"{name} has rewards of {dim} numbers and skills of {method.skill_dim}: expected the same width, "
            f"since skills weigh the components; set reward_dim = skill_dim, or 0 for scalars"
        )
    if not pieces.learner.takes_vector_rewards:
        raise ConfigError(f"learner {config.learner.name!r} cannot be used with {rewards}: use dqn")
    if not (isinstance(critic, nn.Module) and hasattr(critic, "td_loss")):
        raise ConfigError(
            f"{name} has rewards of {dim} numbers and no critic that learns them: return a "
            f"voidrl.nets.SuccessorCritic from make_critic, such as successor_critic(…), or use "
            f"reward_dim = 0"
        )
    if config.intrinsic_normalization == "standardize":
        raise ConfigError(
            f"intrinsic_normalization = 'standardize' cannot be used with {rewards}: there is no one mean to "
            f"subtract; use 'scale' or 'none'"
        )
