"""What libraries say to developers is hidden; what is said to the user stays on the screen."""

from __future__ import annotations

import sys
import warnings

import gymnasium as gym
import pytest

import voidrl
from voidrl.errors import VoidrlWarning
from voidrl.system.terminal.foreign import quiet_libraries

TINY = {"warmup_steps": 20, "learner": {"hidden_dim": 16, "batch_size": 16}, "updates_per_step": 0.25}


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """The warnings that reach the screen."""
    found: list[str] = []
    monkeypatch.setattr(sys, "warnoptions", [])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest, **options: found.append(str(message))
        yield found


@pytest.mark.parametrize(
    ("category", "module", "is_shown"),
    [
        (UserWarning, "torch.backends.cuda", False),  # "Please use the new API to control TF32 behavior"
        (DeprecationWarning, "gymnasium.envs.registration", False),
        (UserWarning, "gymnasium.envs.registration", True),  # such as an environment that is out of date
        (RuntimeWarning, "voidrl.replay.replay", False),
        (VoidrlWarning, "voidrl.runs.status", True),
        (UserWarning, "voidrl.envs.single", True),  # an environment's, with stacklevel=2
        (DeprecationWarning, "my_env", True),
    ],
)
def test_whose_business_a_warning_is(shown, category, module, is_shown):
    with quiet_libraries():
        warnings.warn_explicit("a text", category, f"{module}.py", 12, module=module)
    assert bool(shown) == is_shown


def test_a_run_shows_what_the_environment_says(tmp_path, shown):
    class Talking(gym.Wrapper):
        def step(self, action):
            warnings.warn_explicit("of torch", UserWarning, "torch.py", 12, module="torch")
            warnings.warn("of the user", stacklevel=1)
            return self.env.step(action)

    mine = warnings.showwarning
    voidrl.pretrain(lambda: Talking(gym.make("CartPole-v1")), steps=24, out=tmp_path / "run", config=TINY)
    assert warnings.showwarning is mine
    assert "of the user" in shown
    assert "of torch" not in shown
