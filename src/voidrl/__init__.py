"""voidrl: pre-train reinforcement-learning agents without rewards, then adapt them in a few steps.

Importing this package does not import torch; using one of its names does. It registers its environments with
Gymnasium: `gymnasium.make("voidrl/PixelMaze-v0")`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from voidrl.envs.registration import register_when_imported

if TYPE_CHECKING:
    from voidrl.agent import Agent
    from voidrl.api import Steps, evaluate, finetune, load, pretrain, probe, resume, train
    from voidrl.config import Config
    from voidrl.data.export import export_data
    from voidrl.errors import RunInterrupted, VoidrlError
    from voidrl.playing.env import make_env
    from voidrl.playing.export import export_policy
    from voidrl.report.page import write_report
    from voidrl.sharing.pretrained import from_pretrained, push_to_hub, save_pretrained
    from voidrl.training.build import Env, Overrides
    from voidrl.training.callbacks import STOP, Callback

if os.name != "posix":
    raise ImportError(f"voidrl does not run on {sys.platform}: use Linux, or macOS, which is untested")

__version__ = "0.3.0"
__all__ = [
    "STOP",
    "Agent",
    "Callback",
    "Config",
    "Env",
    "Overrides",
    "RunInterrupted",
    "Steps",
    "VoidrlError",
    "evaluate",
    "export_data",
    "export_policy",
    "finetune",
    "from_pretrained",
    "load",
    "make_env",
    "pretrain",
    "probe",
    "push_to_hub",
    "resume",
    "save_pretrained",
    "train",
    "write_report",
]
_MODULES = {
    "agent": ("Agent",),
    "config": ("Config",),
    "data.export": ("export_data",),
    "errors": ("RunInterrupted", "VoidrlError"),
    "playing.env": ("make_env",),
    "playing.export": ("export_policy",),
    "report.page": ("write_report",),
    "sharing.pretrained": ("from_pretrained", "push_to_hub", "save_pretrained"),
    "training.callbacks": ("STOP", "Callback"),
    "training.build": ("Env", "Overrides"),
}  # all others are in api

register_when_imported()


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = next((module for module, names in _MODULES.items() if name in names), "api")
        return getattr(importlib.import_module(f"voidrl.{home}"), name)
    hint = "; reports are written by voidrl.write_report" if name == "report" else ""
    raise AttributeError(f"module 'voidrl' has no attribute {name!r}{hint}")
