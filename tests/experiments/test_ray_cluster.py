"""`voidrl experiment --on ray` against a real cluster of three local nodes, one of which is killed.

One cluster for all tests of this file. Results are compared with those of `--on local`, bit for bit.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from tiny_runs import assert_same_run

import voidrl
from voidrl.cli import main as cli
from voidrl.experiments.executors.ray import cluster as ray_cluster
from voidrl.experiments.prune import request_prune
from voidrl.runs.experiment_record import read_experiment_record
from voidrl.runs.status import is_pruned, read_status

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")

TINY = """
title = "Poles"
tasks = ["CartPole-v1"]
seeds = [1, 2]
measures = ["return"]
threads = 1

[config]
warmup_steps = 8
updates_per_step = 0.25
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
log = { tensorboard = false, log_every_steps = 20, checkpoint_every_steps = 60 }

[pretrain]
steps = 600

[finetune]
steps = 60
config = { finetune.warmup_steps = 4 }

[evaluation]
episodes = 2

[methods.apt]
method = "apt"
"""
PRETRAINING = TINY.replace("[methods.apt]", '[methods.apt]\nphases = ["pretrain"]\nevaluation = false')
PRETRAINING = PRETRAINING.replace('measures = ["return"]', 'measures = ["updates"]')
SEARCH = """
[grid]
"learner.learning_rate" = { from = 1e-5, to = 1e-1, count = 5, log = true }
"""
PATIENCE_S = 400
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
PRETRAINED = [f"CartPole-v1/apt-pretrain/seed{seed}" for seed in (1, 2)]
TUNED = [f"CartPole-v1/apt/seed{seed}" for seed in (1, 2)]


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
    started = Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": quick}
    )
    for _ in range(2):
        started.add_node(**NODE)
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "poles.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The same experiment on this machine, without Ray."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "poles.toml").write_text(TINY)
    words = ["--out", str(folder / "out"), "--device", "cpu", "--no-report", "--jobs", "2"]
    assert cli.main(["experiment", str(folder / "poles.toml"), *words]) == 0
    return folder / "out"


class Driver:
    """The command, in its own process."""

    def __init__(self, file, out, *words):
        common = ["--out", str(out), "--device", "cpu", "--no-report", "--on", "ray"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "voidrl", "experiment", str(file), *common, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self):
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


def wait(what, until, driver=None):
    end = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < end, f"no {what} in {PATIENCE_S} s"
        if driver is not None and driver.process.poll() is not None:
            raise AssertionError(f"no {what}: {driver.process.stdout.read()}")
        time.sleep(0.05)


def attempts(out, cell):
    """How often a process was started for a cell."""
    log = out / "logs" / f"{cell}.log"
    return log.read_text().count(" voidrl experiment ") if log.exists() else 0


def cells_in(out):
    """The cells that the experiment has so far."""
    record = read_experiment_record(out)
    return set() if record is None else {cell.folder for cell in record.cells}


def checkpoint_of(out, cell):
    status = read_status(out / cell) if (out / cell).is_dir() else None
    return 0 if status is None else status.checkpoint or 0


def node_of(out, cell):
    """The node in the log of a cell, as the first digits of its id."""
    lines = [line for line in (out / "logs" / f"{cell}.log").read_text().splitlines() if " of Ray" in line]
    return lines[-1].split("node ")[1].split()[0]


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def kill_node(cluster, node):
    """SIGKILL for a raylet and its workers; the process of a cell is left to notice it."""
    [raylet] = node.all_processes["raylet"]
    pid = raylet.process.pid
    for each in (pid, *children(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    cluster.worker_nodes.discard(node)


def assert_as_local(out, reference):
    for cell in (*PRETRAINED, *TUNED):
        assert read_status(out / cell).state == "done"
        assert_same_run(out / cell, reference / cell)
    for cell in TUNED:
        ours, theirs = (
            json.loads((each / cell / "evaluation.json").read_text()) for each in (out, reference)
        )
        assert {**ours, "agent": {}} == {**theirs, "agent": {}}  # which names its folder and the time
    assert {cell.folder for cell in read_experiment_record(out).cells} == {*PRETRAINED, *TUNED}


def assert_nothing_left(cluster):
    ray.init(address=cluster.address, log_to_driver=False, logging_level="CRITICAL", ignore_reinit_error=True)
    try:
        wait("end of all actors", lambda: not ray.util.list_named_actors(all_namespaces=True))
    finally:
        ray.shutdown()


@pytest.mark.parametrize("storage", ["shared", "fetch"])
def test_killed_node(storage, cluster, file, reference, tmp_path):
    out, on_nodes = tmp_path / "out", tmp_path / "nodes"
    words = ["--address", cluster.address, "--storage", storage]
    if storage == "fetch":
        words += ["--node-folder", str(on_nodes)]
    driver = Driver(file, out, *words)
    victims = {node.node_id[:12]: node for node in cluster.worker_nodes}
    wait("start of all", lambda: all(attempts(out, cell) for cell in PRETRAINED), driver)
    lost = next(cell for cell in PRETRAINED if node_of(out, cell) in victims)
    wait("checkpoint", lambda: 60 <= checkpoint_of(out, lost) < 600, driver)
    kill_node(cluster, victims[node_of(out, lost)])
    cluster.add_node(**NODE)
    code, said = driver.end()
    assert code == 0, said
    assert "was lost; it is submitted again" in said
    assert "Raylet" not in said  # Ray's own pages about it
    assert_as_local(out, reference)
    # Nothing else was started twice, and what was lost did not begin from the start.
    again = {cell for cell in (*PRETRAINED, *TUNED) if attempts(out, cell) != 1}
    assert again == {lost}
    assert attempts(out, lost) == 2
    assert f"{lost}: resuming at step" in said
    assert_nothing_left(cluster)
    if storage == "fetch":  # the folder of the node that is gone stays; those of the others are removed
        assert len([*on_nodes.glob("*/*")]) <= 1


@pytest.mark.parametrize("storage", ["shared", "fetch"])
def test_killed_driver(storage, cluster, file, reference, tmp_path):
    out = tmp_path / "out"
    words = ["--address", cluster.address, "--storage", storage]
    driver = Driver(file, out, *words)
    wait("checkpoints", lambda: all(checkpoint_of(out, cell) for cell in PRETRAINED), driver)
    driver.process.kill()
    driver.process.communicate()
    if storage == "shared":  # they are trained to the end without it
        wait("end of all", lambda: all(read_status(out / c).state == "done" for c in PRETRAINED))
    code, said = Driver(file, out, *words).end()
    assert code == 0, said
    if storage == "fetch":
        assert "submitted by an earlier command" in said
    assert_as_local(out, reference)
    assert all(attempts(out, cell) == 1 for cell in (*PRETRAINED, *TUNED))
    assert_nothing_left(cluster)


def test_two_commands_in_one_folder_and_a_stopped_one(cluster, file, tmp_path):
    out = tmp_path / "out"
    words = ["--address", cluster.address, "--seeds", "1"]
    driver = Driver(file, out, *words)
    wait("checkpoint", lambda: checkpoint_of(out, PRETRAINED[0]), driver)
    code, said = Driver(file, out, *words).end()
    assert (code, said.count("\n")) == (2, 1), said
    assert f"in use by process {driver.process.pid}" in said
    driver.process.send_signal(signal.SIGINT)
    code, said = driver.end()
    assert code == 75, said
    code, said = Driver(file, out, *words).end()
    assert code == 0, said
    assert attempts(out, PRETRAINED[0]) == 1
    assert_nothing_left(cluster)


def test_stop_lets_running_cells_write_checkpoints_and_ends_queued_ones(cluster, tmp_path):
    file, out = tmp_path / "poles.toml", tmp_path / "out"
    file.write_text(PRETRAINING.replace("steps = 600", "steps = 100_000"))
    words = ["--address", cluster.address, "--seeds", *"1234"]  # one more than there are nodes
    driver = Driver(file, out, *words)
    cells = [f"CartPole-v1/apt/seed{seed}" for seed in (1, 2, 3, 4)]
    wait("checkpoints", lambda: sum(checkpoint_of(out, cell) > 0 for cell in cells) == 3, driver)
    began = [cell for cell in cells if checkpoint_of(out, cell)]
    driver.process.kill()
    driver.process.communicate()
    code, said = Driver(file, out, *words, "--stop").end()
    assert code == 0, said
    assert "4 runs stopped; the command without --stop resumes them" in said
    for cell in began:
        status = read_status(out / cell)
        assert (status.state, status.checkpoint) == ("stopped", status.steps)
    assert_nothing_left(cluster)
    code, said = Driver(file, out, *words, "--stop").end()
    assert code == 0, said
    assert "nothing was stopped" in said


def test_a_search_whose_command_is_killed_runs_no_trial_twice(cluster, tmp_path):
    file, out = tmp_path / "search.toml", tmp_path / "out"
    file.write_text(f"{PRETRAINING}{SEARCH}")
    words = ["--address", cluster.address, "--storage", "fetch", "--seeds", "1", "--tune", "5"]
    driver = Driver(file, out, *words)
    wait("checkpoint", lambda: any(checkpoint_of(out, cell) for cell in cells_in(out)), driver)
    driver.process.kill()
    driver.process.communicate()
    chosen = cells_in(out)
    code, said = Driver(file, out, *words).end()
    assert code == 0, said
    cells = cells_in(out)
    assert chosen < cells
    assert len(cells) == 5
    assert all(read_status(out / cell).state == "done" for cell in cells)
    assert {attempts(out, cell) for cell in cells} == {1}
    assert "Best of 5 points" in said
    assert_nothing_left(cluster)


def test_a_run_that_is_pruned_ends_on_a_node_without_shared_storage(cluster, tmp_path):
    file, out = tmp_path / "poles.toml", tmp_path / "out"
    file.write_text(PRETRAINING.replace("steps = 600", "steps = 100_000"))
    words = ["--address", cluster.address, "--seeds", "1", "--storage", "fetch"]
    driver = Driver(file, out, *words)
    cell = "CartPole-v1/apt/seed1"
    wait("checkpoint", lambda: checkpoint_of(out, cell), driver)
    request_prune(out, cell)
    code, said = driver.end()
    assert code == 0, said
    assert f"{cell}: pruned at step" in said
    assert is_pruned(out / cell)
    status = read_status(out / cell)
    assert status.checkpoint == status.steps < 100_000
    assert_nothing_left(cluster)


def test_a_lost_cluster_ends_the_command_with_a_sentence(file, tmp_path):
    from ray.cluster_utils import Cluster

    out = tmp_path / "out"
    file.write_text(TINY.replace("steps = 600", "steps = 100_000"))
    started = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        driver = Driver(file, out, "--address", started.address, "--seeds", "1")
        wait("checkpoint", lambda: checkpoint_of(out, PRETRAINED[0]), driver)
        [head] = started.head_node.all_processes["gcs_server"]
        head.process.kill()
        code, said = driver.end()
    finally:
        started.shutdown()
    assert code == 75, said
    assert "voidrl: the Ray cluster has not answered for 20 seconds; " in said.splitlines()[-1]
    assert "Traceback" not in said
    assert "GCS" not in said


def test_refused_before_anything_is_submitted(cluster, file, tmp_path, capsys, monkeypatch):
    out = tmp_path / "new" / "out"

    def refused(*words):
        common = ["--out", str(out), "--device", "cpu", "--on", "ray", "--address", cluster.address]
        assert cli.main(["experiment", str(file), *common, *words]) == 2
        assert not out.parent.exists()
        assert not ray.is_initialized()
        [line] = capsys.readouterr().err.splitlines()
        return line

    assert "--cpus-per-cell 2 cannot be used: no node of the cluster has more than 1 CPUs" in refused(
        "--cpus-per-cell", "2"
    )
    file_here = tmp_path / "here"
    file_here.touch()
    assert "choose another --node-folder" in refused(
        "--storage", "fetch", "--node-folder", str(file_here / "nodes")
    )
    # A folder of this machine alone: on the nodes the token is looked for in another one.
    monkeypatch.setattr(ray_cluster, "_token", lambda folder: nullcontext(str(tmp_path / "absent")))
    line = refused()
    assert f"{out} is not seen by {socket.gethostname()} of the Ray cluster" in line
    assert line.endswith("or use --storage fetch")
    monkeypatch.setattr(ray_cluster, "__version__", "9.9")
    assert f"has voidrl {voidrl.__version__}" in refused("--storage", "fetch")
    monkeypatch.setattr(ray_cluster, "own_paths", lambda: str(tmp_path / "empty"))
    broken = tmp_path / "empty" / "voidrl"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError")
    assert "cannot import voidrl" in refused("--storage", "fetch")


def test_own_cluster_ends_with_the_command(file, tmp_path):
    out = tmp_path / "out"
    driver = Driver(file, out, "--seeds", "1")
    wait("checkpoint", lambda: checkpoint_of(out, PRETRAINED[0]), driver)
    raylets = {pid for pid in children(driver.process.pid) if "raylet" in command_of(pid)}
    assert raylets
    driver.process.send_signal(signal.SIGTERM)
    code, said = driver.end()
    assert code == 75, said
    status = read_status(out / PRETRAINED[0])
    assert status.state in ("stopped", "done")  # with a checkpoint at its last step
    assert status.checkpoint == status.steps
    assert not [pid for pid in raylets if "raylet" in command_of(pid)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
