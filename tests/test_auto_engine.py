"""`engine = "auto"` on CUDA: compile where the run is long enough to pay for it."""

import pytest
from helpers import CONTINUOUS, DISCRETE

from voidrl.engine.mode import engine_for
from voidrl.presets.presets import preset_values
from voidrl.training.build import build_config


@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({"steps": 1000, "warmup_steps": 200, "updates_per_step": 0.25}, 200),
        ({"steps": 100, "warmup_steps": 200}, 0),
        ({"steps": 200, "warmup_steps": 100, "updates_per_step": 0.29}, 29),  # not 28.99…
        (
            {
                "phase": "finetune",
                "steps": 1000,
                "finetune.warmup_steps": 400,
                "finetune.updates_per_step": 2.0,
                "updates_per_step": 0.5,
            },
            1200,
        ),
    ],
)
def test_the_updates_of_a_run_are_counted_as_it_makes_them(changes, updates):
    assert build_config(DISCRETE, [changes]).effective.planned_updates == updates


@pytest.mark.parametrize(
    ("preset", "steps", "engine"),
    [
        ("urlb-states", None, "compile"),
        ("atari-fast", None, "compile"),
        ("urlb-states", 100_000, "graph"),
        ("maze-demo", None, "graph"),
    ],
)
def test_long_runs_are_compiled(preset, steps, engine):
    changes = {} if steps is None else {"steps": steps}
    spec = CONTINUOUS if "urlb" in preset else DISCRETE
    assert engine_for(build_config(spec, [preset_values(preset), changes]))[0] == engine


@pytest.mark.parametrize("before", ["graph", "compile"])
def test_a_resumed_run_keeps_its_engine_however_long_it_becomes(before):
    for steps in (1000, 10_000_000):
        assert engine_for(build_config(DISCRETE, [{"steps": steps}]), before) == (before, "as before")


def test_rollouts_are_not_compiled():
    config = build_config(CONTINUOUS, [{"method": "mepol", "steps": 10_000_000}])
    assert engine_for(config)[0] == "graph"
