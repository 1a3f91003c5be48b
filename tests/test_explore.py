"""`voidrl explore`: what is kept, continued and refused, and that table and JSON say what the runs hold."""

import dataclasses
import json
import signal
import sys

import pytest

pytest.importorskip("ale_py")

from voidrl import api, checkpoint, cli, explore, explore_plan
from voidrl.config import to_json
from voidrl.errors import CheckpointError, ConfigError, MissingExtraError, RunFolderError, RunInterrupted
from voidrl.explore import run_explore
from voidrl.games import human_normalised
from voidrl.metrics import MetricsWriter, read_metrics
from voidrl.presets import PRESETS
from voidrl.report.explore_figure import _curves, require_pyplot
from voidrl.score import started

GAME = "atari/ms_pacman?max_frames=120"  # games of 30 steps
TINY = {
    "env.num_envs": 2,
    "warmup_steps": 20,
    "updates_per_step": 0.1,
    "finetune.updates_per_step": 0.25,
    "finetune.warmup_steps": 10,
    "replay.capacity_steps": 60,
    "learner": {"batch_size": 8, "n_step": 2, "hidden_dim": 8, "encoder.width": 0.1},
    "representation": {"batch_size": 8, "encoder": {"width": 0.1, "hidden_dim": 8}},
    "log.log_every_steps": 10,
}
RUN = {"steps": 40, "eval_steps": 40, "config": TINY, "device": "cpu"}
MACHINE = {"date": "2021-12-06T00:00:00+00:00", "versions": {"voidrl": "0.0.1"}}


@pytest.fixture
def no_work(monkeypatch):
    """Anything that would train or play is an error."""
    for name in ("pretrain", "finetune", "train", "resume", "evaluate"):
        monkeypatch.setattr(api, name, lambda *args, name=name, **rest: pytest.fail(f"{name} was called"))


def plan_of(out, **changes):
    given = {"methods": ("apt", "positive"), "seeds": (1,), "preset": "atari-demo", "finetune_steps": None}
    return explore_plan.make_plan(GAME, out, **{**given, **RUN, **changes})


def make_done(part, counts, score):
    """The folder of a run as it is when it has ended and its checkpoints were left on another machine."""
    part.folder.mkdir(parents=True)
    rows = [
        {f"coverage/{k}": v // 2 for k, v in counts.items()},
        {f"coverage/{k}": v for k, v in counts.items()},
    ]
    with MetricsWriter(part.folder, tensorboard=False) as writer:
        for share, row in enumerate(rows, start=1):
            writer.write(part.config.steps * share // 2, {**row, "episode/return": score / 2})
    checkpoint.write_json_atomic(part.folder / "config.json", to_json(part.config))
    checkpoint.write_json_atomic(part.folder / "environment.json", MACHINE)
    evaluation = {
        "agent": {"steps": part.config.steps, "started": MACHINE["date"]},
        "settings": part.evaluation,
        "mean_return": score,
        "std_return": 10.0,
        "human_normalised": human_normalised("ms_pacman", score),
        "returns": [score - 10.0, score + 10.0],
        "lengths": [30, 30],
        "counts": {name: count // 10 for name, count in counts.items()},
        "counted_steps": part.evaluation["steps"],
    }
    checkpoint.write_json_atomic(part.folder / "evaluation.json", evaluation)


def tidy(line):
    return " ".join(line.split())


def test_what_is_there_is_only_collected_and_the_table_holds_its_numbers(tmp_path, capsys, no_work):
    asked = {"seeds": (1, 2), "finetune_steps": 1200, "methods": ("apt", "positive", "random")}
    seen = {"apt": 600, "positive": 400, "random": 500, "finetuned": 0, "scratch": 0}
    scores = {"apt": 400.0, "positive": 307.3, "random": 200.0, "finetuned": 6951.6, "scratch": 500.0}
    for part in plan_of(tmp_path, **asked).parts:
        states = seen[part.name] + 20 * part.seed
        counts = {"ram": 10 * states, "variables": states, "positions": states // 2}
        make_done(part, counts if seen[part.name] else {}, scores[part.name])
    result = run_explore(GAME, tmp_path, **asked, **RUN)
    lines = capsys.readouterr().out.splitlines()
    lines = [tidy(line) for line in lines]
    assert lines[3:8] == [
        "steps variables positions RAM vectors",
        "apt 40 630 [620 to 640] 315 [310 to 320] 6,300 [6,200 to 6,400]",
        "positive 40 430 [420 to 440] 215 [210 to 220] 4,300 [4,200 to 4,400]",
        "random 40 530 [520 to 540] 265 [260 to 270] 5,300 [5,200 to 5,400]",
        "apt / positive 1.47× [1.45× to 1.48×] 1.47× [1.45× to 1.48×] 1.47× [1.45× to 1.48×]",
    ]
    assert lines[10:14] == [
        "steps variables positions RAM vectors score human-normalised",
        "apt 40 63 [62 to 64] 32 [31 to 32] 630 [620 to 640] 400.0 1.4 %",
        "positive 40 43 [42 to 44] 22 [21 to 22] 430 [420 to 440] 307.3 0.0 %",
        "random 40 53 [52 to 54] 26 [26 to 27] 530 [520 to 540] 200.0 -1.6 %",
    ]
    assert lines[16:19] == [
        "steps score human-normalised",
        "fine-tuned from apt 1,200 6,951.6 100.0 %",
        "from scratch 1,200 500.0 2.9 %",
    ]
    assert "saturate" in lines[21]
    assert (tmp_path / "explore.png").read_bytes().startswith(b"\x89PNG")

    numbers = json.loads((tmp_path / "explore.json").read_text())
    assert numbers["seeds"] == [1, 2]
    assert (numbers["steps"], numbers["eval_steps"], numbers["finetune_steps"]) == (40, 40, 1200)
    assert numbers["baseline"] == {"random": 307.3, "human": 6951.6}
    assert {"date", "command", "cpu", "gpus", "git", "versions"} <= {*numbers["collected"]}
    assert {"voidrl", "torch"} <= {*numbers["collected"]["versions"]}
    assert numbers["changes"]["learner.encoder.width"] == 0.1
    run = numbers["runs"][5]
    assert (run["name"], run["seed"], run["folder"], run["machine"]) == ("apt", 2, "seed2/apt", MACHINE)
    assert run["config"] == to_json(plan_of(tmp_path, **asked).parts[5].config)
    assert run["counts"] == {"ram": 6400, "variables": 640, "positions": 320}
    assert run["curves"]["variables"] == {"steps": [20, 40], "values": [320, 640]}
    assert (run["evaluation"]["mean_return"], run["evaluation"]["std_return"]) == (400.0, 10.0)
    assert run["evaluation"]["returns"] == [390.0, 410.0]
    assert len(numbers["runs"]) == len(result.outcomes) == 10


def test_a_game_without_annotations_says_what_its_counts_are_worth(tmp_path, capsys, no_work):
    part = plan_of(tmp_path, methods=["apt"]).parts[0]
    make_done(part, {"ram": 40}, 100.0)
    run_explore(GAME, tmp_path, methods=["apt"], **RUN)
    said = capsys.readouterr().out
    assert "no variables of ms_pacman are annotated" in said
    assert "variables   " not in said
    assert " / positive" not in said


def test_states_that_are_counted_in_some_environments_alone_are_said_to_be(tmp_path, capsys, no_work):
    asked = {**RUN, "config": {**TINY, "env.num_envs": 4, "env.counted_envs": 1}}
    make_done(plan_of(tmp_path, methods=["apt"], **asked).parts[0], {"ram": 8, "positions": 4}, 100.0)
    run_explore(GAME, tmp_path, methods=["apt"], **asked)
    said = capsys.readouterr().out
    assert "without reward, counted in 1 of 4 environments" in said
    assert "saturate, 80 % of the steps" in said  # 8 of about 40 / 4


def test_begin_stop_go_on_fine_tune_and_collect(tmp_path, monkeypatch, capsys):
    write, signals = MetricsWriter.write, iter([signal.SIGTERM])

    def write_and_stop(self, step, row):
        write(self, step, row)
        for number in signals:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsWriter, "write", write_and_stop)
        with pytest.raises(RunInterrupted, match="or with the same `voidrl explore` again"):
            run_explore(GAME, tmp_path, methods=["apt"], **RUN)
    assert 0 < read_metrics(tmp_path / "seed1/apt")[-1]["step"] < 40
    assert not (tmp_path / "seed1/apt/evaluation.json").exists()

    changes = [f"{k}={v}" for k, v in explore_plan._flat(TINY).items()]
    command = [
        "explore",
        GAME,
        "--out",
        str(tmp_path),
        "--steps",
        "40",
        "--eval-steps",
        "40",
        "--device",
        "cpu",
    ]
    command += ["--methods", "apt", "--finetune-steps", "30", "--set", *changes]
    assert cli.main(command) == 0
    said = capsys.readouterr()
    assert "seed1/apt: resumed at step" in said.err
    last = {name: read_metrics(tmp_path / "seed1" / name)[-1] for name in ("apt", "finetuned", "scratch")}
    assert last["apt"]["step"] == 40
    assert last["finetuned"]["updates"] == last["scratch"]["updates"] == 5  # (30 − 10) · 0.25
    configs = {name: json.loads((tmp_path / "seed1" / name / "config.json").read_text()) for name in last}
    assert [c["env"]["count_states"] for c in configs.values()] == [True, False, False]
    assert [c["phase"] for c in configs.values()] == ["pretrain", "finetune", "train"]
    row = next(tidy(line) for line in said.out.splitlines() if line.startswith("apt "))
    counts = [last["apt"][f"coverage/{name}"] for name in ("variables", "positions", "ram")]
    assert row == f"apt 40 {counts[0]} {counts[1]} {counts[2]}"
    saved = json.loads((tmp_path / "seed1/apt/evaluation.json").read_text())
    assert saved["counted_steps"] == 40
    assert saved["settings"]["epsilon"] == 0.001  # the preset's
    assert saved["settings"]["seed"] > 2  # far from those of training, and of each other
    assert saved["counts"]["ram"] <= 40
    assert saved["agent"] == {
        "env": GAME, "phase": "pretrain", "method": "apt", "seed": 1, "steps": 40,
        "steps_with_pretraining": 40,
        "source": str(tmp_path / "seed1/apt"), "started": started(tmp_path / "seed1/apt"),
    }  # fmt: skip

    for name in ("pretrain", "finetune", "train", "resume", "evaluate"):
        monkeypatch.setattr(api, name, lambda *args, name=name, **rest: pytest.fail(f"{name} was called"))
    assert cli.main(command) == 0
    assert capsys.readouterr().out == said.out


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path, monkeypatch):
    part = plan_of(tmp_path, methods=["random"]).parts[0]
    part.folder.mkdir(parents=True)
    checkpoint.write_json_atomic(part.folder / "config.json", to_json(part.config))
    checkpoint.write_json_atomic(part.folder / "environment.json", MACHINE)
    explore._train(part)
    assert read_metrics(part.folder)[-1]["step"] == 40
    assert started(part.folder) != MACHINE["date"]


def test_other_settings_are_refused_by_name_before_anything_is_done(tmp_path, no_work):
    for part in plan_of(tmp_path).parts:
        make_done(part, {"ram": 40}, 100.0)
    changed = {**TINY, "learner.n_step": 7}
    with pytest.raises(
        RunFolderError, match=r"seed1/apt .* learner.n_step is 2 there and 7 here; .* another --out"
    ):
        run_explore(GAME, tmp_path, methods=["apt", "positive"], **{**RUN, "config": changed})
    with pytest.raises(RunFolderError, match="steps is 40 there and 50 here"):
        run_explore(GAME, tmp_path, methods=["positive"], **{**RUN, "steps": 50})
    # Where it is computed, and what would come after it, are no part of what it is.
    for part in plan_of(tmp_path, device="cuda", config={**TINY, "finetune.heads": "random"}).parts:
        explore_plan.refuse_another(part)
    tuned = plan_of(tmp_path, finetune_steps=30).parts[2]
    make_done(tuned, {}, 100.0)
    other = plan_of(tmp_path, finetune_steps=30, config={**TINY, "finetune.heads": "random"}).parts[2]
    with pytest.raises(RunFolderError, match=r"finetune.heads is 'pretrained' there and 'random' here"):
        explore_plan.refuse_another(other)


def test_an_evaluation_of_another_run_or_with_other_settings_does_not_count(tmp_path, no_work):
    part = plan_of(tmp_path).parts[0]
    make_done(part, {"ram": 40}, 100.0)
    assert explore._evaluated(part) is not None
    assert explore._evaluated(plan_of(tmp_path, eval_steps=50).parts[0]) is None
    before = (part.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="holds no checkpoint that could be evaluated for 50 steps"):
        run_explore(GAME, tmp_path, methods=["apt"], **{**RUN, "eval_steps": 50})
    assert (part.folder / "metrics.jsonl").read_bytes() == before
    checkpoint.write_json_atomic(part.folder / "environment.json", {**MACHINE, "date": "2022-01-01"})
    assert explore._evaluated(part) is None


def test_changes_reach_the_runs_that_they_are_for(tmp_path):
    apt, positive = plan_of(tmp_path, config={**TINY, "method.k": 3}).parts
    assert apt.config.method.k == 3
    assert positive.config == dataclasses.replace(apt.config, method=positive.config.method)
    assert apt.config.env.count_states
    fast = plan_of(tmp_path, preset="atari-fast", steps=None, eval_steps=None)
    assert (fast.steps, fast.eval_steps) == (PRESETS["atari-fast"].values["steps"], 125_000)
    assert plan_of(tmp_path, eval_steps=None).eval_steps == 10_000
    assert str(plan_of(None).out) == "runs/explore-ms_pacman"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["ap"]}, "unknown method 'ap'; did you mean 'apt'"),
        ({"methods": ["apt", "apt"]}, r"methods = \['apt', 'apt'\] cannot be used: .* each of them once"),
        ({"seeds": [1, 1]}, r"seeds = \[1, 1\] cannot be used"),
        ({"seeds": []}, "seeds = .* one or more"),
        ({"seeds": [-1]}, "seed = -1 cannot be used"),
        ({"eval_steps": 0}, "eval_steps must be a positive whole number"),
        ({"steps": "many"}, "steps must be a positive whole number"),
        ({"finetune_steps": "0"}, "finetune_steps must be a positive whole number"),
        ({"finetune_steps": 10, "methods": ["random"]}, "add 'apt' to them"),
        ({"preset": "atari-demon"}, "unknown preset 'atari-demon'; did you mean 'atari-demo'"),
        ({"config": {"seed": 3}}, "seed = 3 cannot be set for all runs: the seeds are an argument"),
        ({"config": {"method": "random"}}, "method.name = 'random' cannot be set"),
        ({"config": {"env": {"count_states": False}}}, "states are always counted"),
        ({"config": {"env": "atari/pong"}}, "the environment is an argument"),
        ({"config": {"learner.n_stepp": 3}}, "did you mean 'learner.n_step'"),
        ({"config": {"method.kk": 3}}, "unknown config field 'method.kk'; did you mean 'method.k'"),
        ({"config": {"method.k": 3}, "methods": ["random"]}, "unknown config field 'method.k'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(tmp_path, no_work, changes, message):
    with pytest.raises(ConfigError, match=message):
        run_explore(GAME, tmp_path / "out", **{**RUN, **changes})
    assert not (tmp_path / "out").exists()


def test_only_atari_games_that_can_be_counted(tmp_path, capsys):
    assert cli.main(["explore", "voidrl/PixelMaze-v0"]) == 2
    assert "expected atari/<game>" in capsys.readouterr().err
    assert cli.main(["explore", "atari/ms_pakman"]) == 2
    assert "did you mean 'ms_pacman'" in capsys.readouterr().err
    assert cli.main(["explore", "atari/pong?sticky=true"]) == 2
    assert "sticky" in capsys.readouterr().err
    assert cli.main(["explore", "atari/pong", "--set", "learner.n_step"]) == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err


def test_without_matplotlib_nothing_is_begun(tmp_path, monkeypatch, no_work):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingExtraError, match=r"the picture of `voidrl explore` needs matplotlib.*voidrl\[plot\]"
    ):
        run_explore(GAME, tmp_path / "out", **RUN)
    assert not (tmp_path / "out").exists()


def test_the_mean_of_seeds_whose_rows_are_at_different_steps():
    pyplot = require_pyplot()
    figure, axis = pyplot.subplots()
    _curves(axis, [[(0, 0.0), (10, 10.0), (20, 20.0)], [(0, 0.0), (18, 36.0)]], ("black", "-"), "mean")
    shown = next(line for line in axis.lines if line.get_label() == "mean")
    assert shown.get_xydata().tolist() == [[0, 0], [10, 15], [18, 27]]
    pyplot.close(figure)
