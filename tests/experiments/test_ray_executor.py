"""The executor `ray` without a cluster: what is refused, and copies of runs from and to nodes."""

import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from voidrl import __version__
from voidrl.cli.main import main
from voidrl.errors import ConfigError, MissingExtraError
from voidrl.experiments.executors import make_options
from voidrl.experiments.executors.base import ClusterLostError, Ended
from voidrl.experiments.executors.ray import Options
from voidrl.experiments.executors.ray import cluster as ray_cluster
from voidrl.experiments.executors.ray import node as ray_node
from voidrl.experiments.executors.ray.node import NodeAgent, attempt_path, write_json
from voidrl.experiments.executors.ray.run_copy import RunCopy
from voidrl.experiments.prune import prune_path, request_prune
from voidrl.runs import checkpoint, locks
from voidrl.runs.checkpoint import Group
from voidrl.system.terminal import ending

CELL = "maze/apt/seed1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cpus_per_cell": 1.5}, "cpus_per_cell = 1.5 .* a whole number above 0"),
        ({"cpus_per_cell": 0.0}, "cpus_per_cell = 0.0"),
        ({"gpus_per_cell": 2.0}, "gpus_per_cell = 2.0 .* a run trains on one GPU"),
        ({"storage": "s3"}, "storage = 's3' .* shared or fetch"),
        ({"node_folder": "/tmp/x"}, "node_folder .* with --storage fetch"),
        ({"node_folder": "x", "storage": "fetch"}, "node_folder = 'x' .* an absolute path"),
        ({"jobs": 2}, "--jobs cannot be used with --on ray"),
    ],
)
def test_options(given, words):
    with pytest.raises(ConfigError, match=words):
        make_options("ray", given)


def test_resources():
    nodes = [{"Resources": {"CPU": 2.0}}, {"Resources": {"CPU": 4.0, "GPU": 1.0}}]

    def resources(device, nodes=nodes, **options):
        plan = SimpleNamespace(request=SimpleNamespace(device=device))
        return ray_cluster.resources_per_cell(plan, Options(**options), nodes)

    assert resources("cpu") == {"num_cpus": 1.0, "num_gpus": 0.0}
    assert resources("auto", cpus_per_cell=4.0) == {"num_cpus": 4.0, "num_gpus": 1.0}
    assert resources("auto", nodes[:1]) == {"num_cpus": 1.0, "num_gpus": 0.0}
    assert resources("cuda", gpus_per_cell=0.25) == {"num_cpus": 1.0, "num_gpus": 0.25}
    for words, device, options in [
        ("--cpus-per-cell 8 .* no node of the cluster has more than 4 CPUs", "cpu", {"cpus_per_cell": 8.0}),
        ("--gpus-per-cell 0.5 cannot be used with --device cpu", "cpu", {"gpus_per_cell": 0.5}),
        ("--gpus-per-cell 0 cannot be used with --device cuda", "cuda", {"gpus_per_cell": 0.0}),
        ("--device cuda:1 cannot be used with --on ray", "cuda:1", {}),
    ]:
        with pytest.raises(ConfigError, match=words):
            resources(device, **options)
    with pytest.raises(ConfigError, match=r"--gpus-per-cell 1 .* no node .* more than 0 GPUs.*--device cpu"):
        resources("cuda", nodes[:1])


def test_no_cluster_at_the_address(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ConfigError, match=r"no Ray cluster could be reached there .*leave out --address"):
            ray_cluster._require_cluster(address)
    for address in ("node7", "http://node7:6379", "node7:", "a b:1"):
        with pytest.raises(ConfigError, match="expected auto, HOST:PORT or ray://HOST:PORT"):
            ray_cluster._require_cluster(address)
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--on ray needs ray, .* pip install 'voidrl\[ray\]'"):
        ray_cluster.connect("auto")


def test_nodes_that_cannot_be_used(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_cluster, "_answers", list)
    out = tmp_path / "new" / "out"

    def check(shared, **answer):
        node = {"host": "node7", "python": "/usr/bin/python", "voidrl": __version__, "sees": True, **answer}

        def look(variables, token):
            assert (token is not None) == shared
            return {**node, "sees": node["sees"] and (token is None or Path(token).exists())}

        agent = SimpleNamespace(
            check=SimpleNamespace(remote=look), check_folder=SimpleNamespace(remote=lambda: "")
        )
        ray_cluster.require_usable({"id": agent}, out, {}, shared=shared)

    check(shared=True)
    check(shared=False, sees=True)
    for words, answer in [
        ("is not seen by node7 .* use --storage fetch", {"sees": False}),
        ("node7 .* cannot import voidrl", {"voidrl": ""}),
        (f"node7 .* has voidrl 0.1.* voidrl {__version__}: install the same version", {"voidrl": "0.1"}),
    ]:
        with pytest.raises(ConfigError, match=words):
            check(shared=True, **answer)
    assert not out.parent.exists()  # as before


class Node:
    """A node's agent in this process; fails at a given call."""

    def __init__(self, root):
        self.root, self.calls, self.fails_at = root, 0, None
        self.agent = object.__new__(NodeAgent)
        self.agent._root = root

    def __call__(self, method, *args):
        self.calls += 1
        if self.calls == self.fails_at:
            raise ConnectionError("the node is gone")
        return getattr(self.agent, method)(*args)


def run_to(root, step, *, values=1.0, status="running"):
    """What a run has written by a step."""
    folder = root / CELL
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step}) + "\n")
    files = {
        "agent.safetensors": Group({"w": torch.full((1000,), float(step))}),
        "replay.safetensors": Group({"x": torch.full((1000,), values)}, tag="same"),
    }
    checkpoint.save(folder / "checkpoints", step, files, {}, keep_last=2)
    (folder / "status.json").write_text(json.dumps({"state": status, "checkpoint": step}))
    log = root / "logs" / f"{CELL}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"step {step}\n")


def steps(root):
    return checkpoint.list_steps(root / CELL / "checkpoints")


def test_copies_of_a_run_that_trains(tmp_path):
    node, out = Node(tmp_path / "node"), tmp_path / "out"
    copy = RunCopy(out, CELL, "first")
    copy.fetch(node)  # before anything is there
    for step in (10, 20, 30, 40):
        run_to(node.root, step)
        copy.fetch(node)
        assert steps(out) == steps(node.root) == [max(10, step - 10), step][step == 10 :]
        assert (out / CELL / "metrics.jsonl").read_text() == (node.root / CELL / "metrics.jsonl").read_text()
        assert json.loads((out / CELL / "status.json").read_text())["checkpoint"] == step
    newest = checkpoint.latest(out / CELL / "checkpoints", pytest.fail)
    assert newest.tensors("agent.safetensors")["w"][0] == 40
    both = [*(out / CELL / "checkpoints").glob("*/replay.safetensors")]
    assert len({path.stat().st_ino for path in both}) == 1  # copied once
    assert not (node.root / ".pinned" / CELL).exists()
    # A resumed run rewrites its metrics; what was appended before is no part of them.
    (node.root / CELL / "metrics.jsonl").write_text('{"step": 5}\n')
    copy.fetch(node, final=True)
    assert (out / CELL / "metrics.jsonl").read_text() == '{"step": 5}\n'
    copy.close()


def test_a_node_lost_during_a_copy_leaves_what_can_be_resumed(tmp_path):
    first = Node(tmp_path / "node")
    run_to(first.root, 10)
    RunCopy(tmp_path / "whole", CELL, "first").fetch(first)
    run_to(first.root, 20, status="done")
    calls = first.calls
    for fails_at in range(1, calls + 3):
        out, node = tmp_path / f"out{fails_at}", Node(first.root)
        copy = RunCopy(out, CELL, "first")
        node.fails_at = fails_at
        with suppress(ConnectionError):
            copy.fetch(node)
        visible = steps(out)
        for step in visible:
            checkpoint.load(out / CELL / "checkpoints" / f"step_{step:012d}")
            assert (out / CELL / "metrics.jsonl").read_text().count("\n") == 2
        status = out / CELL / "status.json"
        if status.exists():  # nothing says done before all is there
            assert visible == [10, 20]
        node.fails_at = None
        copy.fetch(node, final=True)
        assert steps(out) == [10, 20]
        copy.close()


def test_a_damaged_checkpoint_fails_the_cell_and_stays_on_its_node(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from voidrl.experiments.executors.ray.fetcher import FETCH_TRIES, Fetcher, Submitted

    out, node, ended = tmp_path / "out", Node(tmp_path / "node"), []
    run_to(node.root, 10)
    run_to(node.root, 20, status="done")
    path = node.root / CELL / "checkpoints" / f"step_{20:012d}" / "agent.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    end = {"code": 0, "why": "", "attempt": "abc"}
    copy = RunCopy(out, CELL, "abc")
    cell = Submitted(CELL, "abc", None, node="7", is_dead=True, end=end, run_copy=copy)
    fetcher = Fetcher(out, {CELL: cell}, ended.append, pytest.fail, "space", None)
    monkeypatch.setattr(fetcher, "_agent", lambda name: node)
    for _ in range(FETCH_TRIES):
        assert not ended
        fetcher._copy_one(cell)
    [(_, how)] = ended
    assert how.code is None
    assert f"damaged on the node: {CELL}/checkpoints/step_000000000020" in how.why
    assert f"{node.root / CELL}: the same command copies them again" in how.why
    assert cell.is_kept
    assert path.exists()
    assert steps(out) == [10]
    assert not (out / CELL / "status.json").exists()  # which would say that it is done
    copy.close()


@pytest.mark.parametrize("has_node", [True, False])
def test_a_lost_cell_is_put_once_the_cluster_answers(tmp_path, monkeypatch, has_node):
    pytest.importorskip("ray")
    from voidrl.experiments.executors.ray.fetcher import FETCH_TRIES, Fetcher, Submitted

    out, node, ended, silent = tmp_path / "out", Node(tmp_path / "node"), [], [True] * (FETCH_TRIES + 1)
    run_to(node.root, 10)

    def lost(cell):
        if silent and silent.pop():
            raise ClusterLostError("the cluster has not answered for 20 seconds")
        return Ended(None, "its node was lost", lost=True)

    cell = Submitted(CELL, "abc", None, node="7", is_dead=True, run_copy=RunCopy(out, CELL, "abc"))
    fetcher = Fetcher(out, {CELL: cell}, ended.append, lost, "space", None)
    monkeypatch.setattr(fetcher, "_agent", lambda name: node if has_node else None)
    while silent:
        fetcher._copy_one(cell)
        assert not cell.is_collected
    fetcher._copy_one(cell)
    assert ended == [(cell, Ended(None, "its node was lost", lost=True))]
    assert cell.is_collected
    assert (node.root / CELL).exists() is not has_node


def test_how_a_cell_ended_is_known_after_its_node_has_removed_it(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from voidrl.experiments.executors.ray.fetcher import Fetcher, Submitted

    out, node, ended, failures = tmp_path / "out", Node(tmp_path / "node"), [], ["the answer is late"]
    run_to(node.root, 10, status="done")
    write_json(ray_node.ended_path(node.root, CELL), {"code": 0, "why": "", "attempt": "abc"})

    def call(method, *args):
        answer = node(method, *args)
        if method == "remove" and failures:
            raise ray.exceptions.GetTimeoutError(failures.pop())
        return answer

    cell = Submitted(CELL, "abc", None, node="7", is_dead=True, run_copy=RunCopy(out, CELL, "abc"))
    fetcher = Fetcher(out, {CELL: cell}, ended.append, pytest.fail, "space", None)
    monkeypatch.setattr(fetcher, "_agent", lambda name: call)
    fetcher._copy_one(cell)
    assert not ended
    fetcher._copy_one(cell)
    assert ended == [(cell, Ended(0))]
    assert steps(out) == [10]
    assert json.loads((out / CELL / "status.json").read_text())["state"] == "done"


def test_a_cell_is_sent_what_was_fetched_and_its_source(tmp_path):
    out, node = tmp_path / "out", Node(tmp_path / "node")
    run_to(out, 10)
    run_to(out, 20)
    source = "maze/apt-pretrain/seed1"
    (out / CELL).rename(out / "copy")
    (out / source).parent.mkdir(parents=True)
    (out / "copy").rename(out / source)
    run_to(out, 30)
    run_to(out, 40)
    (node.root / CELL).mkdir(parents=True)
    (node.root / CELL / "stale").touch()  # of an attempt before, on the same node
    RunCopy(out, CELL, "second").send(node, source)
    assert steps(node.root) == [40]  # the newest alone
    assert not (node.root / CELL / "stale").exists()
    assert checkpoint.list_steps(node.root / source / "checkpoints") == [20]
    assert (node.root / CELL / "metrics.jsonl").read_text() == (out / CELL / "metrics.jsonl").read_text()
    calls = node.calls
    RunCopy(out, "maze/apt/seed2", "first").send(node, source)  # a fine-tuning of the same source
    assert node.calls == calls + 1


def test_logs_of_all_attempts_are_joined(tmp_path):
    out = tmp_path / "out"
    for name in ("one", "two"):
        node = Node(tmp_path / name)
        run_to(node.root, 10)
        for _ in range(2):  # the second command attaches again, and copies nothing twice
            copy = RunCopy(out, CELL, name)
            copy.fetch(node)
            copy.fetch(node, final=True)
            copy.close()
    assert (out / "logs" / f"{CELL}.log").read_text() == "step 10\nstep 10\n"


def test_what_a_node_knows_of_its_cells(tmp_path):
    node = Node(tmp_path)
    write_json(attempt_path(tmp_path, CELL), {"attempt": "abc"})
    assert node("attempts") == {CELL: "abc"}
    assert node("is_free", CELL)
    lock = locks.acquire(locks.cell_lock_path(tmp_path, CELL))
    assert not node("is_free", CELL)  # a process whose actor is gone
    locks.unlock(lock)
    assert node("is_free", CELL)
    (tmp_path / CELL).mkdir(parents=True)
    assert not node("has", CELL)  # trained here, perhaps in part
    node("prune", CELL)
    assert prune_path(tmp_path, CELL).exists()
    node("remove", CELL)
    assert node("attempts") == {}
    assert not prune_path(tmp_path, CELL).exists()
    (tmp_path / CELL).mkdir()
    assert node("has", CELL)  # sent here


def test_the_request_to_prune_a_run_reaches_its_node_once(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from voidrl.experiments.executors.ray.fetcher import Fetcher, Submitted

    out, node = tmp_path / "out", Node(tmp_path / "node")
    run_to(node.root, 10)
    write_json(attempt_path(node.root, CELL), {"attempt": "abc"})
    cell = Submitted(CELL, "abc", None, node="7", has_begun=True, run_copy=RunCopy(out, CELL, "abc"))
    fetcher = Fetcher(out, {CELL: cell}, pytest.fail, pytest.fail, "space", None)
    monkeypatch.setattr(fetcher, "_agent", lambda name: node)
    fetcher._copy_one(cell)
    assert not prune_path(node.root, CELL).exists()
    request_prune(out, CELL)
    fetcher._copy_one(cell)
    assert prune_path(node.root, CELL).exists()
    prune_path(node.root, CELL).unlink()
    fetcher._copy_one(cell)
    assert not prune_path(node.root, CELL).exists()
    cell.run_copy.close()


class Ref:
    """An answer to come."""

    def __init__(self, answer):
        self.answer = answer


class Actor:
    """An actor whose calls are noted, and answered with what is given."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __getattr__(self, method):
        def remote(*args):
            self.calls.append(method)
            return Ref(self.answers.get(method))

        return SimpleNamespace(remote=remote)


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """The executor without a cluster; `killed` has the actors that it has ended."""
    pytest.importorskip("ray")
    from voidrl.experiments.executors.ray import executor as ray_executor

    def wait(refs, **_):
        return [ref for ref in refs if ref.answer is not PENDING], []

    made = ray_executor.Ray(tmp_path, Options(), {}, {}, owned=False, disconnects=False)
    made.killed = []
    stub = SimpleNamespace(
        exceptions=ray_executor.ray.exceptions, wait=wait, get=lambda ref: ref.answer, kill=made.killed.append
    )
    monkeypatch.setattr(ray_executor, "ray", stub)
    return made


PENDING = object()
THERE = {"node": "7", "host": "node7", "begun": True}


def take(executor, cell, **answers):
    from voidrl.experiments.executors.ray.fetcher import Submitted

    actor = Actor(**answers)
    executor._take(Submitted(cell, "abc", actor))
    return actor


def test_the_end_of_a_process_is_asked_for_again(executor, tmp_path, monkeypatch):
    actor = take(executor, CELL, where=THERE, wait=None)
    executor._ask()
    executor._ask()
    assert actor.calls == ["where", "wait", "wait", "wait"]
    assert executor._ended.empty()
    end = {**THERE, "code": 0, "why": "", "started": 1.0, "ended": 2.0}
    actor.answers["wait"] = end
    executor._ask()
    executor._ask()
    cell, ended = executor._ended.get_nowait()
    assert ended.code == 0
    record = executor._record_path(CELL)
    write_json(record, {})
    cell.lock = locks.acquire(tmp_path / "lock")  # which is given back once
    for cell.is_kept in (True, False):  # on its node: the next command finds it by its record
        executor._collect(cell)
        assert record.exists() is cell.is_kept
    # No call stays in an actor after its caller is gone.
    monkeypatch.setattr(ray_node, "node_id", lambda: "7")
    monkeypatch.setattr(ray_node, "_exit_soon", lambda: None)
    setup = {"root": str(tmp_path), "source": None, "attempt": "abc", "begins": False}
    real = ray_node.CellActor({"cell": CELL}, setup)
    assert real.wait(0.0) is None
    real.stop()
    assert real.wait(0.0)["code"] == 75


def test_a_stop_ends_only_actors_that_ray_lists_as_pending(executor):
    running = take(executor, "maze/apt/seed1", where=PENDING, wait=PENDING)  # late with its answer
    queued = take(executor, "maze/apt/seed2", where=PENDING, wait=PENDING)
    executor.stop()
    executor._pending = Ref(["maze/apt/seed2#abc"])
    executor._look_for_queued()
    assert executor.killed == [queued]
    cell, ended = executor._ended.get_nowait()
    assert (cell.actor, ended.code) == (queued, 75)
    assert executor._pending is None
    where, _ = executor._cells["maze/apt/seed1"].refs
    where.answer = THERE
    executor._ask()
    assert running.calls == ["where", "wait", "stop"]  # with a checkpoint


def test_a_cluster_that_does_not_answer(monkeypatch):
    pytest.importorskip("ray")
    from voidrl.experiments.executors.ray import monitor as ray_monitor

    with pytest.raises(ClusterLostError, match="has not answered for 20 seconds"):
        ray_monitor.answer_of(threading.Event().wait, seconds=0.0)
    assert ray_monitor.answer_of(int, "7") == 7
    with pytest.raises(ValueError, match="seven"):
        ray_monitor.answer_of(int, "seven")
    with (
        pytest.raises(ClusterLostError, match=r"cannot be used any more \(no route\)"),
        ray_monitor.cluster_errors(),
    ):
        raise ConnectionError("no route")
    monitor = ray_monitor.ClusterMonitor()
    monitor.require()
    monitor._asked = time.monotonic() - ray_monitor.PATIENCE_SECONDS - 1
    with pytest.raises(ClusterLostError, match="has not answered"):
        monitor.require()
    with pytest.raises(ClusterLostError, match="has not answered"):
        ray_monitor.answer_of(threading.Event().wait, seconds=0.0, monitor=monitor)
    assert monitor.has_node_for({"num_cpus": 1.0, "num_gpus": 1.0})  # nothing is known yet
    monitor._nodes = [{"Resources": {"CPU": 4.0}}]
    assert monitor.has_node_for({"num_cpus": 4.0, "num_gpus": 0.0})
    assert not monitor.has_node_for({"num_cpus": 1.0, "num_gpus": 0.5})


def test_what_no_node_has_is_said_and_when_one_has_it_again(executor, monkeypatch):
    said, answers = [], [True, False, False, True, True]
    executor.say = said.append
    executor._resources = {"num_cpus": 2.0, "num_gpus": 0.5}
    monkeypatch.setattr(executor._monitor, "has_node_for", lambda resources: answers.pop(0))
    while answers:
        executor._explain()
    gone, back = said
    assert "no node of the Ray cluster has 2 CPUs and 0.5 GPUs any more" in gone
    assert "a node of the Ray cluster has 2 CPUs and 0.5 GPUs again" in back


def test_a_second_interrupt_in_a_lost_cluster_is_no_traceback(executor, monkeypatch):
    ray = pytest.importorskip("ray")
    take(executor, CELL, where=THERE, wait=None)
    executor._ask()

    def fail(*_, **__):
        raise ray.exceptions.RayError("no route")

    monkeypatch.setattr("voidrl.experiments.executors.ray.executor.ray.wait", fail)
    with pytest.raises(ClusterLostError, match="no route"):
        executor.kill()


def test_a_command_that_cannot_disconnect_ends_with_its_own_status(monkeypatch, capsys):
    pytest.importorskip("ray")
    from voidrl.experiments.executors.ray import monitor as ray_monitor

    def lose(*_, **__):
        raise ClusterLostError("the cluster has not answered for 20 seconds")

    codes = []
    monkeypatch.setattr(ending, "_skips_destructors", False)
    monkeypatch.setattr(ending.os, "_exit", codes.append)
    monkeypatch.setattr(ray_monitor.atexit, "unregister", lambda hook: None)
    monkeypatch.setattr(ray_monitor, "answer_of", lose)
    monkeypatch.setattr("sys.argv", ["voidrl", "no-such-command"])
    assert main() == 2
    assert codes == []
    ray_monitor.disconnect_from_lost()
    assert main(["--version"]) == 0  # called from Python
    assert codes == []
    main()
    assert codes == [2]
