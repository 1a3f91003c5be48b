"""Tries the pieces on made-up transitions, so that a mistake in them is found before training."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from voidrl.agent import Agent
from voidrl.agent.diagnosis import failed_piece
from voidrl.agent.rewards import require_own_optimizer
from voidrl.errors import ConfigError
from voidrl.methods.base import Latents, Method, Option
from voidrl.nets.observations import stored_obs_shape
from voidrl.replay import Replay
from voidrl.representations.base import Views
from voidrl.system.device import seeded
from voidrl.types import Batch, Loss


@contextmanager
def _rehearsal(agent: Agent) -> Iterator[None]:
    """Leave random numbers untouched, and name a custom piece that raises."""
    with seeded(agent.config.seed, agent.device):
        try:
            yield
        except Exception as error:
            if not (failure := failed_piece(agent, error)):
                raise
            raise ConfigError(f"{failure}, given made-up transitions") from error


def rehearse_method(agent: Agent) -> None:
    """Compute the intrinsic reward of made-up transitions, and the losses of a custom method."""
    if not (agent.uses_method and agent.learns) or agent.config.learner.on_policy:
        return
    n, name = agent.config.learner.batch_size, f"method {agent.config.method.name!r}"
    method = copy.deepcopy(agent.method)  # running means must not move
    losses: list[Loss] = []
    with _rehearsal(agent), agent.precision():
        batch, latents = _made_up_batch(agent, method, n)
        if ":" in name:
            losses = [*(method.train().losses(batch, latents) or ())]
            method.eval()
        with torch.no_grad():
            reward = method.reward(batch, latents)
    for loss in losses:
        _check_loss(agent, method, loss)
    expected = (n, method.reward_dim) if method.reward_dim else (n,)
    if getattr(reward, "shape", None) != expected:
        given = f"of shape {tuple(reward.shape)}" if isinstance(reward, Tensor) else repr(reward)
        raise ConfigError(f"{name} gave rewards {given} for {n} transitions: expected {expected}")


def _made_up_batch(agent: Agent, method: Method, n: int) -> tuple[Batch, Latents]:
    spec, device = agent.spec, agent.device
    dtype = torch.uint8 if spec.pixels else torch.float32
    obs = torch.zeros(n, *stored_obs_shape(spec), dtype=dtype, device=device)
    one = torch.ones(n, device=device)

    def z(count: int = n) -> Tensor:
        return torch.randn(count, agent.representation.dim, device=device)

    skill = method.sample_skill(torch.zeros(n, dtype=torch.int64, device=device))
    note = torch.ones(n, agent.note_dim, device=device)
    batch = Batch(obs, agent.random_actions(obs), one, one, obs, skill, one, one, note)
    option = lambda longest: Option(z(), z(), one, one)  # noqa: E731
    return batch, Latents(z, z, z, option, agent.representation)


def _check_loss(agent: Agent, method: Method, loss: Loss) -> None:
    """Refuse a loss that would fail after the warm-up, or train nothing."""
    name = f"method {agent.config.method.name!r}"
    fits = isinstance(loss, Loss) and isinstance(loss.value, Tensor) and loss.value.numel() == 1
    if not fits or not all(isinstance(each, Tensor) and each.ndim == 0 for each in loss.metrics.values()):
        value = loss.value if isinstance(loss, Loss) else loss
        given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"losses of {name} yielded {type(loss).__name__} with a value of {given}: expected "
            f"Loss(optimizer, value, metrics) with a single number, as a tensor, for the value and for each "
            f"metric; reduce it, for instance with .mean()"
        )
    weights = [p for p in [*method.groups()[require_own_optimizer(agent, loss)]] if p.requires_grad]
    found: tuple[Tensor | None, ...] = ()
    if weights and loss.value.requires_grad:
        found = torch.autograd.grad(loss.value.sum(), weights, retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise ConfigError(
            f"loss {loss.optimizer!r} of {name} depends on none of the weights of that group: expected the "
            f"group that it trains; look for another name in groups(), .detach() or torch.no_grad()"
        )


def rehearse_representation(agent: Agent) -> None:
    """Encode made-up transitions with a custom representation, and compute its loss."""
    name = f"representation {agent.config.representation.name!r}"
    if ":" not in name:
        return
    spec, device, n = agent.spec, agent.device, 2
    zeros = np.zeros((n, *spec.stored_shape), np.uint8 if spec.pixels else np.float32)
    no = np.zeros(n, bool)
    replay = Replay(spec, n, 16 * n, 0, device, device)
    copied = copy.deepcopy(agent.representation)  # running statistics must not move
    with _rehearsal(agent), agent.precision():
        replay.reset(zeros)
        for _ in range(8):
            action = agent.random_actions(replay.latest()).cpu().numpy()
            replay.add(action, np.zeros(n), no, no, zeros, torch.zeros(n, 0, device=device))
        segment = replay.segment(replay.sample(n), 1, 1.0)
        z = copied.encode(replay.observations(segment.slots[:, 0]))
        learner = agent.learner if copied.reads_learner else None
        views = Views(replay, segment, agent.augment, copied.layout, learner)
        returned = copied.train().loss(views) if copied.has_loss else None
    if z.shape != (n, copied.dim):
        raise ConfigError(
            f"encode of {name} maps {n} observations to {tuple(z.shape)}: expected ({n}, {copied.dim}), "
            f"since its dim is {copied.dim}"
        )
    if not copied.has_loss:
        return
    fits = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
    loss = returned[0] if fits and returned else returned
    if not fits or not isinstance(loss, Tensor) or loss.shape not in ((), (n,)):
        given = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"loss of {name} returned {given}: expected a scalar tensor, or one loss for each transition, "
            f"and a dictionary of metrics"
        )
    if not loss.requires_grad:
        raise ConfigError(
            f"loss of {name} has no gradient: expected one that depends on trainable weights; look for "
            f".detach() or torch.no_grad()"
        )
