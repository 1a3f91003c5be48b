"""Final numbers computed by hand, published numbers next to ours, and Markdown and CSV that read back."""

import csv
import io
import json
import re

import pytest
from synthetic_runs import MAZE, write_experiment, write_run

from voidrl.config import flat, merge
from voidrl.envs.suites.atari import human_normalized
from voidrl.presets.presets import protocol_for
from voidrl.report import markdown
from voidrl.report.contents import Report
from voidrl.report.formatting import count, join_names, seed_list, step_range, steps
from voidrl.report.outcomes import Spread, headline_measure, measure_of, outcome, return_source, spreads
from voidrl.report.page import write_report
from voidrl.report.published import atari_table, published_tables
from voidrl.report.results import make_results


def report_of(*paths):
    return Report.read(paths, lambda text: None)


def arms_of(*paths):
    report = report_of(*paths)
    return report.collection, report.arms


def test_the_return_is_of_the_evaluation_else_of_the_last_one_in_training_else_of_late_episodes(tmp_path):
    rows = [{"step": step, "episode/return": step} for step in range(10, 101, 10)]
    evaluated = [{"step": 60, "eval/return": 5.0, "eval/success": 0.25, "eval/episodes": 8}]
    env = f"{MAZE}&goal=far"
    write_run(tmp_path / "a", env=env, rows=rows + evaluated, evaluation=[1.0, 2.0])
    write_run(tmp_path / "b", env=env, rows=rows + evaluated)
    write_run(tmp_path / "c", env=env, rows=rows)
    a, b, c = arms_of(tmp_path)[0].runs
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
    arm = arms_of(tmp_path)[1][0]
    assert spreads(arm) == {"coverage/bins": Spread(15, 10, 20, [])}
    assert spreads(arm)["coverage/bins"].seeds == [1, 2]
    row = make_results([arm])[0].rows[0]
    assert row.statuses == {"done": 2, "stopped": 1}
    assert row.steps == "50 to 100 of 100"
    assert row.seed_text == "2 of 3 (1, 2)"


def test_where_no_run_is_complete_numbers_are_so_far(tmp_path):
    write_run(tmp_path / "a", env="dmc/walker", rows=[{"step": 50, "coverage/bins": 7}])
    arms = arms_of(tmp_path)[1]
    table = make_results(arms)[0].table()
    assert table.rows[0][-1] == "7 so far"


def test_arms_are_compared_by_their_task_or_without_reward_by_coverage(tmp_path):
    rows = [{"step": 100, "eval/return": 1.0, "coverage/bins": 3}]
    write_run(tmp_path / "a", env="dmc/walker_run", rows=rows)
    write_run(tmp_path / "b", env="dmc/walker_run", phase="train", rows=rows)
    one, other = arms_of(tmp_path)[1]
    assert headline_measure([one], one.stage) == "coverage/bins"
    assert headline_measure([other], other.stage) == "return"


@pytest.mark.parametrize(
    ("key", "numbers", "shown"),
    [
        ("success", (0.5, 0.0, 1.0), "50% (0% to 100%)"),
        ("return", (-0.12345, -0.2, 0.0), "−0.123 (−0.2 to 0)"),
        ("coverage/bins", (7.4, 7, 8), "7 (7 to 8)"),
        ("normalized", (12.345, 12.0, 12.5), "1,234% (1,200% to 1,250%)"),
    ],
)
def test_how_numbers_are_written(key, numbers, shown):
    assert Spread(*numbers, runs=[None, None]).format(key) == shown


def test_one_run_has_no_range():
    assert Spread(1234.56, 1234.56, 1234.56, runs=[None]).format("return") == "1,235"


def test_formatting():
    assert (count(16000), count(8007)) == ("16,000", "8,007")
    assert (steps(16000), steps(2_500_000), steps(8007)) == ("16k", "2.5M", "8,007")
    assert (step_range([8000, 16000, 9000]), step_range([100, 100])) == ("8k to 16k", "100")
    assert (join_names("abc"), join_names("abcd", most=2)) == ("a, b, c", "a, b, 2 more")
    assert seed_list([3, 1, 2, 7, 8]) == "1–3, 7, 8"
    assert measure_of("coverage/rooms").name == "rooms"


def games(tmp_path):
    """Two games of the paper's table, two seeds, fine-tuned for a hundredth of the protocol."""
    cells = []
    for game, scores in (("alien", (500.0, 700.0)), ("pong", (-20.0, 0.0))):
        for seed, score in enumerate(scores, start=1):
            env, name = f"atari/{game}", f"{game}/apt/seed{seed}"
            write_run(tmp_path / f"{name}-pretrain", env=env, seed=seed, rows=[{"step": 100}])
            tuned = {"env": env, "seed": seed, "phase": "finetune", "evaluation": [score]}
            write_run(tmp_path / name, rows=[{"step": 100}], **tuned)
            shared = {"label": "APT", "task": env, "seed": seed}
            cells.append({"folder": f"{name}-pretrain", "protocol_steps": 250_000_000, **shared})
            cells.append({"folder": name, "phase": "finetune", "source": f"{name}-pretrain", **shared})
            cells[-1]["protocol_steps"] = 10_000
    write_experiment(tmp_path, cells, name="table2", published="table2")


def test_our_numbers_are_next_to_the_published_ones_with_seeds_and_steps(tmp_path):
    games(tmp_path)
    collection, arms = arms_of(tmp_path)
    [table] = published_tables(collection, arms)
    assert table.columns == [
        *("method", "", "alien", "pong", "median", "mean", "IQM", "above human"),
        *("tasks", "seeds", "steps"),
    ]
    printed, ours = (row for row in table.rows if row[0] == "APT")
    assert printed[1:8] == ["printed", "2614.8", "−8", "47.5", "69.55", "–", "7"]
    assert ours[1:4] == ["ours", "600 (500 to 700)", "−10 (−20 to 0)"]
    expected = 100 * (human_normalized("alien", 600) + human_normalized("pong", -10)) / 2
    assert float(ours[5].split()[0]) == pytest.approx(expected, abs=0.05)
    assert ours[-3:] == ["2", "2", "100 of 250M pre-training, 100 of 10k fine-tuning"]
    spr = [row[1:8] for row in table.rows if row[0] == "SPR"]
    assert spr == [
        ["printed", "801.5", "−5.9", "41.5", "70.4", "–", "7"],
        ["larger sample, 100 runs", "841.9", "−5.4", "39.6", "61.6", "33.7", "–"],
    ]
    assert {"VISR", "DrQ(ε)"} <= {row[0] for row in table.rows}
    assert [note.partition(":")[0] for note in table.notes[:2]] == ["Printed", "Larger sample"]
    assert any("demon_attack" in note and "larger samples" in note for note in table.notes)
    assert any("Tasks without a run: 24 of 26" in note for note in table.notes)


def test_agents_outside_of_experiments_are_next_to_the_published_ones(tmp_path):
    values = flat(merge(protocol_for("atari/assault", "drq")))
    settings = {name.replace(".", "__"): value for name, value in values.items() if name != "steps"}
    run = {"env": "atari/assault", "phase": "train", "steps": 90_000, "rows": [{"step": 90_000}]}
    for seed, score in ((1, 500.0), (2, 700.0)):
        write_run(tmp_path / f"a{seed}", seed=seed, evaluation=[score], **run, **settings)
    # Another discount is another agent, and sticky actions are another game.
    write_run(tmp_path / "b", evaluation=[1.0], **run, **{**settings, "learner__discount": 0.9})
    sticky = {**run, "env": "atari/assault?repeat_action_probability=0.25"}
    write_run(tmp_path / "c", evaluation=[2.0], **sticky, **settings)
    collection, arms = arms_of(tmp_path)
    [table] = published_tables(collection, arms)
    assert table.columns == ["method", "", "assault", "tasks", "seeds", "steps"]
    assert [row[1:5] for row in table.rows if row[0] == "DrQ"] == [
        ["printed", "452.4", "", ""],
        ["ours", "600 (500 to 700)", "1", "2"],
    ]
    assert ["DrQ(ε)", "larger sample, 100 runs", "579.6", "", "", ""] in table.rows
    assert "Ours: 90k steps; published: 100k." in table.notes
    assert "## Published numbers" in markdown.as_markdown(report_of(tmp_path))
    cells = [
        {"folder": f"a{seed}", "seed": seed, "label": "DrQ", "phase": "train", "env": "atari/assault"}
        for seed in (1, 2)
    ]
    write_experiment(tmp_path, cells, published="table2")
    titles = [table.title for table in published_tables(*arms_of(tmp_path / "a1", tmp_path / "a2"))]
    assert len(titles) == 1  # that of the experiment


def test_aggregates_over_games_are_human_normalized(tmp_path):
    games(tmp_path)
    table = atari_table(arms_of(tmp_path)[1])
    assert table.rows[0][:2] == ["APT", "4"]
    scores = [human_normalized("alien", 600), human_normalized("pong", -10)]
    mean = table.rows[0][table.columns.index("mean")]
    assert float(mean.split()[0]) == pytest.approx(100 * sum(scores) / 2, abs=0.05)
    assert table.rows[0][-1].endswith(" of 2")


def test_an_unknown_published_table_is_reported(tmp_path):
    write_run(tmp_path / "a", rows=[{"step": 100}])
    write_experiment(tmp_path, [{"folder": "a"}], published="table99")
    table = published_tables(*arms_of(tmp_path))[0]
    assert "unknown published table 'table99'" in table.notes[0]


def cells_of(line):
    """The cells of a line of a Markdown table, unescaped."""
    parts = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [re.sub(r"\\(.)", r"\1", part.strip()) for part in parts]


def test_markdown_tables_read_back(tmp_path):
    nasty = "a|b\\c*_<img src=x>[`]\nx"
    write_run(tmp_path / "a", rows=[{"step": 100, "coverage/cells": 3}])
    write_experiment(tmp_path, [{"folder": "a", "label": nasty}])
    out = write_report([tmp_path], tmp_path / "report.md", say=lambda text: None)
    text = out.read_text()
    assert "<img" not in text.replace("\\<img", "")
    table = make_results(arms_of(tmp_path)[1])[0].table()
    lines = [cells_of(line) for line in text.splitlines() if line.startswith("|")]
    assert table.columns in lines
    assert [" ".join(cell.split("\n")) for cell in table.rows[0]] in lines
    assert "## Caveats" in text
    assert "```\nvoidrl experiment own\n```" in text


def test_csv_has_a_row_for_each_run_and_reads_back(tmp_path):
    games(tmp_path)
    failed = {"env": "atari/pong", "seed": 9, "steps": 500, "error": "why"}
    write_run(tmp_path / "failed", rows=[{"step": 7}], **failed)
    out = write_report([tmp_path], tmp_path / "results.csv", say=lambda text: None)
    as_json = write_report([tmp_path], tmp_path / "results.json", say=lambda text: None)
    rows = [*csv.DictReader(io.StringIO(out.read_text()))]
    assert len(rows) == 9
    tuned = [row for row in rows if row["phase"] == "finetune" and row["environment"] == "atari/alien"]
    assert [(row["arm"], int(row["seed"]), float(row["return"])) for row in tuned] == [
        ("APT", 1, 500.0),
        ("APT", 2, 700.0),
    ]
    assert float(tuned[0]["normalized"]) == pytest.approx(human_normalized("alien", 500))
    assert tuned[0]["steps_protocol"] == "10000"
    data = json.loads(as_json.read_text())
    assert [[*map(str, each.values())] for each in data] == [
        [value or "None" for value in each.values()] for each in rows
    ]
    failed = next(row for row in rows if row["status"] == "failed")
    assert (failed["steps"], failed["steps_asked"], failed["return"]) == ("7", "500", "")
    assert markdown.as_csv(report_of(tmp_path)) == out.read_text()


def test_a_seed_without_its_evaluation_is_not_among_those_of_the_mean(tmp_path):
    cells = []
    for seed, returns in ((1, [100.0]), (2, [200.0]), (3, None)):
        run = {"env": "atari/alien", "phase": "train", "seed": seed}
        write_run(tmp_path / f"s{seed}", rows=[{"step": 100}], evaluation=returns, **run)
        cells.append({"folder": f"s{seed}", "seed": seed, "phase": "train", "label": "APT, random heads"})
    write_experiment(tmp_path, cells, published="table5")
    table = published_tables(*arms_of(tmp_path))[0]
    [ours] = [row[2:] for row in table.rows if row[1] == "ours"]
    assert ours == ["150 (100 to 200)", "1", "2 of 3, evaluation missing", "100 of 100 from scratch"]


def test_a_published_table_has_the_arms_of_its_own_experiment(tmp_path):
    for name, score, published in (("a", 300.0, "table2"), ("b", 500.0, None)):
        run = {"env": "atari/alien", "phase": "train", "rows": [{"step": 100}], "evaluation": [score]}
        write_run(tmp_path / name / "run", **run)
        cells = [{"folder": "run", "phase": "train", "label": "APT"}]
        departure = "preset mine instead of the experiment's atari-paper"
        write_experiment(tmp_path / name, cells, name=name, published=published, departure=departure)
    tables = published_tables(*arms_of(tmp_path))
    assert [row[2] for row in tables[0].rows if row[:2] == ["APT", "ours"]] == ["300"]
    assert "Ours: preset mine instead of the experiment's atari-paper." in tables[0].notes


def test_pixels_are_not_compared_with_the_steps_of_a_state_protocol(tmp_path):
    run = {"env": "dmc/walker_run", "phase": "train", "rows": [{"step": 100}], "evaluation": [9.0]}
    write_run(tmp_path / "run", **run, env__dmc__observation="pixels")
    cells = [{"folder": "run", "phase": "train", "label": "APT", "protocol_steps": 10_000}]
    write_experiment(tmp_path, cells, published="urlb", default_preset="urlb-states")
    collection, arms = arms_of(tmp_path)
    [table] = published_tables(collection, arms)
    [ours] = [row for row in table.rows if row[1] == "ours"]
    assert ours[-1] == "another protocol: pixels in place of states"
    assert not any("protocol" in caveat.title for caveat in report_of(tmp_path).caveats)
    assert make_results(arms)[0].rows[0].steps == "100"


def test_columns_of_57_games_are_filled_by_games_beyond_the_26(tmp_path):
    cells = []
    for game, score in (("alien", 7127.7), ("centipede", 12017.0)):  # human scores; the second is of the 57
        write_run(
            tmp_path / game, env=f"atari/{game}", phase="train", rows=[{"step": 100}], evaluation=[score]
        )
        cells.append({"folder": game, "phase": "train", "label": "APT", "task": f"atari/{game}"})
    write_experiment(tmp_path, cells, published="table3")
    table = published_tables(*arms_of(tmp_path))[0]
    [row] = [row for row in table.rows if row[1] == "ours"]
    ours = dict(zip(table.columns, row, strict=True))
    assert (ours["above human"], ours["above human of 57"]) == ("1 of 1", "2 of 2")
    assert ours["mean of 57"] == "100.0"
    [row] = [row for row in published_tables(*arms_of(tmp_path / "alien"))[0].rows if row[1] == "ours"]
    assert dict(zip(table.columns, row, strict=True))["mean of 57"] == "–"


def test_of_several_lengths_the_longest_complete_one_is_shown(tmp_path):
    cells = []
    for asked, reached, score in ((100, 100, 5.0), (200, 200, 7.0), (300, 50, 9.0)):
        run = {"env": "atari/alien", "phase": "train", "steps": asked}
        write_run(tmp_path / str(asked), rows=[{"step": reached, "eval/return": score}], **run)
        cells.append({"folder": str(asked), "phase": "train", "label": "APT", "task": "atari/alien"})
    write_experiment(tmp_path, cells, published="table2")
    [table] = published_tables(*arms_of(tmp_path))
    assert [row[2] for row in table.rows if row[1] == "ours"] == ["7"]
