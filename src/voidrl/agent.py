"""The agent: encoder, representation, method, learner and their optimisers; and the update step.

Every trainable parameter is in exactly one optimiser, and a loss is differentiated with respect to the
parameters of its own optimiser alone, so nothing is trained by a loss that does not own it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from voidrl import checkpoint, registry
from voidrl.augment import Augment
from voidrl.config import Config, to_json
from voidrl.envs.spaces import env_action, to_frames
from voidrl.errors import CheckpointError, ConfigError, SpaceError
from voidrl.learners.base import Learner
from voidrl.methods.base import Latents, Method
from voidrl.nets import Encoder
from voidrl.replay import Replay
from voidrl.representations.base import Representation, Views
from voidrl.types import Batch, EnvSpec, Metrics


class Agent(nn.Module):
    """What is trained, saved and handed to the user."""

    representation: Representation
    method: Method
    learner: Learner
    task_skill: Tensor
    task_skill_chosen: Tensor

    def __init__(self, spec: EnvSpec, config: Config, device: torch.device) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.steps = 0  # environment steps trained so far, over all phases
        representation_cls = registry.find("representation", config.representation.name)
        method_cls = registry.find("method", config.method.name)
        learner_cls = registry.find("learner", config.learner.name)
        _check_fit(spec, config, representation_cls, learner_cls)

        shared = config.share_encoder or representation_cls.takes_learner_encoder
        encoder = None
        if not representation_cls.takes_learner_encoder:
            encoder = representation_cls.make_encoder(spec, config.representation)
        if config.share_encoder and encoder is None and not representation_cls.takes_learner_encoder:
            raise ConfigError(f"share_encoder = True cannot be used with representation {config.representation.name!r}, "
                              f"which has no encoder: use simclr or fixed")  # fmt: skip
        shares = shared and encoder is not None
        learner_encoder = encoder if shares else Encoder(spec.obs_shape, config.learner.encoder)
        encoder = learner_encoder if representation_cls.takes_learner_encoder else encoder
        self.representation = representation_cls(spec, config.representation, encoder)
        self.method = method_cls(spec, config.method, self.representation.dim)
        skill_dim = self.method.skill_dim
        critic = self.method.make_critic(learner_encoder.feature_dim, config.learner)
        self.learner = learner_cls(spec, config.learner, learner_encoder, critic, skill_dim)
        self.register_buffer("task_skill", torch.zeros(skill_dim))
        self.register_buffer("task_skill_chosen", torch.zeros((), dtype=torch.bool))
        self.augment = Augment(config.augment)

        self.pretraining = config.phase == "pretrain"
        self.learns = self.method.learns or not self.pretraining
        self._assign_encoder(shared)
        self.to(device)
        self.eval()
        self.optimisers = self._make_optimisers(device)
        self._clipped = set(self.learner.groups())

    def _assign_encoder(self, shared: bool) -> None:
        """One field says who trains f; whoever does not is given no gradient."""
        if self.pretraining:
            owner = self.config.encoder_owner
            if owner == "auto":
                owner = "representation" if self.representation.trains_encoder else "learner"
            self.learner.trains_encoder = not shared or owner == "learner"
        else:  # the task's learner has the encoder to itself; what only pre-training used stands still
            self.learner.trains_encoder = self.config.phase == "train" or self.config.finetune.encoder == "tuned"
            self.method.requires_grad_(False)
            kept = set(self.learner.encoder.parameters())
            for parameter in self.representation.parameters():
                parameter.requires_grad_(parameter.requires_grad and parameter in kept)
        frozen = all(not p.requires_grad for p in self.learner.encoder.parameters())
        self.learner.trains_encoder &= not frozen
        if not self.pretraining and not self.learner.trains_encoder:
            self.learner.encoder.requires_grad_(False)

    def _make_optimisers(self, device: torch.device) -> dict[str, torch.optim.Adam]:
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
        optimisers = {}
        for name, group in groups.items():
            trainable = [p for p in group if p.requires_grad]
            if trainable and self.learns:
                rate, eps = rates[name]
                optimisers[name] = torch.optim.Adam(trainable, rate, eps=eps, fused=True, capturable=device.type == "cuda")
        return optimisers

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.task_skill.device

    # The update

    def step(self, replay: Replay, index: int = 0) -> Metrics:
        """One update from one sample: representation → reward → learner. Tensors in, tensors out.

        `index` is the number of the update modulo `period`.
        """
        self.train()
        metrics: Metrics = {}
        config = self.config.learner
        slots = replay.sample(config.batch_size)
        if self.pretraining and self.representation.trains_encoder:
            metrics |= self._train_representation(replay)
        stored = replay.batch(slots, config.n_step, config.discount)
        if self.pretraining:
            reward, method_metrics = self._intrinsic_reward(replay, slots, stored)
            metrics |= method_metrics
        else:
            reward = stored.reward
            stored = stored._replace(skill=self.task_skill.expand_as(stored.skill))
        batch = stored._replace(obs=self.augment(stored.obs), next_obs=self.augment(stored.next_obs))
        for loss in self.learner.losses(batch, reward, index):
            self._minimise(loss.optimiser, loss.value)
            metrics |= loss.metrics
        self.learner.after_step(index)
        if self.pretraining:
            self.method.after_step()
        self.eval()
        return metrics | {"reward_mean": reward.mean()}

    @property
    def period(self) -> int:
        """Number of different updates before they repeat."""
        return self.learner.period

    def _train_representation(self, replay: Replay) -> Metrics:
        slots = replay.sample(self.config.representation.batch_size)
        views = Views(replay.batch(slots, 1, 1.0), self.augment)
        loss, metrics = self.representation.loss(views)
        self._minimise("representation", loss)
        return metrics

    def _intrinsic_reward(self, replay: Replay, slots: Tensor, stored: Batch) -> tuple[Tensor, Metrics]:
        """(B,) rewards of n-step transitions: every successor scored and summed, or only the last."""
        config = self.config.learner
        metrics: Metrics = {}
        latents = self._latents(replay, stored)
        trained = self.method.loss(stored, latents)
        if trained is not None:
            self._minimise("method", trained[0])
            metrics |= trained[1]
        with torch.no_grad():
            if config.n_step == 1 or config.intrinsic_n_step == "single":
                reward = self.method.reward(stored, latents)
            else:
                segment = replay.segment(slots, config.n_step, config.discount)
                reward = torch.zeros_like(stored.reward)
                for batch, weights in replay.steps(segment):
                    reward += weights * self.method.reward(batch, self._latents(replay, batch))
        return reward, metrics | self.method.metrics()

    def _latents(self, replay: Replay, batch: Batch) -> Latents:
        @torch.no_grad()
        def encode(obs: Tensor) -> Tensor:
            return self.representation.encode(obs).float()

        return Latents(batch, encode, lambda n: encode(replay.observations(replay.sample(n))))

    def _minimise(self, optimiser: str, loss: Tensor) -> None:
        """One optimiser step; only the parameters of that optimiser receive gradients."""
        if optimiser not in self.optimisers:
            return
        chosen = self.optimisers[optimiser]
        parameters: list[Tensor] = chosen.param_groups[0]["params"]
        chosen.zero_grad(set_to_none=True)
        loss.backward(inputs=parameters)
        if self.config.learner.max_grad_norm and optimiser in self._clipped:
            nn.utils.clip_grad_norm_(parameters, self.config.learner.max_grad_norm)
        chosen.step()

    # Acting

    @torch.no_grad()
    def explore(self, obs: Tensor, skill: Tensor) -> Tensor:
        """Actions while training, for observations on the device."""
        return self.learner.act(obs, skill, deterministic=False) if self.learns else self.random_actions(len(obs))

    def random_actions(self, n: int) -> Tensor:
        """Uniform actions."""
        if self.spec.discrete:
            return torch.randint(self.spec.num_actions, (n,), device=self.device)
        return torch.rand(n, self.spec.action_dim, device=self.device) * 2 - 1

    def new_skills(self, n: int) -> Tensor:
        """A skill for each of n new episodes; once one is chosen for a task, always that one."""
        if self.task_skill_chosen:
            return self.task_skill.expand(n, -1)
        return self.method.sample_skill(n, self.device)

    @torch.no_grad()
    def choose_task_skill(self, replay: Replay) -> None:
        """Pick the skill that fits the task best, from what the warm-up saw of its reward."""
        if self.method.skill_dim and not self.task_skill_chosen:
            batch = replay.batch(replay.sample(min(len(replay), 4096)), 1, 1.0)
            self.task_skill.copy_(self.method.select_skill(batch, self._latents(replay, batch)))
            self.task_skill_chosen.fill_(True)

    @torch.no_grad()
    def act(self, obs: np.ndarray, deterministic: bool = True) -> Any:
        """The action for one observation, or for a batch, as the environment gives and takes them.

        With `frame_stack` > 1 the last frames are passed along an axis before the frame's own, oldest first.
        """
        obs = np.asarray(obs)
        shape = self.spec.raw_shape if self.spec.frame_stack == 1 else (self.spec.frame_stack, *self.spec.raw_shape)
        if obs.shape[-len(shape) :] != shape or obs.ndim > len(shape) + 1:
            raise SpaceError(f"observation of shape {obs.shape} cannot be acted on: expected {shape} or (batch, *{shape})")
        single = obs.ndim == len(shape)
        flat = obs.reshape(-1, *self.spec.raw_shape)
        frames = torch.from_numpy(to_frames(flat, self.spec)).to(self.device)
        stacked = frames.reshape(-1, *self.spec.obs_shape)
        if not self.learns:
            actions = self.random_actions(len(stacked))
        else:
            actions = self.learner.act(stacked, self.new_skills(len(stacked)), deterministic=deterministic)
        taken = env_action(actions.cpu().numpy(), self.spec)
        return taken[0] if single else taken

    # State

    def tensors(self) -> dict[str, Tensor]:
        """All weights and buffers by name, a shared one once."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def optimiser_tensors(self) -> dict[str, Tensor]:
        """The optimisers' moments and counters by name."""
        found = {}
        for name, optimiser in self.optimisers.items():
            for i, parameter in enumerate(optimiser.param_groups[0]["params"]):
                for key, value in optimiser.state[parameter].items():
                    found[f"{name}/{i}/{key}"] = value
        return found

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor], *, skip: tuple[str, ...] = ()) -> None:
        """Copy saved values into the weights and buffers; names under `skip` keep what they have."""
        mine = {k: v for k, v in self.tensors().items() if not k.startswith(skip)} if skip else self.tensors()
        missing = sorted(mine.keys() - tensors.keys())
        wrong = [k for k in mine.keys() & tensors.keys() if mine[k].shape != tensors[k].shape]
        if missing or wrong:
            name = (missing or wrong)[0]
            saved = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise CheckpointError(f"the saved agent does not fit this one: {name} has shape {tuple(mine[name].shape)} "
                                  f"here and {saved} there; build it from the checkpoint's own config")  # fmt: skip
        for name, value in mine.items():
            value.copy_(tensors[name])

    @torch.no_grad()
    def load_optimiser_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `optimiser_tensors`."""
        for name, optimiser in self.optimisers.items():
            for i, parameter in enumerate(optimiser.param_groups[0]["params"]):
                saved = {k.split("/")[2]: v for k, v in tensors.items() if k.startswith(f"{name}/{i}/")}
                # Adam keeps its step counter on the CPU unless it is capturable.
                optimiser.state[parameter] = {
                    k: v.clone().to(parameter.device) if k != "step" or optimiser.defaults["capturable"] else v.clone()
                    for k, v in saved.items()
                }

    def save(self, folder: str | Path) -> Path:
        """Write the agent as a checkpoint of safetensors and JSON, without its training state; see `voidrl.load`."""
        files = {"agent.safetensors": checkpoint.Group(self.tensors())}
        meta = {"agent_steps": self.steps, "spec": self.spec.to_json(), "config": to_json(self.config)}
        return checkpoint.save(Path(folder), self.steps, files, meta, keep_last=1)

    def load_pretrained(self, tensors: dict[str, Tensor]) -> None:
        """Begin fine-tuning from a pre-trained agent's weights, with its heads or with new ones."""
        if self.config.finetune.heads == "pretrained":
            self.load_tensors(tensors)
        else:
            keep = tuple(f"learner.{n}." for n, _ in self.learner.named_children() if n not in ("encoder", "target_encoder"))
            keep += tuple(f"learner.{n}" for n, _ in self.learner.named_parameters(recurse=False))
            self.load_tensors(tensors, skip=keep)


def _check_fit(spec: EnvSpec, config: Config, representation: type[Representation], learner: type[Learner]) -> None:
    """Refuse combinations that cannot work, with the remedy."""
    if (learner.actions == "discrete") != spec.discrete:
        remedy = "dqn" if spec.discrete else "sac or ddpg"
        raise ConfigError(f"learner {config.learner.name!r} takes {learner.actions} actions and the environment has "
                          f"{spec.describe()}: use {remedy}")  # fmt: skip
    if config.encoder_owner == "representation" and not representation.trains_encoder:
        raise ConfigError(f"encoder_owner = 'representation' cannot be used with representation "
                          f"{config.representation.name!r}, which trains nothing: use 'auto'")  # fmt: skip
    if config.encoder_owner == "learner" and not (config.share_encoder or representation.takes_learner_encoder):
        raise ConfigError("encoder_owner = 'learner' needs share_encoder = True: the learner cannot train an encoder "
                          "that it does not use")  # fmt: skip
