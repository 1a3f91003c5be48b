"""Atari as a user meets it: every game, its options, what is refused. Pixels are in test_atari_golden."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import voidrl
from voidrl.config import AtariConfig, Config, EnvConfig, update
from voidrl.envs.atari import game_rules
from voidrl.envs.make import make_envs
from voidrl.envs.suites.atari import GAMES
from voidrl.errors import ConfigError, MissingExtraError, SpaceError, UnknownNameError
from voidrl.runs.metrics import read_metrics
from voidrl.training import assembly, build

pytest.importorskip("ale_py")

TINY = {
    "env.num_envs": 2,
    "warmup_steps": 8,
    "updates_per_step": 0.25,
    "replay.capacity_steps": 200,
    "representation": {
        "batch_size": 2,
        "encoder": {"width": 0.125, "hidden_dim": 8, "spectral_norm_iterations": 1},
    },
    "learner": {"batch_size": 2, "n_step": 2, "hidden_dim": 8, "encoder": {"width": 0.125}},
    "method.k": 1,
    "log": {"log_every_steps": 8, "tensorboard": False},
}


def atari(game, n=2, *, evaluation=False, **config):
    return make_envs(
        EnvConfig(id=f"atari/{game}", num_envs=n, frame_stack=4, **config), evaluation=evaluation
    )


def some(quick):
    """All games, of which only a few are played in seconds: to start an emulator takes most of the time."""
    return [game if game in quick else pytest.param(game, marks=pytest.mark.slow) for game in GAMES]


@pytest.mark.parametrize("game", some(GAMES[::19]))
def test_every_game_is_built_and_played(game):
    envs = atari(game, n=1)
    frames, info = envs.reset(0)
    assert envs.game == game
    assert frames.shape == (1, 1, 84, 84)
    for action in range(envs.spec.num_actions):
        result = envs.step(np.array([action]))
        assert result.frames.dtype == np.uint8
    assert result.info["episode_frame_number"] == info["episode_frame_number"] + 4 * envs.spec.num_actions
    envs.close()


def test_training_without_clipping_or_terminals_at_lost_lives():
    envs = atari("breakout?life_loss=never", n=2)
    _, info = envs.reset(0)
    lives, rng, deaths = info["lives"], np.random.default_rng(0), 0
    for _ in range(150):
        result = envs.step(rng.integers(4, size=2))
        deaths += int((result.info["lives"] < lives).sum())
        lives = result.info["lives"]
        np.testing.assert_array_equal(result.terminated, result.ended)
    assert deaths > 4
    raw = atari("ms_pacman?clip_rewards=false", n=2)
    raw.reset(0)
    assert max(raw.step(rng.integers(9, size=2)).reward.max() for _ in range(90)) >= 10


@pytest.mark.parametrize(("pretraining", "dies"), [(True, False), (False, True)])
def test_lost_lives_may_be_terminal_for_a_task_alone(pretraining, dies):
    config = EnvConfig(id="atari/breakout?noop_max=0", atari=AtariConfig(life_loss="task"))
    with closing(make_envs(config, pretraining=pretraining)) as envs:
        envs.reset(0)
        results = [envs.step(np.array([1])) for _ in range(60)]  # FIRE, and never move
    assert min(result.info["lives"][0] for result in results) < 5
    assert any(result.terminated[0] for result in results) == dies
    assert not any(result.ended[0] for result in results)


def test_the_query_wins_over_the_fields():
    rules = AtariConfig(sticky=0.1, noop_max=3, full_actions=True, clip_rewards=False)
    config = EnvConfig(id="atari/pong?noop_max=0&life_loss=task", atari=rules)
    found = game_rules(config)
    assert found == replace(rules, life_loss="task", noop_max=0)
    with closing(make_envs(config)) as envs:
        assert envs.spec.num_actions == 18
        assert envs.reset(0)[1]["episode_frame_number"][0] == 0


class MadeError(Exception):
    """Environments were made for pre-training, or not."""


def test_the_loop_and_evaluations_know_the_phase(monkeypatch):
    def make(*args, pretraining, **options):
        raise MadeError(pretraining)

    monkeypatch.setattr(assembly, "make_envs", make)
    for phase in ("pretrain", "finetune", "train"):
        pieces = {"representation": "simclr", "learner": "dqn"}
        config = update(Config(), {"phase": phase, "env.id": "atari/pong", **pieces})
        with pytest.raises(MadeError, match=str(phase == "pretrain")), assembly.assemble(config, None, print):
            pass


@pytest.mark.parametrize("name", ["CartPole-v1", "dmc/pendulum"])
def test_rules_of_atari_are_refused_elsewhere(name):
    with pytest.raises(ConfigError, match=rf"env\.atari\.life_loss = 'task' cannot be used .*'{name}'"):
        make_envs(EnvConfig(id=name, atari=AtariConfig(life_loss="task")))
    atari_run = EnvConfig(id="atari/pong", atari=AtariConfig(sticky=0.5))
    assert build.env_for(name, atari_run)[0].atari == AtariConfig()
    assert build.env_for("atari/breakout", atari_run)[0].atari.sticky == 0.5


def test_episode_returns_of_a_run_are_raw_scores_of_whole_games(tmp_path):
    """A lost life ends no episode, and 10 points are not clipped to 1."""
    config = {**TINY, "env.num_envs": 4, "log.log_every_steps": 800}
    shared = {"preset": "atari-paper", "device": "cpu", "seed": 0, "out": tmp_path / "run"}
    config.pop("method.k")  # which `random` has not
    voidrl.pretrain("atari/ms_pacman?max_frames=400", "random", steps=800, config=config, **shared)
    row = read_metrics(tmp_path / "run")[-1]
    assert row["episode/return"] >= 30  # clipped, it would be a tenth of that
    assert 90 <= row["episode/length"] <= 100


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An agent of 16 steps with the settings that games have by default."""
    out = tmp_path_factory.mktemp("trained") / "run"
    return voidrl.pretrain("atari/ms_pacman", steps=16, out=out, config=TINY, device="cpu")


def test_evaluation_over_steps_plays_games_to_their_end(trained):
    result = voidrl.evaluate(
        trained, "atari/ms_pacman?max_frames=100", steps=75, num_envs=2, count_states=True
    )
    # 75 = 38 + 37 steps; games of 25 steps, whatever the no-ops: two games for each of two.
    assert result.lengths == [25] * 4
    assert result.counted_steps == 75
    assert 0 < result.counts["positions"] <= result.counts["variables"] <= result.counts["ram"] <= 75
    assert result.human_normalized == pytest.approx((result.mean_return - 307.3) / (6951.6 - 307.3))


def test_counted_states_survive_a_stop(tmp_path):
    """Counts of a run in two parts are those of one that went straight on."""
    config = {**TINY, "env.count_states": True, "log.checkpoint_every_steps": 16}
    config["env.num_envs"] = 1  # an emulator and its shadow each
    shared = {"preset": "atari-paper", "config": config, "seed": 3, "device": "cpu"}
    voidrl.pretrain("atari/ms_pacman", steps=32, out=tmp_path / "whole", **shared)
    voidrl.pretrain("atari/ms_pacman", steps=16, out=tmp_path / "parts", **shared)
    voidrl.resume(tmp_path / "parts", steps=32)
    rows = [read_metrics(tmp_path / name)[-1] for name in ("whole", "parts")]
    for measure in ("ram", "variables", "positions"):
        assert rows[0][f"coverage/{measure}"] == rows[1][f"coverage/{measure}"] > 0


# Bad input


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("stiky=0.5", "unknown .* did you mean 'sticky'"),
        ("sticky=2", "sticky = 2.0 cannot be used: expected a probability below 1"),
        ("life_loss=sometimes", "life_loss = 'sometimes' cannot be used: expected 'always'"),
    ],
)
def test_a_bad_option_is_named(query, sentence):
    with pytest.raises(ConfigError, match=rf"'atari/pong\?{query}' cannot be made: .*{sentence}"):
        atari(f"pong?{query}")


def test_a_game_that_ale_has_but_cannot_play():
    with pytest.raises(ConfigError, match="'atari/combat' cannot be made: ALE has the game"):
        atari("combat")


def test_a_missing_extra_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ale-py"):
        atari("pong")


def test_a_backend_that_ale_has_not():
    with pytest.raises(ConfigError, match=r"env.backend = 'async' cannot be used .* use 'auto'"):
        atari("pong", backend="async")


@pytest.mark.parametrize("name", ["MsPacman", "Atari/ms_pacman"])
def test_a_game_without_its_prefix_is_answered_with_it(name):
    with pytest.raises(UnknownNameError, match="The Atari game is 'atari/ms_pacman'"):
        make_envs(EnvConfig(id=name))


def test_states_that_cannot_be_counted():
    with pytest.raises(ConfigError, match="expected atari/"):
        make_envs(EnvConfig(id="voidrl/PixelMaze-v0", count_states=True))


def test_another_games_actions_show_both_sides_and_the_remedy(trained, tmp_path):
    with pytest.raises(SpaceError) as error:
        voidrl.finetune(trained, "atari/pong", steps=16, out=tmp_path / "task", device="cpu")
    sentence = str(error.value)
    for part in ("'atari/ms_pacman'", "'atari/pong'", "9 actions", "6 actions", "full_actions=true"):
        assert part in sentence
    assert not (tmp_path / "task").exists()


def test_games_have_no_more_threads_than_there_are_cores(monkeypatch):
    import ale_py.vector_env

    made, create = [], ale_py.vector_env.AtariVectorEnv
    monkeypatch.setattr(
        ale_py.vector_env,
        "AtariVectorEnv",
        lambda *args, **options: made.append((args[1], options["num_threads"])) or create(*args, **options),
    )
    monkeypatch.setattr("voidrl.envs.workers.whole_cores", lambda: 7)
    config = EnvConfig("atari/pong")
    make_envs(config, None, 8).close()
    make_envs(config, None, 2).close()
    make_envs(config, None, 8, evaluation=True, render_height=84).close()
    assert made == [(8, 7), (2, 2), (1, 1), (8, 7)]


# The seeds of ALE that resuming relies on


def frames_after(envs, seed, steps=40):
    envs.reset(seed)
    return [envs.step(np.full(envs.num_envs, 2 + t // 5 % 2)).frames for t in range(steps)][-1]


def test_seeds_are_below_2_to_the_31_and_game_i_has_seed_plus_i():
    seed, query = 2**30 - 1, "pong?sticky=0.5"  # the greatest seed that a run draws
    with closing(atari(query)) as both, closing(atari(query, n=1)) as one:
        together = frames_after(both, seed)
        for i in range(2):
            assert np.array_equal(together[i], frames_after(one, seed + i)[0])
        assert not np.array_equal(*together)
        with pytest.raises(TypeError):
            both.vector.reset(seed=2**31 - 1)  # too large for the second game
