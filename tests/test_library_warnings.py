"""What libraries say to developers is hidden; what is said to the user stays on the screen."""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from pathlib import Path

import gymnasium as gym
import pytest

import voidrl
from voidrl.envs import single
from voidrl.errors import VoidrlWarning
from voidrl.system.terminal.foreign import is_hidden, quiet_libraries

SITE = Path(sysconfig.get_path("purelib"))
TORCH = str(SITE / "torch/backends/cuda/__init__.py")
GYM = str(SITE / "gymnasium/envs/registration.py")
TINY = {"warmup_steps": 20, "learner": {"hidden_dim": 16, "batch_size": 16}, "updates_per_step": 0.25}


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """The warnings that reach the screen."""
    found: list[str] = []
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest, **options: found.append(str(message)))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest, **options: found.append(str(message))
        yield found


def warn(text, category=UserWarning, file=TORCH):
    warnings.warn_explicit(text, category, file, 12)


@pytest.mark.parametrize(
    ("category", "file", "hidden"),
    [
        (UserWarning, TORCH, True),  # "Please use the new API settings to control TF32 behavior"
        (DeprecationWarning, GYM, True),
        (UserWarning, GYM, False),  # such as "the environment is out of date", which is the user's choice
        (DeprecationWarning, os.__file__, True),
        (RuntimeWarning, voidrl.__file__, True),
        (VoidrlWarning, voidrl.__file__, False),
        (UserWarning, single.__file__, False),  # an environment's, with stacklevel=2
        (DeprecationWarning, "/home/me/my_env.py", False),
        (UserWarning, "<stdin>", False),
    ],
)
def test_whose_business_a_warning_is(category, file, hidden):
    with quiet_libraries():
        assert is_hidden(category, file) == hidden


def test_a_run_shows_what_the_environment_says(tmp_path, shown):
    class Talking(gym.Wrapper):
        def step(self, action):
            warn("of torch")
            warnings.warn("of the user", stacklevel=1)
            return self.env.step(action)

    mine = warnings.showwarning
    voidrl.pretrain(lambda: Talking(gym.make("CartPole-v1")), steps=24, out=tmp_path / "run", config=TINY)
    assert warnings.showwarning is mine
    assert "of the user" in shown
    assert "of torch" not in shown
