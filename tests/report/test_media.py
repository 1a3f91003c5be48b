"""Clips of runs for a report."""

import json
import subprocess
import sys

import pytest
from decoding import decode
from tiny_runs import MAZE, Walk, tiny

import voidrl
from voidrl.errors import CheckpointError, ConfigError, MissingExtraError
from voidrl.report import media
from voidrl.runs.checkpoint import seal


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "maze"
    voidrl.pretrain(MAZE, steps=20, config=tiny(), out=folder)
    return folder


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_clip_is_a_short_film_of_the_policy(maze, tmp_path):
    before = contents(maze)
    data = media.clip(maze, seconds=1.5, height=42)
    assert contents(maze) == before, "a run is looked at, not changed"
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    found = decode(path)
    assert found.frames.shape == (15, 42, 42, 3)
    assert found.fps == 10
    assert "h264" in found.about
    assert "yuv420p" in found.about
    assert data.index(b"moov") < data.index(b"mdat")
    assert len(data) < 20_000
    assert data == media.clip(maze, seconds=1.5, height=42)


def test_a_run_of_a_gpu_is_shown_on_a_cpu(maze, tmp_path):
    folder = tmp_path / "run"
    voidrl.pretrain(MAZE, steps=20, config=tiny(), out=folder)
    (manifest,) = folder.glob("checkpoints/*/manifest.json")
    fields = json.loads(manifest.read_text())
    fields["meta"]["config"] |= {"device": "cuda", "engine": "compile", "precision": "auto"}
    del fields["sha256"]
    manifest.write_text(json.dumps({**fields, "sha256": seal(fields)}))
    assert media.newest_agent(folder).device.type == "cpu"
    assert media.clip(folder, seconds=0.3, height=42)


def test_the_newest_agent_is_the_one_that_is_loaded(maze):
    agent = media.newest_agent(maze)
    other = voidrl.load(maze)
    assert all((value == other.tensors()[name]).all() for name, value in agent.tensors().items())
    assert agent.steps == other.steps == 20


def test_what_cannot_be_shown_is_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        media.clip(tmp_path)
    folder = tmp_path / "walk"
    monkeypatch.setattr(sys.modules[__name__], "Walk", Walk)
    voidrl.train(f"{__name__}:Walk", steps=10, config=tiny(), out=folder)
    with pytest.raises(ConfigError, match="cannot be shown: it has no render mode"):
        media.clip(folder)
    (weights,) = folder.glob("checkpoints/*/agent.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"agent\.safetensors is damaged: its sha256 is not the one"):
        media.clip(folder)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'imageio-ffmpeg"):
        media.clip(folder)


def test_importing_it_is_cheap():
    code = "import sys, voidrl.report.media; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
