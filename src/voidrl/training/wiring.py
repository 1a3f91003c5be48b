"""The loop of a run with its collector, its trainer and its hooks."""

from __future__ import annotations

from collections.abc import Callable

from voidrl.agent import Agent
from voidrl.agent.adapter import Adapter
from voidrl.training.best import BestAgent
from voidrl.training.checkpoints import Checkpoints, Snapshots
from voidrl.training.collecting import Collector
from voidrl.training.evaluating import Evaluating, OpenEnvs, Probing
from voidrl.training.hooks import UserCallbacks
from voidrl.training.logging import Logging, Output
from voidrl.training.loop import Loop
from voidrl.training.on_policy import OnPolicyTrainer
from voidrl.training.run import Run
from voidrl.training.trainer import OffPolicyTrainer


def make_loop(
    run: Run,
    eval_envs: OpenEnvs | None = None,
    probe: Callable[[], dict[str, float]] | None = None,
    pretrained: Agent | None = None,
) -> Loop:
    """`probe` measures the agent, for `log.probe_every_steps`; a new run fine-tunes `pretrained`."""
    adapter = Adapter(run.agent, run.replay, run.state, run.engine.say)
    collector = Collector(run, adapter)
    trainer = (OnPolicyTrainer if run.config.learner.on_policy else OffPolicyTrainer)(run, adapter, collector)
    if run.agent.effective.adapts and run.is_main:
        run.best = BestAgent(run.folder, run.config)
    hooks = [
        Output(),
        UserCallbacks(),
        Evaluating(eval_envs, pretrained),
        Probing(probe),
        Logging(run, trainer),
        Snapshots(),
        Checkpoints(),
    ]
    return Loop(run, collector, trainer, hooks)
