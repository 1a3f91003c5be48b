"""Registers our environments with Gymnasium. Imports neither Gymnasium nor NumPy by itself."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MAZE_ID = "voidrl/PixelMaze-v0"
POINT_MASS_ID = "voidrl/PointMass-v0"


def register() -> None:
    """Register PixelMaze and PointMass; safe to repeat. Their modules are imported on use."""
    import gymnasium as gym

    if MAZE_ID not in gym.registry:
        maze = "voidrl.envs.maze"
        vector = f"{maze}:PixelMazeVector"
        gym.register(MAZE_ID, f"{maze}:_make", max_episode_steps=100, vector_entry_point=vector)
    if POINT_MASS_ID not in gym.registry:
        gym.register(POINT_MASS_ID, "voidrl.envs.point_mass:PointMass", max_episode_steps=100)


def register_when_imported() -> None:
    """Register now if Gymnasium is already imported, else as soon as it is.

    Importing it here would make `import voidrl` ten times as slow, and with it every `voidrl --help`.
    """
    if "gymnasium" in sys.modules:
        register()
    elif not any(isinstance(finder, _RegistersAfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RegistersAfterImport())


class _RegistersAfterImport:
    """A finder of modules that waits for the import of Gymnasium, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)  # by the other finders
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
