"""What a CPU can train: the preset `cpu` is taken where the default would be hopeless without a GPU."""

from __future__ import annotations

from voidrl.agent.cost import update_gflop
from voidrl.config import Config
from voidrl.errors import by_caller
from voidrl.presets.presets import NO_PRESET, default_preset
from voidrl.system.device import pick_device
from voidrl.system.units import human_count, human_seconds
from voidrl.training.build import Env
from voidrl.types import EnvSpec

CPU_PRESET = "cpu"
GFLOP_PER_SECOND = 50.0  # of one core of a laptop, in the products and convolutions of an update
HOPELESS_SECONDS = 3600.0  # for the updates of `TYPICAL_STEPS`
TYPICAL_STEPS = 100_000


def hopeless_on_cpu(env: Env, spec: EnvSpec, config: Config) -> str:
    """Why this config is not for a CPU, as a sentence about the preset to take instead; "" if it is.

    It is hopeless where the updates of 100K steps would take one core more than an hour, as far as their
    operations tell. On a GPU nothing is.
    """
    if pick_device(config.device).type != "cpu":
        return ""
    per_step = config.updates_per_step * update_gflop(spec, config) / GFLOP_PER_SECOND
    if per_step * TYPICAL_STEPS <= HOPELESS_SECONDS:
        return ""
    name = default_preset(env)
    default = "the defaults" if name is None else f"preset {name}"
    steps = max(config.steps, TYPICAL_STEPS)
    keep = by_caller(f"preset={name or NO_PRESET!r}", f"--preset {name or NO_PRESET}")
    return (
        f"preset {CPU_PRESET}, since {human_count(steps)} steps with {default} would take about "
        f"{human_seconds(per_step * steps)} on a CPU ({keep} keeps them)"
    )
