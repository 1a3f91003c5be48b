"""Environments written by others: each is pre-trained in, fine-tuned in, evaluated, saved, loaded and played.

Most need packages that voidrl does not: `make test-foreign` installs them. With `VOIDRL_FOREIGN_RECORDS` set
to a folder, each test leaves there what it found, from which `benchmarks/foreign_table.py` makes the table of
docs/environments/foreign.md.
"""

import importlib.metadata
import importlib.util
import json
import math
import os
import re
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from foreign_catalog import WORLDS
from gymnasium import spaces
from tiny_runs import tiny

import voidrl
from voidrl.config import merge
from voidrl.config.registry import import_path
from voidrl.envs.ids import parse_id
from voidrl.envs.make import GYM_ID
from voidrl.runs.metrics import read_metrics

os.environ.setdefault("PYGLET_HEADLESS", "1")  # MiniWorld
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # everything drawn by pygame
os.environ.setdefault("MUJOCO_GL", "egl")

PAGE = Path(__file__).parents[2] / "docs/environments/foreign.md"
SIZES = {"warmup_steps": 40, "updates_per_step": 0.1, "finetune__warmup_steps": 20, "learner__hidden_dim": 16}
LOG = {"log__log_every_steps": 10, "log__checkpoint_every_steps": 1000}
TINY = tiny(**SIZES, **LOG, replay__capacity_steps=100)
MODULES = {  # by which a package is recognized, where that is not its name
    "gymnasium[mujoco]": "mujoco",
    "gymnasium[box2d]": "Box2D",
    "flappy-bird-gymnasium": "flappy_bird_gymnasium",
}


PARAMETERS = [
    pytest.param(world, id=world.env, marks=() if world.quick else pytest.mark.foreign) for world in WORLDS
]


@pytest.mark.parametrize("world", PARAMETERS)
def test_an_environment_is_trained_in_and_played(world, tmp_path):
    require_package(world)
    began = time.perf_counter()
    env, config = as_given(world)
    trained = voidrl.pretrain(env, "apt", steps=60, seed=0, out=tmp_path / "apt", config=config)
    assert_learned(tmp_path / "apt", 60)
    tuned = voidrl.finetune(tmp_path / "apt", steps=40, out=tmp_path / "finetune")
    assert_learned(tmp_path / "finetune", 40)
    result = voidrl.evaluate(tuned, episodes=1)
    assert math.isfinite(result.mean_return)
    assert min(result.lengths) > 0
    loaded = voidrl.load(tmp_path / "finetune")
    assert loaded.spec == trained.spec
    raw = raw_env(world, env)
    play(raw, tuned, loaded)
    raw.close()
    record(world, raw, trained, time.perf_counter() - began)


def test_the_page_has_every_environment():
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    listed = [cells[1] for cells in rows if len(cells) == 5 and "`" in cells[1]]
    assert sorted(listed) == sorted(f"`{each.env}`" for each in WORLDS)


def require_package(world):
    """Skip an environment whose package is not installed, and do not run any twice."""
    here = os.environ.get("VOIDRL_FOREIGN_VENV", world.venv)
    if "robotics" in (here, world.venv) and here != world.venv:
        pytest.skip(f"{world.package} is tested with the packages of requirements/{world.venv}.txt")
    module = MODULES.get(world.package, world.package.replace("-", "_"))
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{world.package} is not installed: see requirements/{world.venv}.txt")


def as_given(world):
    """The id and the config, with episodes short enough for a test."""
    if not world.limit:
        return world.env, merge(TINY, world.config)
    if ":" in world.name and not GYM_ID.search(world.name):
        limit = f"gymnasium.wrappers:TimeLimit?max_episode_steps={world.limit}"
        wrappers = [*world.config.get("env.wrappers", []), limit]
        return world.env, merge(TINY, {**world.config, "env.wrappers": wrappers})
    separator = "&" if "?" in world.env else "?"
    return f"{world.env}{separator}max_episode_steps={world.limit}", merge(TINY, world.config)


def assert_learned(run, steps):
    """The run came to its end, was updated on the way, and its losses are numbers."""
    *_, last = [row for row in read_metrics(run) if "updates" in row]  # not those of evaluations
    assert last["step"] == steps
    assert last["updates"] >= 2
    losses = [value for name, value in last.items() if name.startswith("train/")]
    assert losses
    assert all(math.isfinite(value) for value in losses)


def raw_env(world, env):
    """The environment as its authors made it, for a loop that knows nothing of voidrl."""
    name, options = parse_id(env)
    if ":" in name and not GYM_ID.search(name):
        made = import_path("environment", name)(**options)
    else:
        made = gym.make(name, **options)
    for text in world.config.get("env.wrappers", []):
        wrapper, arguments = parse_id(text)
        made = import_path("wrapper", wrapper)(made, **arguments)
    return made


def play(env, tuned, loaded):
    """Play the start of an episode; the loaded agent acts as the one that was saved, within the mask."""
    masked = loaded.config.env.action_masks == "info"
    obs, info = env.reset(seed=1)
    for _ in range(5):
        mask = info["action_mask"] if masked else None
        action = loaded.act(obs, action_mask=mask)
        assert np.array_equal(action, tuned.act(obs, action_mask=mask))
        assert mask is None or mask[action]
        assert env.action_space.contains(action), (action, env.action_space)
        obs, _, terminated, truncated, info = env.step(action)
        if np.any(terminated) or np.any(truncated):
            break


def short(space):
    """A space in a few words, for the table."""
    match space:
        case spaces.Box():
            return f"Box{space.shape} {space.dtype}".replace(",)", ")")
        case spaces.MultiDiscrete():
            return f"MultiDiscrete({space.nvec.tolist()})"
        case spaces.Discrete() | spaces.MultiBinary():
            return f"{type(space).__name__}({space.n})"
        case spaces.Tuple():
            return f"Tuple({', '.join(map(short, space.spaces))})"
        case spaces.Dict():
            parts = [f"{key}: {short(part)}" for key, part in space.spaces.items()]
            return f"Dict({', '.join(parts)})" if len(parts) <= 4 else f"Dict of {', '.join(space.spaces)}"
    return "Text" if isinstance(space, spaces.Text) else type(space).__name__


def record(world, env, agent, seconds):
    """Leave what was found for the table."""
    folder = os.environ.get("VOIDRL_FOREIGN_RECORDS")
    if folder is None:
        return
    package = world.package.partition("[")[0]
    found = {
        "env": world.env,
        "package": world.package,
        "version": importlib.metadata.version(package),
        "venv": world.venv,
        "quick": world.quick,
        "note": world.note,
        "config": world.config,
        "observation": short(env.observation_space),
        "action": short(env.action_space),
        "seen_as": agent.spec.describe(),
        "learner": agent.config.learner.name,
        "encoder": agent.config.learner.encoder.stack,
        "seconds": round(seconds, 1),
    }
    path = Path(folder) / f"{re.sub('[^A-Za-z0-9.-]', '_', world.env)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1))
