"""The loop counts right: steps, updates, rows, checkpoints; and it acts, cuts and stops when it should."""

import numpy as np
import pytest
import torch
from helpers import small_method
from tiny_runs import Fickle, Skilled, Walk, newest, rows, tiny

import voidrl
from voidrl.agent import Agent
from voidrl.envs.vector import Envs
from voidrl.errors import EnvironmentFailedError
from voidrl.methods.base import Method
from voidrl.runs import checkpoint
from voidrl.training import hooks, trainer


class Counted(Walk):
    """Counts the steps that were really taken, and keeps their actions."""

    taken: list

    def step(self, action):
        type(self).taken.append(np.asarray(action).tolist())
        return super().step(action)


@pytest.fixture
def counted():
    Counted.taken = []
    return Counted


@pytest.fixture
def idle_updates(monkeypatch):
    """Updates that only count."""
    indices = []
    monkeypatch.setattr(Agent, "update", lambda self, replay, index: indices.append(index) or {})
    return indices


@pytest.mark.parametrize(("ratio", "num_envs"), [(0.29, 3), (2, 1)])
def test_updates_are_exactly_the_ratio_times_the_steps_after_warm_up(
    tmp_path, counted, idle_updates, ratio, num_envs
):
    config = tiny(
        updates_per_step=ratio, env__num_envs=num_envs, warmup_steps=20, log__checkpoint_every_steps=50,
        log__keep_last=9,
    )  # fmt: skip
    voidrl.pretrain(counted, steps=120, out=tmp_path / "run", config=config)
    _, meta = newest(tmp_path / "run")
    steps = meta["steps"]
    assert 120 <= steps < 120 + num_envs
    assert len(counted.taken) == steps  # the steps in which environments reset are none
    assert len(idle_updates) == meta["updates"]
    assert meta["agent_steps"] == steps
    saved = [checkpoint.load(path).meta for path in sorted((tmp_path / "run" / "checkpoints").glob("step_*"))]
    assert len(saved) == 3
    for meta in saved:
        assert meta["updates"] == round((meta["steps"] - 20) * ratio * 100) // 100


def test_updates_run_behind_the_choice_of_actions_and_nothing_is_due_at_a_checkpoint(tmp_path, monkeypatch):
    order = []

    class Told(Walk):
        def step(self, action):
            order.append("step")
            return super().step(action)

    def choose(self, obs, skill, **_):
        order.append("choose")
        return torch.zeros(len(obs), dtype=torch.int64)

    save = hooks.save_run
    monkeypatch.setattr(Agent, "choose", choose)
    monkeypatch.setattr(Agent, "update", lambda self, replay, index: order.append("update") or {})
    monkeypatch.setattr(hooks, "save_run", lambda *args: order.append("save") or save(*args))
    config = tiny(warmup_steps=2, updates_per_step=2, log__checkpoint_every_steps=4)
    voidrl.pretrain(lambda: Told(length=99), steps=6, out=tmp_path / "run", config=config)
    warm_up, updates = ["step"] * 2, ["update"] * 2
    first, later = ["choose", "step"], ["choose", *updates, "step"]
    assert order == [*warm_up, *first, *later, *updates, "save", *first, *later, *updates, "save"]


def test_a_rollout_is_learned_from_before_the_next_action_is_chosen(tmp_path, monkeypatch):
    order, choose, learn = [], Agent.choose, trainer.rollout_step
    monkeypatch.setattr(Agent, "choose", lambda *args, **how: order.append("choose") or choose(*args, **how))
    monkeypatch.setattr(trainer, "rollout_step", lambda *args: order.append(args[-1]) or learn(*args))
    learner = {"name": "mepol", "rollout_steps": 4, "hidden_dim": 8, "max_updates": 2}
    config = tiny(method=small_method("mepol", k=2), learner=learner, log__checkpoint_every_steps=100)
    voidrl.pretrain(lambda: Walk(length=99), steps=9, out=tmp_path / "run", config=config)
    assert order == [*["choose"] * 4, 4, *["choose"] * 4, 4, "choose"]


def test_on_a_cpu_environments_step_while_the_agent_is_updated(tmp_path, monkeypatch):
    order = []

    def told(name, function):
        return lambda *args, **options: (order.append(name), function(*args, **options))[1]

    monkeypatch.setattr(Envs, "send", told("send", Envs.send))
    monkeypatch.setattr(Envs, "recv", told("recv", Envs.recv))
    monkeypatch.setattr(Agent, "update", lambda self, replay, index: order.append("update") or {})
    config = tiny(warmup_steps=1, updates_per_step=1, env__backend="async")
    voidrl.pretrain(Walk, steps=3, out=tmp_path / "run", config=config)
    assert order == ["send", "recv", "send", "recv", "send", "update", "recv", "update"]


def test_rows_evaluations_and_checkpoints_come_when_their_multiples_are_crossed(tmp_path, idle_updates):
    config = tiny(
        env__num_envs=3, log__log_every_steps=10, log__eval_every_steps=15, log__checkpoint_every_steps=20,
        log__eval_episodes=2, log__keep_last=9,
    )  # fmt: skip
    # Episodes of 100 steps, so that every vector step is 3 steps: 3, 6, 9, …, 51.
    voidrl.pretrain(lambda: Walk(length=100), steps=50, out=tmp_path / "run", config=config)
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found if "updates" in row] == [12, 21, 30, 42, 51]
    assert [row["step"] for row in found if "eval/return" in row] == [15, 30, 45]
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints") == [21, 42, 51]


def test_a_row_holds_what_happened_since_the_one_before(tmp_path):
    class Scripted(Walk):
        """Rewards 1, 2, 3, 4 in episodes of 4 steps, in cells 0, 1, 2, 3, 4."""

        def __init__(self):
            super().__init__(length=4)

        def step(self, action):
            obs, *_, info = super().step(action)
            return obs, float(self.time), False, self.time == 4, info

        def _seen(self):
            return self.at.astype(np.float32), {"cell": self.time}

    config = tiny(log__log_every_steps=6, log__checkpoint_every_steps=100)
    voidrl.pretrain(Scripted, "random", steps=12, out=tmp_path / "run", config=config)
    first, second = rows(tmp_path / "run")
    assert first["step"] == 6
    assert first["reward/extrinsic"] == np.mean([1, 2, 3, 4, 1, 2])
    assert (first["episodes"], first["episode/return"], first["episode/length"]) == (1, 10, 4)
    assert second["reward/extrinsic"] == np.mean([3, 4, 1, 2, 3, 4])
    assert (second["episodes"], second["episode/return"], second["coverage/cells"]) == (3, 10, 5)
    assert newest(tmp_path / "run")[0]["loop.safetensors/visits"].tolist() == [3, 3, 3, 3, 3]


# Acting


@pytest.fixture
def told_actions(monkeypatch):
    """Random actions are 0, the policy's are 1."""
    monkeypatch.setattr(Agent, "random_actions", lambda self, obs: torch.zeros(len(obs), dtype=torch.int64))
    ones = lambda self, obs, skill, **_: torch.ones(len(obs), dtype=torch.int64)  # noqa: E731
    monkeypatch.setattr(Agent, "choose", ones)


@pytest.mark.parametrize(("who", "expected"), [("policy", [1] * 14), ("random", [0] * 9 + [1] * 5)])
def test_fine_tuning_warms_up_by_policy_or_at_random(
    tmp_path, counted, idle_updates, told_actions, who, expected
):
    source = voidrl.pretrain(counted, steps=9, out=tmp_path / "source", config=tiny())
    assert counted.taken == [0] * 8 + [1]  # pre-training warms up at random
    counted.taken.clear()
    tuning = {"warmup_steps": 9, "warmup_actions": who, "adapt": False}
    config = {"finetune": tuning, "log.eval_episodes": 0}
    voidrl.finetune(source, counted, steps=14, out=tmp_path / "run", config=config)
    assert counted.taken == expected
    assert len(idle_updates) == 1 + 5


def test_a_skill_lasts_an_episode_until_a_task_chooses_one(tmp_path):
    source = voidrl.pretrain(Walk, Skilled, steps=20, out=tmp_path / "run", config=tiny())
    skills = newest(tmp_path / "run")[0]["replay_00000.safetensors/skill"][:20]  # rows of 6 steps and a reset
    assert torch.equal(skills[0].expand(6, 2), skills[:6])
    assert not torch.equal(skills[5], skills[7])
    voidrl.finetune(source, Walk, steps=25, out=tmp_path / "tuned")
    tuned = newest(tmp_path / "tuned")[0]
    chosen = tuned["agent.safetensors/task_skill"]
    warm_up = tuned["replay_00000.safetensors/skill"][:9]
    assert any(torch.equal(chosen, skill) for skill in warm_up)
    assert torch.equal(tuned["replay_00000.safetensors/skill"][14:20], chosen.expand(6, 2))


# Stopping


@pytest.mark.parametrize("how", ["obs", "reward"])
def test_a_non_finite_observation_or_reward_stops_the_run_before_it_is_stored(tmp_path, how):
    what = {"obs": r"observation\[0\] = nan", "reward": "reward inf"}[how]
    where = "at its own step 25: expected .*finite.*, at step 24 of the run; .* step 20 is kept"
    with pytest.raises(EnvironmentFailedError, match=f"environment 0 .* returned {what} {where}"):
        voidrl.train(lambda: Fickle(how), steps=99, out=tmp_path / "run", config=tiny())
    tensors, meta = newest(tmp_path / "run")
    assert meta["steps"] == 20
    assert all(torch.isfinite(t).all() for t in tensors.values())
    assert "failed: environment 0" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("how", "step", "where"), [("raise", 24, "step 25"), ("reset", 26, "reset after 26 steps")]
)
def test_an_environment_that_raises_is_named_with_the_step(tmp_path, how, step, where):
    factory = lambda: Fickle(how)  # noqa: E731
    message = f"environment 0 .*the wheel fell off.*{where}.*at step {step} of the run; .* step 20 is kept"
    config = tiny(log__checkpoint_every_steps=20)
    with pytest.raises(EnvironmentFailedError, match=message):
        voidrl.train(factory, steps=99, out=tmp_path / "run", config=config)
    assert voidrl.load(tmp_path / "run").steps == 20
    assert voidrl.resume(tmp_path / "run", steps=30, env=Walk).steps == 30


# What a run leaves behind


class Told(Method):
    """Records which environments reach states, and where episodes begin."""

    heard: list

    def reward(self, batch, latents):
        return batch.reward

    def begin(self, obs, env, representation):
        Told.heard.append(("begin", env.tolist()))

    def observe(self, obs, skill, env, representation):
        Told.heard.append(("observe", env.tolist()))


def test_environments_have_consecutive_seeds_and_methods_know_them_by_number(tmp_path):
    Told.heard, seeds = [], []

    class Seeded(Walk):
        def __init__(self, number):
            super().__init__(length=6 if number % 2 else 9)  # number 0 is only looked at

        def reset(self, *, seed=None, options=None):
            if seed is not None:
                seeds.append(seed)
            return super().reset(seed=seed, options=options)

    made = iter(range(9))
    config = tiny(env__num_envs=3, log__checkpoint_every_steps=1000)
    voidrl.pretrain(lambda: Seeded(next(made)), Told, steps=30, out=tmp_path / "run", config=config)
    first, *_ = seeds[-3:]
    assert seeds[-3:] == [first, first + 1, first + 2]
    begin, *heard = Told.heard
    assert begin == ("begin", [0, 1, 2])
    assert heard[:6] == [("observe", [0, 1, 2])] * 6
    # Environments 0 and 2 take 6 steps, environment 1 takes 9.
    assert heard[6:8] == [("begin", [0, 2]), ("observe", [1])]


class Meddling(Walk):
    """Changes modes of torch wherever it is called."""

    def __init__(self):
        self.meddle()
        super().__init__()

    def reset(self, **how):
        self.meddle()
        return super().reset(**how)

    def step(self, action):
        self.meddle()
        return super().step(action)

    def meddle(self):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)


class Inferring(Walk):
    """Never leaves inference mode."""

    mode = torch.inference_mode()

    def step(self, action):
        self.mode.__enter__()
        return super().step(action)


def test_what_an_environment_changes_in_torch_does_not_reach_the_agent(tmp_path):
    try:
        config = tiny(log__eval_every_steps=20, log__eval_episodes=1)
        plain = voidrl.train(Walk, steps=40, out=tmp_path / "plain", config=config)
        other = voidrl.train(Meddling, steps=40, out=tmp_path / "other", config=config)
        assert torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    weights = other.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in plain.state_dict().items())


def test_an_environment_that_never_leaves_inference_mode_is_named(tmp_path):
    try:
        says = r"entered torch\.inference_mode\(\) and did not leave"
        with pytest.raises(EnvironmentFailedError, match=says):
            voidrl.train(Inferring, steps=40, out=tmp_path / "run", config=tiny())
    finally:
        Inferring.mode.__exit__(None, None, None)
