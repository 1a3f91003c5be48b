"""URLB's table in a report: made-up runs of an experiment, and of no experiment, and what is missing."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from synthetic_runs import write_experiment, write_json, write_run

from voidrl.config import registry
from voidrl.report.figures import draw_ranking, require_matplotlib
from voidrl.report.groups import make_arms
from voidrl.report.page import write_report
from voidrl.report.published import published_tables
from voidrl.report.ranking import coverage_rankings
from voidrl.report.read import read_all
from voidrl.report.scores.urlb import BODIES, expert_returns
from voidrl.report.urlb import urlb_tables

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
    [found] = urlb_tables(*read(*paths))
    return found


def cells(table, label):
    return dict(zip(table.columns, next(row for row in table.rows if row[0] == label), strict=True))


def test_runs_of_no_experiment_have_the_table_too(tmp_path):
    write_run(
        tmp_path / "rnd", env="dmc/walker", method="rnd", steps=500_000, rows=[{"step": 500_000}], **STATES
    )
    for task, share in zip(BODIES["walker"], (0.9, 0.8, 0.4, 0.5), strict=True):
        write_task(tmp_path / f"rnd-{task[4:]}", task, share)
    write_task(tmp_path / "scratch", "dmc/walker_run", 0.3, phase="train")
    found = urlb(tmp_path)
    rnd = cells(found.overview, "rnd")
    assert (rnd["family"], rnd["walker"], rnd["quadruped"]) == ("knowledge", "0.65", "not run")
    assert rnd["all"] == "0.65 (4/12)"
    assert found.overview.rows[0][3] == "0.61"  # published, walker
    assert cells(found.overview, "MOSS")["all"] == "not run"
    assert [row[0] for row in found.overview.rows][-1] == "scratch"
    walker = found.bodies[1]
    assert [(line.label, line.mean, line.tasks) for line in walker.methods] == [
        ("rnd", "0.65", "4/4"),
        ("scratch", "0.30", "1/4"),
    ]
    text = "\n".join(found.not_run)
    assert "Methods without a run: ICM, Disagreement, APT (ICM), APT (ind), ProtoRL, SMM" in text
    assert "Not run on quadruped, jaco: rnd." in text
    assert "1 seed; the protocol has 10." in text
    assert "500k of the protocol's 2M frames of pre-training: rnd." in text


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
    found = urlb(tmp_path)
    ours = {row[0]: row[2:4] for row in found.overview.rows if row[2] != "not run"}
    assert ours == {
        "apt (icm), 2M frames": ["0.60 (1/4)", "0.62"],
        "apt (icm), 330k frames": ["0.40 (1/4)", "0.62"],
        "apt (identity)": ["0.50 (1/4)", "0.59"],
    }
    assert "330k of the protocol's 2M frames of pre-training: apt (icm), 330k frames." in found.not_run
    assert "Frames of pre-training unknown: apt (identity)." in found.not_run


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


def test_an_experiment_has_intervals_families_and_what_is_missing(tmp_path):
    every = dict.fromkeys(BODIES["all"], (0.5, 0.7))
    shares = {
        "RND": ("rnd", every),
        "ICM": ("icm", {**every, "dmc/walker_run": (0.5,), "dmc/walker_flip": ()}),
    }
    shares["DIAYN"] = ("diayn", {"dmc/walker_run": (0.1, None)})
    shares["METRA"] = ("metra", {"dmc/walker_run": (0.3, 0.5)})
    experiment(tmp_path, shares=shares)
    found = urlb(tmp_path)
    whole = found.bodies[0]
    assert [line.label for line in whole.methods] == ["RND", "ICM", "METRA", "DIAYN"]  # most tasks first
    assert whole.methods[0].mean.startswith("0.60 [0.5")
    assert [(line.label, line.family, line.tasks) for line in whole.families] == [
        ("knowledge", "2 methods: RND, ICM", "11/12"),
        ("competence", "2 methods: DIAYN, METRA", "1/12"),
    ]
    assert "mean where published" in whole.columns.values()  # top right is not printed
    knowledge, competence = whole.families
    assert "published" in knowledge.bar
    # METRA has no published number, so the two means are not of the same methods.
    assert (competence.mean[:4], competence.on_published, competence.published) == ("0.25", "0.10", "0.18")
    assert "published" not in competence.bar
    text = "\n".join(found.not_run)
    assert "Not run on walker_flip: ICM." in text
    assert "Without seed 2: ICM on walker_run, DIAYN." in text
    assert "Left out, as not complete or without an evaluation: walker_run/diayn/seed2." in text
    page = write_report([tmp_path], tmp_path / "r.html", media=False, say=lambda text: None).read_text()
    assert 'id="urlb"' in page
    assert "2 methods: RND, ICM" in page
    assert 'class="range f-knowledge"' in page
    text = write_report([tmp_path], tmp_path / "r.md", say=lambda text: None).read_text()
    assert "## URLB from states: expert-normalized mean" in text
    assert "- Without seed 2: ICM on walker\\_run, DIAYN." in text


def test_with_many_methods_published_numbers_have_a_line_for_each(tmp_path):
    one = {"dmc/walker_run": (0.5,)}
    methods = {"RND": "rnd", "ICM": "icm", "DIAYN": "diayn", "APT": "apt"}
    experiment(tmp_path, shares={label: (method, one) for label, method in methods.items()})
    [table] = published_tables(*read(tmp_path))
    assert table.columns == ["method", "", "walker run", "seeds"]
    assert table.rows[:2] == [["ICM", "published", "180", ""], ["ICM", "ours", "398", "1"]]
    assert any(
        "steps of ICM, RND, APT, DIAYN: " in note and "100k of 100k fine-tuning." in note
        for note in table.notes
    )


def test_a_seed_that_was_run_twice_counts_once(tmp_path):
    for name, share in (("a", 0.2), ("b", 0.6)):
        write_task(tmp_path / name, "dmc/walker_run", share)
    [line] = urlb(tmp_path).bodies[1].methods
    assert (line.mean, line.seeds) == ("0.60", "1")  # one seed: no interval


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
    assert [line.mean for line in found.bodies[1].methods] == ["0.40"]
    assert "Left out, as not complete or without an evaluation: stopped." in found.not_run


def test_pixels_are_not_next_to_numbers_from_states(tmp_path):
    write_task(tmp_path / "a", "dmc/walker_run", 0.5, env__dmc__observation="pixels")
    found = urlb(tmp_path)
    assert found.overview.title == "URLB from pixels: expert-normalized mean"
    assert "published" not in found.overview.columns
    assert "Published numbers are from states" in found.overview.notes[-1]


def test_the_same_tasks_with_another_learner_are_not_urlb(tmp_path):
    write_task(tmp_path / "a", "dmc/walker_run", 0.5, learner__name="sac")
    assert urlb_tables(*read(tmp_path)) == []


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
    assert page.index('<span role="rowheader">rnd') < page.index('<span role="rowheader">apt')
    plt = require_matplotlib(["png"])
    figure = draw_ranking(plt, ranking)
    [axis] = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["rnd", "apt", "random"]
    plt.close(figure)


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
    assert any(line.startswith("| knowledge, 2 methods |") for line in lines)
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
