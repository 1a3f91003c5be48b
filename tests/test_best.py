"""Fine-tuning says how it began and ended, keeps its best agent, and warns when it loses what was learned."""

import os
import signal
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from helpers import moved
from tiny_runs import Walk, callback, make_continuous, newest, rows, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.errors import CheckpointError, NonFiniteError, RunFolderError
from voidrl.runs import checkpoint
from voidrl.runs.evaluations import final_evaluation, read_evaluation
from voidrl.training import collecting, evaluating
from voidrl.training.evaluation import Evaluation, run_seed

START = 16  # steps of pre-training


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    out = tmp_path_factory.mktemp("source") / "run"
    return voidrl.pretrain(Walk, steps=START, out=out, config=tiny(seed=3))


@pytest.fixture
def scores(monkeypatch):
    """Returns of evaluations by step of the run, by default 0; a tuple adds the success rate."""
    found = {}

    def evaluate(agent, envs, episodes, seed, **options):
        value = found.get(agent.steps - START, 0.0)
        value, success = value if isinstance(value, tuple) else (value, None)
        wins = None if success is None else [i < success * 10 for i in range(10)]
        return Evaluation([float(value)] * 10, [6] * 10, wins)

    monkeypatch.setattr(evaluating, "evaluate_agent", evaluate)
    return found


def evaluations(run):
    return {row["step"]: row["eval/return"] for row in rows(run) if "eval/return" in row}


def kept(run):
    return checkpoint.list_steps(run / "best")


def assert_same_tensors(one, other):
    assert one.keys() == other.keys()
    assert not moved(one, other)


# The evaluations


def test_the_pretrained_agent_is_evaluated_on_the_task_at_step_0_whatever_heads_are_new(tmp_path, source):
    run, task = tmp_path / "run", partial(Walk, length=4)
    voidrl.finetune(source, task, steps=20, out=run, config={"finetune.heads": "random"})
    first, *others = rows(run)
    assert (first["step"], first["phase"]) == (0, "finetune")
    assert not any(name.startswith(("train/", "episode/")) for name in first)
    assert all(row["step"] > 0 for row in others)
    alone = voidrl.evaluate(source, task, episodes=2, seed=run_seed(3, 1, 0))
    assert first.items() >= alone.metrics().items()
    assert [*evaluations(run)] == [0, 20]
    after = voidrl.evaluate(voidrl.load(run), task, episodes=2, seed=run_seed(3, 1, 20))
    assert others[-1].items() >= after.metrics().items()


def test_evaluations_change_nothing_in_training(tmp_path, source):
    def tune(name, **log):
        config = {f"log.{field}": value for field, value in log.items()}
        voidrl.finetune(source, Walk, steps=40, out=tmp_path / name, config=config)
        return tmp_path / name

    without, often = tune("without", eval_episodes=0), tune("often", eval_every_steps=8, eval_episodes=3)
    (tensors, meta), (others, other_meta) = newest(often), newest(without)
    assert_same_tensors(tensors, others)
    for name in ("config", "explorer"):  # whose `log.*` differ
        meta.pop(name, None), other_meta.pop(name, None)
    assert meta == other_meta
    assert rows(without) == [row for row in rows(often) if "eval/return" not in row]
    steps = [row["step"] for row in rows(often) if "eval/return" in row]
    assert steps == [0, 8, 16, 24, 32, 40]  # once at the last step
    assert not (without / "best").exists()


def test_few_episodes_at_the_ends_and_as_many_as_asked_for_in_between(tmp_path, source, monkeypatch):
    asked, evaluate = [], evaluating.evaluate_agent

    def told(agent, envs, episodes, seed, **options):
        asked.append((agent.steps - START, episodes))
        return evaluate(agent, envs, min(episodes, 2), seed, **options)

    monkeypatch.setattr(evaluating, "evaluate_agent", told)
    config = {"log.eval_episodes": 12, "env.num_envs": 15, "log.eval_every_steps": 30}
    voidrl.finetune(source, Walk, steps=45, out=tmp_path / "a", config=config)
    assert asked == [(0, 10), (30, 12), (45, 10)]


def test_a_task_without_end_is_cut(tmp_path, source):
    run = tmp_path / "run"
    voidrl.finetune(source, lambda: Walk(length=10**9), steps=12, out=run, config={"env.num_envs": 1})
    first, last = (row for row in rows(run) if "eval/return" in row)
    assert (first["eval/length"], first["eval/episodes"]) == (12, 1)  # one of two, as long as the run
    assert (last["step"], last["eval/length"]) == (12, 12)


def test_an_evaluation_of_the_best_agent_is_no_final_one(tmp_path, source, scores, capsys):
    run = tmp_path / "run"
    scores |= {0: 3, 5: 9, 12: 4}
    voidrl.finetune(source, Walk, steps=12, out=run, config={"log.eval_every_steps": 5})
    for best_too in ([], ["--best"]):
        capsys.readouterr()
        assert cli.main(["evaluate", str(run), "--env", "tiny_runs:Walk", "--json", *best_too]) == 0
        (run / "evaluation.json").write_text(capsys.readouterr().out)
        saved = read_evaluation(run / "evaluation.json")
        assert saved["agent"]["steps_with_pretraining"] == START + (5 if best_too else 12)
        if not best_too:
            assert final_evaluation(run, 12) == saved
    sentence = r"is of the best agent, not of the last: evaluate .* without --best"
    with pytest.raises(RunFolderError, match=sentence):
        final_evaluation(run, 12)


def test_returns_that_are_not_finite_are_never_the_best(tmp_path, source, scores):
    scores |= {0: float("nan"), 5: 2, 10: float("nan"), 12: float("nan")}
    run = tmp_path / "run"
    voidrl.finetune(source, Walk, steps=12, out=run, config={"log.eval_every_steps": 5})
    assert kept(run) == [START + 5]


# The best agent


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({0: 9, 5: 3, 10: 4, 12: 5}, 0),
        ({0: 1, 5: 3, 10: 4, 12: 5}, 12),
        ({0: 7, 5: 7, 10: 7, 12: 5}, 10),  # of equals the later
        ({0: -7, 5: -9, 10: -8, 12: -7.5}, 0),
        ({0: (9, 0.2), 5: (1, 0.8), 10: (3, 0.8), 12: (9, 0.7)}, 10),  # success, then return
        ({0: (9, None), 5: (1, 0.1), 10: (10, None), 12: (9, 0.0)}, 5),  # reported only where there is some
    ],
)
def test_the_best_evaluated_agent_is_kept_with_its_weights(tmp_path, source, scores, given, expected):
    scores |= given
    run = tmp_path / "run"
    config = {"log.eval_every_steps": 5, "log.snapshot_steps": [5, 10, 12], "finetune.heads": "random"}
    last = voidrl.finetune(source, Walk, steps=12, out=run, config=config)
    assert kept(run) == [START + expected]
    agent = voidrl.load(run, best=True, device="cpu")
    assert agent.steps == START + expected
    assert agent.config.env.id == last.config.env.id
    if expected == 0:  # as it was pre-trained, and not with the new heads
        assert_same_tensors(agent.tensors(), source.tensors())
        assert agent.config.phase == "pretrain"
    else:
        at_step = voidrl.load(run / "snapshots" / f"step_{START + expected:012d}", device="cpu")
        assert_same_tensors(agent.tensors(), at_step.tensors())
    assert_same_tensors(voidrl.load(run, device="cpu").tensors(), last.tensors())  # without `best`, the last


def test_the_zero_shot_agent_plays_the_task_of_the_run(tmp_path, source, scores):
    scores[0] = 1
    env, config = "tiny_runs:Walk?length=4", {"env.num_envs": 3}
    voidrl.finetune(source, env, steps=8, out=tmp_path / "run", config=config)
    agent = voidrl.load(tmp_path / "run", best=True)
    assert (agent.config.env.id, agent.config.env.num_envs) == (env, source.config.env.num_envs)
    assert voidrl.evaluate(agent, episodes=2).lengths == [4, 4]
    assert agent.act(np.ones(3, np.float32)) == source.act(np.ones(3, np.float32))
    voidrl.finetune(agent, steps=8, out=tmp_path / "again")


def killed(call, monkeypatch, at):
    """Run `call` in another process, which is killed once it has taken `at` steps."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            record = collecting.Collector.record

            def dies(self, *args):
                stops = record(self, *args)
                if self.run.state.steps == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return stops

            monkeypatch.setattr(collecting.Collector, "record", dies)
            call()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("best", [25, 5])  # one that no checkpoint knows, and one of before the checkpoint
def test_a_killed_run_ends_with_the_same_best_agent(tmp_path, source, scores, monkeypatch, best):
    scores |= {0: 1, 25: 8, 30: 8, best: 9}
    straight, dead = tmp_path / "straight", tmp_path / "killed"
    tune = partial(voidrl.finetune, source, Walk, steps=40, config={"log.eval_every_steps": 5})
    tune(out=straight)
    killed(lambda: tune(out=dead), monkeypatch, at=27)
    assert kept(dead) == [START + best]
    assert checkpoint.list_steps(dead / "checkpoints")[-1] == 20
    voidrl.resume(dead, env=Walk)
    assert kept(dead) == kept(straight) == [START + best]
    one, other = (voidrl.load(run, best=True) for run in (straight, dead))
    assert_same_tensors(one.tensors(), other.tensors())
    assert rows(straight) == rows(dead)
    assert [row["step"] for row in rows(dead)].count(0) == 1


def test_weights_that_are_not_finite_are_never_the_best(tmp_path, source, scores, monkeypatch):
    scores |= {0: 1, 5: 2, 10: 9}

    def broken(self, replay, index):
        if self.steps == START + 9:
            next(self.learner.critic.parameters()).data.fill_(float("inf"))
        return {}

    monkeypatch.setattr(voidrl.agent.Agent, "update", broken)
    with pytest.raises(NonFiniteError, match=r"weight learner\.\S+ is not finite"):
        voidrl.finetune(source, Walk, steps=20, out=tmp_path / "run", config={"log.eval_every_steps": 5})
    assert kept(tmp_path / "run") == [START + 5]


def test_an_overwritten_run_leaves_no_best_agent(tmp_path, source):
    voidrl.finetune(source, Walk, steps=8, out=tmp_path / "run")
    assert kept(tmp_path / "run")
    voidrl.pretrain(Walk, steps=8, out=tmp_path / "run", config=tiny(), overwrite=True)
    assert not (tmp_path / "run" / "best").exists()
    with pytest.raises(CheckpointError, match=r"has no best agent, .* keeps one: leave out best=True"):
        voidrl.load(tmp_path / "run", best=True)
    with pytest.raises(RunFolderError, match="there is no run at"):
        voidrl.load(tmp_path / "nowhere", best=True)


# The command line


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A fine-tuning whose best agent is that of step 10, and whose last is that of step 20."""
    root = tmp_path_factory.mktemp("task")
    source = voidrl.pretrain(make_continuous, steps=START, out=root / "source", config=tiny())
    returns = {START + 10: 5.0}

    def evaluate(agent, *args, **options):
        return Evaluation([returns.get(agent.steps, 0.0)] * 2, [6] * 2, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluating, "evaluate_agent", evaluate)
        config = {"log.eval_every_steps": 10}
        voidrl.finetune(source, "tiny_runs:make_continuous", steps=20, out=root / "run", config=config)
    return root / "run"


def test_commands_that_load_an_agent_take_the_best(task, tmp_path, monkeypatch, capsys):
    loaded, load = [], voidrl.api.load

    def told(*args, **options):
        loaded.append(load(*args, **options))
        return loaded[-1]

    monkeypatch.setattr(voidrl.api, "load", told)
    monkeypatch.chdir(tmp_path)
    name = str(task)
    for words in (
        ["evaluate", name, "--episodes", "1"],
        ["finetune", name, "--steps", "6", "--out", "again"],
        ["export", name, "--to", "hub:somebody/agent", "--dry-run"],
    ):
        loaded.clear()
        assert cli.main([*words, "--best"]) == 0, capsys.readouterr().err
        assert [agent.steps for agent in loaded] == [START + 10], words
    capsys.readouterr()
    assert cli.main(["evaluate", str(task.parent / "source"), "--best"]) == 2
    assert "has no best agent, only fine-tuning keeps one: leave out --best" in capsys.readouterr().err


# What the user reads


@pytest.mark.parametrize(
    ("given", "line", "advice"),
    [
        ({0: 0.8, 5: 0.9, 12: 0.95}, "zero-shot 0.8 → best 0.95 (step 12) → last 0.95", False),
        ({0: -1234.5, 5: -20, 12: -123}, "zero-shot -1.23k → best -20 (step 5) → last -123", True),
        ({0: (3, 0.8), 5: (2, 1.0), 12: (9, 0.4)}, "zero-shot 80% → best 100% (step 5) → last 40%", True),
        ({0: (3, 0.0), 5: (2, 1.0), 12: (9, 1.0)}, "zero-shot 0% → best 100% (step 12) → last 100%", False),
    ],
)
def test_the_closing_line(tmp_path, source, scores, capsys, given, line, advice):
    scores |= {5: -10_000, 10: -10_000, **given}
    run = tmp_path / "run"
    voidrl.finetune(source, Walk, steps=12, out=run, config={"log.eval_every_steps": 5})
    said = capsys.readouterr().err.splitlines()
    assert said[-2 if advice else -1] == line
    if advice:
        assert said[-1] == (
            f"the last agent is behind the best one: use the best with voidrl.load({str(run)!r}, best=True)"
        )
    assert line in (run / "log.txt").read_text()


def test_a_run_that_is_stopped_says_nothing_of_its_last_agent(tmp_path, source, capsys):
    stop = callback(on_step=lambda run: voidrl.STOP if run.step >= 8 else None)
    voidrl.finetune(source, Walk, steps=20, out=tmp_path / "run", callbacks=[stop])
    assert "zero-shot" not in capsys.readouterr().err
    assert [*evaluations(tmp_path / "run")] == [0]
    voidrl.resume(tmp_path / "run", env=Walk)
    assert any(line.startswith("zero-shot ") for line in capsys.readouterr().err.splitlines()[-2:])


# Those who read runs


def test_a_report_shows_zero_shot_alongside_the_end_and_never_in_its_place(tmp_path, source, scores):
    from voidrl.report.groups import make_arms
    from voidrl.report.outcomes import outcome, return_source
    from voidrl.report.read import read_all

    scores |= {0: 3, 20: 5}
    run = tmp_path / "run"
    voidrl.finetune(source, Walk, steps=20, out=run)

    def read():
        collection = read_all([run], lambda text: None)
        return collection.runs[0], make_arms(collection.runs)

    whole, arms = read()
    assert outcome(whole)["zero_shot_return"] == 3
    assert outcome(whole)["return"] == 5
    assert "at step 20" in return_source(whole)
    assert arms[0].headline == "return"
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))  # as before the end
    partial, arms = read()
    assert outcome(partial).keys() >= {"zero_shot_return", "training_return"}
    assert "return" not in outcome(partial)
    assert "training episodes" in return_source(partial)
    (run / "metrics.jsonl").write_text(lines[0])
    assert read()[1][0].headline is None
