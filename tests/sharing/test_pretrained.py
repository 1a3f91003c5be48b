"""Saving and loading agents in the Hub's layout: round trips, kills, damage and refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import CONTINUOUS, DISCRETE, PIXELS, fill_replay, make_agent, moved, snapshot
from tiny_runs import MAZE, Walk, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.config import without_local_fields
from voidrl.errors import CheckpointError, ConfigError, RunFolderError, SpaceError
from voidrl.runs import checkpoint, tensor_files
from voidrl.sharing import pretrained

ROOT = Path(__file__).parents[2]
FILES = {"config.json", "model.safetensors", "README.md"}


def observations(spec, n=20):
    rng = np.random.default_rng(0)
    shape = (n, *((spec.frame_stack,) if spec.frame_stack > 1 else ()), *spec.raw_shape)
    if spec.pixels:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.normal(size=shape).astype(np.float32)


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def reseal(folder, **changes):
    """A config.json with other values, as a voidrl would have written it."""
    data = {**config_of(folder), **changes}
    del data["sha256"]
    (folder / "config.json").write_text(json.dumps({**data, "sha256": checkpoint.seal(data)}))


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
    obs = observations(spec)
    for loaded in (voidrl.from_pretrained(folder, device="cpu"), voidrl.load(str(folder), device="cpu")):
        assert np.array_equal(loaded.act(obs), agent.act(obs))
        assert not moved(agent.tensors(), loaded.tensors())
        assert (loaded.steps, loaded.spec, loaded.config) == (12, spec, without_local_fields(agent.config))


def test_pretrained_here_loaded_and_fine_tuned_in_a_clean_process(tmp_path, run):
    agent = voidrl.load(run, device="cpu")
    voidrl.save_pretrained(agent, tmp_path / "agent")
    obs = observations(agent.spec)
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


def test_the_weights_are_those_of_the_checkpoint_byte_for_byte(tmp_path, run):
    folder = voidrl.save_pretrained(voidrl.load(run, device="cpu"), tmp_path / "agent")
    newest = checkpoint.latest(run / "checkpoints", print)
    assert (folder / "model.safetensors").read_bytes() == (newest.path / "agent.safetensors").read_bytes()
    assert config_of(folder)["weights"]["sha256"] == newest.files["agent.safetensors"]["sha256"]


def test_every_command_takes_the_folder(tmp_path, run, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    voidrl.save_pretrained(voidrl.load(run, device="cpu"), "agent")
    assert cli.main(["evaluate", "agent", "--episodes", "1", "--device", "cpu"]) == 0
    assert "over 1 episodes" in capsys.readouterr().out
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
    (tmp_path / "agent" / "notes.txt").write_text("mine")
    voidrl.save_pretrained(second, tmp_path / "agent")
    loaded = voidrl.from_pretrained(tmp_path / "agent", device="cpu")
    assert loaded.steps == 100
    assert not moved(second.tensors(), loaded.tensors())
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {*FILES, "notes.txt"}


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


def test_hidden_files_are_ignored_and_kept(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    voidrl.save_pretrained(make_agent(), tmp_path)
    assert (tmp_path / ".gitattributes").read_text() == "*.safetensors filter=lfs\n"
    assert (tmp_path / ".git").is_dir()


def test_a_folder_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot save the agent.*choose a writable folder"):
        voidrl.save_pretrained(make_agent(), tmp_path / "file" / "agent")


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


def test_a_disk_that_fails_once_the_new_agent_is_there_does_not_lose_it(saved, monkeypatch):
    def failing(path):
        raise OSError(5, "Input/output error")

    new = make_agent(seed=9)
    new.steps = 13
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_sync", failing)  # config.json has its new name when it is called
        with pytest.raises(CheckpointError, match=r"cannot write .*config\.json: Input/output error"):
            voidrl.save_pretrained(new, saved)
    loaded = voidrl.from_pretrained(saved, device="cpu")
    assert loaded.steps == 13
    assert not moved(new.tensors(), loaded.tensors())


class Killed(BaseException):
    pass


@pytest.fixture
def save_until(monkeypatch):
    """`save_until(moment, agent, folder)`: whether it was saved before the process died at that moment."""
    write, replace = tensor_files.write_synced, Path.replace

    def save_until(moment, agent, folder):
        left = [moment]

        def may_die(path):
            if path.parent == folder:  # not another thread's file
                left[0] -= 1
                if left[0] < 0:
                    raise Killed

        def dying_write(path, blocks):
            path.write_bytes(b"half a file")  # as a kill leaves it
            may_die(path)
            return write(path, blocks)

        def dying_replace(path, target):
            may_die(path)
            return replace(path, target)

        with monkeypatch.context() as patched:
            for module in (checkpoint, tensor_files):
                patched.setattr(module, "write_synced", dying_write)
            patched.setattr(Path, "replace", dying_replace)
            try:
                voidrl.save_pretrained(agent, folder)
            except Killed:
                return False
        return True

    return save_until


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "over"])
def test_a_kill_at_any_moment_leaves_the_old_agent_or_the_new(tmp_path, save_until, fresh):
    old, new = make_agent(seed=1), make_agent(seed=2)
    old.steps, new.steps = 1, 2
    weights = {agent.steps: snapshot(agent.tensors()) for agent in (old, new)}

    def there(folder):
        """The steps of the agent in the folder, whose weights are its own; 0 where there is none."""
        if fresh and not pretrained.is_pretrained(folder):
            with pytest.raises(CheckpointError, match="holds no agent saved by"):
                voidrl.from_pretrained(folder)
            return 0
        loaded = voidrl.from_pretrained(folder, device="cpu")
        assert not moved(weights[loaded.steps], loaded.tensors())
        return loaded.steps

    seen, moment, saved = [], 0, False
    while not saved:
        folder = tmp_path / str(moment)
        if not fresh:
            voidrl.save_pretrained(old, folder)
        saved = save_until(moment, new, folder)
        seen.append(there(folder))
        save_until(0, old, folder)  # nor does it matter if the next save dies too
        assert there(folder) == seen[-1]
        voidrl.save_pretrained(new, folder)
        assert there(folder) == 2
        assert {path.name for path in folder.iterdir()} == FILES  # nothing of all that stays behind
        moment += 1
    before = 0 if fresh else 1
    assert seen == sorted(seen)  # before some moment the old one, from then on the new one
    assert {*seen} == {before, 2}
    assert moment > 5


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
    for version, writer in ((1, "0.1.0"), (2, "0.2.0")):
        reseal(saved, format=version, voidrl=writer)
        why = rf"written by voidrl {writer} in format {version} .*: use voidrl {writer}, or train"
        with pytest.raises(CheckpointError, match=why):
            voidrl.from_pretrained(saved)
    voidrl.save_pretrained(make_agent(), saved)  # a new agent may replace it
    assert voidrl.from_pretrained(saved, device="cpu").steps == 0


def test_newer_formats_are_refused_and_not_overwritten(saved):
    reseal(saved, format=4, voidrl="9.0")
    with pytest.raises(
        CheckpointError, match=r"by voidrl 9\.0 in format 4 .* reads format 3: upgrade voidrl"
    ):
        voidrl.from_pretrained(saved)
    with pytest.raises(CheckpointError, match="holds an agent of format 4, newer than 3: choose another"):
        voidrl.save_pretrained(make_agent(), saved)


def test_an_incomplete_config_is_refused_in_a_sentence(saved):
    reseal(saved, spec={"frame_shape": [4]})
    with pytest.raises(CheckpointError, match=r"config\.json: spec = .* expected an object with frame_shape"):
        voidrl.from_pretrained(saved)
    reseal(saved, spec=DISCRETE.to_json(), config={"leraner": {}})
    with pytest.raises(ConfigError, match="unknown config field 'leraner'; did you mean 'learner'"):
        voidrl.from_pretrained(saved)


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
    with pytest.raises(ConfigError, match="revision = 'v1' cannot be used with the folder"):
        voidrl.from_pretrained(tmp_path, revision="v1")


def test_an_environment_with_other_spaces_is_refused(saved):
    with pytest.raises(SpaceError, match="expected the same spaces on both sides"):
        voidrl.finetune(saved, Walk, steps=9)


def test_names_exist():
    for name in ("from_pretrained", "save_pretrained", "push_to_hub"):
        assert getattr(voidrl, name) is getattr(pretrained, name)
        assert name in voidrl.__all__
