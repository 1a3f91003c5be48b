"""Callbacks hear what happens, stop a run that can then be resumed, and fail in one sentence."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny_runs import Walk, callback, newest, rows, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.cli.options import read_callbacks
from voidrl.errors import CallbackFailedError, ConfigError, VoidrlWarning
from voidrl.runs.status import read_status
from voidrl.training import callbacks
from voidrl.training.callbacks import OptunaPruning, StopAtReturn, StopOnPlateau

QUICK = {"updates_per_step": 0.25}


class Diary(voidrl.Callback):
    """Writes down what it hears."""

    def __init__(self):
        self.heard = []

    def on_start(self, run):
        self.heard.append(("start", run.step, run.updates))
        assert (dict(run.row), run.evaluation, run.checkpoint) == ({}, None, None)

    def on_step(self, run):
        self.heard.append(("step", run.step))

    def on_row(self, run):
        self.heard.append(("row", run.step, run.row["updates"]))
        with pytest.raises(TypeError):
            run.row["updates"] = 0

    def on_evaluation(self, run):
        self.heard.append(("evaluation", run.step, len(run.evaluation.returns)))

    def on_checkpoint(self, run):
        assert (run.checkpoint / "manifest.json").is_file()
        self.heard.append(("checkpoint", run.step, run.checkpoint.name))

    def on_end(self, run):
        self.heard.append(("end", run.step))
        with pytest.raises(AttributeError):
            run.step = 0


class StopAt(voidrl.Callback):
    """Stops at the first of its events from a step on."""

    def __init__(self, event, step):
        setattr(type(self), event, type(self).look)
        self.step = step

    def look(self, run):
        return voidrl.STOP if run.step >= self.step else None


def stop_at(event, step):
    return type("Stop", (StopAt,), {})(event, step)


def test_hooks_are_called_in_order_with_what_they_are_about(tmp_path):
    diary = Diary()
    config = tiny(log__log_every_steps=10, log__eval_every_steps=15, log__eval_episodes=2)
    agent = voidrl.pretrain(Walk, steps=30, out=tmp_path / "run", config=config, callbacks=[diary])
    steps = [("step", n) for n in range(1, 31)]
    assert [each for each in diary.heard if each[0] == "step"] == steps
    rest = [each for each in diary.heard if each[0] != "step"]
    assert rest == [
        ("start", 0, 0),
        ("row", 10, 1),  # the updates that are due run beside the next step
        ("evaluation", 15, 2),
        ("row", 20, 12),
        ("checkpoint", 20, "step_000000000020"),
        ("row", 30, 22),
        ("evaluation", 30, 2),
        ("checkpoint", 30, "step_000000000030"),
        ("end", 30),
    ]
    assert agent.steps == 30


@pytest.mark.parametrize(
    ("event", "at", "stops"), [("on_step", 11, 11), ("on_evaluation", 9, 16), ("on_checkpoint", 3, 20)]
)
def test_stop_ends_a_run_with_a_checkpoint_from_which_it_resumes(tmp_path, capfd, event, at, stops):
    run, config = tmp_path / "run", tiny(log__eval_every_steps=16, log__eval_episodes=1, **QUICK)
    agent = voidrl.pretrain(Walk, steps=40, out=run, config=config, callbacks=[stop_at(event, at)])
    _, meta = newest(run)
    assert (meta["steps"], agent.steps) == (stops, stops)
    assert meta["updates"] == max(0, stops - 8) // 4  # none is due in what is saved
    status = read_status(run)
    assert (status.state, status.callback, status.signal, status.steps) == ("stopped", "Stop", None, stops)
    assert f"stopped by callback Stop at step {stops} of 40; checkpoint" in capfd.readouterr().err
    assert voidrl.resume(run).steps == 40
    assert (read_status(run).state, read_status(run).callback) == ("done", None)
    assert [row["step"] for row in rows(run) if "episodes" in row][-1] == 40


class Broken(voidrl.Callback):
    """Fails at step 25."""

    def on_step(self, run):
        if run.step == 25:
            raise KeyError("lost")


def test_a_callback_that_raises_is_named_and_a_checkpoint_is_kept(tmp_path):
    run = tmp_path / "run"
    sentence = r"callback Broken failed in on_step at step 25 \(KeyError: 'lost'\); the checkpoint of step 20"
    with pytest.raises(CallbackFailedError, match=sentence):
        voidrl.pretrain(Walk, steps=30, out=run, config=tiny(**QUICK), callbacks=[Broken()])
    assert 'raise KeyError("lost")' in (run / "log.txt").read_text()
    status = read_status(run)
    assert (status.state, status.steps) == ("failed", 25)
    assert "callback Broken failed in on_step" in status.error
    assert voidrl.resume(run).steps == 30


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([StopAtReturn], "callback = <class .*StopAtReturn'> cannot be used: expected an instance"),
        (StopAtReturn(3), "callbacks = .* cannot be used: expected a list of them"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_built(tmp_path, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        voidrl.pretrain(Walk, steps=30, out=tmp_path / "run", callbacks=given)
    assert not [*tmp_path.iterdir()]


def view(step=0, **changes):
    """A run as a callback sees it, without a run."""
    config = SimpleNamespace(log=SimpleNamespace(eval_every_steps=0))
    return replace(callbacks.RunView(step, 0, config, None, None, {}, None, None), **changes)


def test_answers_other_than_stop_are_refused():
    hooks = callbacks.CallbackList([callback(on_row=lambda run: False)])
    with pytest.raises(CallbackFailedError, match="Listens returned False from on_row at step 7: expected"):
        hooks.call("on_row", view(7))


def test_all_hear_a_stop_and_the_first_is_named():
    heard = []
    hears = callback(on_row=heard.append)
    hooks = callbacks.CallbackList([stop_at("on_row", 0), hears, StopAtReturn(1, "x")])
    hooks.call("on_row", view(5, row={"x": 2}))
    assert (hooks.stopped_by, len(heard)) == ("Stop", 1)


def follow(callback, values, metric="x"):
    """The index of the value at which it stops."""
    answers = [callback.on_row(view(10 * i, row={metric: value})) for i, value in enumerate(values)]
    return answers.index(voidrl.STOP) if voidrl.STOP in answers else None


def test_a_plateau_is_as_long_as_its_patience():
    values = [1, 3, 2, 3.05, 2, 5]
    assert follow(StopOnPlateau("x", patience=3), values) is None  # 3.05 is an improvement
    assert follow(StopOnPlateau("x", patience=3, min_delta=0.1), values) == 4
    assert follow(StopOnPlateau("x", patience=3, min_delta=0.1, min_steps=20), values) is None
    assert follow(StopOnPlateau("x", patience=2, mode="min"), values) == 2
    assert follow(StopOnPlateau("y", patience=1), values) is None
    assert follow(StopAtReturn(3.05, "x"), values) == 3


def test_a_plateau_is_remembered_over_a_resume_and_other_states_are_dropped(tmp_path):
    run = tmp_path / "run"
    both = [StopOnPlateau("frames", patience=99), StopOnPlateau("episode/length", patience=4)]
    config = tiny(log__checkpoint_every_steps=100, **QUICK)
    voidrl.pretrain(Walk, steps=40, out=run, config=config, callbacks=[*both, stop_at("on_row", 21)])
    name = "voidrl.training.callbacks:StopOnPlateau"
    assert newest(run)[1]["callbacks"] == [
        {"callback": name, "state": {"best": 21.0, "waited": 0}},
        {"callback": name, "state": {"best": 6.0, "waited": 2}},  # all episodes have 6 steps
    ]
    again = [StopOnPlateau("frames", patience=99), StopOnPlateau("episode/length", patience=4)]
    voidrl.resume(run, callbacks=again)
    assert (again[0].best, again[1].waited) == (35.0, 4)
    assert read_status(run).callback == "StopOnPlateau"
    voidrl.resume(run)
    assert f"state of callback {name} is dropped" in (run / "log.txt").read_text()
    assert newest(run)[1]["callbacks"] == []


@pytest.mark.parametrize("state", [{"x": {1}}, {"x": float("nan")}, [1], {1: 2}])
def test_a_state_that_json_cannot_hold_is_refused(state):
    class Odd(voidrl.Callback):
        def state(self):
            return state

    with pytest.raises(CallbackFailedError, match="at step 5: expected"):
        callbacks.CallbackList([Odd()]).state(5)


def test_a_metric_that_never_comes_is_refused_or_named_with_what_was_meant(tmp_path):
    sentence = r"StopAtReturn failed in on_start at step 0 \(metric 'eval/return' is never measured with"
    with pytest.raises(CallbackFailedError, match=sentence):
        voidrl.train(Walk, steps=10, out=tmp_path / "run", config=tiny(), callbacks=[StopAtReturn(1)])
    misspelled = StopOnPlateau("episode/retrun")
    misspelled.on_row(view(row={"episode/return": 1.0, "phase": "train"}))
    with pytest.warns(VoidrlWarning, match="unknown metric 'episode/retrun'; did you mean 'episode/return'"):
        misspelled.on_end(view(row={"episode/return": 1.0}))


def test_a_pruner_of_optuna_ends_a_run(tmp_path):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        pruning = OptunaPruning(trial, "frames")
        voidrl.pretrain(Walk, steps=40, out=tmp_path / "run", config=tiny(**QUICK), callbacks=[pruning])
        assert (pruning.pruned, pruning.value) == (True, 14.0)
        raise optuna.TrialPruned

    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=10))
    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert (trial.state.name, trial.intermediate_values) == ("PRUNED", {7: 7.0, 14: 14.0})
    assert read_status(tmp_path / "run").callback == "OptunaPruning"
    with pytest.raises(ConfigError, match=r"trial = 3 cannot be used: expected an optuna.Trial"):
        OptunaPruning(3)


def test_callbacks_on_the_command_line(tmp_path, capfd):
    run = str(tmp_path / "run")
    small = ["--device", "cpu", "--learner.batch-size", "8", "--representation.batch-size", "8",
             "--warmup-steps", "8", "--log.tensorboard", "false", "--log.log-every-steps", "7"]  # fmt: skip
    words = ["--callback", "StopOnPlateau?metric=frames&patience=50", "--callback"]
    plateau = ["test_callbacks:StopOnPlateau?metric=frames&mode=min&patience=1"]
    command = ["pretrain", "CartPole-v1", "--steps", "40", "--out", run, *small, *words, *plateau]
    assert cli.main(command) == 0
    assert "stopped by callback StopOnPlateau at step 14 of 40" in capfd.readouterr().err
    assert cli.main(["resume", run, "--callback", "StopAtReturn?value=1&metric=episode/return"]) == 0
    assert read_status(tmp_path / "run").callback == "StopAtReturn"
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "stopped"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("StopAtRetrun", "unknown callback 'StopAtRetrun'; did you mean 'StopAtReturn'"),
        ("StopAtReturn", r"'StopAtReturn' cannot be built \(.*value.*expected module:Class\?option=value"),
        ("json:dumps", "callback 'json:dumps' cannot be used: expected a subclass of voidrl.Callback"),
        ("StopOnPlateau?patience=0", "patience = 0 cannot be used: expected a whole number"),
    ],
)
def test_bad_callbacks_on_the_command_line_are_one_sentence(text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_callbacks([text])
