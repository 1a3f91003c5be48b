"""URLB's table in a report: made-up runs of an experiment, and of no experiment, and what is missing."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from synthetic_runs import write_experiment, write_json, write_run

from voidrl.config import registry
from voidrl.report.figures import draw_ranking
from voidrl.report.groups import make_arms
from voidrl.report.page import write_report
from voidrl.report.published import published_tables
from voidrl.report.ranking import coverage_rankings
from voidrl.report.read import read_all
from voidrl.report.scores.urlb import BODIES, expert_returns
from voidrl.report.urlb import urlb_sections

FAMILIES = {
    "icm": "knowledge",
    "rnd": "knowledge",
    "apt": "data",
    "diayn": "competence",
    "random": "baseline",
}
STATES = {"env__dmc__observation": "states", "env__dmc__action_repeat": 1, "learner__name": "ddpg"}


@pytest.fixture(autouse=True)
def families(monkeypatch):
    monkeypatch.setattr(registry, "read_about", lambda name: {"family": FAMILIES.get(name, "competence")})


def write_task(folder, task, share, method="rnd", phase="finetune", frames=100_000, **more):
    """A run on a task that reached this share of the expert's return."""
    returns = None if share is None else [share * expert_returns()[task]]
    more = {"representation__name": "learner", **STATES, **more}
    rows = [{"step": frames}]
    write_run(
        folder, env=task, phase=phase, method=method, steps=frames, rows=rows, evaluation=returns, **more
    )


def read(*paths):
    collection = read_all(paths, lambda text: None)
    return collection, make_arms(collection.runs)


def urlb(*paths):
    [found] = urlb_sections(*read(*paths))
    return found


def ours(section):
    """Rows with a run of ours: the cells by column, with `published walker` and so on."""
    [table] = section.tables
    columns = [
        f"published {table.columns[i - 1]}" if name == "published" else name
        for i, name in enumerate(table.columns)
    ]
    return {
        row[0]: dict(zip(columns, row, strict=True))
        for row, bar in zip(table.rows, table.bars, strict=True)
        if bar is not None
    }


def test_runs_of_no_experiment_have_the_table_too(tmp_path):
    write_run(
        tmp_path / "rnd", env="dmc/walker", method="rnd", steps=500_000, rows=[{"step": 500_000}], **STATES
    )
    for task, share in zip(BODIES["walker"], (0.9, 0.8, 0.4, 0.5), strict=True):
        write_task(tmp_path / f"rnd-{task[4:]}", task, share)
    write_task(tmp_path / "scratch", "dmc/walker_run", 0.3, phase="train")
    found = urlb(tmp_path)
    [table], rows = found.tables, ours(found)
    rnd = rows["rnd"]
    assert (rnd["family"], rnd["walker"], rnd["quadruped"]) == ("knowledge", "0.65", "not run")
    assert (rnd["published walker"], rnd["all"]) == ("0.61", "0.65 (4/12)")
    assert (rnd["seeds"], rnd["frames"]) == ("1", "500k + 100k")
    assert (rows["scratch"]["walker"], rows["scratch"]["frames"]) == ("0.30 (1/4)", "100k")
    assert table.rows[-1][0] == "scratch"
    moss = next(row for row in table.rows if row[0] == "MOSS")
    assert moss[2:6] == ["not run", "0.81", "not run", "0.88"]
    text = "\n".join(found.missing)
    assert "Methods without a run: ICM, Disagreement, APT (ICM), APT (ind), ProtoRL, SMM" in text
    assert any("The protocol: 2M frames of pre-training" in note for note in table.notes)


def test_other_lengths_and_representations_are_rows_of_their_own(tmp_path):
    for name, steps, share, f in (
        ("a", 328_000, 0.4, "icm"),
        ("b", 2_000_000, 0.6, "icm"),
        ("c", None, 0.5, "identity"),
    ):
        write_task(tmp_path / name, "dmc/walker_run", share, method="apt", representation__name=f)
        if steps is not None:
            record = json.loads((tmp_path / name / "evaluation.json").read_text())
            record["agent"] |= {"steps": 100_000, "steps_with_pretraining": steps + 100_000}
            write_json(tmp_path / name / "evaluation.json", record)
    rows = ours(urlb(tmp_path)).values()
    found = {(each["walker"], each["published walker"], each["frames"]) for each in rows}
    assert found == {
        ("0.60 (1/4)", "0.62", "2M + 100k"),
        ("0.40 (1/4)", "0.62", "330k + 100k"),
        ("0.50 (1/4)", "0.59", "unknown + 100k"),
    }


def experiment(root, *, shares, **about):
    """Fine-tunings of several methods: {label: (method, {task: shares of the seeds})}."""
    made = []
    for label, (method, by_task) in shares.items():
        for task, values in by_task.items():
            for seed, share in enumerate(values, start=1):
                folder = f"{task[4:]}/{method}/seed{seed}"
                write_task(root / folder, task, share, method=method, seed=seed)
                made.append({"folder": folder, "label": label, "task": task, "method": method, "seed": seed})
                made[-1] |= {
                    "phase": "finetune",
                    "steps": 100_000,
                    "protocol_steps": 100_000,
                    "evaluated": True,
                }
    about = {"name": "urlb", "published": "urlb", "default_preset": "urlb-states", **about}
    write_experiment(root, made, preset="urlb-states", **about)


def test_an_experiment_has_intervals_and_says_what_is_missing(tmp_path):
    every = dict.fromkeys(BODIES["all"], (0.5, 0.7))
    shares = {
        "RND": ("rnd", every),
        "ICM": ("icm", {**every, "dmc/walker_run": (0.5,), "dmc/walker_flip": ()}),
        "DIAYN": ("diayn", {"dmc/walker_run": (0.1, None)}),
    }
    experiment(tmp_path, shares=shares)
    found = urlb(tmp_path)
    rows = ours(found)
    assert [*rows] == ["RND", "ICM", "DIAYN"]
    assert rows["RND"]["all"].startswith("0.60 [0.5")
    assert rows["ICM"]["seeds"] == "1 to 2"
    assert rows["ICM"]["walker"].endswith(" (3/4)")
    [table] = found.tables
    bar = table.bars[[row[0] for row in table.rows].index("RND")]
    assert (bar.color, bar.mark) == (
        "knowledge",
        pytest.approx(float(rows["RND"]["published all"]), abs=0.005),
    )
    assert "Left out, as not complete or without an evaluation: walker_run/diayn/seed2." in found.missing
    page = write_report([tmp_path], tmp_path / "r.html", media=False, say=lambda text: None).read_text()
    assert 'id="urlb"' in page
    assert 'class="range f-knowledge"' in page
    text = write_report([tmp_path], tmp_path / "r.md", say=lambda text: None).read_text()
    assert "## URLB from states: expert-normalized mean" in text
    assert "- Left out, as not complete or without an evaluation: walker\\_run/diayn/seed2." in text


def test_with_many_methods_published_numbers_have_a_line_for_each(tmp_path):
    one = {"dmc/walker_run": (0.5,)}
    methods = {"RND": "rnd", "ICM": "icm", "DIAYN": "diayn", "APT": "apt"}
    experiment(tmp_path, shares={label: (method, one) for label, method in methods.items()})
    [table] = published_tables(*read(tmp_path))
    assert table.columns == ["method", "", "walker run", "tasks", "seeds", "steps"]
    assert table.rows[:2] == [
        ["ICM", "published", "180", "", "", ""],
        ["ICM", "ours", "398", "1", "1", "100k of 100k fine-tuning"],
    ]


def test_a_seed_that_was_run_twice_counts_once(tmp_path):
    for name, share in (("a", 0.2), ("b", 0.6)):
        write_task(tmp_path / name, "dmc/walker_run", share)
    [row] = ours(urlb(tmp_path)).values()
    assert (row["walker"], row["seeds"]) == ("0.60 (1/4)", "1")  # one seed: no interval


def test_a_run_that_was_stopped_does_not_count(tmp_path):
    write_task(tmp_path / "complete", "dmc/walker_run", 0.4)
    write_run(
        tmp_path / "stopped",
        env="dmc/walker_run",
        phase="finetune",
        method="rnd",
        seed=2,
        steps=100_000,
        rows=[{"step": 60_000, "eval/return": 700.0}],
        representation__name="learner",
        **STATES,
    )
    found = urlb(tmp_path)
    assert [row["walker"] for row in ours(found).values()] == ["0.40 (1/4)"]
    assert "Left out, as not complete or without an evaluation: stopped." in found.missing


def test_pixels_are_not_next_to_numbers_from_states(tmp_path):
    write_task(tmp_path / "a", "dmc/walker_run", 0.5, env__dmc__observation="pixels")
    found = urlb(tmp_path)
    [table] = found.tables
    assert table.title == "URLB from pixels: expert-normalized mean"
    assert "published" not in table.columns
    assert "Published numbers are from states" in table.notes[-1]


def test_the_same_tasks_with_another_learner_are_not_urlb(tmp_path):
    write_task(tmp_path / "a", "dmc/walker_run", 0.5, learner__name="sac")
    assert urlb_sections(*read(tmp_path)) == []


def zoo(root):
    maze = "voidrl/PixelMaze-v0?size=13&loops=0.1&layout_seed=3&image_size=39"
    for method, found in (("random", (30, 34)), ("rnd", (60, 62)), ("apt", (70, 50))):
        for seed, visited in enumerate(found, start=1):
            rows = [{"step": 100, "coverage/cells": visited, "time/steps_per_second": 50.0}]
            write_run(root / method / str(seed), env=maze, method=method, seed=seed, rows=rows)


def test_coverage_is_ranked_with_families_seeds_and_time(tmp_path):
    zoo(tmp_path)
    [ranking] = coverage_rankings(read(tmp_path)[1])
    assert [(arm.label, arm.family) for arm in ranking.arms] == [
        ("rnd", "knowledge"),
        ("apt", "data"),
        ("random", "baseline"),
    ]
    table = ranking.table()
    assert table.columns == ["method", "family", "maze coverage, mean", "seed 1", "seed 2", "seconds"]
    cells = 73  # that are open
    assert ranking.arms[0].values == {1: 60 / cells, 2: 62 / cells}
    assert table.rows[1][2:] == [
        f"{100 * 60 / cells:.3g}%",
        f"{100 * 70 / cells:.3g}%",
        f"{100 * 50 / cells:.3g}%",
        "2",
    ]
    page = write_report([tmp_path], tmp_path / "r.html", media=False, say=lambda text: None).read_text()
    coverage = page.partition('id="coverage"')[2]
    assert coverage.index('<th scope="row">rnd') < coverage.index('<th scope="row">apt')
    assert 'class="range f-knowledge seeds"' in coverage
    [axis] = draw_ranking(ranking).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["rnd", "apt", "random"]


def test_two_arms_are_compared_in_a_sentence_and_not_ranked(tmp_path):
    zoo(tmp_path)
    assert coverage_rankings(read(tmp_path / "rnd", tmp_path / "apt")[1]) == []


def script(monkeypatch, capsys, name, *words):
    """What a script of benchmarks/ prints."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    importlib.import_module(name).main()
    return capsys.readouterr().out.splitlines()


def test_walker_runs_of_many_methods_are_collected_into_one_table(tmp_path, monkeypatch, capsys):
    rows = [{"step": 500_000, "time/steps_per_second": 1000.0, "coverage/bins": 9}]
    for method in ("rnd", "icm"):
        write_run(tmp_path / method, env="dmc/walker", method=method, steps=500_000, rows=rows, **STATES)
        for task, share in (("stand", 0.5), ("run", 0.7)):
            folder = tmp_path / f"{method}-{task}"
            write_task(folder, f"dmc/walker_{task}", share, method=method)
            record = json.loads((folder / "evaluation.json").read_text())
            record["agent"] |= {"steps": 100_000, "steps_with_pretraining": 600_000}
            write_json(folder / "evaluation.json", record)
    file, runs = tmp_path / "runs.json", [path for path in tmp_path.iterdir() if path.is_dir()]
    lines = script(monkeypatch, capsys, "urlb_table", "--collect", file, "--methods", *runs)
    assert lines[0].startswith("| method | family | stand | run | mean | published mean | seeds |")
    # Published: stand 842 of 984 and run 267 of 796.
    assert "| rnd | knowledge | 0.50 | 0.70 | 0.60 | 0.60 | 1 | 500k, 8.3 min |" in lines
    assert len(json.loads(file.read_text())) == 6
    assert script(monkeypatch, capsys, "urlb_table", file, "--methods") == lines


def test_the_table_of_the_maze_is_made_of_run_folders(tmp_path, monkeypatch, capsys):
    zoo(tmp_path / "runs")
    picture, text = tmp_path / "zoo.png", tmp_path / "zoo.md"
    lines = script(
        monkeypatch, capsys, "zoo_table", tmp_path / "runs", "--picture", picture, "--markdown", text
    )
    assert lines[0] == "| method | family | maze coverage, mean | seed 1 | seed 2 | seconds |"
    assert lines[2].startswith("| rnd | knowledge | 83.6% |")
    assert text.read_text().splitlines() == lines
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_saved_results_of_the_maze_keep_what_was_not_run_again(tmp_path, monkeypatch, capsys):
    file, picture = tmp_path / "maze.json", tmp_path / "zoo.png"
    entry = {"family": "competence", "steps": 100, "machine": "a machine", "code": "abc"}
    old = [{"method": name, **entry, "seed": 1, "cells": [[50, 7], [100, 73]]} for name in ("aps", "apt")]
    file.write_text(json.dumps({"what": "cells", "date": "2021-12-06", "runs": old}))
    before = script(monkeypatch, capsys, "zoo_table", "--json", file)
    assert before[2:] == ["| APS | competence | 100% | 100% |", "| APT | competence | 100% | 100% |"]
    zoo(tmp_path / "runs")
    words = ("zoo_table", tmp_path / "runs", "--json", file, "--picture", picture)
    lines = script(monkeypatch, capsys, *words)
    assert lines[0] == "| method | family | maze coverage, mean | seed 1 | seed 2 |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| APS", "| RND", "| APT", "| random"]
    assert lines[4] == f"| APT | data | {6000 / 73:.3g}% | {7000 / 73:.3g}% | {5000 / 73:.3g}% |"
    saved = json.loads(file.read_text())["runs"]
    assert [(each["method"], each["seed"]) for each in saved][:3] == [("aps", 1), ("apt", 1), ("apt", 2)]
    assert saved[0] == old[0]
    assert saved[1]["cells"] == [[100, 70]]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert script(monkeypatch, capsys, "zoo_table", "--json", file) == lines
