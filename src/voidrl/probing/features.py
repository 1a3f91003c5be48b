"""The spaces in which a probe looks for variables: z, earlier layers, and baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.agent import Agent
from voidrl.nets import Encoder
from voidrl.nets.augment import network_spec
from voidrl.nets.observations import unpack, visible
from voidrl.system.device import seeded
from voidrl.training.evaluation import run_seed

Z, CONVOLUTIONS, LEARNER = "z", "convolutions", "learner"
PIXELS, OBSERVATION, RANDOM = "pixels", "observation", "random"
BASELINES = (PIXELS, OBSERVATION, RANDOM)
SPACES = (Z, CONVOLUTIONS, LEARNER, *BASELINES)
"""Spaces that no training has touched: a number is good or bad in comparison with theirs."""
PIXEL_SIDE = 21
CHUNK = 256
RANDOM_STREAM = 3


def space_functions(agent: Agent, *, seed: int = 0) -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions from observations (B, *obs_shape) to features (B, …), by the name of the space.

    `pixels` exists only for images, `observation` only for vectors. `learner`, the features that policy and
    values read, is left out where they are z. `random` is a new encoder of the shape of f. `convolutions` are
    not among them, since they are computed on the way to z.
    """
    f, acts = agent.representation.encoder, agent.learner.encoder
    found: dict[str, Callable[[Tensor], Tensor]] = {Z: agent.representation.encode}
    if acts is not f and any(True for _ in acts.parameters()):
        found[LEARNER] = acts
    if agent.spec.pixels:
        found[PIXELS] = lambda obs: small_pixels(unpack(obs, agent.spec)[0] if agent.spec.num_values else obs)
    elif f is not None:
        found[OBSERVATION] = lambda obs: visible(obs, agent.spec)
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
    # A hash of the seed: the run's own encoder may have an equal seed.
    with seeded(run_seed(seed, RANDOM_STREAM), agent.device):
        fresh = None
        if not type(agent.representation).uses_learner_encoder:
            fresh = type(agent.representation).make_encoder(seen, config.representation)
        fresh = fresh or Encoder(seen, config.learner.encoder)
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
        seed: Seed of the random encoder.
    """
    spaces = {name: f for name, f in space_functions(agent, seed=seed).items() if name in names}
    parts: dict[str, list[Tensor]] = {}

    def keep(name: str, computed: Tensor) -> None:
        parts.setdefault(name, []).append(computed.flatten(1).float().cpu())

    f, handle = agent.representation.encoder, None
    keeps_stack = agent.spec.pixels and isinstance(f, Encoder) and CONVOLUTIONS in names
    for index in torch.arange(count).split(CHUNK):
        obs = observations(index).to(agent.device)
        for name, function in spaces.items():
            if name == Z and keeps_stack:
                assert f is not None
                handle = f.stack.register_forward_hook(lambda _, __, output: keep(CONVOLUTIONS, output))
            with agent.precision():
                keep(name, function(obs))
            if handle is not None:
                handle.remove()  # before others that share the stack
                handle = None
    order = [name for name in SPACES if name in parts]
    return {name: torch.cat(parts.pop(name)) for name in order}
