"""PixelMaze: a maze observed as an image, with an optional sparse goal.

`PixelMazeVector` moves N agents at once in NumPy; `PixelMaze` wraps it with N = 1. Coordinates are
(row, col) in cells, with integers at the centers of cells.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from voidrl.errors import ConfigError

# Their gray levels are 42, 118, 177 and 236, so that the four differ without color.
WALL, AGENT, GOAL, FLOOR = (36, 42, 62), (236, 70, 54), (128, 214, 118), (240, 236, 224)
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # up, down, left, right
LARGEST = {"size": 255, "image_size": 1024}  # the farthest goal in 255 × 255 cells is found in seconds
NEAR = 1 / 6  # of the distance to the farthest cell: random actions get there in one episode of ten or so
SPEED = 0.5  # cells per step of a continuous agent at full action, along each axis
RADIUS = 0.25  # half the width of a continuous agent in cells: thin enough to turn into side corridors
METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}
Cell = tuple[int, int]
Array = NDArray[Any]
Info = dict[str, Any]


def make_walls(size: int, layout_seed: int, loops: float) -> NDArray[np.bool_]:
    """Carve a maze whose rooms are the odd cells: a spanning tree, plus a fraction `loops` of the rest."""
    rng = np.random.default_rng(layout_seed)
    walls, path = np.ones((size, size), dtype=np.bool_), [(1, 1)]
    walls[1, 1] = False
    while path:  # recursive backtracker: go to unseen rooms, step back if there are none
        row, col = path[-1]
        rooms = [(row + 2 * dr, col + 2 * dc) for dr, dc in MOVES.tolist()]
        rooms = [(r, c) for r, c in rooms if 0 < r < size and 0 < c < size and walls[r, c]]
        if rooms:
            r, c = rooms[rng.integers(len(rooms))]
            walls[r, c] = walls[(row + r) // 2, (col + c) // 2] = False
            path.append((r, c))
        else:
            path.pop()
    between = np.add.outer(np.arange(size), np.arange(size)) % 2 == 1  # one odd, one even: between two rooms
    between[[0, -1]] = between[:, [0, -1]] = False
    closed = rng.permutation(np.argwhere(between & walls))  # more loops with an equal seed open a superset
    walls[tuple(closed[: round(loops * len(closed))].T)] = False
    walls.setflags(write=False)
    return walls


def _require(ok: object, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"PixelMaze got {name}={value!r}; pass {expected}.")


class PixelMazeVector(gym.vector.VectorEnv[Any, Any, Any]):
    """N agents in one maze, each seeing an RGB image of it; an ended episode is reset on the next step.

    Args:
        num_envs: Number of agents, which do not interact.
        size: Cells per side with the border walls, odd, up to 255.
        layout_seed: Seed of the maze; independent of the seed given to `reset`.
        loops: Fraction of the inner walls between two rooms that are opened; 0 is a perfect maze.
        image_size: Pixels per side of the observation, up to 1024; a cell has `image_size // size` per side.
        continuous: False: four actions of one cell each; True: a displacement (down, right) in [-1, 1]².
        goal: None, "far" for the cell farthest from the start, "near" at a sixth of that, or (row, col).
        slip: Probability that an action is replaced by a uniformly random one.
        max_episode_steps: Steps until truncation; None for no limit.
        render_mode: None or "rgb_array".
    """

    metadata = METADATA | {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        *,
        size: int = 17,
        layout_seed: int = 0,
        loops: float = 0.0,
        image_size: int = 42,
        continuous: bool = False,
        goal: Literal["far", "near"] | Cell | None = None,
        slip: float = 0.0,
        max_episode_steps: int | None = 100,
        render_mode: str | None = None,
    ) -> None:
        limit = np.iinfo(np.int64).max if max_episode_steps is None else max_episode_steps
        integers = {"num_envs": (num_envs, 1), "size": (size, 5), "layout_seed": (layout_seed, 0)}
        integers |= {"image_size": (image_size, size), "max_episode_steps": (limit, 1)}
        for name, (value, least) in integers.items():
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            _require(whole and value >= least, name, value, f"an integer of at least {least}")
            most = LARGEST.get(name, value)
            _require(value <= most, name, value, f"an integer of at most {most}")
        _require(size % 2, "size", size, f"an odd number of cells, such as {size + 1}")
        for name, number in {"loops": loops, "slip": slip}.items():
            _require(isinstance(number, Real) and 0 <= number <= 1, name, number, "a number from 0 to 1")
        _require(render_mode in (None, "rgb_array"), "render_mode", render_mode, "'rgb_array' or None")
        self.num_envs, self.size, self.continuous, self.slip = num_envs, size, continuous, slip
        self.render_mode, self._limit = render_mode, limit

        self.walls = make_walls(self.size, layout_seed, loops)
        self.num_open_cells = int((~self.walls).sum())
        self.start_cell: Cell = (1, 1)
        self.goal_cell: Cell | None = None
        if isinstance(goal, str):
            shares = {"far": 1.0, "near": NEAR}
            _require(
                goal in shares, "goal", goal, "'far', 'near', an open cell (row, col), or None for no goal"
            )
            lengths = self.shortest_path_lengths()
            target = max(1.0, shares[goal] * lengths.max())
            distance = np.where(lengths > 0, np.abs(lengths - target), np.inf)
            self.goal_cell = divmod(int(distance.argmin()), size)  # ties: topmost
        elif goal is not None:
            pair = np.asarray(goal)
            fits = pair.shape == (2,) and pair.dtype.kind in "iu" and 0 < pair.min() <= pair.max() < size
            fits = fits and not self.walls[tuple(pair)]
            _require(fits, "goal", goal, "an open cell (row, col), such as (1, 3), where `walls` is False")
            self.goal_cell = int(pair[0]), int(pair[1])
            _require(self.goal_cell != self.start_cell, "goal", goal, "a cell other than the start")
        self.single_action_space = gym.spaces.Box(-1, 1, (2,)) if continuous else gym.spaces.Discrete(4)
        self.single_observation_space = gym.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self._cell_pixels, self._margin = image_size // size, image_size % size // 2
        self._scene = self._draw_scene(image_size, self.goal_cell)  # for `render`
        self._background = self._draw_scene(image_size, None)  # for agents
        self._goal_index = -1 if self.goal_cell is None else self.goal_cell[0] * self.size + self.goal_cell[1]
        self._start = np.array(self.start_cell, dtype=np.float64 if continuous else np.int64)
        self._begun = False
        self._rngs: list[np.random.Generator] = []  # one per agent, made by the first reset
        self._restart()

    def _restart(self) -> None:
        self._position = np.tile(self._start, (self.num_envs, 1))  # (N, 2)
        self._steps = np.zeros(self.num_envs, np.int64)
        self._done = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start all episodes; with `seed`, agent i has its own random stream, seeded `seed + i`."""
        super().reset(seed=seed)
        if seed is not None or not self._rngs:
            first = self.np_random_seed or 0  # Gymnasium draws one if none is given
            self._rngs = [gym.utils.seeding.np_random(first + i)[0] for i in range(self.num_envs)]
        self._restart()
        self._begun = True
        return self._images(self._background), self._info(self._cells(), np.zeros(self.num_envs, np.bool_))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        """Move all agents; those whose episode ended on the previous step start a new one instead."""
        if not self._begun:
            raise gym.error.ResetNeeded("PixelMaze was stepped before its first reset; call reset() first.")
        actions = self._slipped(self._checked(actions))
        fresh = self._done  # (N,), at the start with 0 steps, so neither at the goal nor at the limit
        self._position = np.where(fresh[:, None], self._start, self._moved(actions))  # (N, 2)
        self._steps = np.where(fresh, 0, self._steps + 1)
        cells = self._cells()
        terminated = cells == self._goal_index
        truncated = ~terminated & (self._steps >= self._limit)
        self._done = terminated | truncated
        info = self._info(cells, terminated.copy())
        return self._images(self._background), 1.0 * terminated, terminated, truncated, info

    def render(self) -> tuple[Array, ...] | None:  # type: ignore[override]
        """One enlarged picture per agent, with the goal, which observations do not show."""
        if self.render_mode is None:
            return None
        scale = -(-256 // self._scene.shape[0])  # at least 256 pixels
        return tuple(self._images(self._scene).repeat(scale, axis=1).repeat(scale, axis=2))

    def shortest_path_lengths(self) -> NDArray[np.int64]:
        """Steps from the start to every cell, (size, size); -1 at walls."""
        lengths = np.full(self.walls.shape, -1, dtype=np.int64)
        front = np.zeros_like(self.walls)
        front[self.start_cell] = True
        while front.any():  # breadth-first
            lengths[front] = lengths.max() + 1
            around = [np.roll(front, move, axis=(0, 1)) for move in MOVES]
            front = np.logical_or.reduce(around) & ~self.walls & (lengths < 0)
        return lengths

    def _checked(self, actions: Any) -> Array:
        actions = np.asarray(actions)
        fits = actions.shape == self.action_space.shape and np.isfinite(actions).all()
        if fits and not self.continuous:
            fits = actions.dtype.kind in "iu" and actions.min() >= 0 and actions.max() < len(MOVES)
        _require(fits, "actions", actions, "one action of the action space per agent")
        return actions  # type: ignore[no-any-return]

    def _moved(self, actions: Array) -> Array:
        position = self._position
        if not self.continuous:
            target = position + MOVES[actions]  # (N, 2)
            return np.where(self.walls[target[:, 0], target[:, 1], None], position, target)
        rows, cols = (SPEED * np.clip(actions, -1, 1)).T
        # Rows, then columns: agents slide along a wall that blocks one axis.
        moved = _slid(position[:, 0], position[:, 1], rows, self.walls)
        return np.stack([moved, _slid(position[:, 1], moved, cols, self.walls.T)], 1)

    def _cells(self) -> Array:
        rows, cols = np.floor(self._position + 0.5).astype(np.int64).T  # (N,) each
        return rows * self.size + cols  # type: ignore[no-any-return]

    def _slipped(self, actions: Array) -> Array:
        """Actions, of which the fraction `slip` is random."""
        if self.slip == 0:
            return actions
        draws = np.ones((self.num_envs, 3))
        for i in np.flatnonzero(~self._done):  # agents that only restart draw nothing, as in a single env
            draws[i] = self._rngs[i].random(3)
        slips = draws[:, 0] < self.slip  # (N,)
        if self.continuous:
            return np.where(slips[:, None], 2 * draws[:, 1:] - 1, actions)
        return np.where(slips, (len(MOVES) * draws[:, 1]).astype(np.int64), actions)

    def _info(self, cells: Array, success: Array) -> Info:
        info: Info = {"position": self._position.astype(np.float32), "cell": cells, "success": success}
        info |= {f"_{key}": np.ones(self.num_envs, np.bool_) for key in info}
        y, x = self._position.T.astype(np.float64)
        return info | {"variables": {"x": x, "y": y}}

    def _draw_scene(self, image_size: int, goal: Cell | None) -> NDArray[np.uint8]:
        kinds = (~self.walls).astype(np.int64)  # 0 wall, 1 floor, 2 goal
        if goal is not None:
            kinds[goal] = 2
        kinds = kinds.repeat(self._cell_pixels, axis=0).repeat(self._cell_pixels, axis=1)
        margins = (self._margin, image_size - self._margin - len(kinds))
        return np.array([WALL, FLOOR, GOAL], dtype=np.uint8)[np.pad(kinds, margins)]  # (H, W, 3)

    def _images(self, scene: Array) -> Array:
        images = scene[None].repeat(self.num_envs, axis=0)  # (N, H, W, 3), a new array: callers keep it
        corner = self._margin + np.floor(self._position * self._cell_pixels + 0.5).astype(np.int64)  # (N, 2)
        square = corner[:, :, None] + np.arange(self._cell_pixels)  # (N, 2, pixels)
        agents = np.arange(self.num_envs)[:, None, None]
        images[agents, square[:, 0, :, None], square[:, 1, None, :]] = AGENT
        return images


def _slid(along: Array, across: Array, delta: Array, walls: Array) -> Array:
    """Coordinates along one axis after a move of `delta` (at most 1), stopped at walls."""
    low = np.floor(across - RADIUS + 0.5).astype(np.int64)  # the one or two cells that the body covers
    high = np.ceil(across + RADIUS - 0.5).astype(np.int64)
    target, sign = along + delta, np.sign(delta)
    front = target + sign * RADIUS
    ahead = np.where(delta > 0, np.ceil(front - 0.5), np.floor(front + 0.5)).astype(np.int64)
    blocked = walls[ahead, low] | walls[ahead, high]
    return np.where(blocked, ahead - sign * (0.5 + RADIUS), target)


class PixelMaze(gym.Env[Array, Any]):
    """One agent in a maze, observing an RGB image of it; arguments as in `PixelMazeVector`."""

    metadata = METADATA

    def __init__(self, *, render_mode: str | None = None, **maze: Any) -> None:
        self._maze = PixelMazeVector(1, render_mode=render_mode, **maze)
        self.render_mode = render_mode
        self.observation_space = self._maze.single_observation_space
        self.action_space = self._maze.single_action_space
        self.walls, self.num_open_cells = self._maze.walls, self._maze.num_open_cells
        self.start_cell, self.goal_cell = self._maze.start_cell, self._maze.goal_cell
        self.shortest_path_lengths = self._maze.shortest_path_lengths

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode at the start cell."""
        super().reset(seed=seed)
        images, info = self._maze.reset()
        self._maze._rngs = [self.np_random]  # this env's stream in Gymnasium
        return images[0], self._single(info)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, Info]:
        """Move the agent; after the end of an episode, call `reset` first."""
        if self._maze._done[0]:
            raise gym.error.ResetNeeded(
                "PixelMaze was stepped after the end of an episode; call reset() first."
            )
        images, reward, terminated, truncated, info = self._maze.step(np.asarray(action)[None])
        return images[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), self._single(info)

    def render(self) -> Array | None:  # type: ignore[override]
        """An enlarged picture, with the goal, which observations do not show."""
        frames = self._maze.render()
        return None if frames is None else frames[0]

    @staticmethod
    def _single(info: Info) -> Info:
        return {
            "position": info["position"][0],
            "cell": info["cell"][0],
            "success": bool(info["success"][0]),
            "variables": {name: float(values[0]) for name, values in info["variables"].items()},
        }


def _make(**maze: Any) -> PixelMaze:
    """Entry point for `gymnasium.make`, whose TimeLimit counts the steps."""
    return PixelMaze(**{"max_episode_steps": None, **maze})
