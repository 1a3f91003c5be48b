"""Saving and loading agents in the Hub's layout: round trips, kills, damage and refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import CONTINUOUS, DISCRETE, PIXELS, fill_replay, make_agent, moved, obs_of
from tiny_runs import MAZE, Walk, sealed, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.config import without_local_fields
from voidrl.errors import CheckpointError, ConfigError, RunFolderError
from voidrl.runs import checkpoint, tensor_files

ROOT = Path(__file__).parents[2]
FILES = {"config.json", "model.safetensors", "README.md"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "maze"
    voidrl.pretrain(MAZE, steps=20, out=folder, config=tiny(log__keep_last=2, log__checkpoint_every_steps=10))
    return folder


@pytest.fixture
def saved(tmp_path):
    agent = make_agent()
    agent.steps = 12
    return voidrl.save_pretrained(agent, tmp_path / "agent")


# Round trips


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS, PIXELS], ids=["discrete", "continuous", "pixels"])
def test_a_saved_agent_acts_alike(spec, tmp_path):
    agent = make_agent(spec, seed=5, share_encoder="all" if spec.pixels else "nothing")
    agent.update(fill_replay(spec))
    agent.steps = 12
    folder = voidrl.save_pretrained(agent, tmp_path / "new" / "agent")
    assert {path.name for path in folder.iterdir()} == FILES
    obs = obs_of(spec, 20)
    for loaded in (voidrl.from_pretrained(folder, device="cpu"), voidrl.load(str(folder), device="cpu")):
        assert np.array_equal(loaded.act(obs), agent.act(obs))
        assert not moved(agent.tensors(), loaded.tensors())
        assert (loaded.steps, loaded.spec, loaded.config) == (12, spec, without_local_fields(agent.config))


def test_pretrained_here_loaded_and_fine_tuned_in_a_clean_process(tmp_path, run):
    agent = voidrl.load(run, device="cpu")
    voidrl.save_pretrained(agent, tmp_path / "agent")
    obs = obs_of(agent.spec, 20)
    np.save(tmp_path / "obs.npy", obs)
    code = """
import numpy as np, torch, voidrl
torch.set_num_threads(1)
agent = voidrl.from_pretrained("agent", device="cpu")
np.save("actions.npy", agent.act(np.load("obs.npy")))
tuned = voidrl.finetune(agent, steps=15, out="tuned")
voidrl.save_pretrained(tuned, "tuned-agent")
"""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "actions.npy"), agent.act(obs))
    there = voidrl.from_pretrained(tmp_path / "tuned-agent", device="cpu")
    here = voidrl.finetune(agent, steps=15, out=tmp_path / "here")
    assert there.steps == here.steps == 35
    assert not moved(here.tensors(), there.tensors())  # bit for bit


def test_every_command_takes_the_folder(tmp_path, run, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    voidrl.save_pretrained(voidrl.load(run, device="cpu"), "agent")
    assert cli.main(["evaluate", "agent", "--episodes", "1", "--device", "cpu"]) == 0
    assert "over 1 episode\n" in capsys.readouterr().out
    assert cli.main(["finetune", "agent", "--steps", "12", "--out", "task"]) == 0
    assert voidrl.load("task", device="cpu").steps == 32
    with pytest.raises(RunFolderError, match=r"agent holds an agent without replay.*`voidrl finetune`"):
        voidrl.resume("agent")
    with pytest.raises(RunFolderError, match=r"agent is not empty and holds no voidrl run"):
        voidrl.pretrain(Walk, steps=9, out="agent", config=tiny(), overwrite=True)


# Saving where something is


def test_a_later_save_replaces_the_earlier_whatever_its_steps(tmp_path):
    first, second = make_agent(seed=1), make_agent(DISCRETE, seed=2, learner__hidden_dim=8)
    first.steps, second.steps = 300, 100
    voidrl.save_pretrained(first, tmp_path / "agent")
    for name in ("notes.txt", ".gitattributes"):
        (tmp_path / "agent" / name).write_text("mine")
    voidrl.save_pretrained(second, tmp_path / "agent")
    loaded = voidrl.from_pretrained(tmp_path / "agent", device="cpu")
    assert loaded.steps == 100
    assert not moved(second.tensors(), loaded.tensors())
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {*FILES, "notes.txt", ".gitattributes"}


def test_folders_without_a_saved_agent_are_left_untouched(tmp_path, run):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    for folder in (tmp_path / "photos", tmp_path / "bert", run, run / "checkpoints"):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(CheckpointError, match=r"is not empty and holds no saved agent.*choose another"):
            voidrl.save_pretrained(make_agent(), folder)
        assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="is a file: choose a folder"):
        voidrl.save_pretrained(make_agent(), tmp_path / "photos" / "one.jpg")
    with pytest.raises(CheckpointError, match=r"cannot save the agent.*choose a writable folder"):
        voidrl.save_pretrained(make_agent(), tmp_path / "photos" / "one.jpg" / "agent")
    (tmp_path / "empty" / ".git").mkdir(parents=True)  # hidden
    voidrl.save_pretrained(make_agent(), tmp_path / "empty")


def test_a_full_disk_leaves_the_old_agent(saved, monkeypatch):
    def full(path, blocks):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        for module in (checkpoint, tensor_files):
            patched.setattr(module, "write_synced", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            voidrl.save_pretrained(make_agent(seed=9), saved)
    assert {path.name for path in saved.iterdir()} == FILES
    assert voidrl.from_pretrained(saved, device="cpu").steps == 12


# Loading what is damaged or not ours


def test_damaged_weights_are_refused(saved):
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated: \d+ bytes expected"):
        voidrl.from_pretrained(saved)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: its sha256"):
        voidrl.load(saved)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    with pytest.raises(CheckpointError, match=r"is a Git LFS pointer, not the weights.*`git lfs pull`"):
        voidrl.from_pretrained(saved)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        voidrl.from_pretrained(saved)


def test_an_edited_config_is_refused(saved):
    text = (saved / "config.json").read_text()
    (saved / "config.json").write_text(text.replace('"discount": 0.99', '"discount": 0.98'))
    with pytest.raises(CheckpointError, match=r"config\.json was damaged or edited.*save the agent again"):
        voidrl.load(saved)


def test_older_formats_are_refused_with_the_version_that_wrote_them(saved):
    path = saved / "config.json"
    path.write_text(sealed({**json.loads(path.read_text()), "format": 2, "voidrl": "0.2.0"}))
    why = r"written by voidrl 0\.2\.0 in format 2 .*: use voidrl 0\.2\.0, or train"
    with pytest.raises(CheckpointError, match=why):
        voidrl.from_pretrained(saved)
    voidrl.save_pretrained(make_agent(), saved)  # a new agent may replace it
    assert voidrl.from_pretrained(saved, device="cpu").steps == 0


def test_other_folders_are_refused_with_what_to_do(tmp_path, run):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    for folder in (tmp_path, tmp_path / "bert", run, run / "checkpoints"):
        with pytest.raises(
            CheckpointError, match=r"holds no agent saved by `voidrl\.save_pretrained`.*`voidrl\.load`"
        ):
            voidrl.from_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"there is nothing at '.*nowhere': expected the folder"):
        voidrl.from_pretrained(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="revision = 'v1' is for agents on the Hub"):
        voidrl.from_pretrained(tmp_path, revision="v1")
