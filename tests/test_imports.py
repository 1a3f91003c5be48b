"""Which modules an import loads."""

import subprocess
import sys

import pytest

CORE = "import voidrl.agent, voidrl.engine.engine, voidrl.replay, voidrl.training.evaluation"
CORE += ", voidrl.training.loop"
ENVIRONMENTS = {f"voidrl.envs.{name}" for name in ("atari", "dmc", "dmc_tasks", "make", "maze", "ram")}


def loaded_by(statement):
    code = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_core_loads_only_what_training_needs():
    loaded = loaded_by(CORE)
    assert {"torch", "voidrl.training.loop", "voidrl.training.metrics"} <= loaded
    assert not loaded & ENVIRONMENTS
    unwanted = ("voidrl.presets.", "voidrl.experiments.", "voidrl.report.", "voidrl.sharing.", "voidrl.cli.")
    assert not [name for name in loaded if name.startswith(unwanted)]
    assert not loaded & {"ale_py", "dm_control", "mujoco", "huggingface_hub", "stable_baselines3"}
    assert not loaded & {"matplotlib", "tensorboard", "wandb"}
    assert not loaded & {"torch._dynamo", "torch._inductor", "triton"}  # the compiler of torch


def test_gymnasium_knows_the_maze_after_the_import_of_voidrl():
    made = """
        gymnasium.make('voidrl/PixelMaze-v0', size=5).reset(seed=0)
        gymnasium.make_vec('voidrl/PixelMaze-v0', 2, size=5).reset(seed=0)
    """
    statement = "; ".join(["import gymnasium, voidrl", *(line.strip() for line in made.strip().splitlines())])
    loaded = loaded_by(statement)
    assert "voidrl.envs.maze" in loaded
    assert not loaded & {"torch", "voidrl.envs.make"}


HELP = """
from contextlib import suppress
from voidrl.cli.listing import KINDS
from voidrl.cli.main import COMMANDS, main
for words in (["experiment"], *([name, "--help"] for name in COMMANDS), *(["list", kind] for kind in KINDS)):
    with suppress(SystemExit):
        assert main(words) == 0, words
"""
LIGHT = {
    "import voidrl": {"gymnasium", "numpy"},
    "import voidrl.envs.make, voidrl.envs.spaces, voidrl.system.terminal.tables": set(),
    "import voidrl.envs.suites.atari, voidrl.envs.suites.dmcontrol": {"gymnasium", *ENVIRONMENTS},
    "import voidrl.experiments.executors as e; e.option_fields()": {"ray", "submitit"},
    "import voidrl.report.scores.statistics": set(),
    "import voidrl; voidrl.make_env('voidrl/PixelMaze-v0?size=5').reset()": set(),
    HELP: set(),
}


@pytest.mark.parametrize("statement", LIGHT)
def test_what_does_not_load_torch(statement):
    assert not loaded_by(statement) & {"torch", *LIGHT[statement]}
