"""`voidrl score`: the right evaluation of each run, one score per seed, and what cannot be put together."""

import json
from types import SimpleNamespace

import pytest

import voidrl
from voidrl import api
from voidrl.cli import main as cli
from voidrl.config import update
from voidrl.envs.suites.atari import baseline
from voidrl.errors import CheckpointError, ConfigError, RunFolderError, UnknownNameError
from voidrl.report.scores.score import by_game, read_scores
from voidrl.report.scores.statistics import summarize
from voidrl.runs import checkpoint
from voidrl.training.evaluation import Evaluation, evaluation_record
from voidrl.training.metrics import MetricsWriter

DATE = "2021-12-06T00:00:00+00:00"


def make_run(path, game="ms_pacman", seed=1, scores=(), *, phase="pretrain", method="apt", end=100):
    """A run folder with a row for each evaluation, 10 steps apart, and one without at its end."""
    config = {"env": {"id": f"atari/{game}"}, "seed": seed, "phase": phase, "method": {"name": method}}
    path.mkdir(parents=True)
    checkpoint.write_json_atomic(path / "config.json", config)
    checkpoint.write_json_atomic(path / "environment.json", {"date": DATE})
    with MetricsWriter(path, tensorboard=False) as writer:
        for number, score in enumerate(scores, start=1):
            writer.write(10 * number, {"eval/return": score, "eval/episodes": 4})
        writer.write(end, {"reward/extrinsic": 0.5})
    return path


def make_evaluation(path, score, *, game="ms_pacman", seed=1, steps=100, date=DATE, phase="pretrain"):
    agent = {"env": "", "phase": phase, "method": "apt", "seed": seed, "steps": steps, "started": date}
    settings = {"env": f"atari/{game}"}
    saved = {"agent": agent, "settings": settings, "mean_return": score, "returns": [score, score, score]}
    checkpoint.write_json_atomic(path, saved)
    return path


def test_the_last_evaluation_of_each_run_and_one_score_per_seed(tmp_path, capsys):
    random, human = baseline("ms_pacman")
    runs = [
        make_run(tmp_path / "b", seed=2, scores=[9.0, human]),
        make_run(tmp_path / "a", game="MsPacman", seed=1, scores=[human, 5.0, random]),
        make_run(tmp_path / "c", game="pong", seed=1, scores=[14.6]),
    ]
    scores = read_scores(runs)
    assert [(s.game, s.seed, s.steps, s.episodes) for s in scores] == [
        ("ms_pacman", 2, 20, 4),
        ("ms_pacman", 1, 30, 4),
        ("pong", 1, 10, 4),
    ]
    assert by_game(scores) == {"ms_pacman": [random, human], "pong": [14.6]}
    assert cli.main(["score", *map(str, runs)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(summarize({"ms_pacman": [random, human], "pong": [14.6]}).table())
    assert said.splitlines()[1].split() == ["ms_pacman", "2", "3629.5", "50.0", "%"]
    assert said.splitlines()[-1] == "3 runs of 'apt', evaluated after 10 to 30 steps."
    assert cli.main(["score", *map(str, runs), "--json", "--over", "both"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["over"] == "both"
    assert numbers["aggregate"]["mean"] == pytest.approx((0.5 + 1.0) / 2)
    assert numbers["runs"][0] == {
        "source": str(runs[0]), "game": "ms_pacman", "kind": "apt", "seed": 2, "steps": 20, "score": human,
        "episodes": 4,
    }  # fmt: skip


def test_an_evaluation_in_the_run_folder_or_anywhere_else(tmp_path):
    run = make_run(tmp_path / "run", scores=[1.0])
    make_evaluation(run / "evaluation.json", 7.0)
    assert read_scores([run])[0].score == 7.0  # of its end, step 100; the row is of step 10
    assert read_scores([run / "config.json"])[0].score == 7.0
    moved = make_evaluation(tmp_path / "moved.json", 8.0, seed=2)
    scores = read_scores([run, moved])
    assert [(s.seed, s.score, s.steps, s.episodes) for s in scores] == [(1, 7.0, 100, 3), (2, 8.0, 100, 3)]


@pytest.mark.parametrize("stale", [{"steps": 99}, {"date": "2021-01-01"}, {"seed": 5}])
def test_an_evaluation_of_another_agent_than_the_runs_is_not_used(tmp_path, stale):
    run = make_run(tmp_path / "with_rows", scores=[1.0])
    make_evaluation(run / "evaluation.json", 7.0, **stale)
    assert read_scores([run])[0].score == 1.0
    run = make_run(tmp_path / "without")
    make_evaluation(run / "evaluation.json", 7.0, **stale)
    with pytest.raises(
        RunFolderError, match=r"agent than the run's.*make one with `voidrl evaluate .*without"
    ):
        read_scores([run])


def test_what_cannot_be_scored(tmp_path, capsys):
    with pytest.raises(
        RunFolderError, match=r"no evaluation; make one with `voidrl evaluate .*--json > .*\.json`"
    ):
        read_scores([make_run(tmp_path / "none")])
    good = make_run(tmp_path / "good", scores=[1.0])
    with pytest.raises(ConfigError, match=r"good and .*again are both of game 'ms_pacman' with seed 1"):
        read_scores([good, make_run(tmp_path / "again", game="MsPacman", scores=[2.0])])
    tuned = make_run(tmp_path / "tuned", seed=2, scores=[2.0], phase="finetune")
    with pytest.raises(ConfigError, match=r"good is a run of 'apt' and .*tuned one of 'finetune apt'"):
        read_scores([good, tuned])
    with pytest.raises(UnknownNameError, match="Only the 57 games"):
        read_scores([make_run(tmp_path / "odd", game="adventure", scores=[2.0])])
    other = make_run(tmp_path / "other", scores=[1.0])
    config = json.loads((other / "config.json").read_text())
    checkpoint.write_json_atomic(other / "config.json", {**config, "env": {"id": "voidrl/PixelMaze-v0"}})
    assert cli.main(["score", str(other)]) == 2
    assert "expected runs in atari/<game>" in capsys.readouterr().err
    checkpoint.write_json_atomic(tmp_path / "list.json", [1, 2])
    with pytest.raises(CheckpointError, match=r"list\.json is damaged .*it holds a list"):
        read_scores([tmp_path / "list.json"])
    with pytest.raises(RunFolderError, match="there is no run at"):
        read_scores([tmp_path / "nowhere"])
    assert cli.main(["score"]) == 2


def test_runs_from_scratch_are_of_one_kind_whatever_method_their_config_names(tmp_path):
    one = make_run(tmp_path / "one", seed=1, scores=[1.0], phase="train")
    two = make_run(tmp_path / "two", seed=2, scores=[1.0], phase="train", method="positive")
    assert {score.kind for score in read_scores([one, two])} == {"scratch"}


def test_what_evaluate_prints_is_what_score_reads(tmp_path, monkeypatch, capsys):
    class Loaded:
        learner = SimpleNamespace(plays_by_sampling=True)  # whatever was asked for
        config = update(voidrl.Config(), {"env.id": "atari/ms_pacman", "seed": 4, "log.eval_epsilon": 0.01})
        steps = 123

    asked = {}

    def evaluate(agent, **options):
        asked.update(options)
        counts = {"ram": 900, "variables": 70, "positions": 6}
        return Evaluation([300.0, 314.6], [50, 60], None, 1000, counts, "ms_pacman")

    monkeypatch.setattr(api, "load", lambda run, **options: Loaded())
    monkeypatch.setattr(api, "evaluate", evaluate)
    words = ["evaluate", str(tmp_path), "--steps", "1k", "--count-states"]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert asked["env"] is None  # its own
    assert (asked["steps"], asked["epsilon"], asked["count_states"]) == (1000, 0.01, True)
    assert lines == [
        "return   307.300 ± 7.300 over 2 episodes",
        "length   55.0",
        "human    0.0%, where 0% is random play (307.3) and 100% a human (6951.6)",
        "states   900 distinct whole RAM vectors (they hold timers and saturate) in 1000 steps",
        "states   70 distinct values of the annotated variables in 1000 steps",
        "states   6 distinct positions of the player in 1000 steps",
    ]
    assert cli.main([*words, "--json"]) == 0
    printed = capsys.readouterr().out
    numbers = json.loads(printed)
    assert numbers["human_normalized"] == pytest.approx(0.0)
    assert numbers["returns"] == [300.0, 314.6]
    assert (numbers["sampled"], numbers["settings"]["deterministic"]) == (True, True)
    assert numbers == json.loads(
        json.dumps(evaluation_record(Loaded(), tmp_path, evaluate(None), numbers["settings"]))
    )
    (tmp_path / "saved.json").write_text(printed)
    found = read_scores([tmp_path / "saved.json"])[0]
    assert (found.game, found.seed, found.steps, found.episodes) == ("ms_pacman", 4, 123, 2)
    assert found.score == pytest.approx(307.3)


def test_scores_with_different_environment_options_are_not_pooled(tmp_path):
    """Options change the game, so its scores are no more comparable than those of another method."""
    runs = [make_run(tmp_path / "a", game="pong", seed=1, scores=[1.0])]
    runs.append(make_run(tmp_path / "b", game="pong?sticky=true", seed=2, scores=[1.0]))
    with pytest.raises(ConfigError, match=r"'apt' and .* 'apt with \?sticky=true'"):
        read_scores(runs)
