"""The executor `slurm` against a SLURM made of small programs, with stubs in place of runs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import fake_slurm
import pytest

from voidrl.errors import ConfigError, RunFolderError
from voidrl.experiments.executors import make_options, slurm
from voidrl.experiments.executors.base import Ended
from voidrl.experiments.executors.slurm import Options, Slurm, parse_minutes, parse_sbatch_options

pytest.importorskip("submitit")
STUB = [sys.executable, "-S", str(Path(__file__).with_name("stub_cell.py"))]
GOLDEN = Path(__file__).parents[1] / "data" / "slurm"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The folder of the state of a SLURM; its commands are in PATH."""
    commands = fake_slurm.install(tmp_path / "cluster")
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(source), prepend=os.pathsep)
    monkeypatch.setattr(slurm, "cell_command", lambda: STUB)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(slurm, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(slurm, "SACCT_SECONDS", 0.05)
    state = tmp_path / "cluster/state"
    monkeypatch.setattr(fake_slurm, "STATE", str(state))
    yield state
    (state / "hold").unlink(missing_ok=True)
    for task in fake_slurm.tasks():  # none is left, whatever failed
        if (pgid := fake_slurm.read(task).get("pgid")) and fake_slurm.read(task)["state"] == "RUNNING":
            os.killpg(int(pgid), signal.SIGKILL)


def executor(out, **options):
    made = Slurm(out, "own", Options(**options), "cpu")
    made.say = lambda text: None
    return made


def job(out, cell, *codes):
    folder = out / cell
    folder.mkdir(parents=True)
    (folder / "stub.json").write_text(json.dumps({"codes": codes}))
    return {
        "root": str(out), "cell": cell, "command": ["voidrl"], "threads": None, "fixed_threads": False,
        "lock": 99,
    }  # fmt: skip


def collect(made, count, seconds=60.0):
    ended, end = {}, time.monotonic() + seconds
    while len(ended) < count:
        assert time.monotonic() < end, (ended, [fake_slurm.read(task) for task in fake_slurm.tasks()])
        ended |= made.poll()
        time.sleep(0.02)
    return ended


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def calls(state, name):
    return [line for line in (state / "calls.log").read_text().splitlines() if line.startswith(name)]


def jobs_file(out):
    return json.loads((out / "slurm/jobs.json").read_text())


def starts(out, cell):
    path = out / cell / "starts.txt"
    return len(path.read_text().splitlines()) if path.is_file() else 0


def test_ready_cells_are_one_array_and_their_ends_come_back_once(cluster, tmp_path):
    out = tmp_path / "out"
    with executor(out, max_running=3) as made:
        assert made.attach(["a/s1", "b/s1", "c/s1"]) == set()
        assert made.has_room("")
        for cell, code in (("a/s1", 0), ("b/s1", 2), ("c/s1", "9!")):
            assert made.has_room(cell)
            made.submit(job(out, cell, code))
        assert made.has_room("d/s1")
        assert not made.has_room("")  # of a cell that is still to be chosen, by `--tune`
        ended = collect(made, 3)
        assert ended == {"a/s1": Ended(0), "b/s1": Ended(2), "c/s1": Ended(-signal.SIGKILL)}
        assert made.poll() == {}
    assert len(calls(cluster, "sbatch")) == 1
    assert jobs_file(out) == {"jobs": {}, "stopped": [], "submitting": []}
    assert "start 1 of a/s1" in (out / "logs/a/s1.log").read_text()


def test_a_closed_driver_attaches_again_and_submits_nothing_twice(cluster, tmp_path):
    out = tmp_path / "out"
    (cluster / "hold").touch()
    with executor(out) as made:
        made.attach(["a/s1", "b/s1"])
        made.submit(job(out, "a/s1", 0))
        made.submit(job(out, "b/s1", 0))
        made.poll()
        with pytest.raises(RunFolderError, match=r"another command .* submits jobs from"):
            executor(out).__enter__()
    assert jobs_file(out)["jobs"] == {"a/s1": "101_0", "b/s1": "101_1"}
    (cluster / "hold").unlink()
    with executor(out) as later:
        assert later.attach(["a/s1"]) == {"a/s1"}  # of other cells of the folder, nothing is said
        assert set(collect(later, 2)) == {"a/s1", "b/s1"}
    assert len(calls(cluster, "sbatch")) == 1
    assert [starts(out, "a/s1"), starts(out, "b/s1")] == [1, 1]


def test_a_driver_killed_while_it_submits_leaves_no_job_that_nobody_knows(cluster, tmp_path, monkeypatch):
    out = tmp_path / "out"
    (cluster / "hold").touch()
    with executor(out) as made:
        made.attach(["a/s1", "b/s1"])
        made.submit(job(out, "a/s1", 0))
        made.submit(job(out, "b/s1", 0))
        real = made._sbatch

        def killed(*words):
            real(*words)
            raise KeyboardInterrupt  # after sbatch, before the ids are written

        monkeypatch.setattr(made, "_sbatch", killed)
        with pytest.raises(KeyboardInterrupt):
            made.poll()
    [name] = jobs_file(out)["submitting"]
    assert jobs_file(out)["jobs"] == {}
    (cluster / "no_scancel").touch()
    refused = pytest.raises(RunFolderError, match=f"scancel cannot cancel them now: try again, .*{name}")
    with executor(out) as unlucky, refused:  # or they would be submitted twice
        unlucky.attach(["a/s1", "b/s1"])
    assert jobs_file(out)["submitting"] == [name]
    (cluster / "no_scancel").unlink()
    with executor(out) as later:
        assert later.attach(["a/s1", "b/s1"]) == set()  # they are submitted again
    assert {fake_slurm.read(task)["state"] for task in fake_slurm.tasks()} == {"CANCELLED by 0"}
    assert jobs_file(out)["submitting"] == []


def test_jobs_that_sbatch_submitted_though_it_failed_are_canceled(cluster, tmp_path):
    out = tmp_path / "out"
    (cluster / "hold").touch()
    (cluster / "late").touch()
    with executor(out) as made:
        made.attach(["a/s1"])
        made.submit(job(out, "a/s1", 0))
        [(_, ended)] = made.poll().items()
    assert "Socket timed out" in ended.why
    assert {fake_slurm.read(task)["state"] for task in fake_slurm.tasks()} == {"CANCELLED by 0"}
    assert jobs_file(out) == {"jobs": {}, "stopped": [], "submitting": []}


def test_jobs_that_slurm_ends(cluster, tmp_path):
    out = tmp_path / "out"
    (cluster / "hold").touch()
    states = ["TIMEOUT", "NODE_FAIL", "CANCELLED by 0", "OUT_OF_MEMORY"]
    with executor(out) as made:
        made.attach([])
        for i in range(4):
            made.submit(job(out, f"a/s{i}", 0))
        made.poll()
        for i in range(4):
            fake_slurm.write(f"101_{i}", state="SUSPENDED")
        assert made.poll() == {}
        for i, state in enumerate(states):
            fake_slurm.write(f"101_{i}", state=state)
        assert collect(made, 4) == {
            "a/s0": Ended(None, "SLURM ended job 101_0 (TIMEOUT)", lost=True),
            "a/s1": Ended(None, "SLURM ended job 101_1 (NODE_FAIL)", lost=True),
            "a/s2": Ended(None, "job 101_2 was canceled"),
            "a/s3": Ended(None, "job 101_3 ran out of memory: give it more with --mem"),
        }
    assert calls(cluster, "scancel") == ["scancel 101_0", "scancel 101_1"]  # no requeue of what is lost


def test_what_sbatch_does_not_take_fails_with_its_reason(cluster, tmp_path):
    out = tmp_path / "out"
    with executor(out, partition="nowhere") as made:
        made.attach(["a/s1"])
        made.submit(job(out, "a/s1", 0))
        [(cell, ended)] = made.poll().items()
    assert (cell, ended.code, ended.lost) == ("a/s1", None, False)
    assert ended.why == "sbatch did not take it: sbatch: error: invalid partition specified: nowhere"
    assert jobs_file(out) == {"jobs": {}, "stopped": [], "submitting": []}


def test_an_array_that_is_too_long_for_the_cluster_is_divided(tmp_path, monkeypatch):
    from submitit.core.utils import FailedJobError

    sent = []

    def sbatch(batch, name):
        if len(batch) > 2:
            raise FailedJobError(
                "sbatch: error: Batch job submission failed: Invalid job array specification"
            )
        sent.append([job["cell"] for job in batch])
        return [f"{100 + len(sent)}_{i}" for i in range(len(batch))]

    with executor(tmp_path) as made:
        monkeypatch.setattr(made, "_sbatch", sbatch)
        made.attach([])
        assert made._send([{"cell": f"s{i}"} for i in range(5)]) == {}
    assert sent == [["s0", "s1"], ["s2"], ["s3", "s4"]]
    assert jobs_file(tmp_path)["jobs"] == {
        "s0": "101_0", "s1": "101_1", "s2": "102_0", "s3": "103_0", "s4": "103_1",
    }  # fmt: skip


@pytest.mark.parametrize("content", ['{"jobs": ', "[]", '{"jobs": {}}'])
def test_a_damaged_list_of_jobs_is_one_sentence(content, tmp_path):
    with executor(tmp_path) as made:
        (tmp_path / "slurm/jobs.json").write_text(content)
        with pytest.raises(RunFolderError, match=r"jobs\.json is damaged.*voidrl-own-.*delete the file"):
            made.attach([])


def test_stop_reaches_jobs_that_were_between_two_states(cluster, tmp_path):
    out = tmp_path / "out"
    (cluster / "hold").touch()
    with executor(out) as made:
        made.attach([])
        made.submit(job(out, "a/s1", 0))
        made.submit(job(out, "b/s1", 0))
        made.poll()
        fake_slurm.write("101_0", state="COMPLETING")  # on its way back into the queue
        fake_slurm.write("101_1", state="SUSPENDED")
        made.stop()
        assert set(collect(made, 1)) == {"b/s1"}
        fake_slurm.write("101_0", state="PENDING")
        assert collect(made, 1) == {"a/s1": Ended(75)}


def test_a_stop_ends_without_accounting(cluster, tmp_path):
    out = tmp_path / "out"
    (cluster / "hold").touch()
    (cluster / "no_sacct").touch()
    with executor(out) as made:
        made.attach([])
        made.submit(job(out, "a/s1", 0))
        assert made.poll() == {}
        made.stop()
        assert collect(made, 1) == {"a/s1": Ended(75)}


@pytest.mark.slow
def test_stop_lets_running_cells_write_checkpoints_and_drops_queued_ones(cluster, tmp_path):
    out = tmp_path / "out"
    with executor(out) as made:
        made.attach(["a/s1", "b/s1"])
        made.submit(job(out, "a/s1", 75))
        made.poll()
        until(lambda: starts(out, "a/s1"))
        (cluster / "hold").touch()
        made.submit(job(out, "b/s1", 0))
        made.poll()
        made.stop()
        assert collect(made, 2) == {"a/s1": Ended(75), "b/s1": Ended(75)}
    assert [starts(out, "a/s1"), starts(out, "b/s1")] == [1, 0]
    assert "--signal=TERM" in calls(cluster, "scancel")[2]


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [True, False])
def test_the_signal_before_the_limit_requeues_the_task_of_an_array(cluster, tmp_path, allowed):
    out = tmp_path / "out"
    if not allowed:
        (cluster / "no_requeue").touch()
    with executor(out) as made:
        made.attach(["a/s1", "b/s1"])
        made.submit(job(out, "a/s1", 75, 0))
        made.submit(job(out, "b/s1", 0))
        made.poll()
        until(lambda: starts(out, "a/s1"))
        assert made.where("a/s1") in ("", "node7")
        fake_slurm.send("101_0", signal.SIGUSR2)
        ended = collect(made, 2)
    assert calls(cluster, "scontrol") == ["scontrol requeue 101_0"]
    # Where that is not allowed, the driver submits it again.
    assert ended == {"a/s1": Ended(0 if allowed else 75), "b/s1": Ended(0)}
    assert starts(out, "a/s1") == (2 if allowed else 1)


# Scripts


@pytest.mark.parametrize(
    ("name", "device", "count", "options"),
    [
        ("gpu-array", "auto", 3, {"partition": "gpu", "mem": "64G", "max_running": 2, "time": "12:00:00"}),
        ("cpu-one", "cpu", 1, {"time": "10", "cpus_per_cell": 2}),
        (
            "own-options",
            "cuda",
            2,
            {
                "gpus_per_cell": 0.0,
                "slurm_option": ("account=rl", "gres=gpu:h200:1", "exclusive", "signal=USR2@900"),
            },
        ),
    ],
)
def test_golden_scripts(cluster, tmp_path, name, device, count, options):
    out = tmp_path / "out"
    (cluster / "hold").touch()
    made = Slurm(out, "own", Options(**options), device)
    made.say = lambda text: None
    with made:
        made.attach([])
        for i in range(count):
            made.submit(job(out, f"a/s{i}", 0))
        made.poll()
        made.kill()
    text = (out / "slurm/101_submission.sh").read_text()
    text = text.replace(str(out), "OUT").replace(sys.executable, "PYTHON")
    text = re.sub(r"voidrl-own-[0-9a-f]{8}", "voidrl-own-XXXXXXXX", text)
    path = GOLDEN / f"{name}.sbatch"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


# Bad input


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("00:00:30", 1), ("01:30:00", 90), ("2:00", 120), ("1-12:00:00", 2160), ("24:00:00", 1440)],
)
def test_time_limits(text, minutes):
    assert parse_minutes(text) == minutes


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"time": "soon"}, "--time = 'soon' cannot be used: expected minutes, HH:MM:SS or D-HH:MM:SS"),
        ({"time": "0"}, "--time"),
        ({"mem": "lots"}, "--mem = 'lots' cannot be used: expected a size such as 32G"),
        ({"gpus_per_cell": 0.5}, "--gpus-per-cell = 0.5 cannot be used: expected 0 or 1"),
        ({"cpus_per_cell": 0}, "--cpus-per-cell"),
        ({"max_running": 0}, "--max-running"),
        ({"slurm_option": ["time=5"]}, "--slurm-option time=5 cannot be used: use --time"),
        ({"slurm_option": ["array=0-5"]}, "voidrl sets it"),
        ({"slurm_option": ["--ntasks=2"]}, "--slurm-option --ntasks=2 cannot be used: a run is one task"),
        ({"slurm_option": ["wait"]}, "voidrl could not follow its jobs"),
        ({"slurm_option": ["two words=5"]}, "expected NAME=VALUE with an option of sbatch"),
        (
            {"slurm_option": ["signal=TERM@60"]},
            "--slurm-option signal = 'TERM@60' cannot be used: expected USR2",
        ),
        ({"slurm_option": ["signal=USR2@900"], "time": "10"}, "fewer than --time 10 has"),
        ({"jobs": 2}, "--jobs cannot be used with --on slurm"),
    ],
)
def test_bad_options(options, sentence):
    with pytest.raises(ConfigError) as error:
        make_options("slurm", options)
    assert sentence in str(error.value)


def test_options_of_sbatch():
    found = parse_sbatch_options(["account=rl", "--gpu_bind=none", "exclusive", "constraint=a=b"])
    assert found == {"account": "rl", "gpu-bind": "none", "exclusive": True, "constraint": "a=b"}
