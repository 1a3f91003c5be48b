"""The spaces in which a probe looks for variables: z, what lies before it, and baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.agent import Agent
from voidrl.augment import network_spec
from voidrl.device import seeded
from voidrl.nets import Encoder

Z, CONVOLUTIONS, LEARNER = "z", "convolutions", "learner"
PIXELS, OBSERVATION, RANDOM = "pixels", "observation", "random"
BASELINES = (PIXELS, OBSERVATION, RANDOM)
"""Spaces that no training has touched: a number is good or bad in comparison with theirs."""
PIXEL_SIDE = 21
CHUNK = 256


def space_functions(agent: Agent, *, seed: int = 0) -> dict[str, Callable[[Tensor], Tensor]]:
    """What maps observations (B, *obs_shape) to features, (B, …), by the name of the space.

    `convolutions` and `pixels` are of images alone, `observation` is of vectors. `learner`, the features on
    which policy and values act, is left out where they are z. `random` is a new encoder of the shape of f.
    """
    f, acts = agent.representation.encoder, agent.learner.encoder
    found: dict[str, Callable[[Tensor], Tensor]] = {Z: agent.representation.encode}
    pixels = agent.spec.pixels
    if pixels and isinstance(f, Encoder):
        found[CONVOLUTIONS] = f.latent
    if acts is not f and any(True for _ in acts.parameters()):
        found[LEARNER] = acts
    if pixels:
        found[PIXELS] = small_pixels
    elif f is not None:
        found[OBSERVATION] = lambda obs: obs
    if f is not None:
        found[RANDOM] = _random_encoder(agent, seed)
    return found


def small_pixels(obs: Tensor) -> Tensor:
    """(B, C · 21 · 21): the means of blocks of stacked images (B, C, H, W)."""
    height, width = (min(PIXEL_SIDE, side) for side in obs.shape[2:])
    return F.adaptive_avg_pool2d(obs.float() / 255, (height, width))


def _random_encoder(agent: Agent, seed: int) -> Encoder:
    """An encoder as f was before training, with other weights."""
    seen, config = network_spec(agent.spec, agent.config.augment), agent.config
    with seeded(seed, agent.device):
        fresh = None
        if not type(agent.representation).uses_learner_encoder:
            fresh = type(agent.representation).make_encoder(seen, config.representation)
        fresh = fresh or Encoder(seen.obs_shape, config.learner.encoder)
        return fresh.to(agent.device).eval()


@torch.no_grad()
def encode_states(
    agent: Agent, observations: Callable[[Tensor], Tensor], count: int, names: Sequence[str], *, seed: int = 0
) -> dict[str, Tensor]:
    """(count, d) float32 on the CPU: the features of all states in each of the named spaces.

    Args:
        agent: The agent; it is in eval mode between updates.
        observations: (B,) indices of states → (B, *obs_shape).
        count: Number of states.
        names: Spaces, of which those that the agent lacks are left out.
        seed: Of the random encoder.
    """
    spaces = {name: f for name, f in space_functions(agent, seed=seed).items() if name in names}
    parts: dict[str, list[Tensor]] = {name: [] for name in spaces}
    for index in torch.arange(count).split(CHUNK):
        obs = observations(index).to(agent.device)
        for name, function in spaces.items():
            with agent.precision():
                parts[name].append(function(obs).flatten(1).float().cpu())
    return {name: torch.cat(chunks) for name, chunks in parts.items()}
