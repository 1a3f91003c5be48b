"""The loop of a run with its actors, its trainer and its hooks."""

from __future__ import annotations

from collections.abc import Callable

from voidrl.agent import Agent
from voidrl.agent.adapter import Adapter
from voidrl.engine.engine import Engine
from voidrl.envs.vector import Envs
from voidrl.runs.folder import RunFolder
from voidrl.training.acting import Actors
from voidrl.training.best import BestAgent, OpenEnvs
from voidrl.training.callbacks import CallbackList
from voidrl.training.checkpoints import Checkpoints, Snapshots
from voidrl.training.evaluating import Evaluating, Probing
from voidrl.training.hooks import UserCallbacks
from voidrl.training.logging import Logging, Output
from voidrl.training.loop import Loop
from voidrl.training.on_policy import OnPolicyTrainer
from voidrl.training.run import Run
from voidrl.training.saved_run import LoopState
from voidrl.training.trainer import Trainer


def make_loop(
    engine: Engine,
    envs: Envs,
    eval_envs: OpenEnvs | None,
    folder: RunFolder,
    state: LoopState,
    probe: Callable[[], dict[str, float]] | None = None,
    callbacks: CallbackList | None = None,
    pretrained: Agent | None = None,
) -> Loop:
    """`probe` measures the agent, for `log.probe_every_steps`; a new run fine-tunes `pretrained`."""
    agent = engine.agent
    run = Run(engine, envs, folder, state, callbacks or CallbackList())
    adapter = Adapter(agent, engine.replay, state, engine.say)
    actors = Actors(run, adapter)
    trainer = (OnPolicyTrainer if agent.config.learner.on_policy else Trainer)(run, adapter, actors)
    if agent.effective.adapts and run.is_main:
        run.best = BestAgent(folder, agent.config, eval_envs)
    hooks = [
        Output(),
        UserCallbacks(),
        Evaluating(eval_envs, run.best, pretrained),
        Probing(probe),
        Logging(run, trainer, run.best),
        Snapshots(),
        Checkpoints(),
    ]
    return Loop(run, actors, trainer, hooks)
