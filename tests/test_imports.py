"""Which modules an import loads."""

import subprocess
import sys

CORE = "import voidrl.agent, voidrl.engine.engine, voidrl.replay, voidrl.training.evaluation"
CORE += ", voidrl.training.loop"
ENVIRONMENTS = ("atari", "dmc", "dmc_tasks", "make", "maze", "ram")


def loaded_by(statement):
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_core_loads_only_what_training_needs():
    loaded = loaded_by(CORE)
    assert {"torch", "voidrl.training.loop", "voidrl.training.metrics"} <= loaded
    assert not loaded & {f"voidrl.envs.{name}" for name in ENVIRONMENTS}
    unwanted = ("voidrl.presets.", "voidrl.experiments.", "voidrl.report.", "voidrl.sharing.", "voidrl.cli.")
    assert not [name for name in loaded if name.startswith(unwanted)]
    assert not loaded & {"ale_py", "dm_control", "mujoco", "huggingface_hub", "stable_baselines3"}
    assert not loaded & {"matplotlib", "tensorboard", "wandb"}
    assert not loaded & {"torch._dynamo", "torch._inductor", "triton"}  # the compiler of torch


def test_light_modules_do_not_load_torch():
    assert "torch" not in loaded_by(
        "import voidrl.envs.make, voidrl.envs.spaces, voidrl.system.terminal.tables"
    )


def test_gymnasium_knows_the_maze_after_the_import_of_voidrl():
    made = """
        gymnasium.make('voidrl/PixelMaze-v0', size=5).reset(seed=0)
        gymnasium.make_vec('voidrl/PixelMaze-v0', 2, size=5).reset(seed=0)
    """
    statement = "; ".join(["import gymnasium, voidrl", *(line.strip() for line in made.strip().splitlines())])
    loaded = loaded_by(statement)
    assert "voidrl.envs.maze" in loaded
    assert not loaded & {"torch", "voidrl.envs.make"}


def test_voidrl_loads_neither_gymnasium_nor_numpy():
    assert not loaded_by("import voidrl") & {"gymnasium", "numpy", "torch"}


def test_suites_do_not_load_environments():
    loaded = loaded_by("import voidrl.envs.suites.atari, voidrl.envs.suites.dmcontrol")
    assert not {f"voidrl.envs.{name}" for name in ENVIRONMENTS} & {*loaded}
    assert "gymnasium" not in loaded
