"""The same experiment here, on Ray and on SLURM: a cell or its node is killed, and all cells are done."""

import os
import re
import signal
import subprocess
import sys

import fake_slurm
import pytest
from tiny_runs import assert_same_run, until

from voidrl.cli import main as cli
from voidrl.errors import ConfigError
from voidrl.experiments.executors import make_options, slurm
from voidrl.experiments.executors import ray as ray_executor
from voidrl.runs.status import read_status
from voidrl.system.machine import CORES

FILE = """
title = "Walks"
tasks = ["mortal:make"]
seeds = [1, 2]
threads = 1
[config]
env = { num_envs = 1, backend = "sync" }
warmup_steps = 8
updates_per_step = 0.25
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
log = { tensorboard = false, log_every_steps = 20, checkpoint_every_steps = 40 }
[pretrain]
steps = 240
[finetune]
steps = 60
config = { finetune.warmup_steps = 4 }
[evaluation]
episodes = 2
[methods.apt]
method = "apt"
"""
# The first process that comes to step 130 of an environment ends itself, or the node that it is on.
MORTAL = """
import os, signal, time
from contextlib import suppress
from pathlib import Path
from tiny_runs import Walk

HERE = Path(__file__).parent

class Mortal(Walk):
    steps, is_victim = 0, False

    def step(self, action):
        self.steps += 1
        if self.steps == 130:
            with suppress(FileNotFoundError):  # of two cells at this step, one is the victim
                self.is_victim = bool((HERE / "victim").rename(HERE / "taken"))
        if self.is_victim and self.steps == 130:
            victim = (HERE / "taken").read_text()
            if victim == "cell":
                os.kill(os.getpid(), signal.SIGKILL)
            worker = os.getppid()
            raylet = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
            for process in (raylet, worker):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.5 * self.is_victim)  # until it learns that its node is gone
        return super().step(action)

def make():
    return Mortal()
"""
CELLS = [f"mortal-make/{arm}/seed{seed}" for seed in (1, 2) for arm in ("apt-pretrain", "apt")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the experiment's file, whose environment ends one process."""
    (tmp_path / "walks.toml").write_text(FILE)
    (tmp_path / "mortal.py").write_text(MORTAL)
    (tmp_path / "victim").write_text("cell")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    yield tmp_path
    sys.modules.pop("mortal", None)


def words(folder, on, *more, out="out"):
    options = ["--on", on, "--out", str(folder / out), "--device", "cpu", "--no-report"]
    return ["experiment", str(folder / "walks.toml"), *options, *more]


def starts(folder, cell):
    return (folder / "out/logs" / f"{cell}.log").read_text().count(" experiment ")


def assert_all_done_and_one_resumed(folder):
    assert not (folder / "victim").exists()
    assert [read_status(folder / "out" / cell).state for cell in CELLS] == ["done"] * 4
    assert (folder / "out" / CELLS[-1] / "evaluation.json").exists()
    [killed] = [cell for cell in CELLS if starts(folder, cell) > 1]
    assert starts(folder, killed) == 2
    resumed = re.findall(r"resumed at step (\d+)", (folder / "out" / killed / "log.txt").read_text())
    assert [120 <= int(step) < 240 for step in resumed] == [True]
    return killed


def test_a_killed_cell_is_started_again_here(folder, capfd):
    assert cli.main(words(folder, "local", "--jobs", "2")) == 0
    assert "its process was ended by SIGKILL; the kernel does that" in capfd.readouterr().err
    assert_all_done_and_one_resumed(folder)


def checkpoint_of(folder):
    status = read_status(folder) if folder.is_dir() else None
    return 0 if status is None else status.checkpoint or 0


# Ray


@pytest.mark.slow
def test_ray_runs_a_killed_cell_again_and_it_equals_a_local_one_that_was_not_killed(folder):
    pytest.importorskip("ray")
    assert cli.main(words(folder, "ray")) == 0
    killed = assert_all_done_and_one_resumed(folder)
    assert cli.main(words(folder, "local", "--seeds", killed[-1], out="other")) == 0
    for cell in (killed, killed.replace("-pretrain", "")):
        assert_same_run(folder / "out" / cell, folder / "other" / cell)


@pytest.mark.slow
def test_ray_runs_the_cells_of_a_killed_node_on_another(folder):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    (folder / "victim").write_text("node")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        assert cli.main(words(folder, "ray", "--address", cluster.address)) == 0
    finally:
        cluster.shutdown()
    assert_all_done_and_one_resumed(folder)


@pytest.mark.slow
def test_a_stopped_command_stops_its_runs_on_ray_with_checkpoints(folder):
    pytest.importorskip("ray")
    (folder / "walks.toml").write_text(FILE.replace("steps = 240", "steps = 1_000_000"))
    (folder / "victim").unlink()
    command = [sys.executable, "-m", "voidrl", *words(folder, "ray", "--cpus-per-cell", "0.5")]
    first = folder / "out" / CELLS[0]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as driver:
        until(lambda: checkpoint_of(first) > 100 or driver.poll() is not None, 120)
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=120)
    assert driver.returncode == 75
    assert "to resume, run the same command again" in said
    status = read_status(first)
    assert (status.state, status.checkpoint) == ("stopped", status.steps)


def test_resources_that_ray_reserves():
    nodes = [{"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}]

    def resources(device, nodes=nodes, **options):
        return ray_executor.resources_per_cell(ray_executor.Options(**options), device, nodes)

    assert resources("cpu") == {"num_cpus": 1.0, "num_gpus": 0.0}
    assert resources("auto", cpus_per_cell=4.0) == {"num_cpus": 4.0, "num_gpus": 1.0}
    assert resources("auto", nodes[:1]) == {"num_cpus": 1.0, "num_gpus": 0.0}
    assert resources("cuda", gpus_per_cell=0.25) == {"num_cpus": 1.0, "num_gpus": 0.25}
    with pytest.raises(
        ConfigError, match=r"--cpus-per-cell 8 .* no node of the cluster has more than 4 CPUs"
    ):
        resources("cpu", cpus_per_cell=8.0)
    with pytest.raises(ConfigError, match=r"--gpus-per-cell 0\.5 cannot be used with --device cpu"):
        resources("cpu", gpus_per_cell=0.5)
    with pytest.raises(ConfigError, match="no node of the cluster has more than 0 GPUs"):
        resources("cuda", nodes[:1])


def test_a_cell_on_ray_has_the_cores_that_ray_reserved(monkeypatch):
    started = []
    monkeypatch.setattr(ray_executor, "start_cell", lambda job, variables: started.append(variables))
    monkeypatch.setattr(ray_executor, "wait_for_cell", lambda process: 0)
    assert ray_executor.run_cell({}, 4) == 0
    assert started == [{CORES: "4"}]


def test_no_ray_cluster_at_the_address(folder, capsys):
    pytest.importorskip("ray")
    assert cli.main(words(folder, "ray", "--address", "127.0.0.1:1")) == 2
    assert "no Ray cluster could be reached at --address 127.0.0.1:1" in capsys.readouterr().err
    assert not (folder / "out").exists()


# SLURM


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """The state of a SLURM whose commands are in PATH."""
    pytest.importorskip("submitit")
    commands = fake_slurm.install(tmp_path / "cluster")
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(fake_slurm, "STATE", str(tmp_path / "cluster/state"))
    yield tmp_path / "cluster/state"
    for task in fake_slurm.tasks():  # none is left, whatever failed
        if fake_slurm.read(task)["state"] == "RUNNING":
            os.killpg(int(fake_slurm.read(task)["pgid"]), signal.SIGKILL)


@pytest.mark.slow
def test_slurm_runs_a_killed_cell_again(folder, queue):
    assert cli.main(words(folder, "slurm", "--hours", "0.2")) == 0
    assert_all_done_and_one_resumed(folder)
    calls = (queue / "calls.log").read_text()
    assert calls.count("sbatch") == 4  # pre-trainings, the killed one, and a fine-tuning after each
    assert cli.main(words(folder, "slurm")) == 0
    assert (queue / "calls.log").read_text() == calls  # what is done asks SLURM nothing


@pytest.mark.slow
def test_slurm_requeues_at_the_limit_while_the_command_is_away(folder, queue):
    (folder / "victim").unlink()
    (folder / "walks.toml").write_text(FILE.replace("steps = 240", "steps = 2_400"))
    command = [sys.executable, "-m", "voidrl", *words(folder, "slurm", "--hours", "0.2")]
    first = folder / "out" / CELLS[0]
    with subprocess.Popen(command) as driver:
        until(lambda: checkpoint_of(first) > 100 or driver.poll() is not None, 120)
        driver.kill()
    fake_slurm.send("101_0", signal.SIGUSR2)  # the signal before the limit
    until(lambda: "scontrol requeue 101_0" in (queue / "calls.log").read_text(), 120)
    assert cli.main(words(folder, "slurm", "--hours", "0.2")) == 0
    assert [read_status(folder / "out" / cell).state for cell in CELLS] == ["done"] * 4
    assert [starts(folder, cell) for cell in CELLS] == [2, 1, 1, 1]
    assert fake_slurm.read("101_0")["requeues"] == "1"
    assert not [*(folder / "out/.cells").rglob("*.job")]


def test_the_script_of_an_array(queue, tmp_path):
    given = {"partition": "gpu", "mem": "64G", "max_running": 2, "hours": 12.0, "cpus_per_cell": 8}
    options = make_options("slurm", {**given, "slurm_option": ("account=rl", "exclusive")})
    executor = slurm.Slurm(tmp_path, "voidrl-own", options, "auto")
    for i in range(3):
        executor.submit({"root": str(tmp_path), "cell": f"a/s{i}"})
    executor.poll()  # submits them
    text = (tmp_path / "slurm/101_submission.sh").read_text()
    for line in (
        "array=0-2%2", "cpus-per-task=8", "gpus-per-node=1", "job-name=voidrl-own", "mem=64G", "account=rl",
        "partition=gpu", "requeue", "signal=USR2@300", "time=720", "exclusive",
    ):  # fmt: skip
        assert f"#SBATCH --{line}\n" in text
    assert slurm.Slurm(tmp_path, "voidrl-own", options, "auto").attach(["a/s0", "b/s0"]) <= {"a/s0"}


def test_what_sbatch_does_not_take_fails_with_its_reason(queue, tmp_path):
    executor = slurm.Slurm(tmp_path, "own", make_options("slurm", {"partition": "nowhere"}), "cpu")
    executor.submit({"root": str(tmp_path), "cell": "a/s1"})
    [ended] = executor.poll().values()
    assert "sbatch did not take it: sbatch: error: invalid partition specified: nowhere" in ended.why


@pytest.mark.parametrize(
    ("state", "lost"),
    [("TIMEOUT", True), ("NODE_FAIL", True), ("OUT_OF_MEMORY", False), ("CANCELLED by 0", False)],
)
def test_jobs_that_slurm_ends(queue, tmp_path, state, lost, monkeypatch):
    executor = slurm.Slurm(tmp_path, "own", make_options("slurm", {}), "cpu")
    fake_slurm.write("101", state="RUNNING", pgid=0)
    (tmp_path / ".cells").mkdir()
    (tmp_path / ".cells/a.job").write_text("101")
    assert executor.attach(["a"]) == {"a"}
    fake_slurm.write("101", state="SUSPENDED")
    executor._jobs["a"].watcher.clear()
    assert executor.poll() == {}
    fake_slurm.write("101", state=state)
    executor._jobs["a"].watcher.clear()
    executor._looked = -1e9
    monkeypatch.setattr(executor._jobs["a"], "cancel", lambda check: None)
    [ended] = executor.poll().values()
    assert (ended.code, ended.lost) == (None, lost)
    assert not (tmp_path / ".cells/a.job").exists()


@pytest.mark.parametrize(
    ("on", "options", "sentence"),
    [
        ("slurm", {"hours": 0.0}, "--hours = 0.0 cannot be used: expected a number above 0"),
        ("slurm", {"gpus_per_cell": 0.5}, "--gpus-per-cell = 0.5 cannot be used: expected 0 or 1"),
        ("slurm", {"max_running": 0}, "--max-running"),
        ("ray", {"cpus_per_cell": 1.5}, "cpus_per_cell = 1.5 cannot be used: expected a fraction"),
        ("ray", {"gpus_per_cell": 2.0}, "gpus_per_cell = 2.0 cannot be used: expected a number from 0 to 1"),
        ("local", {"job": 2}, "--job cannot be used with --on local: there is no such option"),
    ],
)
def test_bad_options(on, options, sentence):
    assert make_options("local", {"jobs": 2, "devices": "1,3"}).slots == 4
    with pytest.raises(ConfigError) as error:
        make_options(on, options)
    assert sentence in str(error.value)
