"""A sketch: what would seeds gain whose networks are batched along a leading axis?

    python benchmarks/seed_axis.py --seeds 1 2 4 8
    python benchmarks/seed_axis.py --seeds 1 2 --device cpu --width 32 --batch 16    # to try it

The update of `urlb-states` written down once more, small enough to be changed: forward and inverse dynamics,
the distances to neighbors, twin critics, a policy, Adam and the moving target. All weights are (S, in, out),
all batches (S, B, …), so that one product serves S seeds. It is compiled and captured, on one stream. Its
rate for one seed is to be compared with that of one stream in docs/performance.md, and its gain with
`together.py`, where agents that know nothing of each other share the GPU.

`same` is how far the first seed's weights are from those that it has alone, after three updates in float32.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn, zeros_like

from voidrl.bench.timing import measure, synchronize
from voidrl.device import pick_device
from voidrl.engine.compiler import CUDA_OPTIONS, FUSED_BY_COMPILER, OPTIONS
from voidrl.entropy import knn_distances
from voidrl.nets.layers import EnsembleLinear
from voidrl.runs.folder import environment_info
from voidrl.terminal.tables import print_table

OBS, ACTIONS, FEATURES, NEIGHBORS = 24, 6, 512, 12
LEARNING_RATE, DISCOUNT, TAU = 1e-4, 0.99, 0.01
STEPS = 100_000  # in the replay of each seed
BURST = 16  # updates in one graph
CHECKED_UPDATES = 3


class Trunk(nn.Module):
    """FC → LayerNorm → tanh of each seed, in float32 behind the product."""

    def __init__(self, seeds: int, inputs: int, outputs: int, *, full_precision: bool = False) -> None:
        super().__init__()
        self.linear = EnsembleLinear(seeds, inputs, outputs, full_precision=full_precision)
        self.scale = nn.Parameter(torch.ones(seeds, 1, outputs))
        self.shift = nn.Parameter(torch.zeros(seeds, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(S, B, in) → (S, B, out)."""
        x = self.linear(x).float()
        return torch.tanh(F.layer_norm(x, x.shape[-1:]) * self.scale + self.shift)


class Critic(nn.Module):
    """A trunk and two critics for each seed."""

    def __init__(self, seeds: int, width: int) -> None:
        super().__init__()
        self.trunk = Trunk(seeds, OBS + ACTIONS, width)
        self.first = EnsembleLinear(2 * seeds, width, width)
        self.last = EnsembleLinear(2 * seeds, width, 1, full_precision=True)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """(S, B, …) → (S, 2, B)."""
        x = self.trunk(torch.cat([obs, action], -1))
        x = x[:, None].expand(-1, 2, -1, -1).flatten(0, 1)  # (2S, B, width)
        q: Tensor = self.last(F.relu(self.first(x)))
        return q.unflatten(0, (-1, 2)).squeeze(-1)


class Seeds(nn.Module):
    """The agents of all seeds and their update."""

    def __init__(self, seeds: int, width: int, batch: int, device: torch.device, bf16: bool) -> None:
        super().__init__()
        self.seeds, self.batch, self.bf16 = seeds, batch, bf16
        self.f = Trunk(seeds, OBS, FEATURES, full_precision=True)
        self.forward_net = mlp(seeds, FEATURES + ACTIONS, width, FEATURES)
        self.inverse_net = mlp(seeds, 2 * FEATURES, width, ACTIONS)
        self.actor = nn.Sequential(Trunk(seeds, OBS, width), *mlp(seeds, width, width, ACTIONS))
        self.critic, self.target = Critic(seeds, width), Critic(seeds, width)
        self.target.load_state_dict(self.critic.state_dict())
        self.target.requires_grad_(False)
        self.to(device)
        self.groups = [
            [*self.f.parameters(), *self.forward_net.parameters(), *self.inverse_net.parameters()],
            [*self.critic.parameters()],
            [*self.actor.parameters()],
        ]
        on_gpu = device.type == "cuda"
        self.optimizers = [
            torch.optim.Adam(group, LEARNING_RATE, capturable=on_gpu, **FUSED_BY_COMPILER)
            for group in self.groups
        ]
        self.obs = torch.randn(seeds, STEPS, OBS, device=device)
        self.actions = torch.rand(seeds, STEPS, ACTIONS, device=device) * 2 - 1
        self.which = torch.arange(seeds, device=device)[:, None]  # (S, 1)
        self.dynamics, self.critic_loss, self.actor_loss = self._dynamics, self._critic_loss, self._actor_loss
        self.minimize, self.follow = [optimizer.step for optimizer in self.optimizers], self._follow

    def fuse(self) -> None:
        """Replace its parts by compiled ones, as the engine does."""
        options = OPTIONS | (CUDA_OPTIONS if self.obs.is_cuda else {})

        def compiled(part: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(part, dynamic=False, options=options)

        self.dynamics, self.critic_loss = compiled(self._dynamics), compiled(self._critic_loss)
        self.actor_loss, self.follow = compiled(self._actor_loss), compiled(self._follow)
        self.minimize = [compiled(step) for step in self.minimize]

    def update(self) -> None:
        """One update of each seed."""
        at = torch.randint(STEPS - 1, (self.seeds, self.batch), device=self.obs.device)
        obs, action = self.obs[self.which, at], self.actions[self.which, at]  # (S, B, …)
        next_obs = self.obs[self.which, at + 1]
        with torch.autocast(self.obs.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            self._minimize(0, self.dynamics(torch.cat([obs, next_obs], 1), action))
            with torch.no_grad():
                z = self.f(next_obs)
                reward = torch.stack([self._reward(each) for each in z])
            self._minimize(1, self.critic_loss(obs, action, reward, next_obs))
            self._minimize(2, self.actor_loss(obs))
            self.follow()

    def _dynamics(self, both: Tensor, action: Tensor) -> Tensor:
        z, z_next = self.f(both).chunk(2, 1)
        inverse = self.inverse_net(torch.cat([z, z_next], -1)).float()
        forward = self.forward_net(torch.cat([z, action], -1)).float()
        errors = (z_next - forward).norm(dim=-1) + (action - inverse).norm(dim=-1)
        return errors.mean(1).sum()  # over seeds: their gradients do not meet

    def _reward(self, z: Tensor) -> Tensor:
        return torch.log1p(knn_distances(z, z, min(NEIGHBORS, len(z) - 1), exclude_self=True).mean(1))

    def _critic_loss(self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor) -> Tensor:
        with torch.no_grad():
            next_action = noisy(self.actor(next_obs).float().tanh())
            value = reward + DISCOUNT * self.target(next_obs, next_action).amin(1)  # (S, B)
        return (self.critic(obs, action) - value[:, None]).square().mean(2).sum()

    def _actor_loss(self, obs: Tensor) -> Tensor:
        return -self.critic(obs, noisy(self.actor(obs).float().tanh())).amin(1).mean(1).sum()

    def _minimize(self, group: int, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.groups[group])
        for parameter, gradient in zip(self.groups[group], gradients, strict=True):
            parameter.grad = gradient
        self.minimize[group]()

    @torch.no_grad()
    def _follow(self) -> None:
        torch._foreach_lerp_([*self.target.parameters()], [*self.critic.parameters()], TAU)


def mlp(seeds: int, inputs: int, width: int, outputs: int) -> nn.Sequential:
    """One hidden layer for each seed."""
    return nn.Sequential(
        EnsembleLinear(seeds, inputs, width), nn.ReLU(), EnsembleLinear(seeds, width, outputs)
    )


def noisy(action: Tensor) -> Tensor:
    """Clipped noise, whose clamp lets gradients through."""
    noise = (0.2 * torch.randn_like(action)).clamp(-0.3, 0.3)
    return action + ((action + noise).clamp(-1, 1) - action).detach()


def launcher(agents: Seeds, device: torch.device) -> Callable[[int], None]:
    """Runs some updates of all seeds: on a GPU bursts of them, captured, on a CPU one by one."""
    if device.type != "cuda":
        return lambda count: [agents.update() for _ in range(count)] and None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            agents.update()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(BURST):
            agents.update()

    def launch(count: int) -> None:
        for _ in range(count // BURST):
            graph.replay()

    return launch


def largest_difference(width: int, batch: int, device: torch.device) -> float:
    """Between the weights of one seed alone and as the first of two."""
    torch.manual_seed(0)
    two, one = (Seeds(count, width, batch, device, bf16=False) for count in (2, 1))
    states = two.state_dict()
    one.load_state_dict(
        {name: states[name][: len(value)].clone() for name, value in one.state_dict().items()}
    )
    one.obs, one.actions = two.obs[:1], two.actions[:1]
    for _ in range(CHECKED_UPDATES):
        at = torch.randint(STEPS - 1, (2, batch), device=device)
        for agents in (one, two):
            same = patch.multiple(torch, randint=Mock(return_value=at[: agents.seeds]), randn_like=zeros_like)
            with same:  # without noise
                agents.update()
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max((a - b[: len(a)]).abs().max().item() for a, b in pairs)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--width", type=int, default=1024, help="of hidden layers and trunks")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, for each row")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    device = pick_device(options.device)
    off = largest_difference(options.width, options.batch, device)
    print(f"first of two seeds against the seed alone: {off:.1e}", flush=True)
    rows: list[dict[str, Any]] = []
    for count in options.seeds:
        agents = Seeds(count, options.width, options.batch, device, bf16=device.type == "cuda")
        if device.type == "cuda":
            torch.compiler.reset()  # all optimizers share the code of one `step`
            agents.fuse()
        (timing,) = measure([launcher(agents, device)], device, options.seconds, BURST)
        synchronize(device)
        rate = timing.rates("seed_updates_per_second", count)
        rows.append({"seeds": count, **rate, "gain": rate["seed_updates_per_second"]})
        rows[-1]["gain"] /= rows[0]["seed_updates_per_second"]
        print(f"{count} seeds: {rows[-1]['seed_updates_per_second']:.0f} seed-updates/s", flush=True)
    print_table(
        ("seeds", "seed-updates/s", "gain"),
        [(f"{row['seeds']}", f"{row['seed_updates_per_second']:.0f}", f"{row['gain']:.2f}") for row in rows],
    )
    if options.json:
        found = {"environment": environment_info(), "largest_difference": off, "rows": rows}
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
