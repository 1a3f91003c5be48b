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
from voidrl.replay import Replay
from voidrl.system.device import seeded
from voidrl.training.evaluation import run_seed

Z = "z"
PIXEL_SIDE = 21
CHUNK = 256
RANDOM_STREAM = 3


def space_functions(agent: Agent, *, seed: int = 0) -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions from observations (B, *obs_shape) to features (B, …), by the name of the space.

    `learner`, the features that policy and values read, is left out where they are z. The last ones are
    untrained, for comparison: `pixels` of images, `observation` of vectors, and `random`, a new encoder with
    the shape of f.
    """
    f, acts, spec = agent.representation.encoder, agent.learner.encoder, agent.spec
    found: dict[str, Callable[[Tensor], Tensor]] = {Z: agent.representation.encode}
    if spec.pixels and isinstance(f, Encoder):
        found["convolutions"] = f.latent
    if acts is not f and any(True for _ in acts.parameters()):
        found["learner"] = acts
    if spec.pixels:
        found["pixels"] = lambda obs: small_pixels(unpack(obs, spec)[0] if spec.num_values else obs)
    elif f is not None:
        found["observation"] = lambda obs: visible(obs, spec)
    if f is not None:
        found["random"] = _random_encoder(agent, seed)
    return found


def small_pixels(obs: Tensor) -> Tensor:
    """(B, C · 21 · 21): the means of blocks of stacked images (B, C, H, W)."""
    height, width = (min(PIXEL_SIDE, side) for side in obs.shape[2:])
    return F.adaptive_avg_pool2d(obs.float() / 255, (height, width))


def _random_encoder(agent: Agent, seed: int) -> Encoder:
    """An encoder as f was before training, with other weights."""
    seen, config, kind = (
        network_spec(agent.spec, agent.config.augment),
        agent.config,
        type(agent.representation),
    )
    # A hash of the seed: the run's own encoder may have an equal seed.
    with seeded(run_seed(seed, RANDOM_STREAM), agent.device):
        fresh = None if kind.uses_learner_encoder else kind.make_encoder(seen, config.representation)
        return (fresh or Encoder(seen, config.learner.encoder)).to(agent.device).eval()


@torch.no_grad()
def encode_states(
    agent: Agent, replay: Replay, slots: Tensor, names: Sequence[str] | None, *, seed: int = 0
) -> dict[str, Tensor]:
    """(n, d) float32 on the CPU: the features of the states in (n,) slots, in each of the named spaces.

    Without names, in all that the agent has. `seed` is that of the random encoder.
    """
    spaces = space_functions(agent, seed=seed)
    parts: dict[str, list[Tensor]] = {name: [] for name in spaces if names is None or name in names}
    for chunk in slots.split(CHUNK):
        obs = replay.observations(chunk).to(agent.device)
        for name, found in parts.items():
            with agent.precision():
                features = spaces[name](obs)
            found.append(features.flatten(1).float().cpu())
    return {name: torch.cat(found) for name, found in parts.items()}
