"""Makes every run tiny, in one place: what is shown in the docs is executed as it stands, in a second."""

import dataclasses
import json
import math
import subprocess
from types import SimpleNamespace

from voidrl import api
from voidrl.cli import doctor, evaluating
from voidrl.config import Config, EnvConfig
from voidrl.envs.ids import ATARI, DMC
from voidrl.experiments import cell, experiment, run
from voidrl.experiments.executors import base
from voidrl.report import gallery
from voidrl.system import units
from voidrl.training import assembly, build

# The largest value of a field of this name, wherever in the config it stands.
LIMITS = {
    "num_envs": 2,
    "warmup_steps": 40,
    "warmup_updates": 2,
    "updates_per_step": 0.25,
    "capacity_steps": 400,
    "batch_size": 16,
    "rollout_steps": 20,
    "k": 16,
    "hidden_dim": 16,
    "trunk_dim": 16,
    "feature_dim": 16,
    "projection_hidden": 16,
    "spectral_norm_iterations": 1,
    "width": 0.1,
    "eval_episodes": 2,
    "log_every_steps": 40,
    "eval_every_steps": 60,
}
CHOSEN = {"device": "cpu", "engine": "eager", "tensorboard": False}
EPISODES = 2
WHOLE = 8  # cells of an experiment
FRAMES = 240  # of a game of Atari


def small(steps):
    """16k → 141, 32k → 144, 250M → 183: few, in the same order, and few ones stay as they are."""
    return steps if steps < 200 else 100 + int(3 * math.log2(steps))


def shrink(config):
    """The same config at the scale of a test; a second time nothing changes."""
    values = {}
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            values[name] = shrink(value)
        elif name in ("steps", "snapshot_steps", "checkpoint_every_steps") and value:
            values[name] = tuple(map(small, value)) if isinstance(value, tuple) else small(value)
        elif name in LIMITS and value is not None:
            values[name] = min(value, LIMITS[name])
        elif name in CHOSEN:
            values[name] = CHOSEN[name]
    if isinstance(config, EnvConfig) and config.id.startswith(ATARI):
        values["atari"] = dataclasses.replace(config.atari, max_frames=FRAMES)
    if isinstance(config, EnvConfig) and config.id.startswith(DMC) and config.dmc.observation == "states":
        values["backend"] = "sync"  # no processes to wait for; images need them
    if isinstance(config, Config) and config.env.id.startswith(DMC):
        values["log"] = dataclasses.replace(values["log"], eval_every_steps=0)  # episodes of 1000 frames
    return dataclasses.replace(config, **values)


def make_tiny(monkeypatch, *, quick):
    """Configs that start, resume or load a run are made small; of large experiments, some cells are done.

    If it has to be quick, one of Atari's is, and the doctor looks at nothing: on docs/install.md it does.
    """
    if quick:
        monkeypatch.setattr(doctor, "examine", lambda folder: iter(()))
    for name in ("build_config", "config_from_json"):
        make = getattr(build, name)
        monkeypatch.setattr(build, name, lambda *args, make=make: shrink(make(*args)))

    def parse_count(value, name="steps", **options):
        count = units.parse_count(value, name, **options)
        return min(count, EPISODES) if name == "episodes" else small(count)

    monkeypatch.setattr(api, "parse_count", parse_count)
    monkeypatch.setattr(assembly, "ATARI_EVAL_ENVS", 2)
    monkeypatch.setattr(gallery, "CLIP_SECONDS", 0.5)
    monkeypatch.setattr(gallery, "MAX_CLIPS", 2)
    monkeypatch.setattr(gallery, "MAX_MAPS", 1)
    monkeypatch.setattr(evaluating, "FIRST_MINUTE_S", 1.0)
    run_plan = experiment.run_plan
    monkeypatch.setattr(
        experiment, "run_plan", lambda plan, *at, **how: run_plan(begun(plan, quick), *at, **how)
    )
    monkeypatch.setattr(base, "subprocess", SimpleNamespace(Popen=Here, PIPE=subprocess.PIPE))
    monkeypatch.setattr(run, "POLL_SECONDS", 0)


def begun(plan, quick):
    """A small experiment whole; of others a few cells, pre-trainings before what begins from them."""
    slow = any(one.task.startswith((ATARI, DMC)) for one in plan.cells)
    cells = 1 if quick and slow else WHOLE if len(plan.cells) <= WHOLE else 5
    return dataclasses.replace(plan, cells=plan.cells[:cells])


class Here:
    """In place of the process of a cell: does it in this one, tiny too, as soon as it is told what."""

    def __init__(self, command, **_):
        self.stdin, self.returncode = self, None

    def write(self, line):
        cell.do_job(json.loads(line))
        self.returncode = cell.DONE

    def poll(self):
        return self.returncode

    def flush(self):
        pass

    close = wait = kill = flush
