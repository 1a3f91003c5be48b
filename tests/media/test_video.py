"""Videos show the episodes that are evaluated, in files that browsers play."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from decoding import decode
from gymnasium import spaces
from helpers import CPU
from tiny_runs import MAZE, TINY, Walk, tiny

import voidrl
from voidrl.agent import Agent
from voidrl.cli.main import main
from voidrl.config import EnvConfig, update
from voidrl.envs.make import probe_env
from voidrl.errors import CheckpointError, ConfigError, MissingExtraError, VoidrlError
from voidrl.report import gallery
from voidrl.report.gallery import newest
from voidrl.report.videos import mp4
from voidrl.report.videos.video import (
    BACKGROUND,
    GAP,
    Moment,
    Recording,
    compose,
    record,
    resize,
    write_video,
)
from voidrl.training.build import build_config


class Flipbook(gym.Env):
    """Six steps, each rewarded with its number, which is also the shade of what is seen."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 70}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode, self.at = render_mode, 0
        self.observation_space, self.action_space = spaces.Box(0, 9, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.at += 1
        return np.full(2, self.at, np.float32), float(self.at), self.at == 6, False, {}

    def render(self):
        return np.full((10, 20, 3), 40 * self.at, np.uint8)


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("runs") / "maze"
    voidrl.pretrain(MAZE, steps=20, config=tiny(), out=folder, seed=3)
    return folder


def agent_for(env, **env_changes):
    """An untrained agent that fits an environment; the factory, if it is one, is not kept."""
    layer = {"env": env_changes | ({"id": env} if isinstance(env, str) else {"id": "test"})}
    factory = None if isinstance(env, str) else env
    spec, config = probe_env(update(EnvConfig(), layer["env"]), factory)
    config = build_config(spec, [TINY, {"env": {**layer["env"], "dmc": {**vars(config.dmc)}}}])
    return Agent(spec, config, CPU)


def by_hand(counts, fps=10.0, size=(10, 20), label="apt, seed 1"):
    """A recording whose frame i has the shade counts[i]."""
    recording = Recording(label, "test/Test-v0?a=1", fps)
    for i, shade in enumerate(counts):
        recording.add(np.full((*size, 3), shade, np.uint8), Moment(1, i, float(shade)))
    return recording


def shades(recording):
    return [int(frame[0, 0, 0]) for frame in recording]


# Recording


@pytest.mark.parametrize("settings", [{}, {"deterministic": False, "epsilon": 0.5}])
def test_returns_are_those_of_an_evaluation(maze, settings):
    evaluation = voidrl.evaluate(maze, episodes=3, seed=4, num_envs=1, **settings)
    with record(maze, episodes=3, seed=4, **settings) as recording:
        assert recording.returns == evaluation.returns
        assert recording.lengths == evaluation.lengths
        assert len(recording) == len([*recording]) == sum(evaluation.lengths) + 3  # also each first state
        assert recording.fps == 10
        assert recording.label == "apt, seed 3, 20 steps"
        ends = [
            m for m, after in zip(recording.moments, recording.moments[1:], strict=False) if after.step == 0
        ]
        assert [m.score for m in (*ends, recording.moments[-1])] == evaluation.returns


def test_atari_shows_the_evaluated_game():
    pytest.importorskip("ale_py")
    agent = agent_for("atari/ms_pacman?max_frames=300", frame_stack=4)
    evaluation = voidrl.evaluate(agent, episodes=2, seed=9, num_envs=1, epsilon=0.8)
    with record(agent, episodes=2, seed=9, epsilon=0.8) as recording:
        assert recording.returns == evaluation.returns
        assert recording.lengths == evaluation.lengths
        assert (recording.shape, recording.fps) == ((210, 160, 3), 15)
        assert sum(evaluation.returns) > 0


@pytest.mark.usefixtures("opengl")
def test_dmcontrol_shows_the_evaluated_episode():
    pytest.importorskip("dm_control")
    agent = agent_for("dmc/cartpole_balance", backend="sync", dmc={"action_repeat": 50})
    evaluation = voidrl.evaluate(agent, episodes=2, seed=2, num_envs=1, deterministic=False)
    with record(agent, episodes=2, seed=2, deterministic=False, height=24) as recording:
        assert recording.returns == evaluation.returns
        assert (recording.shape, recording.fps) == ((24, 24, 3), 2)
        assert sum(evaluation.returns) > 0


def test_frames_come_in_order_in_real_time():
    agent = agent_for(Flipbook)
    with record(agent, Flipbook, episodes=2) as recording:  # 70 steps a second: every third, and the last
        assert shades(recording) == [0, 120, 240, 0, 120, 240]
        assert recording.returns == [21, 21]
        assert recording.fps == pytest.approx(70 / 3)
        assert [(m.episode, m.step) for m in recording.moments] == [(e, s) for e in (1, 2) for s in (0, 3, 6)]
    with record(agent, Flipbook, fps=5) as recording:
        assert shades(recording) == [0, 40, 80, 120, 160, 200, 240]
        assert recording.fps == 5
        assert shades(recording) == shades(recording), "again and again"


def test_it_stops_after_some_seconds_even_within_an_episode():
    agent = agent_for(Flipbook)
    with record(agent, Flipbook, episodes=None, seconds=2, fps=5) as recording:
        assert shades(recording) == [0, 40, 80, 120, 160, 200, 240, 0, 40, 80]
        assert recording.returns == [21]
        assert recording.seconds == 2
    with record(agent, Flipbook, episodes=1, seconds=100) as recording:
        assert recording.lengths == [6]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"episodes": 0}, "episodes = 0 cannot be used: expected 1 or more"),
        ({"episodes": None}, "expected a number, or `seconds`"),
        ({"height": 5}, "height = 5 cannot be used: expected 16 to 2048 pixels"),
        ({"env": "atari/pong"}, "the agent was made for"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(maze, settings, sentence):
    with pytest.raises(VoidrlError, match=sentence):
        record(maze, **settings)


def test_an_environment_that_does_not_render_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="cannot be shown: it has no render mode 'rgb_array'"):
        record(agent_for(Walk), Walk)


# Side by side


def test_shorter_recordings_hold_their_last_frame():
    long, short = by_hand([10, 20, 30]), by_hand([100, 200], size=(20, 20))
    frames = [*compose([long, short], 20, labels=False)]
    assert {frame.shape for frame in frames} == {(20, 40 + GAP + 20, 3)}  # the first is twice as wide
    assert [int(frame[10, 20, 0]) for frame in frames] == [10, 20, 30]
    assert [int(frame[10, 40 + GAP + 5, 0]) for frame in frames] == [100, 200, 200]
    assert (frames[0][:, 40 : 40 + GAP] == BACKGROUND).all()
    with pytest.raises(ConfigError, match="expected one frame rate"):
        write_video([long, by_hand([1], fps=5)], "film.mp4")


def test_text_is_above_the_picture_and_never_on_it():
    runs = [by_hand([7, 9], size=(100, 100), label=label) for label in ("short", "a name of many words " * 9)]
    first, second = compose(runs, 100, labels=True)
    bar = len(first) - 100
    assert 20 < bar < 50
    assert (first[bar:, :100] == 7).all()
    assert (first[bar:, 100 + GAP :] == 7).all()
    for panel in (first[:bar, :100], first[:bar, 100 + GAP :]):
        assert panel.max() > 200, "white letters"
        assert (panel[:, -4:] == BACKGROUND).all(), "which stop before the edge"
    assert (first[: bar // 2] == second[: bar // 2]).all(), "the name stays"
    assert (first[:bar] != second[:bar]).any(), "and the steps count on"


def test_pixels_stay_squares_when_they_grow():
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert np.array_equal(resize(picture, 4, 4), picture.repeat(2, 0).repeat(2, 1))
    assert resize(picture, 2, 2) is picture
    flat = resize(np.full((30, 40, 3), 77, np.uint8), 20, 27)
    assert flat.shape == (20, 27, 3)
    assert (flat == 77).all()


# Files


def test_a_file_is_what_browsers_play(tmp_path):
    odd = by_hand([0, 60, 120, 180, 240], fps=12.5, size=(31, 33))
    path = write_video([odd], tmp_path / "new" / "film.mp4", height=31, labels=False)
    found = decode(path)
    assert found.frames.shape == (5, 32, 34, 3)  # H.264 wants even sides
    assert found.fps == 12.5
    assert "h264" in found.about
    assert "yuv420p" in found.about
    assert np.abs(found.frames[:, 5:25, 5:25].mean((1, 2, 3)) - [0, 60, 120, 180, 240]).max() < 3
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "playing begins before all is loaded"
    assert [p.name for p in path.parent.iterdir()] == ["film.mp4"]


def test_a_folder_that_cannot_be_written_is_refused_in_a_sentence(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("voidrl.report.videos.mp4.tempfile.TemporaryFile", refuse)
    with pytest.raises(ConfigError, match=r"\(Permission denied\): choose another folder with -o FILE.mp4"):
        write_video([by_hand([0])], tmp_path / "film.mp4")


def test_a_failing_ffmpeg_says_why_and_leaves_what_was_there(tmp_path, monkeypatch, capfd):
    path = write_video([by_hand([0] * 3)], tmp_path / "film.mp4", labels=False)
    before = path.read_bytes()
    script = tmp_path / "ffmpeg"
    lines = [
        "#!/bin/sh",
        'touch "$(echo "$@" | sed s/.*file://)"',
        "echo first >&2; echo no room >&2; exit 1",
    ]
    script.write_text("\n".join(lines))
    script.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(script))
    for frames in ([0], [0] * 99):  # fewer bytes than a pipe holds, and more
        with pytest.raises(
            VoidrlError, match=r"could not write .*film\.mp4: see the message of ffmpeg above"
        ):
            write_video([by_hand(frames, size=(300, 300))], path, height=300, labels=False)
        assert "no room" in capfd.readouterr().err
    assert path.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"film.mp4", "ffmpeg"}
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "gone"))
    with pytest.raises(VoidrlError, match=r"could not write .*film\.mp4: No such file"):
        write_video([by_hand([0])], path, labels=False)


def test_a_file_that_is_cut_off_is_noticed(tmp_path, monkeypatch):
    """As on a full disk: ffmpeg fails, and imageio-ffmpeg does not report its exit status."""
    script = tmp_path / "ffmpeg"
    limited = (
        f'#!/bin/bash\nif [[ "$*" == *libx264* ]]; then ulimit -f 8; fi\nexec {mp4.find_ffmpeg()} "$@"\n'
    )
    script.write_text(limited)
    script.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(script))
    noise = Recording("noise", "test", 10)
    for frame in np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), dtype=np.uint8):
        noise.add(frame, Moment(1, 0, 0.0))
    with pytest.raises(VoidrlError, match="could not write"):
        write_video([noise], tmp_path / "film.mp4", height=64, labels=False)
    assert {p.name for p in tmp_path.iterdir()} == {"ffmpeg"}


def test_without_ffmpeg_one_sentence_names_what_installs_it(maze, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"a video needs imageio-ffmpeg.*pip install 'imageio-ffmpeg"):
        mp4.find_ffmpeg()
    assert main(["evaluate", str(maze), "--video", "out.mp4"]) == 2
    assert capsys.readouterr().err.startswith("voidrl: a video needs imageio-ffmpeg, which is not installed")


# The command


def test_the_command_records_what_an_evaluation_plays(maze, tmp_path, capsys):
    path = tmp_path / "out.mp4"
    words = ["--video", str(path), "--untrained", "--episodes", "2", "--height", "64", "--seed", "1"]
    assert main(["evaluate", str(maze), *words]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == str(path)
    evaluation = voidrl.evaluate(maze, episodes=2, seed=1, num_envs=1)
    episodes = [
        f"return {r:g} in {n} steps" for r, n in zip(evaluation.returns, evaluation.lengths, strict=True)
    ]
    assert out.splitlines()[0].startswith("untrained: ")
    assert out.splitlines()[1] == "apt, seed 3, 20 steps: " + "; ".join(episodes)
    assert "playing voidrl/PixelMaze-v0" in err
    assert len(decode(path).frames) >= sum(evaluation.lengths) + 2


def test_a_mistake_is_found_before_anything_is_played(maze, tmp_path, capsys):
    for name, reason in (("film.gif", "expected a name that ends in .mp4"), ("folder.mp4", "is a folder")):
        (tmp_path / "folder.mp4").mkdir(exist_ok=True)
        assert main(["evaluate", str(maze), "--video", str(tmp_path / name)]) == 2
        assert reason in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "nowhere"), "--video", "x.mp4"]) == 2
    assert main(["evaluate", str(maze), "--video", "x.mp4", "--json"]) == 2
    assert "--json cannot be used with --video" in capsys.readouterr().err


# Clips of a report


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_clip_is_a_short_film_of_the_newest_policy(maze, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "CLIP_SECONDS", 1.5)
    monkeypatch.setattr(gallery, "CLIP_HEIGHT", 42)
    before = contents(maze)
    data = gallery.make_clip(newest(maze))
    assert contents(maze) == before, "a run is looked at, not changed"
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    found = decode(path)
    assert (found.frames.shape, found.fps) == ((15, 42, 42, 3), 10)
    assert len(data) < 20_000
    assert data == gallery.make_clip(newest(maze))
    # A run of a GPU is shown on a CPU, without the rest of its checkpoint.
    saved = newest(maze)
    saved.meta["config"] |= {"device": "cuda", "engine": "compile", "precision": "auto"}
    monkeypatch.setitem(saved.files, "replay.safetensors", {"sha256": "", "bytes": 1, "tag": None})
    assert gallery.make_clip(saved) == data


def test_a_clip_that_cannot_be_made_is_a_sentence(tmp_path):
    folder = tmp_path / "walk"
    voidrl.train(Walk, steps=10, config=tiny(), out=folder)
    (weights,) = folder.glob("checkpoints/*/agent.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"agent\.safetensors is damaged: its sha256 is not the one"):
        gallery.make_clip(newest(folder))
