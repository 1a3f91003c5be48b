"""The agent: encoder, representation, method and learner with their optimizers; and the update step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from voidrl import ranks
from voidrl.agent.bonus import Bonus
from voidrl.agent.horizon import Horizon
from voidrl.agent.joint_loss import JointLoss
from voidrl.agent.normalizer import RewardNormalizer
from voidrl.agent.optimizers import Optimizers, Part
from voidrl.agent.player import Player
from voidrl.agent.trainers import (
    Pieces,
    check_combination,
    check_vector_rewards,
    encoder_trainers,
    has_frozen_column,
    trains_representation,
)
from voidrl.config import Config, SkillConfig, registry, to_json
from voidrl.envs.spaces import env_action, observed_frames
from voidrl.errors import CheckpointError, ConfigError, SpaceError
from voidrl.learners.base import Learner
from voidrl.methods.base import Latents, Method, Option
from voidrl.nets import Encoder, ProgressiveEncoder, polyak_update
from voidrl.nets.augment import Augment, network_spec
from voidrl.nets.observations import action_mask, random_allowed
from voidrl.replay import Replay, Segment
from voidrl.representations.base import Representation, Views
from voidrl.runs import checkpoint
from voidrl.system.device import uses_bf16
from voidrl.types import CHECK, Batch, EnvSpec, Loss, Metrics

VALUE_METRICS = ("q_mean", "q_target", "value_limit", "temperature")  # in units of the reward
MetricOwner = Literal["representation", "latents", "method", "reward", "task", "learner"]
# Steps of the warm-up from which the skill for a task is selected; of more, as many at even distances.
SELECTION_STEPS = {"pixels": 2**12, "vectors": 2**17}


class Scored(NamedTuple):
    """A sample with its rewards, and what is left of the losses that train f."""

    batch: Batch
    reward: Tensor  # (B,), or (B, dim) for a learner that takes vectors
    slots: Tensor  # (B,)
    joint: JointLoss
    metrics: Metrics


class Agent(nn.Module):
    """Encoder, representation, method and learner as one module."""

    representation: Representation
    method: Method
    learner: Learner
    task_skill: Tensor
    task_skill_chosen: Tensor
    trials_dealt: Tensor
    task_scale: Tensor
    representation_rate: Tensor

    def __init__(self, spec: EnvSpec, config: Config, device: torch.device) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.steps = 0  # environment steps trained so far, over all phases
        self.origin: Path | None = None  # the folder it was trained in or loaded from, for its model card
        self.trusted = True  # False for one of the Hub: code that its config names is not run
        pieces = Pieces(
            registry.find("representation", config.representation.name),
            registry.find("method", config.method.name),
            registry.find("learner", config.learner.name),
        )
        check_combination(spec, config, pieces)
        self.trainers = encoder_trainers(config, pieces)
        """Whose losses train f in this phase."""

        seen = network_spec(spec, config.augment)  # networks may read less than the replay stores
        f, encoder = self._make_encoders(pieces, seen)
        if config.phase != "train" and config.finetune.frozen_column != "none":
            encoder = self._with_frozen_column(f, encoder, seen)
        self.representation = pieces.representation(seen, config.representation, f)
        if type(self.representation).loss is not Representation.loss and not pieces.representation.has_loss:
            raise ConfigError(
                f"representation {config.representation.name!r} has a loss that would never be minimized: "
                f"set has_loss = True in its class"
            )
        method = pieces.method(seen, config.method, self.representation)
        critic = method.make_critic(encoder.feature_dim, config.learner)
        check_vector_rewards(config, method, pieces.learner, critic)
        # The learner's tensors are named before the method's: a method may keep the critic that it made.
        self.learner = pieces.learner(seen, config.learner, encoder, critic, method.skill_dim)
        self.learner.num_envs = config.env.num_envs
        if config.phase != "pretrain":
            tunes = config.phase == "finetune"
            self.learner.warmup_steps = config.finetune.warmup_steps if tunes else config.warmup_steps
        self.representation.use_learner(self.learner)
        self.method = method
        adapts = config.phase != "train"
        if adapts and config.finetune.heads == "actor" and not hasattr(self.learner, "actor"):
            raise ConfigError(
                f"finetune.heads = 'actor' cannot be used with learner {config.learner.name!r}, which has no "
                f"actor: expected 'auto' or 'pretrained' or 'random'"
            )
        if adapts and config.finetune.heads == "first_layer" and not self.learner.first_layers:
            raise ConfigError(
                f"finetune.heads = 'first_layer' cannot be used with learner {config.learner.name!r}, which "
                f"names no first layer: expected 'auto' or 'pretrained' or 'random', or a critic with "
                f"`first_layers`"
            )
        # Until a task chooses one, `act` follows some skill, the same at every call.
        self.register_buffer("task_skill", method.sample_skill(torch.zeros(1, dtype=torch.int64))[0].clone())
        self.register_buffer("task_skill_chosen", torch.zeros((), dtype=torch.bool))
        self.register_buffer("trials_dealt", torch.zeros((), dtype=torch.int64))
        # The representation's learning rate: a tensor, so that it can rise within a captured graph.
        self.register_buffer("representation_rate", torch.zeros(()))
        self.normalizer = RewardNormalizer(config)
        self.bonus = Bonus(config) if config.effective.has_bonus else None
        self.horizon = Horizon(config.learner)
        if config.phase == "finetune":
            self.register_buffer("task_scale", torch.ones(()))
        self.augment = Augment(config.augment, spec)
        self.metric_owners: dict[str, MetricOwner] = {}
        """Who computed each metric of the last update."""
        self.generation = 0  # increases when tensors that a captured graph holds may have been replaced
        biases = (p for name, p in self.named_parameters() if name.endswith(".bias"))
        self.optimizers = Optimizers(device, biases)

        self.pretraining = config.phase == "pretrain"
        self.uses_method = config.effective.uses_method
        self.learns = method.learns or not self.pretraining
        self.trains_representation = trains_representation(config, pieces)
        self._assign_encoder()
        self.to(device)
        self.eval()
        if self.learns:
            self._make_optimizers(device)
            if len(self.trainers) > 1 and "critic" not in self.learner.groups():
                remedy = "encoder_trainers = ['representation']"
                if not self.pretraining:
                    remedy = "representation.auxiliary = False"
                raise ConfigError(
                    f"the losses of {' and '.join(sorted(self.trainers))} cannot train one encoder together "
                    f"with learner {config.learner.name!r}: a joint loss needs a group 'critic', and it has "
                    f"{', '.join(self.learner.groups())}; use {remedy}"
                )

    def _make_encoders(self, pieces: Pieces, spec: EnvSpec) -> tuple[Encoder | None, Encoder]:
        """The encoder f and the learner's, which share what `share_encoder` says."""
        config = self.config
        if pieces.representation.uses_learner_encoder:
            encoder = Encoder(spec, config.learner.encoder)
            return encoder, encoder
        f = pieces.representation.make_encoder(spec, config.representation)
        if config.share_encoder == "nothing":
            return f, Encoder(spec, config.learner.encoder)
        if f is None:
            raise ConfigError(
                f"share_encoder = {config.share_encoder!r} cannot be used with representation "
                f"{config.representation.name!r}, which has no encoder: use simclr or fixed"
            )
        if config.share_encoder == "all":
            return f, f
        return f, Encoder(spec, config.learner.encoder, stack_of=f)

    def _with_frozen_column(self, f: Encoder | None, encoder: Encoder, spec: EnvSpec) -> Encoder:
        """The learner's encoder in this phase: in fine-tuning a new one next to the one that stays.

        What cannot be frozen is refused before pre-training, not after it.
        """
        config = self.config
        column = config.finetune.frozen_column
        frozen = encoder if column == "learner" else f
        if frozen is None or not any(True for _ in frozen.parameters()):
            kind = config.learner if column == "learner" else config.representation
            remedy = (
                "learner.encoder.feature_dim = 50" if column == "learner" else "representation = 'simclr'"
            )
            raise ConfigError(
                f"finetune.frozen_column = {column!r} cannot be used with {column} {kind.name!r} on "
                f"{self.spec.describe()}: it has no encoder with weights to keep; leave it out, or pre-train "
                f"with {remedy}"
            )
        if not has_frozen_column(config):
            return encoder
        whole = encoder is f and config.share_encoder == "all"
        shape = config.representation.encoder if whole else config.learner.encoder
        return ProgressiveEncoder(spec, shape, frozen)

    def _assign_encoder(self) -> None:
        """Give gradients only to what this phase trains."""
        config, learner, f = self.config, self.learner, self.representation.encoder
        weights = list(learner.encoder.parameters())
        never_learns = bool(weights) and not any(p.requires_grad for p in weights)
        f_weights = [] if f is None else list(f.parameters())
        all_frozen = bool(f_weights) and not any(p.requires_grad for p in f_weights)
        if all_frozen and "representation" in self.trainers:
            raise ConfigError(
                f"the loss of representation {config.representation.name!r} cannot train its encoder, all of "
                f"whose weights are frozen (requires_grad = False): leave some trainable, or add layers "
                f"behind it with representation.encoder.feature_dim"
            )
        # Next to a frozen column, f does not learn any more, whoever trained it in pre-training.
        expects = self.uses_method and config.encoder_trainers and not has_frozen_column(config)
        if expects and (f is None or all_frozen):
            why = "which has no encoder" if f is None else "whose encoder never learns"
            raise ConfigError(
                f"encoder_trainers = {config.encoder_trainers} cannot be used with representation "
                f"{config.representation.name!r}, {why}: leave it out, or use simclr or icm"
            )
        whole = f is learner.encoder
        if whole and never_learns:
            self.trainers -= {"learner"}
        stack = isinstance(f, Encoder) and not whole and f.stack is learner.encoder.stack and self.spec.pixels
        frozen = config.phase == "finetune" and config.finetune.encoder_learning_rate == 0
        learner.trains_encoder = not never_learns and not frozen and ("learner" in self.trainers or not whole)
        if isinstance(f, Encoder) and stack and "learner" not in self.trainers:
            learner.frozen_parts = (f.stack,)
        if frozen:
            learner.encoder.requires_grad_(False)
        if not self.uses_method:  # what only pre-training used is kept as it is
            used = set(learner.parameters())
            kept = [*self.method.parameters()]
            if not self.trains_representation:
                kept += self.representation.parameters()
            for parameter in kept:
                if parameter not in used:
                    parameter.requires_grad_(False)

    def _make_optimizers(self, device: torch.device) -> None:
        config, optimizers = self.config, self.optimizers
        rates = self._part_rates()
        taken: set[int] = set()
        for name, parameters in self.learner.groups().items():
            taken |= {id(p) for p in parameters}
            parts: dict[float, list[nn.Parameter]] = {}
            for parameter in parameters:
                parts.setdefault(rates(parameter), []).append(parameter)
            optimizers.add(
                name,
                [Part(group, rate) for rate, group in parts.items()],
                eps=config.learner.adam_eps,
                max_grad_norm=config.learner.max_grad_norm,
                weight_decay=config.learner.weight_decay,
            )
        if self.uses_method or self.trains_representation:
            rate = config.representation.learning_rate
            settings = {
                "eps": config.representation.adam_eps,
                "max_grad_norm": config.representation.max_grad_norm,
                "weight_decay": config.representation.weight_decay,
            }
            warmed_up = self.representation_rate if config.representation.warmup_updates else rate
            own = [p for p in self.representation.parameters() if id(p) not in taken]
            heads_only = self.trains_representation and "representation" not in self.trainers
            if heads_only and "method" in self.trainers:
                f = self.representation.encoder  # the method trains it, and this loss the heads alone
                encoder = {id(p) for p in f.parameters()} if f is not None else set()
                optimizers.add("encoder", [Part([p for p in own if id(p) in encoder], rate)], **settings)
                own = [p for p in own if id(p) not in encoder]
            optimizers.add("representation", [Part(own, warmed_up)], **settings)
        if self.uses_method:
            for name, parameters in self.method.groups().items():
                own = [p for p in parameters if id(p) not in taken]
                optimizers.add(name, [Part(own, self.method.learning_rate(name))])

    def _part_rates(self) -> Callable[[nn.Parameter], float]:
        """The learning rate of each weight of the learner; those with rate 0 are frozen.

        Rates for parts that do not exist are refused before pre-training, not after it.
        """
        tuning, rate = self.config.finetune, self.config.effective.learning_rate
        if self.config.phase == "train":
            return lambda parameter: rate
        finetuning = self.config.phase == "finetune"
        special: dict[int, float] = {}
        encoder = list(self.learner.encoder.parameters())
        first = [p for layer in self.learner.first_layers for p in layer.parameters()]
        for field, parameters in (("encoder", encoder), ("first_layer", first)):
            given = getattr(tuning, f"{field}_learning_rate")
            if given is None:
                continue
            if not parameters:
                lacks = "an encoder with weights" if field == "encoder" else "a first layer that it names"
                raise ConfigError(
                    f"finetune.{field}_learning_rate = {given} cannot be used with learner "
                    f"{self.config.learner.name!r} on {self.spec.describe()}, which lacks {lacks}: leave it "
                    f"out, and finetune.learning_rate holds for all weights"
                )
            special |= {id(p): given for p in parameters}
            if given == 0 and finetuning:
                for parameter in parameters:
                    parameter.requires_grad_(False)
        return lambda parameter: special.get(id(parameter), rate) if finetuning else rate

    def __repr__(self) -> str:
        config = self.config
        pieces = ", ".join((config.method.name, config.representation.name, config.learner.name))
        return f"Agent({pieces}; {config.phase} in {config.env.id!r}; {self.steps} steps; {self.device})"

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.task_skill.device

    # The update

    def precision(self) -> torch.autocast:
        """Autocast for products in bf16. No cache: within one update the weights change between losses."""
        on = uses_bf16(self.config.precision, self.device)
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    def step(self, replay: Replay, index: int = 0) -> Metrics:
        """One update from one sample: representation → reward → learner. Tensors in, tensors out.

        Ranks that train one agent sample a part of the batch each, and exchange what makes this the update
        of the whole batch: gradients before they are clipped, and whatever is computed of a batch.

        `index` is the number of an update of this variant (`Learner.variant`). Only the module whose loss is
        computed is in training mode, in which spectral norm iterates; latents are computed, and actions
        chosen, in eval mode. Losses that train the same encoder are added up and minimized with the last of
        them, in the order representation, method, critic. Metrics are in the order in which they are
        computed: where several are NaN, the first is where it began.
        """
        return self.learn(replay, self.score(replay), index) if self.learns else {}

    def score(self, replay: Replay, side: torch.cuda.Stream | None = None) -> Scored:
        """The first half of an update: train f and the method, then reward a batch for the learner.

        What it reads of the learner is up to `scoring_needs`. A loss of the representation that is added to
        the learner's is computed on the stream `side`, if one is given.
        """
        share_of = ranks.current().share_of
        config, own_batch = self.config.learner, share_of(self.config.representation.batch_size)
        joint, metrics = JointLoss(side), Metrics()
        with self.precision():
            if self.trains_representation and own_batch:
                with joint.beside():
                    own = replay.segment(replay.sample(own_batch), 1, 1.0)
                    metrics |= self._representation_step(replay, own, joint)
            slots, weight = replay.draw(share_of(config.batch_size))
            segment = self.horizon.segment(replay, slots)
            if self.trains_representation and not own_batch:
                with joint.beside(segment, weight):
                    metrics |= self._representation_step(replay, segment, joint, weight)
            batch = self._learner_batch(replay, segment)._replace(weight=weight)
            intrinsic = None
            if self.uses_method:
                intrinsic, method_metrics = self._intrinsic_reward(replay, segment, batch, joint)
                metrics |= method_metrics
            reward, reward_metrics = self._learner_reward(batch, intrinsic)
            metrics |= reward_metrics
            if not self.follows_skills:
                batch = batch._replace(skill=self.task_skill.expand_as(batch.skill))
            if config.views > 1:
                batch = _repeated(batch, config.views)
                reward = reward.repeat(config.views, *[1] * (reward.ndim - 1))
            self.horizon.after_step()
            if "learner" not in self.trainers:
                self._after_training_f()
        return Scored(batch, reward, slots, joint, metrics)

    def learn(
        self, replay: Replay, scored: Scored, index: int, encoder_trained: Callable[[], None] = lambda: None
    ) -> Metrics:
        """The second half: the learner's losses, and those of f that are minimized with the critic's.

        `encoder_trained` is called once the critic's loss has been minimized, which trains the encoder. What
        follows does not change it.
        """
        batch, reward, slots, joint, _ = scored
        metrics = {**scored.metrics}
        self.learner.bounds.observe(reward)
        if reward.ndim == 1:  # the limit of vectors is that of a component
            metrics |= self._owned("reward", self._in_task_units({"value_limit": self.learner.bounds.limit}))
        with self.precision():
            self.learner.train()
            for loss in self.learner.losses(batch, reward, index):
                if joint and loss.optimizer == "critic":
                    joint.add(loss.value, ["critic"])
                    self.optimizers.minimize(joint.optimizers, joint.total())
                else:
                    self.optimizers.minimize([loss.optimizer], loss.value)
                if loss.optimizer == "critic":
                    encoder_trained()
                metrics |= self._owned("learner", self._in_task_units(loss.metrics), loss)
                if loss.priority is not None and replay.priorities is not None:
                    joint.errors.append(loss.priority.unflatten(0, (self.config.learner.views, -1)).mean(0))
            if replay.priorities is not None:
                replay.priorities.update(slots, self._priority(joint))
            self.learner.after_step(index)
            self.learner.eval()
            if "learner" in self.trainers:
                self._after_training_f()
        return metrics

    def _in_task_units(self, metrics: Metrics) -> Metrics:
        """The metrics, with values divided by what fine-tuning multiplies rewards with."""
        if self.config.phase != "finetune":
            return metrics
        return {k: v / self.task_scale if k in VALUE_METRICS else v for k, v in metrics.items()}

    def _after_training_f(self) -> None:
        """Move what follows the weights of f and of the method, once all of their losses are minimized."""
        if self.trains_representation:
            self.representation.after_step()
        if self.uses_method:
            self.method.after_step()

    @property
    def reward_dim(self) -> int:
        """Width of the learner's rewards, 0 for scalars, as a task's are, with a bonus or without one."""
        return self.method.reward_dim if self.pretraining else 0

    @property
    def follows_skills(self) -> bool:
        """Whether every episode draws its skills to the end of training; otherwise a task chooses one."""
        return self.uses_method and self.config.phase != "finetune"

    def _learner_reward(self, batch: Batch, intrinsic: Tensor | None) -> tuple[Tensor, Metrics]:
        """(B,) what the learner maximizes, given the n-step intrinsic reward where there is one.

        (B, dim) where it learns from vectors.
        """
        if self.pretraining:
            assert intrinsic is not None
            mean = self.method.scalar_reward(intrinsic, batch.skill).mean()
            metrics = self._owned("reward", {"reward_mean": mean})
            scale = self._intrinsic_scale
            return intrinsic if scale == 1 else intrinsic * scale, metrics
        reward = batch.reward * self.config.reward_scale
        metrics = {}
        if intrinsic is not None:
            assert self.bonus is not None
            bonus = self.bonus.coefficient * intrinsic
            # The two add up to reward_mean.
            metrics |= self._owned("reward", {"reward_intrinsic": bonus.mean()})
            metrics |= self._owned("task", {"reward_task": reward.mean()})
            metrics |= self._owned("task", {"bonus_coefficient": self.bonus.coefficient.clone()})
            reward = reward + bonus
        metrics |= self._owned("task", {"reward_std": reward.std(correction=0)})
        metrics |= self._owned("task", {"reward_mean": reward.mean()})
        return reward * self.task_scale if self.config.phase == "finetune" else reward, metrics

    @property
    def _intrinsic_scale(self) -> float:
        given = self.config.intrinsic_factor
        if given is not None:
            return given
        return 1 - self.config.learner.largest_discount if self.learner.has_bounded_values else 1.0

    def _priority(self, joint: JointLoss) -> Tensor:
        """(B,) errors of the learner's transitions, by which they will be drawn again."""
        if not joint.errors:
            raise ConfigError(
                f"replay.priority_exponent = {self.config.replay.priority_exponent} cannot be used with "
                f"learner {self.config.learner.name!r}, whose losses have no priority: use 0, or pass one to "
                f"Loss"
            )
        return torch.stack(joint.errors).sum(0)

    def _owned(self, owner: MetricOwner, metrics: Metrics, loss: Loss | None = None) -> Metrics:
        """Remember who computed these metrics; a loss is always among them, to be checked."""
        if loss is not None:  # its owner may log something else
            metrics = {f"{CHECK}{owner}/{loss.optimizer}": loss.value.detach().reshape(()), **metrics}
        self.metric_owners |= dict.fromkeys(metrics, owner)
        return metrics

    def _representation_step(
        self, replay: Replay, segment: Segment, joint: JointLoss, weight: Tensor | None = None
    ) -> Metrics:
        """Minimize the representation's loss, or leave it to be added to those of f's other trainers.

        `weight` are the importance weights of the learner's transitions, if these are the ones.
        """
        views = Views(replay, segment, self.augment, self.representation.layout)
        config = self.config.representation
        if config.warmup_updates:
            rise = config.learning_rate / config.warmup_updates
            self.representation_rate.add_(rise).clamp_(max=config.learning_rate)
        self.representation.train()
        if "representation" not in self.trainers and self.representation.encoder is not None:
            self.representation.encoder.eval()  # the loss trains the heads alone
        loss, metrics = self.representation.loss(views)
        self.representation.eval()
        if loss.ndim:  # of each transition
            if weight is not None and self.config.replay.priority_losses == "all":
                joint.errors.append(config.loss_weight * loss.detach())
            loss = (loss if weight is None else weight * loss).mean()
        if self.adds_representation_loss:
            joint.add(config.loss_weight * loss, self._optimizer_of_f())
        else:
            self.optimizers.minimize(["representation"], loss)
        return self._owned("representation", metrics, Loss("representation", loss, metrics))

    @property
    def adds_representation_loss(self) -> bool:
        """Whether the representation's loss waits for those of f's other trainers."""
        return "representation" in self.trainers and len(self.trainers) > 1

    def _optimizer_of_f(self) -> list[str]:
        """The optimizer of the weights of f that the learner does not train, if there are any."""
        return [name for name in ("encoder", "representation") if name in self.optimizers][:1]

    def _learner_batch(self, replay: Replay, segment: Segment) -> Batch:
        """Each segment as one n-step transition, for each view of its observations, augmented or plain."""
        views = self.config.learner.views
        slots = torch.cat([segment.slots[:, 0]] * views + [segment.states[:, -1]] * views)
        convert = self.augment if self.config.augment.learner else self.augment.plain
        obs, next_obs = convert(replay.frames_of(slots), self.learner.encoder.layout).chunk(2)
        return replay.n_step_batch(segment, obs, next_obs)

    def _intrinsic_reward(
        self, replay: Replay, segment: Segment, augmented: Batch, joint: JointLoss
    ) -> tuple[Tensor, Metrics]:
        """(B,) rewards of n-step transitions: every successor scored and summed, or only the last.

        (B, dim) if the method's rewards are vectors. Moments and metrics are those of the scalar rewards.

        `augmented` is the learner's batch; images are augmented there and not here.
        """
        metrics: Metrics = {}
        is_vector = self.reward_dim > 0
        total: Tensor | None = None
        for i, (batch, latents, weights) in enumerate(self._scored(replay, segment, augmented)):
            if i == 0:  # the method learns from (s, a, s'), not from transitions n steps ahead
                metrics |= self._method_step(replay, segment, batch, latents, joint)
            with torch.no_grad():
                own = self.method.reward(batch, latents)
                scalar = self.method.scalar_reward(own, batch.skill)
                if not is_vector:  # next to a task's reward, vectors are contracted
                    own = scalar
                if i == 0:
                    # The first step of each segment, which is drawn like any transition: later ones repeat at
                    # the end of an episode, where their weight is 0. Sums over n steps differ there anyway.
                    normalized, logged = self.normalizer.observe(scalar)
                    if not self.pretraining:
                        del logged["reward_std"]  # that of the sum with the task's reward is logged
                    metrics |= self._owned("reward", logged)
                if i > 0 or is_vector:
                    normalized = self.normalizer(own)
                single = normalized.float()
                if weights is not None:
                    single = weights.view(-1, *[1] * is_vector) * single
                total = single if total is None else total + single
            if i == 0 and (z := latents.encoded) is not None:
                metrics = self._owned("latents", {f"{CHECK}z": z.detach().mean()}) | metrics
        assert total is not None
        # Copies: by the time they are logged, the next update may have been scored.
        state = {name: value.clone() for name, value in self.method.metrics().items()}
        return total, metrics | self._owned("method", state)

    def _method_step(
        self, replay: Replay, segment: Segment, batch: Batch, latents: Latents, joint: JointLoss
    ) -> Metrics:
        """Minimize the method's losses, together with the others of f if the method trains it."""
        metrics: Metrics = {}
        trains_f = "method" in self.trainers
        self.method.train()
        for _ in range(self.method.loss_batches - 1):  # train the method's networks alone, never f
            fresh = self._method_segment(replay)
            other, option = replay.n_step_batch(fresh), self._option(replay, fresh)
            for loss in self.method.losses(other, self._latents(other, latents.pool, option)):
                self.optimizers.minimize([loss.optimizer], loss.value)
        if trains_f:
            latents = self._trained_latents(replay, segment, latents.pool)
        for loss in self.method.losses(batch, latents):
            metrics |= self._owned("method", loss.metrics, loss)
            if trains_f:
                joint.add(loss.value, [loss.optimizer, *self._optimizer_of_f()])
            else:
                self.optimizers.minimize([loss.optimizer], loss.value)
        self.method.eval()
        self.representation.eval()
        if trains_f and "learner" not in self.trainers and joint:
            self.optimizers.minimize(joint.optimizers, joint.total())
        return metrics

    def _method_segment(self, replay: Replay) -> Segment:
        """As many fresh transitions as the learner's, of the kind that the method learns from."""
        config = self.config.learner
        slots = replay.sample(ranks.current().share_of(config.batch_size))
        if config.intrinsic_n_step == "single":
            return self.horizon.segment(replay, slots)
        return replay.segment(slots, 1, config.discount)

    def _trained_latents(self, replay: Replay, segment: Segment, pool: Callable[[int], Tensor]) -> Latents:
        """f(s) and f(s') of augmented observations, with gradients."""
        if self.config.learner.intrinsic_n_step != "single":
            segment = segment._replace(states=segment.states[:, :2])
        views = Views(replay, segment, self.augment, self.representation.layout)
        self.representation.train()

        def encode(obs: Tensor) -> Tensor:
            return self.representation.encode(obs).float()

        def encode_slots(slots: Tensor) -> Tensor:
            return encode(self.augment(replay.frames_of(slots), self.representation.layout))

        option = self._option(replay, segment, encode_slots)
        return Latents(lambda: encode(views.obs()), lambda: encode(views.next_obs()), pool, option)

    def _scored(
        self, replay: Replay, segment: Segment, augmented: Batch
    ) -> Iterator[tuple[Batch, Latents, Tensor | None]]:
        """The transitions that the method rewards, each with its latents and its (B,) weights, None for 1."""
        config = self.config.learner
        pool, option = self._pool(replay), self._option(replay, segment)
        if config.longest_n_step == 1 or config.intrinsic_n_step == "single":
            plain = not self.spec.pixels and config.views == 1
            batch = augmented if plain else replay.n_step_batch(segment)
            yield batch, self._latents(batch, pool, option), None
            return
        shape = segment.states.T.shape
        # s' of a step is s of the next: ((n + 1) · B, *obs_shape) has every state once.
        obs = replay.observations(segment.states.T.flatten())
        z = cache(lambda: self._encode(obs).unflatten(0, shape))  # (n + 1, B, dim), all in one pass
        for i, (batch, weights) in enumerate(replay.steps(segment, obs.unflatten(0, shape))):
            # All steps of a segment belong to one option.
            latents = Latents(lambda i=i: z()[i], lambda i=i: z()[i + 1], pool, option)  # type: ignore[misc]
            yield batch, latents, weights

    @torch.no_grad()
    def _encode(self, obs: Tensor) -> Tensor:
        return self.representation.encode(obs).float()

    def _latents(
        self, batch: Batch, pool: Callable[[int], Tensor], option: Callable[[int], Option] | None = None
    ) -> Latents:
        return Latents(lambda: self._encode(batch.obs), lambda: self._encode(batch.next_obs), pool, option)

    def _option(
        self, replay: Replay, segment: Segment, encode: Callable[[Tensor], Tensor] | None = None
    ) -> Callable[[int], Option]:
        """The options that segments belong to, each encoded once; `encode` takes (n,) slots to (n, dim)."""

        def option(longest: int) -> Option:
            found = replay.options(segment.slots[:, 0], longest)
            slots = torch.cat([found.first, found.last])
            z = encode(slots) if encode is not None else self._encode(replay.observations(slots))
            first, last = z.chunk(2)
            return Option(first, last, found.steps.to(self.device), found.complete.float().to(self.device))

        return cache(option)

    def _pool(self, replay: Replay) -> Callable[[int], Tensor]:
        """Encoded states drawn from the replay: the same n for everything that one update scores.

        Where ranks have a part of the replay each, all draw as many from theirs and search all of them.
        """

        def draw(n: int) -> Tensor:
            mine = -(-n // ranks.current().size)
            return ranks.all_gather(self._encode(replay.observations(replay.sample(mine))))[:n]

        return cache(draw)

    def set_progress(self, run_steps: int) -> None:
        """Move the schedules of the intrinsic reward to where they are, after `run_steps` of this run."""
        if self.uses_method:
            before = self.steps - run_steps  # over all phases: what was pre-trained does not start over
            self.method.set_progress(self.steps, before + self.config.steps)
        if self.bonus is not None:
            self.bonus.set_progress(run_steps)

    # Acting

    @torch.no_grad()
    def choose(self, obs: Tensor, skill: Tensor, *, deterministic: bool, training: bool = False) -> Tensor:
        """The learner's actions for observations on the device; random ones where nothing is learned.

        With `training` they are those of the training environments, in order, which may explore differently.
        """
        if not self.learns:
            return self.random_actions(obs)
        with self.precision():
            if training and not deterministic:
                return self.learner.explore(obs, skill)
            return self.learner.act(obs, skill, deterministic=deterministic)

    def random_actions(self, obs: Tensor) -> Tensor:
        """Uniform actions for (n, …) observations as stored, among those that are allowed."""
        n, allowed = len(obs), action_mask(obs, self.spec)
        if allowed is not None:
            return random_allowed(allowed.to(self.device))
        if self.spec.discrete:
            return torch.randint(self.spec.num_actions, (n,), device=self.device)
        return torch.rand(n, self.spec.action_dim, device=self.device) * 2 - 1

    @property
    def note_dim(self) -> int:
        """Width of what the replay stores for the method with each step."""
        return self.method.note_dim if self.uses_method else 0

    @property
    def skill_every_steps(self) -> int:
        """Environment steps for which a skill is kept; 0 for a whole episode."""
        method = self.config.method
        return method.skill_every_steps if isinstance(method, SkillConfig) else 0

    def new_skills(self, episode_steps: Tensor) -> Tensor:
        """(n, skill_dim): the task's skill once it is chosen, else samples for n environments."""
        if self.task_skill_chosen:  # host read, only where skills change
            return self.task_skill.expand(len(episode_steps), -1)
        return self.method.sample_skill(episode_steps)

    def next_skills(self, skill: Tensor, needed: Tensor, episode_steps: Tensor) -> Tensor:
        """(N, skill_dim): new skills where `needed`, (N,), the given ones elsewhere.

        In the warm-up of fine-tuning the method's trial skills are dealt in turn.
        """
        if not self.method.skill_dim:
            return skill
        trials = self.method.trial_skills() if self.config.phase == "finetune" else None
        if trials is None or self.task_skill_chosen:
            fresh = self.new_skills(episode_steps)
        else:
            turn = (self.trials_dealt + needed.cumsum(0) - 1) % len(trials)
            self.trials_dealt += needed.sum()
            fresh = trials.to(self.device)[turn]
        return torch.where(needed[:, None], fresh, skill)

    @torch.no_grad()
    def choose_task_skill(self, replay: Replay) -> None:
        """Choose the skill for the task, once, from the rewards of the warm-up."""
        if self.method.skill_dim and not self.task_skill_chosen:
            slots = replay.newest(len(replay))  # all of them: skills were tried one after another
            most = SELECTION_STEPS["pixels" if self.spec.pixels else "vectors"]
            batch = replay.batch(slots[:: -(-len(slots) // most)], 1, 1.0)
            latents = self._latents(batch, self._pool(replay))
            self.task_skill.copy_(self.method.select_skill(batch, latents))
        self.task_skill_chosen.fill_(True)

    @torch.no_grad()
    def act(
        self,
        obs: Any,
        deterministic: bool = True,
        skill: np.ndarray | None = None,
        action_mask: np.ndarray | None = None,
    ) -> Any:
        """The action for one observation, or for a batch, as the environment gives and takes them.

        Args:
            obs: One observation or a batch: an array, or a dictionary or tuple of arrays. With `frame_stack`
                > 1 the last frames lie along an axis before each array's own, oldest first.
            deterministic: Without exploration noise.
            skill: One for all or one for each of the batch; by default the one chosen for the task.
            action_mask: Which actions are allowed (1) and which are not (0), one mask or one for each of the
                batch; for agents from environments that report masks outside of their observations.
        """
        frames, single = observed_frames(obs, self.spec, action_mask)
        stacked = torch.from_numpy(frames).to(self.device)
        skills = self._given_skill(skill, len(stacked))
        actions = self.choose(stacked, skills, deterministic=deterministic)
        taken = env_action(actions.cpu().numpy(), self.spec)
        return taken[0] if single else taken

    def player(
        self,
        skill: np.ndarray | None = None,
        deterministic: bool = True,
        *,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> Player:
        """What plays in a Gymnasium loop: stacks frames, holds a skill, and acts as evaluations do.

        `skill` is by default the task's, or a sample for each episode; `num_envs` is for vector environments.
        """
        return Player(self, skill=skill, deterministic=deterministic, num_envs=num_envs, seed=seed)

    def _given_skill(self, skill: np.ndarray | None, n: int) -> Tensor:
        dim = self.method.skill_dim
        if skill is None:
            return self.task_skill.expand(n, dim)
        given = np.asarray(skill, np.float32)
        if given.shape not in ((dim,), (n, dim)):
            raise SpaceError(
                f"skill of shape {given.shape} cannot be followed: expected ({dim},) or ({n}, {dim})"
            )
        return torch.from_numpy(given).to(self.device).expand(n, dim)

    # State

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Agent:
        """Move the optimizers' state together with the weights."""
        old = dict(self.named_buffers())  # learning rates may be among them
        super()._apply(fn, recurse)
        new = dict(self.named_buffers())
        self.optimizers.move(fn, self.device, {id(old[name]): new[name] for name in old})
        self.generation += 1
        return self

    def tensors(self) -> dict[str, Tensor]:
        """All weights and buffers by name, a shared one once."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    @torch.no_grad()
    def load_tensors(
        self,
        tensors: dict[str, Tensor],
        *,
        skip: tuple[str, ...] = (),
        remedy: str = "build it from the checkpoint's own config",
    ) -> None:
        """Copy saved values into the weights and buffers; names under `skip` keep what they have."""
        mine = {k: v for k, v in self.tensors().items() if not k.startswith(skip)}
        wrong = [k for k, v in mine.items() if k not in tensors or v.shape != tensors[k].shape]
        if wrong:
            name = wrong[0]
            saved = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise CheckpointError(
                f"the saved agent does not fit this one: {name} has shape {tuple(mine[name].shape)} "
                f"here and {saved} there; {remedy}"
            )
        for name, value in mine.items():
            value.copy_(tensors[name])
        self.generation += 1

    def load_optimizer_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Continue with saved moments and counters."""
        self.optimizers.load(tensors)
        self.generation += 1

    def save_checkpoint(self, folder: Path, *, keep_last: int, **about: Any) -> Path:
        """Write the agent as a checkpoint into `folder`, which keeps the `keep_last` with the most steps.

        `about` is added to the meta.
        """
        files = {"agent.safetensors": checkpoint.Group(self.tensors())}
        meta = {"agent_steps": self.steps, "spec": self.spec.to_json(), "config": to_json(self.config)}
        return checkpoint.save(folder, self.steps, files, {**meta, **about}, keep_last=keep_last)

    def load_pretrained(self, tensors: dict[str, Tensor]) -> None:
        """Start fine-tuning from a pre-trained agent's weights, with its heads or reinitialized ones."""
        remedy = (
            "leave out the changes to the network, or pass finetune.heads = 'random' if only the heads differ"
        )
        fresh = self.fresh_heads(self.config.finetune.heads)
        if isinstance(self.learner.encoder, ProgressiveEncoder):
            tensors = self._with_new_column(tensors)
        normalized = any(name.startswith("learner.popart.") for name in tensors)
        if normalized and not fresh and getattr(self.learner, "popart", None) is None:
            raise CheckpointError(
                "the saved agent does not fit this one: its heads predict values that PopArt normalizes, "
                "and learner.popart is False here; use learner.popart = True, or finetune.heads = 'random'"
            )
        own = ["horizon.", "bonus.", "learner.bounds."]  # of a run, or of its rewards
        if self.config.finetune.heads != "pretrained" or "task_scale" not in tensors:
            own.append("task_scale")  # values that are kept as they are keep the scale of their rewards
        if not any(name.startswith("normalizer.") for name in tensors):  # it was pre-trained without
            own.append("normalizer.")
        missing: list[str] = []
        if self.config.finetune.heads == "random":  # another learner's agent has other schedules and targets
            mine = [name for name in self.tensors() if name.startswith("learner.")]
            missing = [name for name in mine if name not in tensors and ".encoder." not in name]
        self.load_tensors(tensors, skip=(*fresh, *missing, *own), remedy=remedy)
        if any(name.startswith("learner.target_encoder.") for name in missing):
            polyak_update(self.learner.get_submodule("target_encoder"), self.learner.encoder, tau=1.0)
        if self.config.finetune.heads in ("actor", "first_layer"):
            # URLB's target keeps its random initialization, trunk included, and only drifts towards the
            # critic. Here it starts equal to the critic, in the trunk or first layer too.
            for name in {head.partition(".")[0] for head in self.learner.critic_heads}:
                if isinstance(target := getattr(self.learner, f"target_{name}", None), nn.Module):
                    polyak_update(target, self.learner.get_submodule(name), tau=1.0)
        self.task_skill_chosen.fill_(False)  # a new task chooses its own
        self.trials_dealt.zero_()
        self.horizon.restart()

    def _with_new_column(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Saved tensors in which the learner's encoder is the frozen column, and the new one's are its own.

        Where f is the frozen column, it has its name, by which it was saved.
        """
        saved, frozen = "learner.encoder.", "learner.encoder.frozen."
        columns = (saved, "learner.target_encoder.")
        mine = {name: value for name, value in self.tensors().items() if name.startswith(columns)}
        moved = {
            f"{frozen}{name.removeprefix(saved)}": v for name, v in tensors.items() if name.startswith(saved)
        }
        new = {name: value for name, value in mine.items() if not name.startswith(frozen)}
        others = {name: value for name, value in tensors.items() if not name.startswith(columns)}
        return {**others, **moved, **new}

    def fresh_heads(self, heads: str) -> tuple[str, ...]:
        """Name prefixes of the tensors that fine-tuning with these `finetune.heads` reinitializes."""
        learner = self.learner
        if heads in ("auto", "pretrained"):
            return ()
        if heads == "actor":
            return tuple(f"learner.{to}{n}." for n in learner.critic_heads for to in ("", "target_"))
        children = (n for n, _ in learner.named_children() if n not in ("encoder", "target_encoder"))
        scalars = tuple(n for n, _ in learner.named_parameters(recurse=False))
        begins = (*(f"{name}." for name in children), *scalars)
        if heads == "random":
            return tuple(f"learner.{name}" for name in begins)
        kept = {id(t) for layer in learner.first_layers for t in (*layer.parameters(), *layer.buffers())}
        own = {**dict(learner.named_parameters()), **dict(learner.named_buffers())}
        originals = {name: own.get(name.removeprefix("target_"), own[name]) for name in own}
        return tuple(
            f"learner.{name}" for name in own if name.startswith(begins) and id(originals[name]) not in kept
        )


def _repeated(batch: Batch, views: int) -> Batch:
    """The learner's batch with all but the observations, which are views already, repeated."""
    fields = {
        name: value.repeat(views, *[1] * (value.ndim - 1))
        for name, value in batch._asdict().items()
        if name not in ("obs", "next_obs")
    }
    return batch._replace(**fields)
