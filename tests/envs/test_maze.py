"""PixelMaze: its layouts, its moves, its pixels, and its agreement with Gymnasium."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from voidrl.envs.maze import AGENT, FLOOR, GOAL, RADIUS, SPEED, WALL, PixelMaze, PixelMazeVector
from voidrl.envs.registration import MAZE_ID, register
from voidrl.errors import ConfigError

UP, DOWN, LEFT, RIGHT = range(4)
SMALL = ["#####", "#   #", "### #", "#   #", "#####"]  # size=5, layout_seed=0


def picture(env):
    return ["".join(" #"[int(wall)] for wall in row) for row in env.walls]


def edges(walls):
    """Pairs of neighboring open cells."""
    free = ~walls
    return int((free[1:] & free[:-1]).sum() + (free[:, 1:] & free[:, :-1]).sum())


def walk(env, to):
    """Actions along a shortest path from the start to a cell."""
    lengths, cell, actions = env.shortest_path_lengths(), tuple(to), []
    while cell != env.start_cell:
        near = [(cell[0] - dr, cell[1] - dc) for dr, dc in [(-1, 0), (1, 0), (0, -1), (0, 1)]]
        actions.append(next(a for a, c in enumerate(near) if lengths[c] == lengths[cell] - 1))
        cell = near[actions[-1]]
    return actions[::-1]


# --- layout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "seed"), [(5, 0), (17, 1), (21, 2)])
def test_layout_is_a_perfect_maze(size, seed):
    env = PixelMazeVector(size=size, layout_seed=seed)
    rooms = ((size - 1) // 2) ** 2
    assert not env.walls[1::2, 1::2].any()  # every odd cell is a room
    assert env.walls[[0, -1]].all()
    assert env.walls[:, [0, -1]].all()
    assert env.walls[2:-1:2, 2:-1:2].all()  # pillars
    assert env.num_open_cells == rooms + (rooms - 1)  # rooms, and one door per edge of a spanning tree
    assert edges(env.walls) == env.num_open_cells - 1  # a tree of cells
    assert ((env.shortest_path_lengths() >= 0) == ~env.walls).all()  # connected


def test_layout_is_pinned():
    """Published results name a layout by its seed: it must not change."""
    assert picture(PixelMazeVector(size=5)) == SMALL
    assert picture(PixelMazeVector(size=9)) == [
        "#########",
        "#       #",
        "####### #",
        "# #   # #",
        "# # # # #",
        "# # # # #",
        "# # # # #",
        "#   #   #",
        "#########",
    ]


def test_loops_add_cycles():
    tree = PixelMazeVector(size=17)
    some, more, all_ = (PixelMazeVector(size=17, loops=loops) for loops in (0.1, 0.5, 1.0))
    closed = 2 * 8 * 7 - 63  # inner walls between two rooms, less the doors of the tree
    for env, loops in ((some, 0.1), (more, 0.5), (all_, 1.0)):
        opened = round(loops * closed)
        assert env.num_open_cells == tree.num_open_cells + opened
        assert edges(env.walls) - env.num_open_cells + 1 == opened  # independent cycles
    assert (more.walls <= some.walls).all()
    assert (some.walls <= tree.walls).all()


def test_near_goal_is_a_sixth_as_far():
    env = PixelMaze(size=13, loops=0.3, goal="near", layout_seed=3)
    lengths = env.shortest_path_lengths()
    assert abs(lengths[env.goal_cell] - lengths.max() / 6) <= 0.5
    smallest = PixelMaze(size=5, goal="near")
    assert smallest.goal_cell != smallest.start_cell


@pytest.mark.parametrize("loops", [0.0, 0.3])
def test_far_goal_is_the_farthest_cell(loops):
    env = PixelMaze(size=13, loops=loops, goal="far", layout_seed=3)
    lengths = np.full(env.walls.shape, 10**6)  # Bellman-Ford, as a check on the wave
    lengths[env.start_cell] = 0
    for _ in range(13 * 13):
        for axis in (0, 1):
            for shift in (-1, 1):
                lengths = np.minimum(lengths, np.where(env.walls, 10**6, np.roll(lengths, shift, axis) + 1))
    lengths[env.walls] = -1
    assert (env.shortest_path_lengths() == lengths).all()
    assert env.goal_cell == tuple(np.argwhere(lengths == lengths.max())[0])


# --- dynamics -------------------------------------------------------------------------------------


def test_hand_computed_moves():
    env = PixelMaze(size=5)
    _, info = env.reset()
    assert info["position"].tolist() == [1, 1]
    moves = [(UP, [1, 1]), (LEFT, [1, 1]), (DOWN, [1, 1]), (RIGHT, [1, 2]), (DOWN, [1, 2]), (RIGHT, [1, 3])]
    moves += [(RIGHT, [1, 3]), (DOWN, [2, 3]), (LEFT, [2, 3]), (DOWN, [3, 3]), (LEFT, [3, 2]), (UP, [3, 2])]
    for action, position in moves:
        _, reward, terminated, truncated, info = env.step(action)
        assert info["position"].tolist() == position
        assert info["cell"] == position[0] * 5 + position[1]
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)


def test_continuous_body_never_overlaps_a_wall():
    env = PixelMazeVector(32, size=9, loops=0.5, continuous=True, max_episode_steps=500)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    before, seen = np.tile([1.0, 1.0], (32, 1)), set()
    drift = rng.uniform(-1, 1, (32, 2))
    for step in range(1500):
        if step % 7 == 0:
            drift = rng.choice([-1.0, 1.0, 0.0], (32, 2))  # push into walls and corners
        actions = np.clip(drift + rng.normal(0, 0.5, (32, 2)), -1, 1)
        *_, info = env.step(actions.astype(np.float32))
        position = info["position"].astype(np.float64)
        low = np.floor(position - RADIUS + 0.5).astype(int)
        high = np.ceil(position + RADIUS - 0.5).astype(int)
        for rows in (low[:, 0], high[:, 0]):
            for cols in (low[:, 1], high[:, 1]):
                assert not env.walls[rows, cols].any()
        jumped = np.abs(position - before).max(axis=1) > SPEED + 1e-5
        assert (position[jumped] == 1.0).all()  # only a restart is further than `SPEED`
        before = position
        seen |= set(info["cell"].tolist())
    assert len(seen) > 0.9 * env.num_open_cells  # and side corridors can be entered


def test_continuous_moves_by_hand():
    env = PixelMaze(size=5, continuous=True)
    env.reset()
    for action, position in [
        ((-1, 0), [0.75, 1]),  # stopped by the border: its wall ends at 0.5, the body is 0.25 to each side
        ((1, 1), [1.25, 1.5]),
        ((1, 1), [1.25, 2]),  # blocked below, slides right
        ((0, 1), [1.25, 2.5]),
        ((0, 1), [1.25, 3]),
        ((0, 1), [1.25, 3.25]),
        ((1, 0), [1.75, 3.25]),  # around the corner
        ((0, -1), [1.75, 2.75]),
        ((0, -1), [1.75, 2.75]),
        ((-1, -1), [1.25, 2.25]),  # rows first: out of the corner, then left
    ]:
        *_, info = env.step(np.array(action, np.float32))
        assert info["position"].tolist() == position


def test_slip_replaces_actions_at_its_rate():
    env = PixelMazeVector(1000, size=5, loops=1.0, slip=0.4)
    env.reset(seed=0)
    *_, info = env.step(np.full(1000, UP))  # a wall above: an agent that moved has slipped down or right
    moved = (info["position"] != [1, 1]).any(axis=1)
    assert moved.mean() == pytest.approx(0.4 * 2 / 4, abs=0.04)


# --- episodes -------------------------------------------------------------------------------------


def test_goal_ends_the_episode_once_and_the_next_step_only_resets():
    env = PixelMazeVector(2, size=9, goal="far")
    first, _ = env.reset()
    path = walk(env, env.goal_cell)
    assert len(path) == env.shortest_path_lengths()[env.goal_cell] < 99
    for action in path[:-1]:
        _, reward, terminated, truncated, info = env.step(np.array([action, UP]))
        assert not np.any([reward, terminated, truncated, info["success"]])
    _, reward, terminated, truncated, info = env.step(np.array([path[-1], UP]))
    assert reward.tolist() == [1, 0]
    assert terminated.tolist() == info["success"].tolist() == [True, False]
    assert not truncated.any()
    assert tuple(info["position"][0]) == env.goal_cell
    obs, reward, terminated, truncated, info = env.step(np.array([path[0], UP]))  # the action is ignored
    assert (obs[0] == first[0]).all()
    assert tuple(info["position"][0]) == env.start_cell
    assert not np.any([reward, terminated, truncated, info["success"]])
    *_, info = env.step(np.array([path[0], UP]))  # and now it is not
    assert tuple(info["position"][0]) != env.start_cell


def test_truncation_counts_the_steps_of_each_episode():
    env = PixelMazeVector(2, size=5, max_episode_steps=3)
    env.reset()
    flags = [env.step(np.array([UP, UP]))[3].tolist() for _ in range(9)]
    assert flags == [[t, t] for t in (False, False, True, False, False, False, True, False, False)]


def test_termination_wins_over_truncation():
    probe = PixelMaze(size=9, goal="far")
    path = walk(probe, probe.goal_cell)
    env = PixelMaze(size=9, goal="far", max_episode_steps=len(path))
    env.reset()
    assert [env.step(a)[1:4] for a in path][-1] == (1.0, True, False)
    late = PixelMaze(size=9, goal="far", max_episode_steps=len(path) - 1)
    late.reset()
    assert [late.step(a)[1:4] for a in path[:-1]][-1] == (0.0, False, True)


def test_step_needs_a_reset():
    env = PixelMaze(max_episode_steps=1)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(UP)
    env.reset()
    env.step(UP)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(UP)


@pytest.mark.parametrize("continuous", [False, True])
def test_agent_i_of_a_vector_is_a_single_env_seeded_s_plus_i(continuous):
    settings = {"size": 7, "slip": 0.3, "goal": (1, 3), "max_episode_steps": 60}
    settings |= {"loops": 1.0, "continuous": continuous}
    vector = PixelMazeVector(3, **settings)
    singles = [PixelMaze(**settings) for _ in range(3)]
    images, info = vector.reset(seed=11)
    vector.action_space.seed(0)
    done, ended = [False] * 3, 0
    for i, single in enumerate(singles):
        image, one = single.reset(seed=11 + i)
        assert (image == images[i]).all()
        assert one["cell"] == info["cell"][i]
    for _ in range(400):
        actions = vector.action_space.sample()
        images, rewards, terminated, truncated, info = vector.step(actions)
        for i, single in enumerate(singles):
            if done[i]:
                (image, one), result = single.reset(), (0.0, False, False)
            else:
                image, *result, one = single.step(actions[i])
            assert (image == images[i]).all()
            assert tuple(result) == (rewards[i], terminated[i], truncated[i])
            assert (one["position"] == info["position"][i]).all()
            assert (one["cell"], one["success"]) == (info["cell"][i], info["success"][i])
            done[i] = result[1] or result[2]
            ended += result[1]
    assert ended > 3


# --- pixels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "image_size", "cell", "margin"), [(17, 42, 2, 4), (5, 43, 8, 1), (13, 13, 1, 0)]
)
def test_pixels_show_walls_floor_and_agent(size, image_size, cell, margin):
    env = PixelMazeVector(4, size=size, image_size=image_size)
    env.reset()
    env.action_space.seed(1)
    for _ in range(30):
        images, *_, info = env.step(env.action_space.sample())
        for image, (row, col) in zip(images, info["position"].astype(int), strict=True):
            expected = np.full((image_size, image_size, 3), WALL, np.uint8)
            for r, c in [*np.argwhere(~env.walls), (row, col)]:
                y, x = margin + r * cell, margin + c * cell
                expected[y : y + cell, x : x + cell] = AGENT if (r, c) == (row, col) else FLOOR
            assert (image == expected).all()


def test_goal_is_drawn_only_for_people():
    env = PixelMaze(goal="far", render_mode="rgb_array")
    assert not (env.reset()[0] == GOAL).all(axis=-1).any()
    row, col = (7 * (4 + 2 * x) for x in env.goal_cell)
    green = (env.render() == GOAL).all(axis=-1)
    assert green[row : row + 14, col : col + 14].all()
    assert green.sum() == 14 * 14


def test_observations_and_infos_are_never_changed_later():
    env = PixelMazeVector(4, goal="far", max_episode_steps=20)
    kept = [env.reset(seed=0)]
    env.action_space.seed(0)
    kept += [(lambda out: (out[0], out[4]))(env.step(env.action_space.sample())) for _ in range(50)]
    copies = [image.copy() for image, _ in kept]
    for _ in range(50):
        env.step(env.action_space.sample())
    assert all((image == copy).all() for (image, _), copy in zip(kept, copies, strict=True))
    kept[0][0][:] = 0  # nor do a caller's changes come back
    kept[0][1]["position"][:] = 0
    assert (env.reset()[0] == copies[0]).all()


# --- Gymnasium ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"continuous": True, "slip": 0.3}])
def test_gymnasium_accepts_it(settings):
    register()
    register()  # idempotent
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(MAZE_ID, render_mode="rgb_array", **settings)
        check_env(env.unwrapped)


def test_make_vec_spaces_and_info():
    register()
    env = gym.make_vec(MAZE_ID, 3, vectorization_mode="vector_entry_point", size=9, max_episode_steps=7)
    assert isinstance(env, PixelMazeVector)
    _, reset_info = env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert obs in env.observation_space
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    for each in (reset_info, info):
        variables = each.pop("variables")
        assert (np.stack([variables["y"], variables["x"]], 1) == each["position"]).all()
        kinds = {"position": np.float32, "cell": np.int64, "success": np.bool_}
        assert {key: value.dtype for key, value in each.items() if key[0] != "_"} == kinds
        assert all(each[f"_{key}"].all() for key in kinds)


@pytest.mark.parametrize(
    ("mode", "settings", "steps"),
    [("vector_entry_point", {}, 100), ("sync", {"max_episode_steps": 130}, 130)],
)
def test_made_envs_keep_the_episode_length_asked_for(mode, settings, steps):
    register()
    env = gym.make_vec(MAZE_ID, 2, vectorization_mode=mode, size=5, **settings)
    env.reset(seed=0)
    truncated = [env.step(np.zeros(2, np.int64))[3].any() for _ in range(steps)]
    assert truncated == [False] * (steps - 1) + [True]


# --- bad inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 16}, r"size=16; pass an odd number of cells, such as 17\.$"),
        ({"size": 3}, "size=3; pass an integer of at least 5"),
        ({"image_size": 1025}, "image_size=1025; pass an integer of at most 1024"),
        ({"image_size": 10}, "image_size=10; pass an integer of at least 17"),
        ({"loops": 1.5}, r"loops=1\.5; pass a number from 0 to 1"),
        ({"goal": "nearby"}, "goal='nearby'; pass 'far', 'near'"),
        ({"goal": (0, 0)}, r"goal=\(0, 0\); pass an open cell"),
        ({"goal": (1, 1)}, "other than the start"),
        ({"render_mode": "human"}, "render_mode='human'"),
    ],
)
def test_bad_settings_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ConfigError, match=message):
        PixelMazeVector(**settings)


@pytest.mark.parametrize("actions", [[0, 4], [0, -1], [0], [0.5, 1.0], [[np.nan, 0.0], [0.0, 0.0]]])
def test_bad_actions_are_refused(actions):
    env = PixelMazeVector(2, continuous=np.ndim(actions) == 2)
    env.reset()
    with pytest.raises(ConfigError, match="actions="):
        env.step(np.array(actions))
