"""A run folder is found from anywhere inside it, never shared, and never takes a user's files with it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
import torch

from voidrl.errors import RunFolderError, VoidrlWarning
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.runs import folder as runfolder
from voidrl.runs.checkpoint import write_json_atomic
from voidrl.runs.folder import RunFolder, default_run_path, environment_info
from voidrl.training.metrics import MetricsWriter


def create(path, *, overwrite=False):
    with RunFolder.create(path, overwrite=overwrite) as folder:
        return folder


@pytest.fixture(scope="module")
def run_template(tmp_path_factory):
    """A run with something in each of its places."""
    folder = create(tmp_path_factory.mktemp("runs") / "maze")
    folder.config_path.write_text("{}")
    (folder.path / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder.path / "tb").mkdir()
    (folder.checkpoints_path / "step_1").mkdir()
    (folder.checkpoints_path / "step_1" / "config.json").write_text("{}")
    folder.log("started")
    return folder.path


@pytest.fixture
def run(run_template, tmp_path):
    shutil.copytree(run_template, tmp_path / "runs" / "maze")
    return RunFolder(tmp_path / "runs" / "maze")


def names(path):
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize("name", ["", "deep/run"])  # an empty folder, and none
def test_create_makes_a_folder_that_says_where_it_was_made(tmp_path, name):
    folder = create(tmp_path / name)
    assert names(folder.path) == [".lock", "checkpoints", "environment.json"]
    versions = json.loads(folder.environment_path.read_text())["versions"]
    assert torch.__version__.startswith(versions["torch"])  # for CUDA it may have "+cu130" at the end


def test_create_refuses_a_run_and_names_the_remedies(run):
    before = names(run.path)
    with pytest.raises(RunFolderError, match="already holds a run") as error:
        create(run.path)
    assert "overwrite=True" in str(error.value)
    assert f"voidrl.resume({str(run.path)!r})" in str(error.value)
    assert names(run.path) == before


def test_overwrite_removes_our_files_and_only_ours(run, tmp_path):
    (run.path / "notes.md").write_text("mine")
    elsewhere = tmp_path / "big disk"
    elsewhere.mkdir()
    (elsewhere / "weights").write_text("1")
    shutil.rmtree(run.checkpoints_path)
    run.checkpoints_path.symlink_to(elsewhere)
    create(run.path, overwrite=True)
    assert names(run.path) == [".lock", "checkpoints", "environment.json", "notes.md"]
    assert not run.checkpoints_path.is_symlink()
    assert (elsewhere / "weights").exists()


FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def die_at(event, begin, tmp_path):
    """In a child: SIGKILL at the given file event of `begin`, counted from 0; whether it came that far."""
    pid = os.fork()
    if pid == 0:
        seen = [0]

        def count(name, args):
            if name in FILE_EVENTS and str(tmp_path) in str(args):
                if seen[0] == event:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen[0] += 1

        sys.addaudithook(count)
        begin()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_at_any_file_event_of_a_start_leaves_a_folder_that_the_same_command_takes(
    tmp_path, monkeypatch, overwrite
):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(runfolder, "environment_info", lambda: {"date": "now", "versions": {"voidrl": "1"}})
    killed = 0
    for event in range(100):
        path = default_run_path("PixelMaze-v0", "apt", 1, tmp_path)
        assert path.name == "PixelMaze-v0_apt_s1"

        def begin(path=path):
            with RunFolder.create(path, overwrite=overwrite) as folder:
                write_json_atomic(folder.config_path, {})

        if overwrite:  # it is killed while it removes the run that is there
            begin()
        if not die_at(event, begin, tmp_path):
            break
        killed += 1
        if overwrite or not (path / "config.json").exists():
            with suppress(FileNotFoundError):
                (path / "config.json").unlink()
            with pytest.raises(RunFolderError, match=r"same command|holds no config\.json$|does not exist"):
                RunFolder.open(path)
            begin()
        assert names(path) == [".lock", "checkpoints", "config.json", "environment.json"]
        shutil.rmtree(path)
    assert killed > 5


def test_a_run_and_an_experiment_never_share_a_folder(run, tmp_path):
    experiment = tmp_path / "experiment"
    experiment.mkdir()
    (experiment / ".cells").mkdir()  # what a killed start of an experiment leaves
    for overwrite in (False, True):
        with pytest.raises(RunFolderError, match="holds an experiment, so no run can begin there"):
            create(experiment, overwrite=overwrite)
    with pytest.raises(RunFolderError, match="holds a run, so no experiment can be kept there"):
        make_plan(read_experiment("demo"), ExperimentRequest(), run.path)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_log_has_timestamped_lines_and_warns_once_if_it_cannot_be_written(run, tmp_path, kind):
    run.log("nan in reward\nat step 5\n")
    _, second, third = run.log_path.read_text().splitlines()
    stamp, _, text = second.partition(" ")
    assert datetime.fromisoformat(stamp).utcoffset().total_seconds() == 0
    assert (text, third) == ("nan in reward", "    at step 5")
    run.log_path.unlink()
    elsewhere = tmp_path / "mine"
    elsewhere.write_text("mine")
    make = {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(elsewhere), "folder": os.mkdir}[kind]
    make(run.log_path)
    with pytest.warns(VoidrlWarning, match=r"cannot write to .*log\.txt") as caught:
        [run.log(text) for text in ("first", "second")]
    assert len(caught) == 1
    assert elsewhere.read_text() == "mine"
    run.path.joinpath("metrics.jsonl").unlink()
    make(run.path / "metrics.jsonl")
    with pytest.raises(RunFolderError, match="is no ordinary file"):
        MetricsWriter(run.path, tensorboard=False)


@pytest.mark.parametrize(
    "environment", [None, '{"versions": {"node": "20"}}', "not json", "[" * 200_000, os.mkfifo]
)
def test_a_folder_that_is_no_run_is_refused_even_with_overwrite(tmp_path, environment):
    (tmp_path / "config.json").write_text("the config of something else")
    (tmp_path / "checkpoints").mkdir()
    if environment is os.mkfifo:  # it would be waited for without end
        os.mkfifo(tmp_path / "environment.json")
    elif environment is not None:
        (tmp_path / "environment.json").write_text(environment)
    before = names(tmp_path)
    with pytest.raises(RunFolderError, match="holds no voidrl run"):
        create(tmp_path, overwrite=True)
    assert names(tmp_path) == before
    with pytest.raises(RunFolderError, match="is a file"):
        create(tmp_path / "config.json", overwrite=True)


@pytest.mark.parametrize("inside", [".", "metrics.jsonl", "checkpoints/step_1/config.json"])
def test_open_finds_the_run_from_inside_it(run, inside):
    assert RunFolder.open(run.path / inside).path == run.path


def test_open_refuses_what_is_no_run(run, tmp_path):
    with pytest.raises(RunFolderError, match=r"no run at .*nowhere: the path does not exist"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="does not exist"):
        RunFolder.open(run.checkpoints_path / "step_2")
    with pytest.raises(
        RunFolderError, match=r"is no run: it holds no config\.json; did you mean .*runs/maze"
    ):
        RunFolder.open(tmp_path / "runs")
    with pytest.raises(RunFolderError, match=r"is no run: it holds no config\.json$"):
        RunFolder.open(tmp_path)


def git(*arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_environment_info_describes_the_machine_and_the_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["voidrl", "pretrain", "a b"])
    info = json.loads(json.dumps(environment_info(), allow_nan=False))
    assert (info["command"], info["git"]) == ("voidrl pretrain 'a b'", None)
    assert set(info["versions"]) == {"python", "voidrl", "torch", "numpy", "gymnasium"}
    Path("train.py").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    # Programs of a repository that may be a stranger's: git would run them to compare its files.
    for name in ("filter.evil.clean", "filter.evil.process", "core.fsmonitor"):
        git("config", name, "touch ran; cat")
    Path(".gitattributes").write_text("*.py filter=evil\n")
    Path("train.py").write_text("2")
    found = environment_info()["git"]
    assert ([*found], len(found["commit"]), Path("ran").exists()) == (["commit"], 40, False)


def test_in_voidrls_own_clone_changed_files_are_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runfolder, "__file__", str(tmp_path / "src" / "voidrl" / "runs" / "folder.py"))
    Path("train.py").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert environment_info()["git"]["clean"] is True
    Path("train.py").write_text("2")
    assert environment_info()["git"]["clean"] is False


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("voidrl/PixelMaze-v0", "PixelMaze-v0_apt_s1"),
        ("voidrl/PixelMaze-v0?size=13&goal=far", "PixelMaze-v0-size=13-goal=far_apt_s1"),
        (f"Maze-v0?walls={'1' * 99}", f"Maze-v0-walls={'1' * 54}_apt_s1"),
    ],
)
def test_default_run_path(tmp_path, env_id, name):
    assert default_run_path(env_id, "apt", 1, tmp_path) == tmp_path / name
    assert default_run_path(env_id, "apt", 1) == Path("runs") / name


def test_a_default_path_is_short_enough_for_the_file_system_and_still_counts_up(tmp_path):
    env_id = f"package.{'ü' * 300}:make_env"
    paths = []
    for _ in range(2):
        paths.append(default_run_path(env_id, "apt", 1, tmp_path))
        create(paths[-1]).config_path.write_text("{}")
    assert [path.name[-16:] for path in paths] == ["-make_env_apt_s1", "ke_env_apt_s1-02"]


def test_what_a_failed_start_leaves_is_no_run_and_a_config_is(tmp_path):
    create(tmp_path / "failed").log("no such level")
    assert not RunFolder(tmp_path / "failed").holds_run
    with pytest.raises(RunFolderError, match=r"holds no run yet, .*run the same command again"):
        RunFolder.open(tmp_path / "failed")
    folder = create(tmp_path / "run")
    assert not folder.holds_run
    folder.config_path.write_text("{}")
    folder.environment_path.unlink()
    assert folder.holds_run


def test_unnamed_runs_that_begin_at_once_get_a_folder_each(tmp_path, monkeypatch):
    choose = runfolder.default_run_path
    late = [tmp_path / "run_apt_s1"]  # chosen by both before either has made it
    monkeypatch.setattr(runfolder, "default_run_path", lambda *name: late.pop() if late else choose(*name))
    with (
        RunFolder.create(tmp_path / "run_apt_s1"),
        RunFolder.create_unnamed("run", "apt", 1, tmp_path) as second,
    ):
        assert second.path.name == "run_apt_s1-02"
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot make the run folder"):  # and does not try forever
        RunFolder.create_unnamed("run", "apt", 1, tmp_path / "file").__enter__()


def test_a_folder_in_use_is_refused_and_its_process_named(run):
    with run.lock():
        assert run.lock_path.read_text().startswith(f"{os.getpid()} on ")
        with (
            pytest.raises(RunFolderError, match=f"maze is in use by process {os.getpid()} on "),
            RunFolder(run.path).lock(),
        ):
            pass
        with pytest.raises(RunFolderError, match="is in use"):
            create(run.path, overwrite=True)
    assert run.config_path.exists()
    with run.lock():
        pass
