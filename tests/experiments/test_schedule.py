"""Schedules on paper: small plans whose makespan can be worked out by hand, and their bounds."""

from __future__ import annotations

import itertools
import random

import pytest

from voidrl.cli.main import main
from voidrl.errors import ConfigError
from voidrl.experiments.estimate import Rate
from voidrl.experiments.schedule import Machines, TimedCell, describe, simulate, slowdown


def spans(schedule):
    return {slot.task.name: (slot.place, slot.start, slot.end) for slot in schedule.slots}


def names(slots):
    return [slot.task.name for slot in slots]


def test_independent_tasks_fill_places_in_their_order():
    tasks = [TimedCell("a", 3), TimedCell("b", 2), TimedCell("c", 2), TimedCell("d", 1)]
    schedule = simulate(tasks, 2)
    # place 0: a a a d, place 1: b b c c
    assert spans(schedule) == {"a": (0, 0, 3), "b": (1, 0, 2), "c": (1, 2, 4), "d": (0, 3, 4)}
    assert schedule.makespan == 4
    assert schedule.work == 8
    assert schedule.work_bound == 4
    assert schedule.utilization == 1.0


def test_fine_tunings_wait_for_their_pretraining():
    tasks = [TimedCell("p", 5), TimedCell("f", 1, "p"), TimedCell("g", 2, "p"), TimedCell("s", 1)]
    schedule = simulate(tasks, 2)
    # place 0: p p p p p f, place 1: s . . . . g g
    assert spans(schedule) == {"p": (0, 0, 5), "s": (1, 0, 1), "f": (0, 5, 6), "g": (1, 5, 7)}
    assert schedule.makespan == 7 == schedule.chain_bound
    assert [task.name for task in schedule.longest_chain] == ["p", "g"]
    assert names(schedule.critical_path) == ["p", "g"]
    assert schedule.utilization == pytest.approx(9 / 14)


def test_critical_path_goes_through_a_place_that_was_taken():
    schedule = simulate([TimedCell("a", 4), TimedCell("b", 3), TimedCell("c", 3), TimedCell("d", 1, "c")], 2)
    # place 0: a a a a ., place 1: b b b c c c d
    assert schedule.makespan == 7
    assert names(schedule.critical_path) == ["b", "c", "d"]
    assert schedule.critical_path[0].start == 0
    assert schedule.chain_bound == 4
    assert schedule.work_bound == 5.5


def test_rounds_of_equal_runs():
    """Nine runs on eight places take two rounds, of which the second is almost empty."""
    schedule = simulate([TimedCell(str(i), 10) for i in range(9)], 8)
    assert schedule.makespan == 20
    assert schedule.work_bound == 11.25
    text = "\n".join(describe(schedule, Machines(nodes=8), "ray"))
    assert "bound by: the number of GPUs; whole runs do not fill the last round (44 % idle)" in text
    assert "utilization: 56.2 % of 8 GPUs" in text


def test_more_machines_than_the_chain_can_use():
    tasks = [TimedCell("p", 7200), TimedCell("f", 3600, "p")]
    lines = describe(simulate(tasks, 64), Machines(nodes=8, gpus_per_node=8), "ray")
    assert lines == [
        "schedule: 8 nodes × 8 GPUs (--on ray), simulated",
        "makespan: 3h00m",
        "GPU-hours: 3 (0.125 GPU-days)",
        "utilization: 1.6 % of 64 GPUs",
        "not shorter than: 2m49s (all work on 64 GPUs), 3h00m (longest chain: p → f)",
        "critical path: p (2h00m) → f (1h00m)",
        "bound by: the longest chain; more GPUs do not help",
    ]


def test_the_chain_is_named_only_where_the_makespan_is_its_length():
    """A chain of 10 s that starts after runs of 2 s: a third place makes it shorter."""
    tasks = [TimedCell("a", 2), TimedCell("b", 2), TimedCell("p", 10)]
    for places, bound in (
        (2, "the longest chain, and runs before it; more GPUs make it at most 2s"),
        (3, "the longest chain; more GPUs do not"),
    ):
        made = simulate(tasks, places)
        assert made.chain_bound >= made.work_bound
        assert f"bound by: {bound}" in "\n".join(describe(made, Machines(nodes=places), "ray"))


def test_sources_that_are_done_and_tasks_without_time():
    schedule = simulate([TimedCell("f", 2, "done"), TimedCell("u", 0), TimedCell("v", 3, "u")], 1)
    assert spans(schedule) == {"f": (0, 0, 2), "u": (0, 2, 2), "v": (0, 2, 5)}
    assert names(schedule.critical_path) == ["f", "u", "v"]
    assert "left out: 1 runs, whose time is unknown" in describe(schedule, Machines(), "ray")
    assert simulate([], 4).makespan == 0
    assert describe(simulate([], 4), Machines(), "local") == []


@pytest.mark.parametrize("seed", range(20))
def test_any_schedule_is_valid_and_within_its_bounds(seed):
    draw = random.Random(seed)
    tasks: list[TimedCell] = []
    for i in range(60):
        source = draw.choice(tasks).name if tasks and draw.random() < 0.5 else None
        tasks.append(TimedCell(str(i), float(draw.randint(0, 9)), source))
    places = draw.randint(1, 8)
    schedule = simulate(tasks, places)
    found = spans(schedule)
    assert set(found) == {task.name for task in tasks}
    for task in tasks:
        place, start, end = found[task.name]
        assert end - start == task.seconds
        assert 0 <= place < places
        assert task.source is None or start >= found[task.source][2]
    for place in range(places):
        on_it = sorted((start, end) for p, start, end in found.values() if p == place)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(on_it))
    bound = max(schedule.work_bound, schedule.chain_bound)
    assert bound <= schedule.makespan <= schedule.work_bound + schedule.chain_bound  # Graham 1966
    path = schedule.critical_path
    assert path[0].start == 0
    assert path[-1].end == schedule.makespan
    assert all(before.end == after.start for before, after in itertools.pairwise(path))


def test_runs_that_share_a_gpu():
    alone = Rate(219, 2.0, "one GPU")
    assert slowdown(alone, 1) == 1
    assert slowdown(alone, 3) == pytest.approx(2.5)  # 3 share 1.2 times the rate
    crowded = alone._replace(runs_per_gpu=6)
    assert slowdown(crowded, 1) == slowdown(crowded, 6) == 1
    assert slowdown(crowded, 12) == 2
    assert slowdown(None, 4) == 1


def test_gpu_hours_count_a_shared_gpu_once():
    machines = Machines(nodes=2, jobs_per_gpu=3)
    assert machines.places == 6
    schedule = simulate([TimedCell(str(i), 3600) for i in range(6)], machines.places)
    assert "GPU-hours: 2 (0.0833 GPU-days)" in describe(schedule, machines, "ray")
    assert str(machines) == "2 nodes × 1 GPU, 3 runs on each"


@pytest.mark.parametrize("field", ["nodes", "gpus_per_node", "jobs_per_gpu"])
def test_machines_that_cannot_be(field):
    with pytest.raises(ConfigError, match="a whole number above 0"):
        Machines(**{field: 0})


def test_the_command_line_of_a_schedule(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = ["experiment", "demo", "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*words, "--dry-run", "--on", "slurm", "--nodes", "2"]) == 0
    said = capsys.readouterr().out
    # By rates.json on a CPU: APT 180 s, then 60 s of fine-tuning; random and scratch next to them.
    assert "schedule: 2 nodes × 1 place (--on slurm), simulated\nmakespan: 3m59s\n" in said
    assert "critical path: maze/apt/seed2 (3m00s) → goal/finetuned/seed2 (1m00s)\n" in said
    assert "bound by: the longest chain; more places do not help" in said
    # CPU places share nothing, however many there are on a node: the same runs at the same rates.
    for more in (["--on", "ray", "--nodes", "1", "--jobs", "2"], ["--devices", "cpu", "--jobs", "2"]):
        given = words if "ray" in more else words[:-2]
        assert main([*given, "--dry-run", *more]) == 0
        said = capsys.readouterr().out
        assert "schedule: 1 node × 2 places (--on " in said
        assert "makespan: 3m59s\nplace-hours: " in said
    for more, sentence in (
        (["--on", "ray", "--nodes", "8"], "--nodes 8 cannot be used without --dry-run"),
        (["--dry-run", "--on", "ray", "--gpus-per-node", "8"], "without --nodes: add --nodes 1"),
        (["--dry-run", "--nodes", "8"], "--nodes 8 cannot be used with --on local"),
        (["--dry-run", "--on", "ray", "--nodes", "0"], "--nodes = 0 cannot be used"),
    ):
        assert main([*words, *more]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
