"""An intrinsic reward next to the task's: what the learner maximizes, what is trained, and labels."""

import json

import numpy as np
import pytest
import torch
from helpers import (
    LINE,
    PIXELS,
    Place,
    fill_replay,
    line_replay,
    make_agent,
    moved,
    parameters_of,
    small_method,
    snapshot,
    watched_update,
)
from tiny_runs import Walk, rows, tiny

import voidrl
from voidrl.agent import schedules
from voidrl.agent.schedules import Bonus
from voidrl.cli import main as cli
from voidrl.config import Config, registry, update
from voidrl.errors import ConfigError
from voidrl.report.videos.video import label_of
from voidrl.training.build import BONUS_COEFFICIENT

# What the learner maximizes


@pytest.mark.parametrize("n", [1, 3])
def test_the_rewards_are_added_up_with_the_same_weights(n):
    """`Place` rewards the position of s', which is t + 1; the task rewards step t with 10^t."""
    values, rewards = [0, 1, 2, 3, 4, 5], [1.0, 10.0, 100.0, 1000.0, 10000.0]
    agent = make_agent(
        LINE, phase="train", method=Place, bonus__coefficient=0.5, reward_scale=2.0,
        learner__n_step=n, learner__discount=0.9,
    )  # fmt: skip
    batch, reward, metrics = watched_update(agent, line_replay(values, rewards, terminated_at=[4]))
    start = batch.obs[:, 0].long()
    for at, found in zip(start.tolist(), reward.tolist(), strict=True):
        steps = range(at, min(at + n, 5))
        task = sum(0.9 ** (t - at) * rewards[t] for t in steps)
        intrinsic = sum(0.9 ** (t - at) * (t + 1) for t in steps)
        assert found == pytest.approx(2 * task + 0.5 * intrinsic, rel=1e-5)
    assert metrics["bonus_coefficient"] == 0.5
    parts = metrics["reward_task"] + metrics["reward_intrinsic"]
    torch.testing.assert_close(parts, metrics["reward_mean"])
    torch.testing.assert_close(metrics["intrinsic_mean"], (start + 1).float().mean())


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ({"decay": "none"}, {0: 0.2, 10**6: 0.2}),
        ({"decay": "linear"}, {0: 0.2, 250: 0.15, 1000: 0.0}),  # over the whole run
        ({"decay": "geometric"}, {0: 0.2, 100_000: 0.2 * np.exp(-1)}),
    ],
    ids=str,
)
def test_the_coefficient_follows_its_schedule(decay, expected):
    bonus = Bonus(update(Config(), {"phase": "train", "steps": 1000, "bonus": {"coefficient": 0.2, **decay}}))
    held = bonus.coefficient
    for steps, value in expected.items():
        bonus.set_progress(steps)
        assert float(held) == pytest.approx(value, rel=1e-4, abs=1e-8)


# What is trained

WITHOUT_REWARD = ("random", "mepol")


@pytest.mark.parametrize("name", [name for name in registry.names("method") if name not in WITHOUT_REWARD])
def test_every_method_can_be_a_bonus(name):
    """Its networks learn as in pre-training, and the learner from a reward that holds its own."""
    method = small_method(name)
    agents = {phase: make_agent(PIXELS, phase=phase, method=method, bonus__coefficient=0.5) for phase in
              ("pretrain", "train")}  # fmt: skip
    trained = {}
    for phase, agent in agents.items():
        replay = fill_replay(PIXELS, skill_dim=agent.method.skill_dim, note_dim=agent.note_dim)
        before = snapshot(parameters_of(agent))
        torch.manual_seed(1)
        batch, reward, metrics = watched_update(agent, replay)
        assert torch.isfinite(reward).all()
        trained[phase] = moved(before, parameters_of(agent))
        assert {"bonus_coefficient", "reward_task"} <= metrics.keys() or phase == "pretrain"
        if agent.method.skill_dim:  # transitions keep the skills that they were made with
            assert len(batch.skill.unique(dim=0)) > 1
    own = {phase: {n for n in names if not n.startswith("learner.")} for phase, names in trained.items()}
    assert own["train"] == own["pretrain"]
    assert any(name.startswith("learner.") for name in trained["train"])


def test_f_is_trained_by_contrast_and_the_shared_encoder_by_the_task_too():
    options = {"method": "apt", "representation": "simclr", "share_encoder": "all", "bonus__coefficient": 0.1}
    assert make_agent(PIXELS, phase="train", **options).encoder_trainers == {"representation", "learner"}
    assert make_agent(PIXELS, phase="pretrain", **options).encoder_trainers == {"representation"}
    alone = make_agent(PIXELS, phase="train", **options | {"bonus__coefficient": 0.0})
    assert alone.encoder_trainers == {"learner"}
    rnd = make_agent(PIXELS, phase="train", **options | {"method": "rnd"})  # which does not read f
    assert rnd.encoder_trainers == {"learner"}


def test_what_has_no_reward_is_no_bonus_and_one_skill_needs_none():
    for name in WITHOUT_REWARD:
        with pytest.raises(ConfigError, match=f"method '{name}' cannot be used with bonus"):
            make_agent(phase="train", method=name, bonus__coefficient=0.1)
    with pytest.raises(ConfigError, match="an agent of method 'diayn' in fine-tuning"):
        make_agent(phase="finetune", method="diayn", bonus__coefficient=0.1)
    with pytest.raises(ConfigError, match="cannot be used: expected"):
        update(Config(), {"bonus.coefficient": -1.0})


# Runs


def test_a_bonus_changes_what_is_learned_until_it_has_faded():
    """Action 0 pays ½ and leads to place 0, action 1 pays nothing and leads to place 1, whose bonus is β."""
    steps = [np.array([action]) for action in (0, 0, 1)]  # the second is the reset after the first
    replay = line_replay([0, 0, 0, 1], [0.5, 0.0, 0.0], terminated_at=(0, 2), actions=steps)
    fading = {"coefficient": 1.0, "decay": "linear"}
    for bonus, learned in ((fading, [1, 0]), ({"coefficient": 0.0}, [0, 0])):
        agent = make_agent(
            LINE, phase="train", steps=100, method=Place, bonus=bonus, learner__learning_rate=1e-2
        )
        chosen = []
        for environment_steps in (0, 100):
            agent.set_progress(environment_steps)
            for _ in range(60):
                agent.update(replay)
            chosen.append(int(agent.act(np.zeros(1, np.float32))))
        assert chosen == learned


def test_a_run_is_resumed_exactly_and_its_bonus_defines_it(tmp_path, monkeypatch):
    monkeypatch.setattr(schedules, "BONUS_DECAY", 0.01)
    decay = {"coefficient": 0.5, "decay": "geometric"}
    settings = {**tiny(intrinsic_normalization="scale"), "bonus": decay, "method": small_method("rnd")}
    whole = voidrl.train(Walk, steps=40, out=tmp_path / "whole", config=settings)
    voidrl.train(Walk, steps=20, out=tmp_path / "parts", config=settings)
    with pytest.raises(ConfigError, match=r"bonus\.coefficient = 0\.1 cannot be set when a run is resumed"):
        voidrl.resume(tmp_path / "parts", config={"bonus.coefficient": 0.1})
    resumed = voidrl.resume(tmp_path / "parts", steps=40)
    assert not moved(whole.tensors(), resumed.tensors())
    assert float(resumed.bonus.coefficient) == pytest.approx(0.5 * 0.99**39)


def test_fine_tuning_may_keep_rewarding_novelty(tmp_path):
    """The method continues from where pre-training left it, and its schedules do not start over."""
    settings = tiny(method=small_method("rnd"), bonus__coefficient=0.2)  # which pre-training ignores
    before = voidrl.pretrain(Walk, steps=20, out=tmp_path / "before", config=settings)
    assert "bonus.coefficient" not in before.tensors()
    after = voidrl.finetune(before, Walk, steps=20, out=tmp_path / "after", config={"bonus.coefficient": 0.4})
    assert after.bonus.coefficient == pytest.approx(0.4)
    assert any(name.startswith("method.predictor") for name in moved(before.tensors(), after.tensors()))
    assert [row for row in rows(tmp_path / "after") if "updates" in row][-1]["train/reward_intrinsic"] > 0
    assert label_of(after).startswith("rnd, fine-tuned + bonus, ")
    again = voidrl.finetune(after, Walk, steps=10, out=tmp_path / "again")
    assert again.bonus is None  # that of another task is not taken over


# Names and presets


def resolved(capsys, *words):
    assert cli.main(["config", *map(str, words), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {field: (entry["value"], entry["source"]) for field, entry in found.items()}


def test_the_command_sets_method_weight_and_options(capsys):
    maze = ("train", "voidrl/PixelMaze-v0", "--preset", "maze-demo", "--bonus")
    values = resolved(capsys, *maze, "rnd", "--method.rep-dim", 8)
    assert values["method.name"] == ("rnd", "command")
    assert values["method.rep_dim"] == (8, "command")
    assert values["method.hidden_dim"] == (128, "recipe rnd")
    assert values["bonus.coefficient"] == (BONUS_COEFFICIENT, "bonus rnd")
    values = resolved(capsys, *maze, "re3", "--bonus.coefficient", 0.5)
    assert values["bonus.coefficient"] == (0.5, "command")
    assert values["bonus.decay"] == ("geometric", "bonus re3")
    assert values["representation.name"] == ("fixed", "method re3")
    assert cli.main([*maze, "rnd", "--method", "apt"]) != 0
    assert "bonus = 'rnd' cannot be used with method = 'apt'" in capsys.readouterr().err
    assert cli.main([*maze, "mepol"]) != 0
    assert "method 'mepol' cannot be used with bonus" in capsys.readouterr().err
    assert cli.main(["pretrain", *maze[1:], "rnd"]) != 0
    assert "unknown option '--bonus'" in capsys.readouterr().err
