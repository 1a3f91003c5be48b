"""Several seeds as one batch, or each on a stream of its own: the critic's part of an update, sketched.

    python benchmarks/batched_seeds.py --seeds 8

Networks of several agents could be one network with a leading axis, whose products are batched; that would
change every method, learner and checkpoint. Before that, this measures what it could gain: twin critics
behind a trunk, as the preset `urlb-states` has them (batch 1024, hidden 1024), with their loss, gradients and
Adam, compiled and captured.

- one: a single agent;
- streams: N agents, each in a graph on its own stream, as `voidrl pretrain --seeds` runs them;
- batched: N agents along a leading axis in one graph.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.bench.timing import measure
from voidrl.engine.compiler import CUDA_OPTIONS, FUSED_BY_COMPILER
from voidrl.nets import EnsembleLinear
from voidrl.runs.folder import environment_info
from voidrl.terminal.tables import print_table

BATCH, INPUTS, HIDDEN = 1024, 30, 1024
PER_GRAPH = 16


class Critics(nn.Module):
    """The twin critics of N seeds: (N, B, inputs) → (N, B, 2)."""

    def __init__(self, seeds: int) -> None:
        super().__init__()
        self.trunk = EnsembleLinear(seeds, INPUTS, HIDDEN)
        self.scale = nn.Parameter(torch.ones(seeds, 1, HIDDEN))
        self.shift = nn.Parameter(torch.zeros(seeds, 1, HIDDEN))
        self.hidden = EnsembleLinear(seeds, HIDDEN, 2 * HIDDEN)  # both critics side by side
        self.last = nn.Parameter(torch.randn(seeds, 1, 2, HIDDEN) / HIDDEN**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """One pass of all of them."""
        x = F.layer_norm(self.trunk(x).float(), (HIDDEN,))
        x = self.hidden((x * self.scale + self.shift).tanh()).relu()
        return (x.float().unflatten(-1, (2, HIDDEN)) * self.last).sum(-1)


def make_update(seeds: int, device: torch.device) -> Callable[[], None]:
    """An update of N seeds, compiled."""
    critics = Critics(seeds).to(device)
    adam = torch.optim.Adam(critics.parameters(), 1e-4, capturable=True, **FUSED_BY_COMPILER)
    x = torch.randn(seeds, BATCH, INPUTS, device=device)
    target = torch.randn(seeds, BATCH, 1, device=device)

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return (critics(x) - target).square().mean((1, 2)).sum()

    compiled = torch.compile(loss, dynamic=False, options=CUDA_OPTIONS)
    step = torch.compile(adam.step, dynamic=False, options=CUDA_OPTIONS)

    def update() -> None:
        adam.zero_grad(set_to_none=True)
        compiled().backward()
        step()

    return update


def captured(update: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """A graph of some updates."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            update()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(PER_GRAPH):
            update()
    return graph


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    streams = [torch.cuda.Stream(device) for _ in range(options.seeds)]
    updates = [make_update(1, device) for _ in streams]  # kept: graphs do not keep the weights that they use
    own = [captured(update, stream) for update, stream in zip(updates, streams, strict=True)]
    all_at_once = make_update(options.seeds, device)
    batched = captured(all_at_once, streams[0])

    def launch_all(count: int) -> None:
        for _ in range(count // PER_GRAPH):
            for stream, graph in zip(streams, own, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()

    runs = {
        "one": (1, lambda count: [own[0].replay() for _ in range(count // PER_GRAPH)]),
        "streams": (options.seeds, launch_all),
        "batched": (options.seeds, lambda count: [batched.replay() for _ in range(count // PER_GRAPH)]),
    }
    timings = measure([run for _, run in runs.values()], device, options.seconds, PER_GRAPH)
    rows = {
        name: count / timing.seconds for (name, (count, _)), timing in zip(runs.items(), timings, strict=True)
    }
    print_table(
        ("how", "seed-updates/s", "gain"),
        [(name, f"{rate:.0f}", f"{rate / rows['one']:.2f}") for name, rate in rows.items()],
    )
    if options.json:
        options.json.write_text(json.dumps({"environment": environment_info(), "rates": rows}, indent=1))


if __name__ == "__main__":
    main()
