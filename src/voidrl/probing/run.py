"""Probes of whole agents: on play collected for the purpose, or repeatedly while a run trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from voidrl.agent import Agent
from voidrl.agent.cost import acting_threads
from voidrl.config import EnvConfig
from voidrl.envs.make import EnvFactory
from voidrl.errors import UnknownNameError
from voidrl.probing.features import Z
from voidrl.probing.play import Policy, collect
from voidrl.probing.probe import probe_play, require_enough
from voidrl.probing.result import ProbeResult
from voidrl.system.device import seeded
from voidrl.training.evaluation import run_seed

POLICIES = ("agent", "random", "sticky", "mixed")
PROBE_STREAM = 2  # separates the seeds of probes from training and evaluation
NUM_ENVS = 24
PROBE_STEPS = 5000  # on which all probes of a training run are made
ENCODED = 256  # states at a time


def probe_agent(
    agent: Agent,
    env: EnvConfig,
    factory: EnvFactory | None,
    steps: int,
    *,
    policy: str = "mixed",
    seed: int = 0,
    variables: Sequence[str] | None = None,
    num_envs: int | None = None,
) -> ProbeResult:
    """Let `policy` play in separate environments, and probe the agent on that."""
    players: dict[str, Policy | list[Policy]] = {
        "agent": agent,
        "random": "random",
        "sticky": "sticky",
        "mixed": [agent, "random", "sticky"],
    }
    if policy not in players:
        raise UnknownNameError("policy", policy, POLICIES)
    require_enough(steps)
    count = NUM_ENVS if num_envs is None else num_envs
    settings = {"env": env.id, "steps": steps, "policy": policy, "seed": seed, "num_envs": count}
    with acting_threads(agent, ENCODED):
        play = collect(env, steps, players[policy], seed, num_envs=count, factory=factory)
        return probe_play(agent, play, variables=variables, seed=seed, settings=settings)


class RunProbe:
    """Measures an agent while it trains, always on one fixed play of random and sticky actions.

    The play follows from the run's seed, so that a resumed run replays it. Neither playing nor measuring
    moves the run's random numbers or anything in the agent.
    """

    def __init__(self, agent: Agent, factory: EnvFactory | None) -> None:
        config = agent.config
        self.agent, self.seed = agent, run_seed(config.seed, PROBE_STREAM)
        env = dataclasses.replace(config.env, count_states=False)
        with seeded(self.seed, agent.device):
            self.play = collect(env, PROBE_STEPS, "mixed", self.seed, num_envs=NUM_ENVS, factory=factory)

    def __call__(self) -> dict[str, float]:
        """One row for the log."""
        return probe_play(self.agent, self.play, spaces=(Z,), seed=self.seed).metrics()
