"""The values that hold in a phase: `finetune.*` laid over the rest of the config."""

from fractions import Fraction

import pytest

from voidrl.config import Config, update

CHANGES = {
    "steps": 10_000,
    "warmup_steps": 500,
    "updates_per_step": 0.29,
    "learner.learning_rate": 1e-3,
    "finetune.warmup_steps": 2000,
    "finetune.updates_per_step": 2,
    "finetune.learning_rate": 1e-4,
    "finetune.encoder_learning_rate": 0,
    "bonus.coefficient": 0.5,
}


def effective(phase, **more):
    return update(Config(), {"phase": phase, **CHANGES, **more}).effective


@pytest.mark.parametrize("phase", ["pretrain", "train"])
def test_without_a_pretrained_agent_the_fields_of_finetune_mean_nothing(phase):
    found = effective(phase)
    assert not found.adapts
    assert (found.warmup_steps, found.learning_rate) == (500, 1e-3)
    assert found.encoder_learning_rate is None
    assert not found.encoder_is_frozen
    assert found.warmup_is_random
    assert found.updates_per_step == Fraction(29, 100)
    assert found.planned_updates == 2755  # of 9500 steps, exactly
    assert effective(phase, steps=200, warmup_steps=100).planned_updates == 29  # not 28.99…
    assert effective(phase, steps=100, warmup_steps=200).planned_updates == 0
    assert found.epsilon_hold_steps == (500 if phase == "train" else 0)


def test_fine_tuning_has_its_own_values():
    found = effective("finetune")
    assert found.adapts
    assert (found.warmup_steps, found.learning_rate, found.updates_per_step) == (2000, 1e-4, 2)
    assert found.learning_rate_field == "finetune.learning_rate"
    assert found.encoder_is_frozen
    assert not found.warmup_is_random
    assert found.planned_updates == 16_000
    unset = effective("finetune", **{"finetune.updates_per_step": None, "finetune.learning_rate": None})
    assert (unset.updates_per_step, unset.learning_rate) == (Fraction(29, 100), 1e-3)


@pytest.mark.parametrize(
    ("phase", "coefficient", "learns_task", "uses_method"),
    [("pretrain", 0.5, False, True), ("train", 0.5, True, True), ("train", 0, True, False)],
)
def test_the_reward_is_intrinsic_the_tasks_or_both(phase, coefficient, learns_task, uses_method):
    found = effective(phase, **{"bonus.coefficient": coefficient})
    assert (not found.pretrains, found.uses_method) == (learns_task, uses_method)
    assert found.has_bonus == (learns_task and uses_method)


@pytest.mark.parametrize(
    ("changes", "adaptation", "noise", "explorer"),
    [
        ({}, "full", "auto", False),
        ({"finetune.adapt": False, "finetune.noise": "end"}, "heads", "end", False),
        ({"finetune.heads": "random"}, "full", "restart", True),
        ({"finetune.heads": "random", "finetune.warmup_actions": "random"}, "full", "restart", False),
        ({"finetune.heads": "random", "learner.name": "mepol"}, "none", "restart", False),
    ],
)
def test_fine_tuning_decides_once_what_is_adapted_and_who_explores(changes, adaptation, noise, explorer):
    found = effective("finetune", **changes)
    assert (found.adaptation, found.noise, found.explorer_warms_up) == (adaptation, noise, explorer)
    assert not found.waits_for_reward  # with a bonus, values learn at once
    alone = effective("finetune", **changes, **{"bonus.coefficient": 0})
    assert alone.waits_for_reward == (adaptation == "full")
    before = effective("pretrain", **changes)
    assert (before.adaptation, before.noise, before.explorer_warms_up) == ("none", "restart", False)
