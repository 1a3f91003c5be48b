"""The agent: encoder, representation, method, learner and their optimizers; and the update step.

Every trainable parameter is in exactly one optimizer, and a loss is differentiated with respect to the
parameters of its own optimizer alone, so nothing is trained by a loss that does not own it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from voidrl import checkpoint, registry
from voidrl.augment import Augment
from voidrl.config import Config, to_json
from voidrl.device import uses_bf16
from voidrl.errors import CheckpointError, ConfigError, SpaceError
from voidrl.learners.base import Learner
from voidrl.methods.base import Latents, Method
from voidrl.nets import Encoder, follow
from voidrl.replay import Replay, Segment
from voidrl.representations.base import Representation, Views
from voidrl.spaces import env_action, to_frames
from voidrl.spectral import exact
from voidrl.types import Batch, EnvSpec, Metrics


class Agent(nn.Module):
    """What is trained, saved and handed to the user."""

    representation: Representation
    method: Method
    learner: Learner
    task_skill: Tensor
    task_skill_chosen: Tensor
    representation_rate: Tensor

    def __init__(self, spec: EnvSpec, config: Config, device: torch.device) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.steps = 0  # environment steps trained so far, over all phases
        self.origin: Path | None = None  # the folder it was trained in or loaded from, for its model card
        self.trusted = True  # False for one of the Hub: its config names no code that is run; `share.own_env`
        representation_cls = registry.find("representation", config.representation.name)
        method_cls = registry.find("method", config.method.name)
        learner_cls = registry.find("learner", config.learner.name)
        _check_fit(spec, config, representation_cls, learner_cls)

        f: Encoder | None
        if representation_cls.takes_learner_encoder:
            f = encoder = Encoder(spec.obs_shape, config.learner.encoder)
        else:
            f = representation_cls.make_encoder(spec, config.representation)
            if config.share_encoder and f is None:
                raise ConfigError(
                    f"share_encoder = True cannot be used with representation "
                    f"{config.representation.name!r}, which has no encoder: use simclr or fixed"
                )
            shares = f is not None and config.share_encoder
            encoder = f if shares else Encoder(spec.obs_shape, config.learner.encoder)  # type: ignore[assignment]
        self.representation = representation_cls(spec, config.representation, f)
        method = method_cls(spec, config.method, self.representation.dim)
        critic = method.make_critic(encoder.feature_dim, config.learner)
        # The learner's tensors are named before the method's: a method may keep the critic that it made.
        self.learner = learner_cls(spec, config.learner, encoder, critic, method.skill_dim)
        self.method = method
        adapts = config.phase != "train"
        if adapts and config.finetune.heads == "actor" and not hasattr(self.learner, "actor"):
            raise ConfigError(
                f"finetune.heads = 'actor' cannot be used with learner {config.learner.name!r}, which has no "
                f"actor: expected 'pretrained' or 'random'"
            )
        # Until a task chooses one, `act` follows some skill, the same at every call.
        self.register_buffer("task_skill", method.sample_skill(1, torch.device("cpu"))[0].clone())
        self.register_buffer("task_skill_chosen", torch.zeros((), dtype=torch.bool))
        # The representation's step size: a tensor, so that it can rise within a captured graph.
        self.register_buffer("representation_rate", torch.zeros(()))
        self.augment = Augment(config.augment)
        self.generation = 0  # goes up when tensors that a captured graph holds on to may have been replaced
        self.optimizers: dict[str, torch.optim.Adam] = {}

        self.pretraining = config.phase == "pretrain"
        self.learns = method.learns or not self.pretraining
        read = method.reads_latents or encoder is f
        self._trains_representation = self.representation.trains_encoder and read
        self._assign_encoder(shared=encoder is f)
        self.to(device)
        self.eval()
        self.optimizers = self._make_optimizers(device)
        self._learner_optimizers = set(self.learner.groups())

    def _assign_encoder(self, *, shared: bool) -> None:
        """One field says who trains f; whoever does not is given no gradient."""
        config, encoder = self.config, self.learner.encoder
        weights = list(encoder.parameters())
        still = bool(weights) and not any(p.requires_grad for p in weights)
        if still and config.encoder_owner == "learner":
            raise ConfigError(
                f"encoder_owner = 'learner' cannot be used with representation "
                f"{config.representation.name!r}, whose encoder never learns: use 'auto'"
            )
        if self.pretraining:
            owner = config.encoder_owner
            if owner == "auto":
                owner = "representation" if self.representation.trains_encoder else "learner"
            mine = not shared or owner == "learner"
        else:  # the task's learner has the encoder to itself; what only pre-training used stands still
            mine = config.phase == "train" or config.finetune.encoder == "tuned"
            used = set(self.learner.parameters())
            for parameter in (*self.representation.parameters(), *self.method.parameters()):
                if parameter not in used:
                    parameter.requires_grad_(False)
            if not mine:
                encoder.requires_grad_(False)
        self.learner.trains_encoder = mine and not still

    def _make_optimizers(self, device: torch.device) -> dict[str, torch.optim.Adam]:
        config = self.config
        groups = dict(self.learner.groups())
        taken = {id(p) for group in groups.values() for p in group}
        rates = dict.fromkeys(groups, (config.learner.learning_rate, config.learner.adam_eps))
        if config.phase == "finetune" and config.finetune.learning_rate is not None:
            rates = dict.fromkeys(groups, (config.finetune.learning_rate, config.learner.adam_eps))
        if self.pretraining:
            groups["representation"] = [p for p in self.representation.parameters() if id(p) not in taken]
            groups["method"] = [p for p in self.method.parameters() if id(p) not in taken]
            rates["representation"] = (config.representation.learning_rate, 1e-8)
            rates["method"] = (config.method.learning_rate, 1e-8)
        optimizers = {}
        for name, group in groups.items():
            trainable = [p for p in group if p.requires_grad]
            if trainable and self.learns:
                rate, eps = rates[name]
                capturable = device.type == "cuda"
                optimizers[name] = torch.optim.Adam(
                    trainable, rate, eps=eps, fused=True, capturable=capturable
                )
        if config.representation.warmup_updates and "representation" in optimizers:
            optimizers["representation"].param_groups[0]["lr"] = self.representation_rate
        return optimizers

    def __repr__(self) -> str:
        config = self.config
        pieces = ", ".join((config.method.name, config.representation.name, config.learner.name))
        return f"Agent({pieces}; {config.phase} in {config.env.id!r}; {self.steps} steps; {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.task_skill.device

    # The update

    def precision(self) -> torch.autocast:
        """Where products may be bf16. No cache: within one update the weights change between two losses."""
        on = uses_bf16(self.config.precision, self.device)
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    def step(self, replay: Replay, index: int = 0) -> Metrics:
        """One update from one sample: representation → reward → learner. Tensors in, tensors out.

        `index` is the number of an update of this kind (`Learner.kind`). Only what a loss is about to train
        is in training mode, in which spectral normalization iterates; latents are read, and actions chosen,
        in `eval`.
        """
        if not self.learns:
            return {}
        config, own_batch = self.config.learner, self.config.representation.batch_size
        training = self.pretraining and self._trains_representation
        metrics: Metrics = {}
        with self.precision():
            if training and own_batch:
                own = replay.segment(replay.sample(own_batch), 1, 1.0)
                metrics |= self._train_representation(replay, own)
            segment = replay.segment(replay.sample(config.batch_size), config.n_step, config.discount)
            if training and not own_batch:
                metrics |= self._train_representation(replay, segment)
            batch = self._learner_batch(replay, segment)
            if self.pretraining:
                reward, method_metrics = self._intrinsic_reward(replay, segment, batch)
                metrics |= method_metrics
            else:
                reward = batch.reward * self.config.reward_scale
                batch = batch._replace(skill=self.task_skill.expand_as(batch.skill))
            self.learner.train()
            for loss in self.learner.losses(batch, reward, index):
                self._minimize(loss.optimizer, loss.value)
                metrics |= loss.metrics
            self.learner.after_step(index)
            self.learner.eval()
            if self.pretraining:
                self.method.after_step()
            return metrics | {"reward_mean": reward.mean()}

    def _train_representation(self, replay: Replay, segment: Segment) -> Metrics:
        views = Views(replay, segment, self.augment, self.representation.layout)
        config = self.config.representation
        if config.warmup_updates:
            rise = config.learning_rate / config.warmup_updates
            self.representation_rate.add_(rise).clamp_(max=config.learning_rate)
        self.representation.train()
        loss, metrics = self.representation.loss(views)
        self._minimize("representation", loss)
        self.representation.eval()
        return metrics

    def _learner_batch(self, replay: Replay, segment: Segment) -> Batch:
        """Each run of steps as one transition between augmented observations."""
        slots = torch.cat([segment.slots[:, 0], segment.states[:, -1]])
        obs, next_obs = self.augment(replay.frames_of(slots), self.learner.encoder.layout).chunk(2)
        return replay.joined(segment, obs, next_obs)

    def _intrinsic_reward(self, replay: Replay, segment: Segment, joined: Batch) -> tuple[Tensor, Metrics]:
        """(B,) rewards of n-step transitions: every successor scored and summed, or only the last.

        `joined` is what the learner sees of them, augmented if they are images.
        """
        metrics: Metrics = {}
        reward = torch.zeros_like(segment.discount, device=self.device)
        for i, (batch, latents, weights) in enumerate(self._scored(replay, segment, joined)):
            if i == 0:  # the method learns from (s, a, s') and not from what lies n steps ahead
                self.method.train()
                trained = self.method.loss(batch, latents)
                if trained is not None:
                    self._minimize("method", trained[0])
                    metrics |= trained[1]
                self.method.eval()
            with torch.no_grad():
                reward += weights * self.method.reward(batch, latents)
        return reward, metrics | self.method.metrics()

    def _scored(
        self, replay: Replay, segment: Segment, joined: Batch
    ) -> Iterator[tuple[Batch, Latents, Tensor]]:
        """The transitions that the method rewards, each with its latents and its (B,) weights."""
        config = self.config.learner
        pool = self._pool(replay)
        if config.n_step == 1 or config.intrinsic_n_step == "single":
            batch = replay.joined(segment) if self.spec.pixels else joined
            yield batch, self._latents(batch, pool), torch.ones_like(batch.reward)
            return
        shape = segment.states.T.shape
        # s' of a step is s of the next: ((n + 1) · B, *obs_shape) has every state once.
        obs = replay.observations(segment.states.T.flatten())
        z = cache(lambda: self._encode(obs).unflatten(0, shape))  # (n + 1, B, dim), all in one pass
        for i, (batch, weights) in enumerate(replay.steps(segment, obs.unflatten(0, shape))):
            latents = Latents(lambda i=i: z()[i], lambda i=i: z()[i + 1], pool)  # type: ignore[misc]
            yield batch, latents, weights

    @torch.no_grad()
    def _encode(self, obs: Tensor) -> Tensor:
        return self.representation.encode(obs).float()

    def _latents(self, batch: Batch, pool: Callable[[int], Tensor]) -> Latents:
        return Latents(lambda: self._encode(batch.obs), lambda: self._encode(batch.next_obs), pool)

    def _pool(self, replay: Replay) -> Callable[[int], Tensor]:
        """Encoded states drawn from the replay: the same n for everything that one update scores."""
        return cache(lambda n: self._encode(replay.observations(replay.sample(n))))

    def _minimize(self, optimizer: str, loss: Tensor) -> None:
        """One optimizer step; only the parameters of that optimizer receive gradients."""
        chosen = self.optimizers.get(optimizer)
        if chosen is None:
            raise ConfigError(
                f"a loss names optimizer {optimizer!r}, which has nothing to train: expected "
                f"{' or '.join(map(repr, self.optimizers))}; no parameters, no loss"
            )
        parameters: list[Tensor] = chosen.param_groups[0]["params"]
        chosen.zero_grad(set_to_none=True)
        with exact(loss):  # else the gradients of what was exact forwards would be bf16
            loss.backward(inputs=parameters)
        if self.config.learner.max_grad_norm and optimizer in self._learner_optimizers:
            nn.utils.clip_grad_norm_(parameters, self.config.learner.max_grad_norm)
        chosen.step()

    # Acting

    @torch.no_grad()
    def choose(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """The learner's actions for observations on the device; random ones where nothing is learned."""
        if not self.learns:
            return self.random_actions(len(obs))
        with self.precision():
            return self.learner.act(obs, skill, deterministic=deterministic)

    def random_actions(self, n: int) -> Tensor:
        """Uniform actions."""
        if self.spec.discrete:
            return torch.randint(self.spec.num_actions, (n,), device=self.device)
        return torch.rand(n, self.spec.action_dim, device=self.device) * 2 - 1

    def new_skills(self, n: int) -> Tensor:
        """A skill for each of n new episodes; once one is chosen for a task, always that one."""
        if self.task_skill_chosen:  # a host read, at the borders of episodes only
            return self.task_skill.expand(n, -1)
        return self.method.sample_skill(n, self.device)

    @torch.no_grad()
    def choose_task_skill(self, replay: Replay) -> None:
        """Pick, once, the skill that fits the task best, from what the warm-up saw of its reward."""
        if self.method.skill_dim and not self.task_skill_chosen:
            batch = replay.batch(replay.sample(min(len(replay), 4096)), 1, 1.0)
            latents = self._latents(batch, self._pool(replay))
            self.task_skill.copy_(self.method.select_skill(batch, latents))
        self.task_skill_chosen.fill_(True)

    @torch.no_grad()
    def act(self, obs: np.ndarray, deterministic: bool = True, skill: np.ndarray | None = None) -> Any:
        """The action for one observation, or for a batch, as the environment gives and takes them.

        With `frame_stack` > 1 the last frames are passed along an axis before the frame's own, oldest first.
        `skill` is one for all or one for each of the batch; by default the one chosen for the task.
        """
        spec, obs = self.spec, np.asarray(obs)
        shape = spec.raw_shape if spec.frame_stack == 1 else (spec.frame_stack, *spec.raw_shape)
        if obs.shape[-len(shape) :] != shape or obs.ndim > len(shape) + 1:
            raise SpaceError(
                f"observation of shape {obs.shape} cannot be acted on: expected {shape} or (batch, *{shape})"
            )
        if spec.pixels and obs.dtype != np.uint8:
            raise SpaceError(f"observation of {obs.dtype} cannot be acted on: expected a uint8 image")
        single = obs.ndim == len(shape)
        frames = torch.from_numpy(to_frames(obs.reshape(-1, *spec.raw_shape), spec)).to(self.device)
        stacked = frames.reshape(-1, *spec.obs_shape)
        skills = self._given_skill(skill, len(stacked))
        actions = self.choose(stacked, skills, deterministic=deterministic)
        taken = env_action(actions.cpu().numpy(), spec)
        return taken[0] if single else taken

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
        """What moves the agent moves what its optimizers keep."""
        super()._apply(fn, recurse)
        for optimizer in self.optimizers.values():
            for parameter, kept in optimizer.state.items():
                moved = {key: fn(value) for key, value in kept.items()}
                if "step" in kept:  # a float32, whatever the weights become
                    moved["step"] = kept["step"].to(parameter.device)
                optimizer.state[parameter] = moved
            group = optimizer.param_groups[0]
            group["capturable"] = self.device.type == "cuda"
            if isinstance(group["lr"], Tensor):
                group["lr"] = self.representation_rate
        self.generation += 1
        return self

    def tensors(self) -> dict[str, Tensor]:
        """All weights and buffers by name, a shared one once."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizers' moments and counters by name."""
        found = {}
        for name, optimizer in self.optimizers.items():
            for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
                for key, value in optimizer.state[parameter].items():
                    found[f"{name}/{i}/{key}"] = value
        return found

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

    @torch.no_grad()
    def load_optimizer_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `optimizer_tensors`."""
        for name, optimizer in self.optimizers.items():
            for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
                saved = {k.split("/")[2]: v for k, v in tensors.items() if k.startswith(f"{name}/{i}/")}
                optimizer.state[parameter] = {k: v.to(parameter.device, copy=True) for k, v in saved.items()}
        self.generation += 1

    def save_beside(self, folder: Path, *, keep_last: int) -> Path:
        """Write the agent as a checkpoint into a folder of them, of which the last by steps are kept."""
        files = {"agent.safetensors": checkpoint.Group(self.tensors())}
        meta = {"agent_steps": self.steps, "spec": self.spec.to_json(), "config": to_json(self.config)}
        return checkpoint.save(folder, self.steps, files, meta, keep_last=keep_last)

    def load_pretrained(self, tensors: dict[str, Tensor]) -> None:
        """Begin fine-tuning from a pre-trained agent's weights, with its heads or with new ones."""
        fresh: tuple[str, ...] = ()
        if self.config.finetune.heads == "random":
            heads = (n for n, _ in self.learner.named_children() if n not in ("encoder", "target_encoder"))
            scalars = (n for n, _ in self.learner.named_parameters(recurse=False))
            fresh = (*(f"learner.{n}." for n in heads), *(f"learner.{n}" for n in scalars))
        elif self.config.finetune.heads == "actor":
            fresh = tuple(f"learner.{to}{n}." for n in self.learner.critic_heads for to in ("", "target_"))
        remedy = (
            "leave out the changes to the network, or pass finetune.heads = 'random' if only the heads differ"
        )
        self.load_tensors(tensors, skip=fresh, remedy=remedy)
        if self.config.finetune.heads == "actor":
            # In URLB the target stays as it was made, with a trunk and heads of its own draw, and only drifts
            # towards the critic. Ours equals it, in the trunk too.
            for name in {head.partition(".")[0] for head in self.learner.critic_heads}:
                if isinstance(target := getattr(self.learner, f"target_{name}", None), nn.Module):
                    follow(target, self.learner.get_submodule(name), tau=1.0)
        self.task_skill_chosen.fill_(False)  # a new task chooses anew


def _check_fit(
    spec: EnvSpec, config: Config, representation: type[Representation], learner: type[Learner]
) -> None:
    """Refuse combinations that cannot work, with the remedy."""
    if (learner.actions == "discrete") != spec.discrete:
        remedy = "dqn" if spec.discrete else "sac or ddpg"
        raise ConfigError(
            f"learner {config.learner.name!r} takes {learner.actions} actions and the environment has "
            f"{spec.describe()}: use {remedy}"
        )
    if config.encoder_owner == "representation" and not representation.trains_encoder:
        raise ConfigError(
            f"encoder_owner = 'representation' cannot be used with representation "
            f"{config.representation.name!r}, which trains nothing: use 'auto'"
        )
    if config.encoder_owner == "learner" and not (
        config.share_encoder or representation.takes_learner_encoder
    ):
        raise ConfigError(
            "encoder_owner = 'learner' needs share_encoder = True: the learner cannot train an encoder that "
            "it does not use"
        )
