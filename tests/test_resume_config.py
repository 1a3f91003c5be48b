"""Resume obeys the checkpoint: what defines a run cannot change, and what changes is named."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_runs import MAZE, Walk, newest, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.config import Config, flat, merge, to_json
from voidrl.config.updating import may_change
from voidrl.errors import CheckpointError, ConfigError, RunFolderError
from voidrl.runs import checkpoint


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    voidrl.pretrain(Walk, steps=20, out=folder, config=tiny())
    edit(folder, steps=40)
    return folder


@pytest.fixture
def run(original, tmp_path):
    """A run that was stopped half-way: 20 of 40 steps."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def edit(run, **changes):
    """Change fields in config.json by hand; `__` stands for a dot."""
    path = run / "config.json"
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    path.write_text(json.dumps(merge(json.loads(path.read_text()), changes)))


def rewrite_meta(run, **changes):
    """Change the meta of the newest checkpoint, with a matching hash."""
    path = checkpoint.latest(run / "checkpoints", print).path / "manifest.json"
    data = json.loads(path.read_text())
    del data["sha256"]
    data["meta"] = {k: v for k, v in {**data["meta"], **changes}.items() if v is not ...}
    path.write_text(json.dumps({**data, "sha256": checkpoint.seal(data)}))


def test_an_edit_of_what_defines_the_run_is_refused_with_both_values(run):
    edit(run, learner__discount=0.5, seed=1)
    before = (run / "config.json").read_text()
    with pytest.raises(ConfigError, match=r"config\.json was edited since step_000000000020") as caught:
        voidrl.resume(run, env=Walk)
    for part in ("learner.discount was 0.99 and is 0.5", "seed was 0 and is 1", "restore it, or start a new"):
        assert part in str(caught.value)
    assert (run / "config.json").read_text() == before
    assert newest(run)[1]["steps"] == 20


def test_an_edit_of_what_may_change_is_named_and_obeyed(run, capsys):
    edit(run, log__log_every_steps=3, learner__learning_rate=0.01, finetune__heads="random")
    agent = voidrl.resume(run, env=Walk)
    assert (agent.config.steps, agent.config.log.log_every_steps) == (40, 3)
    assert {group["lr"] for group in agent.optimizers["critic"].param_groups} == {0.01}
    log = (run / "log.txt").read_text()
    for text in (capsys.readouterr().err, log):
        assert "steps was 20, is 40" in text
        assert "log.log_every_steps was 7, is 3" in text
        assert "learner.learning_rate was 0.0001, is 0.01" in text
        assert "finetune.heads was 'auto', is 'random'" in text
    assert newest(run)[1]["config"] == json.loads((run / "config.json").read_text())


def test_the_command_sets_fields(tmp_path, capsys):
    run = tmp_path / "run"
    voidrl.pretrain(MAZE, steps=20, out=run, config=tiny())
    words = ["--steps", "25", "--set", "log.keep_last=1", "log.log-every-steps=5"]
    assert cli.main(["resume", str(run), *words]) == 0
    written = json.loads((run / "config.json").read_text())
    assert (written["log"]["keep_last"], written["log"]["log_every_steps"]) == (1, 5)
    capsys.readouterr()
    for word, said in (
        ("log.keep_lst=1", "unknown config field 'log.keep_lst'; did you mean 'log.keep_last'"),
        ("lerner.learning_rate=1", "unknown config field 'lerner'; did you mean 'learner'"),
        ("seed=4", "seed = 4 cannot be set when a run is resumed: it is 0 there and defines the run"),
        ("log.keep_last=many", "log.keep_last = 'many' cannot be used: expected a whole number"),
        ("log.keep_last", "--set log.keep_last cannot be used: expected NAME=VALUE"),
    ):
        assert cli.main(["resume", str(run), "--steps", "30", "--set", word]) == 2
        assert said in capsys.readouterr().err
    assert json.loads((run / "config.json").read_text()) == written


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"config": ...}, "it has no 'config'"),
        ({"config": {"lerner": {}}}, "unknown config field 'lerner'"),
        ({"spec": {"frame_shape": [3]}}, "expected an object with frame_shape"),
    ],
)
def test_a_checkpoint_without_a_usable_config_is_named(run, meta, said):
    rewrite_meta(run, **meta)
    for use in (lambda: voidrl.resume(run, env=Walk), lambda: voidrl.load(run)):
        with pytest.raises(CheckpointError, match=r"step_000000000020/manifest\.json") as caught:
            use()
        assert said in str(caught.value)


def test_what_defines_a_run_may_not_change():
    fixed = {field for field in flat(to_json(Config())) if not may_change(field, "finetune")}
    assert {"seed", "phase", "env.id", "env.num_envs", "replay.capacity_steps", "reward_scale"} <= fixed
    assert {"method.name", "learner.discount", "updates_per_step", "finetune.heads"} <= fixed
    assert not fixed & {"steps", "device", "engine", "log.wandb_project", "env.check_bounds"}


def test_a_resume_that_is_refused_for_its_metrics_changes_nothing(run, capsys):
    (run / "metrics.jsonl").write_text("")
    before = {path.name: path.read_bytes() for path in run.glob("*.json")}
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl holds 0 bytes but the checkpoint was made at"):
        voidrl.resume(run, env=Walk, steps=60, config={"learner.learning_rate": 0.5})
    assert {path.name: path.read_bytes() for path in run.glob("*.json")} == before
    assert "resumed" not in capsys.readouterr().err
