"""PixelMaze in torch: rules and images of `PixelMazeVector`, for thousands of agents on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voidrl.envs.maze import AGENT, MOVES, PixelMazeVector
from voidrl.errors import ConfigError

Info = dict[str, Any]


class TorchPixelMaze(PixelMazeVector):
    """N agents in one maze, as tensors on a device; a `voidrl.envs.tensor.TensorVectorEnv`.

    With `slip` the random numbers differ from `PixelMazeVector`'s; everything else is identical.

    Args:
        num_envs: Number of agents, which do not interact.
        device: Device of all tensors.
        render_mode: None or "rgb_array".
        maze: As for `PixelMazeVector`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        *,
        render_mode: str | None = None,
        **maze: Any,
    ) -> None:
        self.device = torch.device(device)
        super().__init__(num_envs, render_mode=render_mode, **maze)

        def there(array: Any) -> Tensor:
            return torch.from_numpy(array.copy()).to(self.device)

        self._xp, self._walls = torch, there(self.walls)
        self._scene, self._background = (
            there(picture).permute(2, 0, 1).contiguous() for picture in (self._scene, self._background)
        )  # (3, H, W)
        self._start, self._moves = there(self._start), there(MOVES)
        self._color = torch.tensor(AGENT, dtype=torch.uint8, device=self.device)
        self._pixels = torch.arange(self._cell_pixels, device=self.device)
        self._random = torch.Generator(self.device)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Tensor, Info]:
        """Start all episodes."""
        if seed is not None:
            self._random.manual_seed(seed)
        elif not self._begun:
            self._random.seed()
        self._begun = True
        self._restart()
        return self._images(self._background), self._info(self._cells(), self._done)

    def _restart(self) -> None:
        n = self.num_envs
        self._position = torch.as_tensor(self._start, device=self.device).repeat(n, 1)  # (N, 2)
        self._steps = torch.zeros(n, dtype=torch.int64, device=self.device)
        self._done = torch.zeros(n, dtype=torch.bool, device=self.device)

    def _checked(self, actions: Tensor) -> Tensor:
        expected = (self.num_envs, 2) if self.continuous else (self.num_envs,)
        if actions.shape != expected or actions.is_floating_point() != self.continuous:
            raise ConfigError(
                f"PixelMaze got actions of shape {tuple(actions.shape)} and type {actions.dtype}; pass one "
                f"action of the action space per agent."
            )
        return actions

    def render(self) -> Tensor | None:  # type: ignore[override]
        """An enlarged picture of agent 0, with the goal, which observations do not show."""
        if self.render_mode is None:
            return None
        scale = -(-256 // self._scene.shape[1])  # at least 256 pixels
        picture = self._images(self._scene)[0]
        return picture.repeat_interleave(scale, 0).repeat_interleave(scale, 1)

    def _draws(self) -> Tensor:
        return torch.rand(self.num_envs, 3, generator=self._random, device=self.device)

    def _whole(self, numbers: Tensor) -> Tensor:
        return numbers.long()

    def _info(self, cells: Tensor, success: Tensor) -> Info:
        y, x = self._position.T
        return {
            "position": self._position.float(),
            "cell": cells,
            "success": success,
            "variables": {"x": x, "y": y},
        }

    def _images(self, scene: Tensor) -> Tensor:
        """(N, H, W, 3), with the channels first in memory, as networks read them."""
        channels, height, width = scene.shape
        corner = self._margin + (self._position * self._cell_pixels + 0.5).floor().long()  # (N, 2)
        square = corner[:, :, None] + self._pixels  # (N, 2, pixels)
        index = (square[:, 0, :, None] * width + square[:, 1, None, :]).flatten(1)  # (N, pixels²)
        images = scene.flatten(1).repeat(self.num_envs, 1, 1)  # (N, 3, H · W)
        colors = self._color[:, None].expand(self.num_envs, channels, index.shape[1])
        images.scatter_(2, index[:, None].expand_as(colors), colors)
        return images.view(self.num_envs, channels, height, width).permute(0, 2, 3, 1)
