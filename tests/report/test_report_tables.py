"""Final numbers computed by hand, and records that read back."""

import json

import pytest
from synthetic_runs import MAZE, report_of, write_run

from voidrl.report.formatting import count, join_names, seed_list, step_range, steps
from voidrl.report.outcomes import Spread, measure_of, outcome, return_source
from voidrl.report.page import write_report
from voidrl.report.results import make_results


def test_the_return_is_of_the_evaluation_else_of_the_last_one_in_training_else_of_late_episodes(tmp_path):
    rows = [{"step": step, "episode/return": step} for step in range(10, 101, 10)]
    evaluated = [{"step": 60, "eval/return": 5.0, "eval/success": 0.25, "eval/episodes": 8}]
    env = f"{MAZE}&goal=far"
    write_run(tmp_path / "a", env=env, rows=rows + evaluated, evaluation=[1.0, 2.0])
    write_run(tmp_path / "b", env=env, rows=rows + evaluated)
    write_run(tmp_path / "c", env=env, rows=rows)
    a, b, c = report_of(tmp_path).arms[0].runs
    assert outcome(a) == {"return": 1.5}
    assert outcome(b) == {"return": 5.0, "success": 0.25}
    assert outcome(c) == {"training_return": 100}  # the one row in the last tenth of 100 steps
    assert [return_source(run) for run in (a, b, c)] == [
        "2 evaluation episodes",
        "8 evaluation episodes at step 60; evaluation missing",
        "training episodes in the last 10% of steps; evaluation missing",
    ]


def test_final_numbers_are_of_complete_runs_where_there_are_any(tmp_path):
    for seed, (reached, bins) in enumerate([(100, 10), (100, 20), (50, 90)], start=1):
        rows = [{"step": reached, "coverage/bins": bins}]
        write_run(tmp_path / str(seed), env="dmc/walker", seed=seed, rows=rows)
    arm = report_of(tmp_path).arms[0]
    assert [*arm.spreads] == ["coverage/bins"]
    assert (arm.cell("coverage/bins"), arm.final_seeds) == ("15 (10 to 20)", [1, 2])
    assert arm.statuses == "2 done, 1 stopped"
    assert arm.steps == "50 to 100 of 100"
    assert arm.seed_text == "2 of 3 (1, 2)"


def test_where_no_run_is_complete_numbers_are_so_far(tmp_path):
    write_run(tmp_path / "a", env="dmc/walker", rows=[{"step": 50, "coverage/bins": 7}])
    arms = report_of(tmp_path).arms
    table = make_results(arms)[0].table()
    assert table.rows[0][2] == "7 so far"


def test_arms_are_compared_by_their_task_or_without_reward_by_coverage(tmp_path):
    rows = [{"step": 100, "eval/return": 1.0, "coverage/bins": 3}]
    write_run(tmp_path / "a", env="dmc/walker_run", rows=rows)
    write_run(tmp_path / "b", env="dmc/walker_run", phase="train", rows=rows)
    one, other = report_of(tmp_path).arms
    assert (one.headline, other.headline) == ("coverage/bins", "return")


@pytest.mark.parametrize(
    ("key", "values", "shown"),
    [
        ("success", (0.0, 1.0), "50% (0% to 100%)"),
        ("return", (-0.2, -0.17035, 0.0), "−0.123 (−0.2 to 0)"),
        ("coverage/bins", (7, 7, 8), "7 (7 to 8)"),
        ("normalized", (12.0, 12.5, 12.535), "1,234% (1,200% to 1,254%)"),
        ("return", (1234.56,), "1,235"),
    ],
)
def test_how_numbers_are_written(key, values, shown):
    assert Spread([], values).format(key) == shown


def test_formatting():
    assert (count(16000), count(8007)) == ("16,000", "8,007")
    assert (steps(16000), steps(2_500_000), steps(8007)) == ("16k", "2.5M", "8,007")
    assert (step_range([8000, 16000, 9000]), step_range([100, 100])) == ("8k to 16k", "100")
    assert (join_names("abc"), join_names("abcd", most=2)) == ("a, b, c", "a, b, 2 more")
    assert seed_list([3, 1, 2, 7, 8]) == "1–3, 7, 8"
    assert measure_of("coverage/rooms").name == "rooms"


def test_json_has_a_record_for_each_run(tmp_path):
    for seed, score in ((1, 500.0), (2, 700.0)):
        tuned = {"env": "atari/alien", "phase": "finetune", "seed": seed, "evaluation": [score]}
        write_run(tmp_path / f"s{seed}", rows=[{"step": 100}], **tuned)
    failed = {"env": "atari/pong", "seed": 9, "steps": 500, "error": "why"}
    write_run(tmp_path / "failed", rows=[{"step": 7}], **failed)
    out = write_report([tmp_path], tmp_path / "results.json", say=lambda text: None)
    first, second, last = json.loads(out.read_text())
    assert [(each["arm"], each["seed"], each["return"]) for each in (first, second)] == [
        ("apt", 1, 500.0),
        ("apt", 2, 700.0),
    ]
    # Alien is 0 at 227.8 and 1 at 7127.7.
    assert first["normalized"] == pytest.approx((500 - 227.8) / (7127.7 - 227.8))
    assert (last["status"], last["steps"], last["steps_asked"], last["return"]) == ("failed", 7, 500, None)


def test_rows_are_sorted_with_bars_on_the_axis_of_their_environment(tmp_path):
    for method, found in (("random", (30, 34)), ("rnd", (60, 62)), ("apt", (70, 50))):
        for seed, bins in enumerate(found, start=1):
            rows = [{"step": 100, "coverage/bins": bins}]
            write_run(tmp_path / method / str(seed), env="dmc/walker", method=method, seed=seed, rows=rows)
    table = make_results(report_of(tmp_path).arms)[0].table()
    assert [row[1:4] for row in table.rows] == [
        ["rnd", "61 (60 to 62)", "2 (1, 2)"],
        ["apt", "60 (50 to 70)", "2 (1, 2)"],
        ["random", "32 (30 to 34)", "2 (1, 2)"],
    ]
    assert [(bar.low, bar.high) for bar in table.bars] == [(85.7, 88.6), (71.4, 100.0), (42.9, 48.6)]
    assert table.bars[1].dots == [100.0, 71.4]
