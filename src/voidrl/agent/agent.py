"""The agent: encoder, representation, method and learner with their optimizers; and the update step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from voidrl import dist
from voidrl.agent import renewal, rewards
from voidrl.agent.acting import ActingAgent
from voidrl.agent.combinations import Combination
from voidrl.agent.encoder_training import assign_gradients, make_encoders
from voidrl.agent.optimizers import Aside, JointLoss, Optimizers, make_optimizers, require_loss
from voidrl.agent.schedules import Bonus, Horizon
from voidrl.config import Config, to_json
from voidrl.errors import CheckpointError, ConfigError
from voidrl.nets.augment import Augment, network_spec
from voidrl.replay import Replay, Segment
from voidrl.representations.base import Views
from voidrl.runs import checkpoint
from voidrl.system.threads import using
from voidrl.types import CHECK, Batch, EnvSpec, Loss, Metrics

MetricOwner = Literal["representation", "latents", "method", "reward", "task", "learner"]


class Scored(NamedTuple):
    """The first half of an update: a sample with its rewards, ready for the learner."""

    batch: Batch
    reward: Tensor  # (B,), or (B, dim) for a learner that takes vectors
    slots: Tensor  # (B,)
    joint: JointLoss  # losses that train the encoder together with the critic's, not yet minimized
    metrics: Metrics


class Agent(ActingAgent):
    """Encoder, representation, method and learner as one module."""

    task_scale: Tensor
    representation_rate: Tensor

    def __init__(self, spec: EnvSpec, config: Config, device: torch.device) -> None:
        super().__init__()
        self.spec, self.config, self.effective = spec, config, config.effective
        self.steps = 0  # environment steps trained so far, over all phases
        self.origin: Path | None = None  # the folder it was trained in or loaded from, for its model card
        self.trusted = True  # False for one of the Hub: code that its config names is not run
        combination = Combination(spec, config)
        combination.check()
        self.uses_method = self.effective.uses_method
        self.learns = combination.pieces.method.learns or not self.effective.pretrains
        self.encoder_trainers, self.trains_representation, _ = combination.training
        """Pieces whose losses train the representation's encoder in this phase."""
        # More threads gain nothing here, and with other runs they wait for each other for minutes.
        with using(1):
            self._make_pieces(combination)
        combination.check_networks(self)
        # Until a task chooses one, `act` follows some skill, the same at every call.
        skill = self.method.sample_skill(torch.zeros(1, dtype=torch.int64))[0]
        self.register_buffer("task_skill", skill.clone())
        self.register_buffer("task_skill_chosen", torch.zeros((), dtype=torch.bool))
        self.register_buffer("trials_dealt", torch.zeros((), dtype=torch.int64))
        # The representation's learning rate: a tensor, so that it can rise within a captured graph.
        self.register_buffer("representation_rate", torch.zeros(()))
        self.normalizer = rewards.RewardNormalizer(config)
        self.bonus = Bonus(config) if self.effective.has_bonus else None
        self.horizon = Horizon(config.learner)
        if self.effective.adapts:
            self.register_buffer("task_scale", torch.ones(()))
        self.augment = Augment(config.augment, spec)
        self.metric_owners: dict[str, MetricOwner] = {}
        """The piece that computes each metric."""
        self.generation = 0  # increases when tensors that a captured graph holds may have been replaced
        assign_gradients(self)
        order = [kind for kind in ("learner", "method", "representation") if kind in self.encoder_trainers]
        self.last_trainer = order[0] if order else ""
        """The last piece of an update whose loss trains the encoder, with which all of them are minimized."""
        self.adds_representation_loss = "representation" in order[1:]
        """Whether the representation's loss waits for those of the encoder's other trainers."""
        self.optimizers = Optimizers(device)
        self.to(device)  # which makes the optimizers
        self.eval()

    def _make_pieces(self, combination: Combination) -> None:
        config, pieces = self.config, combination.pieces
        seen = network_spec(self.spec, config.augment)  # networks may read less than the replay stores
        own_encoder, encoder = make_encoders(seen, config, pieces)
        self.representation = pieces.representation(seen, config.representation, own_encoder)
        method = pieces.method(seen, config.method, self.representation)
        critic = method.make_critic(encoder.feature_dim, config.learner)
        combination.check_critic(method, critic)
        # The learner's tensors are named before the method's: a method may keep the critic that it made.
        self.learner = pieces.learner(seen, config.learner, encoder, critic, method.skill_dim)
        self.learner.warmup_steps = self.effective.epsilon_hold_steps
        self.representation.size_heads(self.learner)
        self.method = method

    def __repr__(self) -> str:
        config = self.config
        pieces = f"{config.method.name}, {config.representation.name}, {config.learner.name}"
        return f"Agent({pieces}; {config.phase} in {config.env.id!r}; {self.steps} steps; {self.device})"

    # The update

    def update(self, replay: Replay, index: int = 0) -> Metrics:
        """One gradient step of every piece: `score`, then `learn`. Tensors in, tensors out.

        `index` is the number of an update of this variant (`Learner.variant`). Only the module whose loss is
        computed is in training mode, in which spectral norm iterates; latents are computed, and actions
        chosen, in eval mode. Metrics are in the order in which they are computed: where several are NaN, the
        first is where it began. Ranks sample a part of the batch each, and exchange what makes this the
        update of the whole batch.
        """
        return self.learn(replay, self.score(replay), index) if self.learns else {}

    def score(self, replay: Replay, aside: Aside | None = None) -> Scored:
        """Train representation and method, then reward a batch for the learner.

        A representation's loss that is added to the learner's may be computed `aside`.
        """
        joint, metrics = JointLoss(aside), Metrics()
        with self.precision():
            own_batch = dist.current().share_of(self.config.representation.batch_size)
            if self.trains_representation and own_batch:
                with joint.aside():
                    own = replay.segment(replay.sample(own_batch), 1, 1.0)
                    metrics |= self.train_representation(replay, own, joint)
            slots, weight = replay.draw(dist.current().share_of(self.config.learner.batch_size))
            segment = self.horizon.segment(replay, slots)
            if self.trains_representation and not own_batch:
                with joint.aside(segment, weight):
                    metrics |= self.train_representation(replay, segment, joint, weight)
            batch = self._learner_batch(replay, segment)._replace(weight=weight)
            intrinsic = None
            if self.uses_method:
                steps = rewards.rewarded_steps(self, replay, segment, batch)
                trained = rewards.train_method(self, replay, segment, steps[0], joint)
                intrinsic, rewarded = rewards.intrinsic_reward(self, steps)
                if (z := steps[0].latents.encoded) is not None:
                    metrics |= self.owned("latents", {f"{CHECK}z": z.detach().mean()})
                metrics |= trained | rewarded
            reward, logged = rewards.learner_reward(self, batch, intrinsic)
            batch, reward = self._for_learner(batch, reward)
            self.horizon.after_update()
            if self.last_trainer != "learner":
                self._after_encoder_losses()
        return Scored(batch, reward, slots, joint, metrics | logged)

    def learn(
        self, replay: Replay, scored: Scored, index: int, encoder_trained: Callable[[], None] = lambda: None
    ) -> Metrics:
        """Minimize the learner's losses; the encoder's other losses are added to the critic's.

        `encoder_trained` is called once the critic's loss has been minimized. What follows does not change
        the encoder.
        """
        batch, reward, slots, joint, metrics = scored
        metrics = metrics | rewards.observe_limits(self, reward)
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
                metrics |= self.owned("learner", rewards.in_task_units(self, loss.metrics), loss)
                if loss.priority is not None and replay.priorities is not None:
                    priority = loss.priority.unflatten(0, (self.config.learner.views, -1)).mean(0)
                    joint.priority_terms.append(priority)
            assert not joint, "a loss of the encoder waits for a critic's loss that never came"
            if replay.priorities is not None:
                replay.priorities.update(slots, torch.stack(joint.priority_terms).sum(0))
            self.learner.after_update(index)
            self.learner.eval()
            if self.last_trainer == "learner":
                self._after_encoder_losses()
        return metrics

    def train_representation(
        self, replay: Replay, segment: Segment, joint: JointLoss, weight: Tensor | None = None
    ) -> Metrics:
        """Minimize the representation's loss, or leave it to be added to those of its encoder's trainers.

        `weight`: importance weights, if the loss is that of the learner's transitions.
        """
        representation, config = self.representation, self.config.representation
        learner = self.learner if representation.reads_learner else None
        views = Views(replay, segment, self.augment, representation.layout, learner)
        if config.warmup_updates:
            rise = config.learning_rate / config.warmup_updates
            self.representation_rate.add_(rise).clamp_(max=config.learning_rate)
        representation.train()
        if "representation" not in self.encoder_trainers and representation.encoder is not None:
            representation.encoder.eval()  # the loss trains the heads only
        loss, metrics = require_loss(config.name, representation.loss(views), len(segment.slots))
        representation.eval()
        if loss.ndim:  # of each transition
            if weight is not None and representation.raises_priority:
                joint.priority_terms.append(config.loss_weight * loss.detach())
            loss = (loss if weight is None else weight * loss).mean()
        if self.adds_representation_loss:
            joint.add(config.loss_weight * loss, self.encoder_optimizer())
        else:
            self.optimizers.minimize(["representation"], loss)
        return self.owned("representation", metrics, Loss("representation", loss, metrics))

    def encoder_optimizer(self) -> list[str]:
        """The optimizer of the encoder's weights that the learner does not train, if there are any."""
        return [name for name in ("encoder", "representation") if name in self.optimizers][:1]

    def _after_encoder_losses(self) -> None:
        """Let representation and method follow their new weights, once their losses are minimized."""
        if self.trains_representation:
            self.representation.after_update()
        if self.uses_method:
            self.method.after_update(self.representation)

    def _learner_batch(self, replay: Replay, segment: Segment) -> Batch:
        """Each segment as one n-step transition, for each view of its observations, augmented or plain."""
        views = self.config.learner.views
        slots = torch.cat([segment.slots[:, 0]] * views + [segment.states[:, -1]] * views)
        convert = self.augment if self.config.augment.learner else self.augment.plain
        obs, next_obs = convert(replay.frames_of(slots), self.learner.encoder.layout).chunk(2)
        return replay.n_step_batch(segment, obs, next_obs)

    def _for_learner(self, batch: Batch, reward: Tensor) -> tuple[Batch, Tensor]:
        """The task's skill where one was chosen; everything that is no view repeated for each view."""
        views = self.config.learner.views
        if not self.effective.samples_skills:
            batch = batch._replace(skill=self.task_skill.expand_as(batch.skill))
        if views == 1:
            return batch, reward
        fields = {
            name: value.repeat(views, *[1] * (value.ndim - 1))
            for name, value in batch._asdict().items()
            if name not in ("obs", "next_obs")  # which are views already
        }
        return batch._replace(**fields), reward.repeat(views, *[1] * (reward.ndim - 1))

    @property
    def reward_dim(self) -> int:
        """Width of the learner's rewards, 0 for scalars, as a task's are, with a bonus or without one."""
        return self.method.reward_dim if self.effective.pretrains else 0

    def owned(self, owner: MetricOwner, metrics: Metrics, loss: Loss | None = None) -> Metrics:
        """Remember who computed these metrics; a loss is always among them, to be checked."""
        if loss is not None:  # its owner may log something else
            metrics = {f"{CHECK}{owner}/{loss.optimizer}": loss.value.detach().reshape(()), **metrics}
        for name in metrics:
            first = self.metric_owners.setdefault(name, owner)
            if first != owner:
                raise ConfigError(
                    f"metric {name!r} is logged by both the {first} and the {owner}: expected another name "
                    f"in one of them"
                )
        return metrics

    @property
    def note_dim(self) -> int:
        """Width of what the replay stores for the method with each step."""
        return self.method.note_dim if self.uses_method else 0

    def set_progress(self, run_steps: int) -> None:
        """Move the schedules of the intrinsic reward to where they are, after `run_steps` of this run."""
        if self.uses_method:
            before = self.steps - run_steps  # over all phases: what was pre-trained does not start over
            self.method.set_progress(self.steps, before + self.config.steps)
        if self.bonus is not None:
            self.bonus.set_progress(run_steps)

    @torch.no_grad()
    def choose_task_skill(self, replay: Replay) -> None:
        """Choose the skill for the task, once, from the rewards of the warm-up."""
        if self.method.skill_dim and not self.task_skill_chosen:
            slots = replay.newest(len(replay))  # all of them: skills were tried one after another
            segment = replay.segment(slots[:: rewards.warmup_stride(len(slots), self.spec)], 1, 1.0)
            batch, pool = replay.n_step_batch(segment), rewards.encoded_pool(self, replay)
            option = rewards.encoded_options(self, replay, segment)
            latents = rewards.batch_latents(self, batch, pool, option)
            self.task_skill.copy_(self.method.select_skill(batch, latents))
        self.task_skill_chosen.fill_(True)

    # State

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Agent:
        """Move the weights, with new optimizers that have the state of the old ones."""
        before = self.optimizers
        super()._apply(fn, recurse)
        self.optimizers = make_optimizers(self, self.device)
        self.optimizers.load(before.tensors())
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
        """Start fine-tuning from a pre-trained agent's weights."""
        renewal.load_pretrained(self, tensors)
