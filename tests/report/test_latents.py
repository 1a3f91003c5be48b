"""Maps of what agents saw, from the replay of a checkpoint."""

import json
import math
import resource
from io import BytesIO

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image
from tiny_runs import MAZE, tiny

import voidrl
from voidrl.engine.engine import Engine
from voidrl.errors import CheckpointError, ConfigError, MissingExtraError
from voidrl.replay import Replay
from voidrl.replay.sizes import row_count
from voidrl.report import latents
from voidrl.report.latents import LatentMap, _StoredReplay, latent_map, project
from voidrl.report.media import newest_agent
from voidrl.report.saved import Saved
from voidrl.runs import checkpoint
from voidrl.runs.tensor_files import write_tensors
from voidrl.training.saved_run import load_run


class Odometer(gym.Env):
    """Shows how many steps it has made in its life, as a point on a line or as the shade of an image."""

    def __init__(self, pixels=False):
        self.pixels, self.count = pixels, 0
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
        if pixels:
            self.observation_space = spaces.Box(0, 255, (40, 36, 3), np.uint8)

    def _obs(self):
        if self.pixels:
            return np.full((40, 36, 3), self.count, np.uint8)
        return np.array([3, -4, 0], np.float32) * self.count

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        return self._obs(), 0.0, False, self.count % 7 == 0, {}


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """A run on states, longer than its replay, in which the ring was written more than twice."""
    folder = tmp_path_factory.mktemp("runs") / "line"
    voidrl.pretrain(Odometer, steps=95, config=tiny(updates_per_step=0.1), out=folder)
    return folder


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """A run on stacked images, from two environments."""
    folder = tmp_path_factory.mktemp("runs") / "film"
    settings = tiny(updates_per_step=0.1, env__num_envs=2, env__frame_stack=3, replay__capacity_steps=60)
    voidrl.pretrain(lambda: Odometer(pixels=True), steps=150, config=settings, out=folder)
    return folder


def thumbnails(found):
    """(count, H, W, 3)."""
    sheet = np.asarray(Image.open(BytesIO(found.sprite)).convert("RGB")).astype(int)
    (width, height), rows = found.thumb_size, math.ceil(found.thumbs / found.columns)
    assert sheet.shape == (rows * height, found.columns * width, 3)
    cut = sheet.reshape(rows, height, found.columns, width, 3).swapaxes(1, 2)
    return cut.reshape(-1, height, width, 3)[: found.thumbs]


# The projection


def test_a_plane_is_found_in_many_dimensions():
    random = np.random.default_rng(0)
    plane = random.uniform(size=(200, 2)) * [4, 1]
    plane[:4] = [[0, 0], [4, 0], [0, 1], [4, 1]]
    basis, _ = np.linalg.qr(random.normal(size=(9, 2)))
    xy, explained = project(plane @ basis.T + 100)
    assert explained.sum() == pytest.approx(1)
    assert explained[0] == pytest.approx(16 / 17, abs=0.03)
    assert xy.min() == 0
    assert xy.max() == 1

    def distances(points):
        apart = np.linalg.norm(points[:, None] - points, axis=2)
        return apart / apart.max()

    assert np.allclose(distances(xy), distances(plane)), "to scale, and nothing is torn"


def test_the_same_points_give_the_same_picture_and_mirrored_ones_too():
    z = np.random.default_rng(1).normal(size=(50, 4)) * [5, 3, 1, 1]
    xy, explained = project(z)
    again, _ = project(z + 7)
    assert np.allclose(xy, again)
    assert explained[0] > explained[1] > 0
    largest, _ = project(np.diag([1.0, 1, 1, 1])[:1].repeat(3, 0) * np.array([[0.0], [1], [2]]))
    assert largest[:, 0].tolist() == [0, 0.5, 1], "an axis points where its largest component does"


def test_points_without_a_second_or_any_direction():
    xy, explained = project(np.array([[1.0], [2.0], [5.0]]))
    assert np.allclose(xy, [[0, 0.5], [0.25, 0.5], [1, 0.5]])
    assert explained.tolist() == [1, 0]
    xy, explained = project(np.ones((4, 3)))
    assert (xy == 0.5).all()
    assert explained.tolist() == [0, 0]


# Maps of runs


def test_time_runs_along_the_line_that_was_walked(line):
    found = latent_map(line)
    assert isinstance(found, LatentMap)
    assert found.explained == pytest.approx([1, 0], abs=1e-6)
    assert np.allclose(found.xy[:, 1], 0.5, atol=1e-5)
    assert (np.diff(found.time) >= 0).all()
    assert found.time[-1] == found.total_steps == 95
    assert found.time[0] >= 95 - row_count(30, 1, newest_agent(line)[0].spec), "only the last are kept"
    # The odometer's x falls with time: its larger component is negative. Both are exactly in step.
    walked = (found.time - found.time[0]) / np.ptp(found.time)
    assert np.allclose(1 - found.xy[:, 0], walked, atol=1e-5)
    assert (found.sprite, found.thumb_size, found.columns, found.thumbs) == (b"", (0, 0), 0, 0)


def test_points_are_as_many_as_asked_for_and_evenly_spaced(line):
    found = latent_map(line, points=5)
    assert found.xy.shape == (5, 2)
    assert np.ptp(np.diff(found.time)) <= 2
    assert found.time[-1] == 95


def test_thumbnails_show_what_was_seen_then(film):
    found = latent_map(film)
    assert found.thumbs == len(found.xy) == len(found.time)
    assert found.thumb_size == (36, 40)
    shown = thumbnails(found).mean((1, 2, 3))
    # Both odometers count every second step of the run.
    assert np.abs(shown - found.time / 2).max() <= 2
    assert (np.diff(shown) >= -0.5).all()
    few = latent_map(film, points=20, thumbs=4)
    assert (few.thumbs, few.columns) == (4, 2)
    nearest = np.arange(20) * few.thumbs // 20
    assert np.abs(thumbnails(few).mean((1, 2, 3))[nearest] - few.time / 2).max() <= 10
    assert latent_map(film, points=20, thumbs=0).sprite == b""


def test_large_images_become_small_thumbnails(monkeypatch, film):
    monkeypatch.setattr(latents, "THUMB_PIXELS", 10)
    found = latent_map(film, points=9)
    assert found.thumb_size == (9, 10)
    assert np.abs(thumbnails(found).mean((1, 2, 3)) - found.time / 2).max() <= 2


def test_observations_are_those_of_the_replay_itself(film):
    agent, saved, meta = newest_agent(film)
    stored = _StoredReplay(saved, agent.spec.frame_stack)
    slots, time = stored.evenly_spaced(10**6, meta["steps"])
    whole = Replay(agent.spec, 2, 60, 0, torch.device("cpu"), torch.device("cpu"))
    load_run(checkpoint.load(saved.path), Engine(voidrl.load(film), whole, print))
    frames = stored.read("frames", stored.stacks(slots).flatten()).reshape(len(slots), *agent.spec.obs_shape)
    assert np.array_equal(frames, whole.observations(torch.from_numpy(slots)).numpy())
    assert set(whole.sample(2000).tolist()) <= set(slots.tolist()), "all that is learned from can be shown"
    assert time[-1] == 150


def test_only_what_is_shown_is_read(tmp_path):
    """Of a replay of 2 GB, which is a hole in the disk but for two frames."""
    slots, shape = 100_000, (3, 84, 84)
    size = math.prod(shape)
    spans = {"age": ("I32", [slots], 4 * slots), "frames": ("U8", [slots, *shape], slots * size)}
    header, end = {}, 0
    for name, (kind, dims, length) in spans.items():
        header[name] = {"dtype": kind, "shape": dims, "data_offsets": [end, end + length]}
        end += length
    text = json.dumps(header).encode()
    with (tmp_path / "replay_00000.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        begin = file.tell() + 4 * slots
        for slot in (0, slots - 1):
            file.seek(begin + slot * size)
            file.write(bytes([1 + slot % 250]) * size)
        file.truncate(begin + slots * size)
    positions = {
        "counters": torch.tensor([slots - 1, slots, 0, 0]),
        "row_starts": torch.ones(slots, dtype=torch.int64),
        "age": torch.zeros(1, dtype=torch.int32),
    }
    write_tensors(tmp_path / "replay.safetensors", positions)
    files = dict.fromkeys(["replay.safetensors", "replay_00000.safetensors"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stored = _StoredReplay(Saved(tmp_path, 5, files, ""), 1)
    chosen, _ = stored.evenly_spaced(100, 10**6)
    frames = stored.read("frames", stored.stacks(chosen)[:, -1])
    assert frames.shape == (100, *shape)
    assert (frames[0] == 1).all()
    assert (frames[-1] == 1 + (slots - 1) % 250).all()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 300_000, "kB"


# What cannot be mapped


def test_a_method_without_a_representation_is_a_sentence(tmp_path):
    voidrl.pretrain(MAZE, "random", steps=10, config=tiny(), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="method 'random' trains none"):
        latent_map(tmp_path / "run")


def test_runs_that_have_nothing_to_map_are_a_sentence(tmp_path, line, monkeypatch):
    voidrl.train(MAZE, steps=10, config=tiny(), out=tmp_path / "scratch")
    with pytest.raises(ConfigError, match="training from scratch trains none; expected a run of a method"):
        latent_map(tmp_path / "scratch")
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        latent_map(tmp_path)
    _, saved, _ = newest_agent(line)
    alone = Saved(saved.path, 1, {"agent.safetensors": None}, "")
    with pytest.raises(CheckpointError, match="has no replay, so there is nothing to map"):
        _StoredReplay(alone, 1)
    gone = Saved(tmp_path, 1, saved.files, "")
    with pytest.raises(CheckpointError, match=r"replay of the checkpoint .* cannot be read"):
        _StoredReplay(gone, 1)


def test_without_pillow_a_sentence_names_what_installs_it(film, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"needs pillow, .*pip install 'voidrl\[video\]'"):
        latent_map(film)
    assert len(latent_map(film, thumbs=0).xy) > 3


def test_fine_tuned_agents_are_mapped_as_well(line, tmp_path):
    changes = {key: value for key, value in tiny().items() if key != "warmup_steps"}
    voidrl.finetune(line, Odometer, steps=12, config=changes, out=tmp_path / "tuned")
    found = latent_map(tmp_path / "tuned")
    assert found.time[0] == 0
    assert found.total_steps == 12
