"""One run on several ranks: what it counts, saves and resumes, and what a lost rank leaves."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from rank_runs import ENV, assert_same, pretrain, resume, run, saved_tensors, transitions, words

from voidrl import api, ranks
from voidrl.cli import training
from voidrl.cli.launch import split_off
from voidrl.cli.main import main
from voidrl.config import Config, update
from voidrl.errors import ConfigError, RankLostError, RunFolderError
from voidrl.ranks import liveness
from voidrl.ranks.liveness import Heartbeats, Liveness, machine_id
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.runs.status import read_status
from voidrl.training import split
from voidrl.training.saved_run import latest_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked from the test")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """A complete run on two ranks, and what they said."""
    out = tmp_path_factory.mktemp("two") / "run"
    codes, messages = pretrain(2, out)
    assert codes == [0, 0], messages
    return out, messages


def test_two_ranks_are_one_run_with_one_folder(on_two):
    out, messages = on_two
    status, rows = read_status(out), read_metrics(out)
    assert (status.state, status.ranks) == ("done", 2)
    # Four environments, each of whose steps counts once, and one row of each moment.
    steps = [row["step"] for row in rows]
    assert steps == sorted({*steps})
    assert status.steps == steps[-1] in range(120, 124)
    assert rows[-1]["updates"] == (steps[-1] - 12) // 2
    assert rows[-1]["episodes"] == 4 * 3  # of 6 steps, one of each environment between two checkpoints
    tensors, meta = saved_tensors(out)
    visits = sum(tensors[f"{rank}/loop.safetensors/visits"].sum() for rank in range(2))
    assert visits == meta["steps"] + meta["episodes"] + 4 * 3  # steps, resets, and a beginning per checkpoint
    assert messages[1] == ""
    assert "120 steps" in messages[0] or "steps in" in messages[0]


def test_ranks_have_columns_and_random_numbers_of_their_own(on_two):
    tensors, _ = saved_tensors(on_two[0])
    assert len(tensors["0/replay.safetensors/age"]) == len(tensors["1/replay.safetensors/age"]) == 2
    assert not torch.equal(tensors["0/loop.safetensors/rng_cpu"], tensors["1/loop.safetensors/rng_cpu"])
    mine, others = (tensors[f"{rank}/replay_00000.safetensors/frames"] for rank in range(2))
    assert mine.shape == others.shape
    assert not torch.equal(mine, others)


def test_a_checkpoint_counts_only_with_all_its_parts(on_two, tmp_path):
    out = shutil.copytree(on_two[0], tmp_path / "run")
    damage_part(out, read_status(out).steps)
    said = []
    with pytest.raises(Exception, match="no valid checkpoint"):
        latest_run(RunFolder(out), said.append)
    assert "the part of rank 1 of 2 cannot be used" in said[0]


def damage_part(out, step):
    """Cut a file of the second rank short, after the run has ended."""
    part = next((out / "ranks" / "1").glob(f"step_{step:012d}")) / "loop.safetensors"
    part.write_bytes(part.read_bytes()[:-1])


@pytest.mark.slow
def test_a_checkpoint_with_a_damaged_part_displaces_no_older_one(tmp_path):
    out = tmp_path / "run"
    codes, messages = pretrain(2, out, steps=80, log__keep_last=2)
    assert codes == [0, 0], messages
    first, second = checkpoint.list_steps(out / "checkpoints")
    damage_part(out, second)
    codes, messages = resume(2, out, "", "--steps", "130", "--set", "log.checkpoint_every_steps=1000")
    assert codes == [0, 0], messages
    assert messages[0].count(f"skipped step_{second:012d}: the part of rank 1 of 2 cannot be used") == 1
    assert f"resumed at step {first}" in messages[0]
    assert messages[1] == ""
    # Two are to be kept, and the damaged one is none of them.
    assert checkpoint.list_steps(out / "checkpoints") == [first, second, read_status(out).steps]
    damage_part(out, read_status(out).steps)
    assert latest_run(RunFolder(out), lambda text: None).step == first


REFUSED = {
    "more ranks than environments": (
        {"env.num_envs": 2},
        "env.num_envs = 2 cannot be used on 3 ranks: expected an environment for each",
    ),
    "on-policy": ({"learner": "mepol", "env.num_envs": 6}, "learner 'mepol' cannot be used on 3 ranks"),
    "short replay": (
        {"env.num_envs": 6, "replay.capacity_steps": 6, "learner.n_step": 3},
        "replay.capacity_steps = 6 cannot be used with env.num_envs = 6 on 3 ranks",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_ranks_cannot_divide_is_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        split.require_splittable(update(Config(), {"learner": "dqn"} | changes), None, 3)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_parts_are_consecutive_and_differ_by_one_at_most(size):
    parts = [ranks.ProcessGroup(rank, size).part(7) for rank in range(size)]
    assert [column for part in parts for column in part] == [*range(7)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_all_ranks_have_as_many_rows(monkeypatch):
    config = update(Config(), {"env.num_envs": 7, "replay.capacity_steps": 100})
    rows = []
    for rank in range(3):
        monkeypatch.setattr(ranks.group, "_current", ranks.ProcessGroup(rank, 3))
        mine = split.replay_part(config).capacity_steps
        rows.append(mine // split.env_part(config.env)[1])
    assert rows == [15, 15, 15]


WRONG = {
    "no number": (["--ranks"], "option --ranks has no value"),
    "none": (["--ranks", "0"], "expected a whole number from 1 on"),
    "words": (["--gpus=many"], "expected a whole number from 1 on"),
    "both": (["--ranks", "2", "--gpus", "2"], "cannot be used together"),
    "a CPU": (["--gpus", "2", "--device", "cpu"], "leave --device out, or use --ranks 2"),
    "too many": (["--gpus", "500"], "--gpus 500 cannot be used: torch sees"),
}


@pytest.mark.parametrize(("argv", "sentence"), WRONG.values(), ids=WRONG)
def test_bad_numbers_of_ranks_are_one_sentence(argv, sentence):
    with pytest.raises(ConfigError, match=sentence):
        split_off(argv)


BEFORE_THE_START = {
    "a batch": (["--ranks", "5"], {}, "learner.batch_size = 12 cannot be used on 5 ranks"),
    "environments": (["--ranks=6"], {}, "env.num_envs = 4 cannot be used on 6 ranks"),
    "a method": (["--ranks", "2"], {"method": "cbb"}, "method 'cbb' cannot be used on 2 ranks"),
    "a value": (["--ranks", "2"], {"steps": "many"}, "steps = 'many' cannot be used"),
}


@pytest.mark.parametrize(("ranks_of", "changes", "sentence"), BEFORE_THE_START.values(), ids=BEFORE_THE_START)
def test_bad_input_is_refused_before_ranks_are_started(ranks_of, changes, sentence, monkeypatch, capsys):
    monkeypatch.setattr(training, "launch", lambda *args: pytest.fail("started"))
    assert main(["pretrain", ENV, *ranks_of, *words(**changes)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_run_that_is_there_is_looked_at_before_ranks_are_started(on_two, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(training, "launch", lambda *args: started.append(args) or 0)
    out = str(on_two[0])
    assert main(["pretrain", ENV, "--ranks", "2", "--out", out, *words()]) == 2
    assert main(["resume", out, "--ranks", "5"]) == 2
    assert main(["resume", f"{out}/none", "--ranks", "2"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert ["already holds a run" in said[0], "12 cannot be used on 5 ranks" in said[1]] == [True, True]
    assert "there is no run at" in said[2]
    assert started == []
    assert main(["resume", out, "--ranks", "2", "--steps", "200"]) == 0
    assert started == [(2, "resume", [out, "--steps", "200"])]


def test_what_the_user_should_know_is_said_by_the_first_rank(monkeypatch, capsys):
    monkeypatch.setattr(api, "train", lambda *args, **options: None)
    for rank in range(2):
        monkeypatch.setattr(ranks.group, "_current", ranks.ProcessGroup(rank, 2))
        assert main(["train", ENV, *words()]) == 0
    assert capsys.readouterr().err.count("method rnd is not used") == 1


def test_ranks_within_torchrun_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="cannot be used under torchrun, which has started 4 processes"):
        split_off(["ENV", "--ranks", "2"])
    assert split_off(["ENV", "--steps", "5"]) == (0, ["ENV", "--steps", "5"])


def test_a_folder_that_ranks_do_not_share_is_refused(on_two, tmp_path):
    RunFolder.follow(on_two[0]).require_visible()
    with pytest.raises(RunFolderError, match="expected a folder that all ranks share"):
        RunFolder.follow(tmp_path / "run").require_visible(0)


def test_who_has_ended_is_not_waited_for():
    store, ended = torch.distributed.HashStore(), subprocess.Popen(["true"])
    ended.wait()
    first = Liveness(store, 0, 2)
    with pytest.raises(RankLostError, match="rank 0 of 2 cannot join the others again, since rank 1 has"):
        first.wait_for_start({1: (machine_id(), ended.pid)}, 60)
    with pytest.raises(RankLostError, match="waited 0 s for rank 1, which did not come"):
        first.wait_for_start({}, 0)
    Liveness(store, 1, 2)
    assert first.wait_for_start({}, 0) == dict.fromkeys(range(2), (machine_id(), os.getpid()))


def test_processes_of_a_machine_of_the_same_name_are_not_looked_for_here(monkeypatch):
    """Nor are those of a container, which has process ids of its own."""
    store, ended = torch.distributed.HashStore(), subprocess.Popen(["true"])
    ended.wait()
    here = machine_id()
    found = []
    for machine in (here, f"another boot {here.split()[-1]}", f"{here.split()[0]} 1"):
        with monkeypatch.context() as patched:
            patched.setattr(liveness, "machine_id", lambda machine=machine: machine)
            patched.setattr(os, "getpid", lambda: ended.pid)
            Liveness(store, 1, 2)
        first = Liveness(store, 0, 2)
        first.wait_for_start({}, 0)
        found.append(first.dead())
    assert found == [[1], [], []]


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="there are no namespaces here")
def test_a_machine_is_not_known_by_its_name(monkeypatch):
    here = machine_id()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert machine_id() == here
    monkeypatch.setattr(Path, "read_text", lambda path: Path("/none").stat())
    assert machine_id() == "another"


def test_who_sends_no_heartbeat_is_lost(monkeypatch):
    now, values = 0.0, {}
    monkeypatch.setattr(liveness, "time", SimpleNamespace(monotonic=lambda: now))
    store = SimpleNamespace(
        set=values.__setitem__, get=values.get, check=lambda keys: keys[0] in values, clone=lambda: store
    )
    first, second = Heartbeats(store, 0, [1, 2]), Heartbeats(store, 1, [0, 2])
    Heartbeats(store, 2, [0, 1]).exchange()
    for now in (100.0, 200.0, 300.0):  # noqa: B007
        second.exchange()
        first.exchange()
    assert first.silent() == second.silent() == []
    now = 401.0
    assert first.silent() == second.silent() == [2]
    now = 702.0
    first.exchange()
    assert first.silent() == [1, 2]
    assert second.silent() == [0]  # it has not reached the store
    assert Heartbeats(store, 3, []).silent() == []


def test_heartbeats_go_on_after_a_lost_connection(monkeypatch):
    now, store = 0.0, torch.distributed.HashStore()
    monkeypatch.setattr(liveness, "time", SimpleNamespace(monotonic=lambda: now))
    lost = Mock(set=Mock(side_effect=RuntimeError("Connection reset by peer")))
    lost.clone.side_effect = [lost, RuntimeError("timed out"), store]
    heartbeats = Heartbeats(lost, 0, [1])
    for now in (100.0, 200.0, 250.0):
        store.set("heartbeat/1", str(now))
        heartbeats.exchange()
    now = 400.0
    assert heartbeats.silent() == []
    assert store.get("heartbeat/0") == b"3"


def test_a_process_ends_with_a_lost_rank_even_if_it_cannot_write_that_down(monkeypatch):
    store, ended = torch.distributed.HashStore(), subprocess.Popen(["true"])
    ended.wait()
    store.set("process/1", json.dumps([machine_id(), ended.pid]))
    first = Liveness(store, 0, 2)
    first.wait_for_start({}, 0)
    monkeypatch.setattr(liveness, "WATCH_SECONDS", 0)
    monkeypatch.setattr(liveness, "GRACE_SECONDS", 0)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(liveness.threading, "Thread", lambda target, **_: SimpleNamespace(start=target))
    with pytest.raises(SystemExit, match="2"):
        first.watch(Mock(side_effect=RunFolderError("the file system is lost")))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_that_stops_answering_ends_the_run(tmp_path, rank, monkeypatch):
    """No connection is closed: heartbeats tell."""
    monkeypatch.setattr(liveness, "machine_id", lambda: f"machine {os.environ['RANK']}")
    for name, seconds in {"BEAT_SECONDS": 0.2, "SILENT_SECONDS": 10.0, "GRACE_SECONDS": 0.5}.items():
        monkeypatch.setattr(liveness, name, seconds)
    codes, messages = pretrain(2, tmp_path / "run", f"{rank} 17 SIGSTOP")
    assert codes[1 - rank] == 2
    assert messages[1 - rank].count(f"voidrl: rank {rank} sent no heartbeats for minutes") == 1
    if rank == 1:
        assert read_status(tmp_path / "run").error.startswith("rank 1 sent no heartbeats for minutes")


@pytest.mark.slow
def test_a_script_can_start_one_run_after_another_under_torchrun():
    """torchrun keeps one store for all groups: addresses of the first must not be read by the second."""
    script = str(Path(__file__).with_name("rank_twice.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == ["[3.0]"] * 6


@pytest.mark.slow
def test_a_resumed_run_is_exact_after_sigterm_of_one_rank(on_two, tmp_path):
    out = tmp_path / "run"
    codes, messages = pretrain(2, out, "1 17 SIGTERM")
    assert codes == [75, 75], messages
    assert "stopped by SIGTERM" in messages[0]
    assert messages[1] == ""
    assert read_status(out).state == "stopped"
    assert 40 < read_status(out).steps < 80
    # A stop cuts episodes where no other run does: the run to compare with was stopped there too.
    other = shutil.copytree(out, tmp_path / "other")
    for folder in (out, other):
        assert resume(2, folder)[0] == [0, 0]
    assert_same(out, other)
    assert read_status(out).state == "done"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), (4, 2)])
def test_a_killed_rank_ends_the_others_and_the_run_is_resumed_exactly(
    on_two, tmp_path, size, rank, monkeypatch
):
    """The status says why, and one rank says so, whichever was killed; nobody waits for who cannot know."""
    monkeypatch.setattr(liveness, "END_SECONDS", 40.0)
    out, began = tmp_path / "run", time.monotonic()
    codes, messages = pretrain(size, out, f"{rank} 17 SIGKILL")
    assert time.monotonic() - began < 30
    assert codes == [-signal.SIGKILL if other == rank else 2 for other in range(size)]
    assert "".join(messages).count(f"voidrl: rank {rank} died") == 1
    assert rank == 0 or f"voidrl: rank {rank} died" in messages[0]
    status = read_status(out)
    assert status.state == "failed"
    assert status.error.startswith(f"rank {rank} died; the checkpoint of step 4")
    assert f"resume with `voidrl resume {out} --ranks {size}`" in status.error
    if size == 2:
        codes, messages = resume(2, out)
        assert codes == [0, 0], messages
        assert_same(on_two[0], out)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_an_environment_that_raises_in_one_rank_is_named_once(tmp_path, rank):
    out, began = tmp_path / "run", time.monotonic()
    codes, messages = pretrain(2, out, f"{rank} 17 raise")
    assert codes == [2, 2]
    assert messages[0].count("the wheel fell off") == messages[0].count("the checkpoint of step 40 is") == 1
    assert "Traceback" not in messages[0]
    assert messages[1] == ""
    assert time.monotonic() - began < 30
    status = read_status(out)
    assert status.state == "failed"
    assert status.error.startswith("rank 1 failed: environment" if rank else "environment")
    assert "the wheel fell off" in status.error
    assert "the wheel fell off" in (out / "log.txt").read_text()


CHANGES = {"two to one": (2, 1), "one to two": (1, 2), "four to two": (4, 2), "two to three": (2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_another_number_of_ranks_keeps_weights_and_all_transitions(tmp_path, before, after):
    out = tmp_path / "run"
    rarely = {"updates_per_step": 0.05}  # every 20 steps from step 12 on: after 52, and after 72
    codes, messages = pretrain(before, out, steps=60, replay__capacity_steps=400, **rarely)
    assert codes == [0] * before, messages
    stored, (tensors, meta) = transitions(out), saved_tensors(out)
    codes, messages = resume(after, out, "", "--steps", str(meta["steps"] + 1))
    assert codes == [0] * after, messages
    assert f"it had {before} rank" in messages[0]
    assert f"and has {after}: weights and optimizers are exactly those of the checkpoint" in messages[0]
    now, (later_tensors, later) = transitions(out), saved_tensors(out)
    assert stored < now
    assert len(now) - len(stored) == later["steps"] - meta["steps"]
    assert later["ranks"] == after
    assert later["updates"] == meta["updates"] == 2
    trained = {name for name in tensors if name.startswith(("0/agent.", "0/optimizers."))}
    assert any(name.endswith("exp_avg") and tensors[name].any() for name in trained)
    assert trained == {name for name in later_tensors if name.startswith(("0/agent.", "0/optimizers."))}
    changed = {name for name in trained if not torch.equal(tensors[name], later_tensors[name])}
    of_steps = ("method.observations.", "learner.epsilon")
    assert changed == {name for name in trained if any(part in name for part in of_steps)}
    codes, messages = resume(after, out, "", "--steps", "100")
    assert codes == [0] * after, messages
    assert saved_tensors(out)[1]["updates"] == 4
    assert sorted(path.name for path in (out / "ranks").glob("*")) == [str(r) for r in range(1, after)]
    assert read_metrics(out)[-1]["coverage/cells"] > 0


@pytest.mark.slow
def test_a_fine_tuned_agent_is_saved_before_its_first_step_with_all_parts(on_two, tmp_path):
    out = tmp_path / "run"
    small = ["--steps", "50", "--log.checkpoint-every-steps", "40", "--finetune.warmup-steps", "8"]
    codes, messages = run(2, ["finetune", str(on_two[0]), "--out", str(out), *small], tmp_path, "1 3 SIGKILL")
    assert codes == [2, -signal.SIGKILL]
    assert "rank 1 died; the checkpoint of step 0 is kept" in messages[0]
    assert resume(2, out)[0] == [0, 0]
    assert read_status(out).state == "done"


@pytest.mark.slow
def test_agents_that_differ_between_ranks_are_noticed_before_they_are_saved(tmp_path):
    codes, messages = pretrain(2, tmp_path / "run", method="rank_runs:Drifting")
    assert codes == [2, 2]
    assert "method.seen of the agent differs between rank 0 and rank 1" in messages[0]
    assert messages[1] == ""


@pytest.mark.slow
def test_uneven_parts(tmp_path):
    out = tmp_path / "run"
    codes, messages = pretrain(3, out)
    assert codes == [0, 0, 0], messages
    tensors, _ = saved_tensors(out)
    assert [len(tensors[f"{rank}/replay.safetensors/age"]) for rank in range(3)] == [1, 1, 2]
    codes, _ = resume(3, out, "", "--steps", "160")
    assert codes == [0, 0, 0]


@pytest.mark.slow
def test_states_are_counted_in_the_environments_of_all_ranks(tmp_path):
    """Each once, whichever rank it was in; on one process too, with which the run is resumed."""
    out, coverage = tmp_path / "run", "0/loop.safetensors/states/"
    counted = words(env__count_states="true", env__backend="sync")
    codes, messages = run(2, ["pretrain", "dmc/pendulum", "--out", str(out), *counted], tmp_path)
    assert codes == [0, 0], messages
    for size in (2, 1):
        tensors, meta = saved_tensors(out)
        assert tensors[f"{coverage}seen"].tolist() == [meta["steps"]]
        assert read_metrics(out)[-1]["coverage/bins"] == len(tensors[f"{coverage}bins"]) > 1
        assert not any(name.startswith("1/loop.safetensors/states") for name in tensors)
        codes, messages = resume(size, out, "", "--steps", str(meta["steps"] + 40))
        assert codes == [0] * size, messages


@pytest.mark.slow
def test_a_probe_by_the_first_rank_exchanges_nothing(tmp_path):
    """It computes rewards, which in updates are those among the particles of all ranks."""
    out, pool = tmp_path / "run", {"method__k": 3, "method__pool": "all_ranks"}
    probing = {"log__probe_every_steps": 30, "representation": "identity"}
    options = words(method="apt", steps=40, env__backend="sync", **pool, **probing)
    codes, messages = run(2, ["pretrain", "dmc/pendulum", "--out", str(out), *options], tmp_path)
    assert codes == [0, 0], messages
    assert any("probe/rarity_correlation" in row for row in read_metrics(out))


@pytest.mark.slow
def test_more_ranks_than_environments_is_one_sentence_of_the_first_rank(tmp_path):
    codes, messages = pretrain(3, tmp_path / "run", env__num_envs=2, learner__batch_size=12)
    assert codes == [2, 2, 2]
    assert (
        messages[0].count("voidrl: --env.num-envs 2 cannot be used on 3 ranks")
        + messages[0].count("env.num_envs = 2 cannot be used on 3 ranks")
        == 1
    )
    assert messages[1:] == ["", ""]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_launcher_passes_signals_on_and_leaves_nothing(tmp_path):
    out = tmp_path / "run"
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "voidrl", "pretrain", ENV, "--ranks", "2", "--out", str(out)]
    child = subprocess.Popen(
        [*command, *words(steps=100000)],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    while child.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    _, messages = child.communicate(timeout=120)
    assert child.returncode == 75, messages
    assert messages.count("stopped by SIGTERM") == 1
    assert read_status(out).state == "stopped"
    saved_tensors(out)  # all parts are there
    assert run(1, ["resume", str(out), "--steps", "60"], tmp_path)[0] == [0]
