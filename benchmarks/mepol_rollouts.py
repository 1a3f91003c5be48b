"""MEPOL: rollouts per second that its learner can take, and states per second in them.

    python benchmarks/mepol_rollouts.py atari-fast urlb-states maze-demo --device cuda

Of each preset the update on one rollout of random steps is timed, as the recipe has it: encoding its states,
searching neighbors, and gradient steps up to `learner.max_updates`. The limit on K̂L is lifted, so that all
steps are taken. With `--task` the update is that of fine-tuning, value function included. Environments are
not stepped: `voidrl pretrain` logs `time/rollouts_per_second` with them.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from voidrl.agent import Agent
from voidrl.agent.on_policy import rollout_step
from voidrl.cli.benchmarks.timing import measure
from voidrl.cli.benchmarks.workloads import ATARI, PIXELS, STATES
from voidrl.config import EnvConfig, update
from voidrl.envs.make import probe_env
from voidrl.learners import mepol
from voidrl.presets.presets import DEMO_ENV
from voidrl.replay import Replay
from voidrl.system.device import pick_device
from voidrl.training import build
from voidrl.training.layers import layers_for

ENVS = {"atari": "atari/pong", "urlb": "dmc/walker", "dmc": "dmc/walker", "maze": DEMO_ENV}
DISTINCT_FRAMES = 64
EPISODE_STEPS = 250


def main() -> None:
    """Print a line for each preset."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("presets", nargs="*", default=["maze-demo", "urlb-states"])
    parser.add_argument("--representation", help="fixed, simclr or learner; by default the recipe's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--task", action="store_true", help="the update of fine-tuning")
    options = parser.parse_args()
    device = pick_device(options.device)
    for preset in options.presets:
        print(line(preset, options.representation, device, options.seconds, task=options.task), flush=True)


def line(preset: str, representation: str | None, device: torch.device, seconds: float, *, task: bool) -> str:
    """Measure one preset."""
    family = preset.partition("-")[0]
    env = ENVS[family]
    named = {"method": "mepol"} | ({"representation": representation} if representation else {})
    layers = layers_for(env, "pretrain", preset, named)
    spec = {"atari": ATARI, "urlb": STATES, "dmc": PIXELS}.get(family)
    if spec is None:
        spec = probe_env(EnvConfig(id=env))[0]
    elif preset == "urlb-pixels":
        spec = PIXELS
    config = build.build_config(spec, [layer.values for layer in layers])
    mepol.POLICY_KL_LIMIT = 1e9
    config = update(config, {"learner": {"kl_limit": 1e9}, "phase": "finetune" if task else "pretrain"})
    agent = Agent(spec, config, device)
    steps, envs = agent.learner.rollout_steps, config.env.num_envs
    replay = random_rollout(agent, steps, envs)

    def run(count: int) -> None:
        for _ in range(count):
            rollout_step(agent, replay, len(replay))

    timing = measure([run], device, seconds)[0]
    rate = 1 / timing.seconds
    return (
        f"{preset} on {device.type}, f {config.representation.name}: {envs} × {steps}, {len(replay)} states, "
        f"{config.learner.max_updates} gradient steps: {rate:.2f} rollouts/s, "  # type: ignore[attr-defined]
        f"{rate * len(replay):.0f} states/s"
    )


def random_rollout(agent: Agent, steps: int, num_envs: int) -> Replay:
    """A replay that holds one rollout of random steps."""
    spec, rng = agent.spec, np.random.default_rng(0)
    replay = Replay(spec, num_envs, (steps + 2) * num_envs, 0, agent.device, agent.device)
    shape = (min(steps, DISTINCT_FRAMES), num_envs, *spec.stored_shape)
    frames = rng.integers(0, 256, shape, dtype=np.uint8) if spec.pixels else rng.normal(size=shape)
    frames = frames if spec.pixels else frames.astype(np.float32)
    nothing, no = torch.zeros(num_envs, 0, device=agent.device), np.zeros(num_envs, bool)
    replay.reset(frames[0])
    for t in range(steps):
        action = agent.random_actions(replay.latest()).cpu().numpy()
        ended = rng.random(num_envs) < 1 / EPISODE_STEPS
        reward = rng.normal(size=num_envs)
        replay.add(action, reward, no, ended, frames[(t + 1) % len(frames)], nothing)
    return replay


if __name__ == "__main__":
    main()
