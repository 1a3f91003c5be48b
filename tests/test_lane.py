"""Environments in lanes: who steps while others are recorded, and that a run is as exact as with one lane."""

import shutil
import signal

import numpy as np
import pytest
import torch
from helpers import DISCRETE, fill_replay, make_agent
from tiny_runs import MAZE, Fickle, Skilled, Walk, assert_same_run, newest, rows, tiny

import voidrl
from voidrl import checkpoint, loop, ranks, split
from voidrl.agent import Agent
from voidrl.agent.explorer import Explorer
from voidrl.config import Config, EnvConfig, update
from voidrl.engine.engine import Engine
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError
from voidrl.loop import Loop
from voidrl.methods.base import Method
from voidrl.replay import Replay
from voidrl.replay.columns import take_columns

CPU = torch.device("cpu")


def lanes_of(num_envs=4, lanes=2, **changes):
    return tiny(env__num_envs=num_envs, env__lanes=lanes, **changes)


def long_walk():
    return Walk(length=99)


def is_busy(lane):
    """Whether the workers of a lane are taking a step."""
    return lane.envs.vector._busy


# Whose turn it is


def test_one_lane_steps_while_the_other_is_recorded_and_its_actions_are_chosen(tmp_path, monkeypatch):
    order, busy = [], []

    def told(owner, name, tell):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **o: (order.append(tell(*a, **o)), function(*a, **o))[1])

    def record(self, lane, *args):
        busy.append([is_busy(each) for each in self.lanes])
        return f"record {lane.number}"

    told(Replay, "latest", lambda self, lane=0: f"choose {lane}")
    told(Loop, "_send", lambda self, lane, chosen: f"send {lane.number}")
    told(Loop, "_record", record)
    told(loop, "save_run", lambda *args: "save")
    monkeypatch.setattr(Agent, "step", lambda self, replay, index: order.append("update") or {})
    config = lanes_of(2, warmup_steps=2, env__backend="async")
    voidrl.train(long_walk, steps=6, out=tmp_path / "run", config=config)
    first = ["choose 0", "send 0", "choose 1", "send 1", "record 0"]
    second = ["choose 0", "send 0", "record 1", "choose 1", "send 1", "record 0"]
    # Steps 3 and 4 make an update due each. After step 5 the last one is in flight, and it is awaited.
    third = ["choose 0", "send 0", "update", "record 1", "choose 1", "send 1", "update", "record 0"]
    assert order == [*first, *second, *third, "record 1", "update", "update", "save"]
    assert busy == [[False, True], [True, False], [False, True], [True, False], [False, True], [False, False]]


@pytest.mark.parametrize(("num_envs", "lanes"), [(4, 2), (3, 3)])
def test_steps_updates_and_checkpoints_are_those_of_one_lane(tmp_path, monkeypatch, num_envs, lanes):
    updates = []
    monkeypatch.setattr(Agent, "step", lambda self, replay, index: updates.append(index) or {})
    found = {}
    for count in (1, lanes):
        out = tmp_path / str(count)
        config = lanes_of(num_envs, count, updates_per_step=0.29, warmup_steps=20, log__keep_last=9)
        voidrl.pretrain(long_walk, steps=70, out=out, config=config)
        saved = [checkpoint.load(path).meta for path in sorted((out / "checkpoints").glob("step_*"))]
        found[count] = [(meta["steps"], meta["updates"]) for meta in saved]
        assert len(updates) == found[count][-1][1]
        updates.clear()
    assert found[lanes] == found[1]
    assert all(done == int((steps - 20) * 29 // 100) for steps, done in found[1])


def test_resets_are_no_steps_in_flight(tmp_path):
    """Episodes of 6 steps: with every seventh turn a lane resets, and no step is lost or counted twice."""
    taken = []

    class Counted(Walk):
        def step(self, action):
            taken.append(action)
            return super().step(action)

    voidrl.pretrain(Counted, "random", steps=90, out=tmp_path / "run", config=lanes_of())
    _, meta = newest(tmp_path / "run")
    assert 90 <= meta["steps"] < 94
    assert len(taken) == meta["steps"]


def test_environments_have_the_seeds_and_numbers_that_they_have_in_one_lane(tmp_path):
    seen = []

    class Seeded(Walk):
        def reset(self, *, seed=None, options=None):
            if seed is not None:
                seen.append(seed)
            return super().reset(seed=seed, options=options)

    class Told(Method):
        """Is shown whose states are reached, and where episodes begin."""

        numbers: list = []  # noqa: RUF012

        def reward(self, batch, latents):
            return batch.reward

        def begin(self, obs, env):
            Told.numbers.append(("begin", env.tolist()))

        def observe(self, obs, skill, env):
            Told.numbers.append(("observe", env.tolist()))

    seeds = []
    for count in (1, 2):
        seen.clear()
        Told.numbers.clear()
        config = lanes_of(4, count, log__checkpoint_every_steps=1000)
        voidrl.pretrain(Seeded, Told, steps=30, out=tmp_path / str(count), config=config)
        seeds.append(seen[-4:])
    assert seeds[0] == seeds[1] == [*range(seeds[0][0], seeds[0][0] + 4)]
    begin, *observed = Told.numbers
    assert begin == ("begin", [0, 1, 2, 3])
    assert observed[:3] == [("observe", [0, 1]), ("observe", [2, 3]), ("observe", [0, 1])]
    assert ("begin", [2, 3]) in observed  # the second lane after its first episode


# What a run leaves behind

RESUMED = {
    "stacked images": (MAZE, "apt", {"env__frame_stack": 2, "learner__n_step": 2}),
    "workers and skills": (Walk, Skilled, {"env__backend": "async", "learner__n_step": 2}),
    "notes": (MAZE, "ngu", {}),
    "priorities": (Walk, "apt", {"replay__priority_exponent": 0.5, "learner__epsilon_ladder": 3.0}),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_is_the_straight_run_bit_for_bit(tmp_path, case):
    env, method, changes = RESUMED[case]
    config = lanes_of(log__keep_last=3, **changes)
    voidrl.pretrain(env, method, steps=60, seed=3, out=tmp_path / "straight", config=config)
    shutil.copytree(tmp_path / "straight", tmp_path / "resumed")
    for path in sorted((tmp_path / "resumed" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(path)
    assert newest(tmp_path / "resumed")[1]["steps"] == 20
    voidrl.resume(tmp_path / "resumed", env=None if isinstance(env, str) else env)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=60)


def test_a_task_continues_what_was_pretrained_in_lanes_and_its_data(tmp_path):
    """An explorer, the choice of a skill, and a replay that begins with exported data."""
    config = lanes_of(log__checkpoint_every_steps=30)
    source = voidrl.pretrain(Walk, Skilled, steps=60, out=tmp_path / "source", config=config)
    voidrl.export_data(tmp_path / "source", tmp_path / "data.npz", "npz")
    tuning = {"heads": "random", "explorer": 0.5, "warmup_steps": 12}
    given = {"finetune": tuning, "replay.data": str(tmp_path / "data.npz"), "log.keep_last": 9}
    for name in ("straight", "resumed"):
        voidrl.finetune(source, Walk, steps=60, out=tmp_path / name, config=given)
    tuned = newest(tmp_path / "straight")[0]
    chosen, skills = tuned["agent.safetensors/task_skill"], tuned["replay_00000.safetensors/skill"]
    assert (skills == chosen).all(1).sum() > 8
    shutil.rmtree(max((tmp_path / "resumed" / "checkpoints").iterdir()))
    voidrl.resume(tmp_path / "resumed", env=Walk)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=60)


@pytest.mark.parametrize("event", ["on_step", "on_row"])
def test_a_signal_finds_all_lanes_at_the_same_step(tmp_path, event):
    def stop(run):
        if run.step >= 22:
            signal.raise_signal(signal.SIGTERM)

    run, config = tmp_path / "run", lanes_of(env__backend="async", log__checkpoint_every_steps=1000)
    with pytest.raises(voidrl.RunInterrupted, match=r"stopped by SIGTERM at step 24 of 100; checkpoint"):
        voidrl.pretrain(long_walk, steps=100, out=run, config=config, callbacks=[{event: stop}])
    tensors, meta = newest(run)
    assert (meta["steps"], meta["updates"]) == (24, 24 - 8)
    starts = tensors["replay.safetensors/row_starts"]
    assert starts[starts > 0].tolist() == [4] * 6  # steps of all environments
    assert voidrl.resume(run, env=long_walk).steps == 100


def test_hooks_see_the_last_step(tmp_path):
    steps = []
    hooks = {"on_step": lambda run: steps.append(run.step)}
    voidrl.pretrain(long_walk, "random", steps=16, out=tmp_path / "run", config=lanes_of(), callbacks=[hooks])
    assert steps == [2, 6, 10, 16]


def test_states_are_counted_as_in_one_lane(tmp_path, monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(Agent, "random_actions", lambda self, obs: torch.full((len(obs),), 2))  # to the right
    config = {"env.count_states": True, "env.counted_envs": 3, "log.checkpoint_every_steps": 40}
    found = []
    for count in (1, 2):
        given = lanes_of(4, count, log__log_every_steps=1000, device="cpu") | config
        out = tmp_path / str(count)
        voidrl.pretrain("atari/ms_pacman", "random", steps=80, out=out, config=given)
        coverage = [{k: v for k, v in row.items() if k.startswith("coverage")} for row in rows(out)]
        found.append(coverage)
    assert found[0] == found[1]
    assert len(found[0]) == 2
    assert 40 < found[0][-1]["coverage/ram"] <= 60
    shutil.rmtree(max((tmp_path / "2" / "checkpoints").iterdir()))
    before = rows(tmp_path / "2")
    voidrl.resume(tmp_path / "2")
    assert rows(tmp_path / "2") == before


# Who acts in which environment


def test_the_ladder_goes_on_in_the_next_lane(monkeypatch):
    config = {"env__num_envs": 8, "env__lanes": 2, "learner__epsilon_ladder": 7.0}
    learner = make_agent(**config).learner
    learner.epsilon.fill_(0.4)
    whole = 0.4 ** (1 + 7 * torch.arange(8) / 7)
    torch.testing.assert_close(torch.cat([learner.ladder(4, lane) for lane in range(2)]), whole)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(ranks.group, "_current", ranks.ProcessGroup(rank, 2))
        parts += [learner.ladder(2, lane) for lane in range(2)]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_the_engine_acts_on_what_the_lane_sees(monkeypatch):
    agent = make_agent(env__num_envs=4, env__lanes=2, learner__epsilon_ladder=1.0)
    agent.learner.epsilon.fill_(0.5)
    replay, seen = Replay(DISCRETE, 4, 40, 0, CPU, CPU, lanes=2), []
    for lane in range(2):
        replay.reset(np.full((2, 4), lane, np.float32))
    monkeypatch.setattr(
        type(agent.learner), "_act", lambda self, obs, skill, epsilon: seen.append((obs, epsilon)) or obs
    )
    engine = Engine(agent, replay, print)
    for lane in (0, 1):
        engine.choose(torch.zeros(2, 0), lane=lane)
    assert [obs.unique().tolist() for obs, _ in seen] == [[0], [1]]
    rungs = torch.cat([epsilon for _, epsilon in seen])
    torch.testing.assert_close(rungs, 0.5 ** (1 + torch.arange(4) / 3))


def test_the_explorer_has_stretches_of_its_own_in_each_lane():
    explorer = Explorer.copy_of(make_agent(), CPU)
    explorer.policy.act = lambda obs, skill, deterministic: torch.ones(len(obs), dtype=torch.int64)
    explorer.begin(4)
    explorer.remaining.copy_(torch.tensor([2, 0, 0, 1]))
    own, obs, skill = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 4), torch.zeros(2, 0)
    acted = [explorer.replace(own, obs, skill, 5.0, lane).tolist() for lane in (0, 1, 0, 1, 0)]
    assert acted == [[1, 0], [0, 1], [1, 0], [0, 0], [0, 0]]


def test_columns_of_other_ranks_are_taken_into_lanes():
    whole = fill_replay(num_envs=4, steps=30)
    again = Replay(DISCRETE, 4, whole.capacity_rows * 4, 0, CPU, CPU, lanes=2)
    take_columns(again, 0, [(0, whole)])
    assert torch.equal(again.newest(500), whole.newest(500))
    slots = whole.newest(500)
    for mine, theirs in zip(again.batch(slots, 3, 0.9), whole.batch(slots, 3, 0.9), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(torch.cat([again.latest(0), again.latest(1)]), whole.latest())


# What goes wrong

REFUSED = {
    "uneven": (
        {"env.lanes": 3},
        1,
        "env.lanes = 3 cannot be used with env.num_envs = 8: expected lanes of equal size; use a multiple of "
        "3 environments, or env.lanes = 1",
    ),
    "uneven on ranks": (
        {"env.lanes": 2, "env.num_envs": 10},
        2,
        "env.lanes = 2 cannot be used with env.num_envs = 10, 5 of them on rank 0 of 2: expected lanes of "
        "equal size; use a multiple of 4",
    ),
    "tensors": (
        {"env.lanes": 2, "env.backend": "tensor", "env.id": "voidrl/PixelMaze-v0"},
        1,
        "env.lanes = 2 cannot be used with environment 'voidrl/PixelMaze-v0', whose copies step together on "
        "the device: expected 1",
    ),
    "warp": ({"env.lanes": 2, "env.id": "dmc-warp/walker"}, 1, "environment 'dmc-warp/walker', whose copies"),
    "on-policy": (
        {"env.lanes": 2, "learner": "mepol"},
        1,
        "env.lanes = 2 cannot be used with learner 'mepol', which learns from rollouts of all environments "
        "at once: expected 1, or",
    ),
}


@pytest.mark.parametrize(("changes", "size", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_lanes_cannot_divide_is_refused(changes, size, sentence):
    config = update(Config(), {"learner": "dqn", "env.num_envs": 8} | changes)
    with pytest.raises(ConfigError, match=sentence):
        split.require_splittable(config, None, size)


def test_lanes_are_counted_from_one(tmp_path):
    with pytest.raises(
        ConfigError, match=r"env.lanes = 0 cannot be used: expected 1 \(all step together\), 2"
    ):
        update(Config(), {"env.lanes": 0})
    with pytest.raises(ConfigError, match=r"lanes = 2 cannot be used with env.num_envs = 3: expected"):
        voidrl.pretrain(Walk, steps=9, out=tmp_path / "run", config=lanes_of(3))
    assert not (tmp_path / "run").exists()


def test_each_lane_counts_its_share_of_the_counted_environments():
    def shares(**env):
        return [(part.count_states, part.counted_envs, n) for part, n in split.env_parts(EnvConfig(**env))]

    counts = {"num_envs": 6, "count_states": True}
    assert shares(lanes=3, counted_envs=3, **counts) == [(True, 2, 2), (True, 1, 2), (False, 0, 2)]
    assert shares(lanes=2, **counts) == [(True, 0, 3)] * 2
    assert shares(counted_envs=4, **counts) == [(True, 4, 6)]


def test_a_failing_environment_is_named_with_its_lane(tmp_path):
    made = []

    def factory():
        made.append(1)
        return Fickle("raise") if len(made) == 1 + 4 else Walk()  # the first is only looked at

    message = (
        r"environment 1 .*the wheel fell off.* step 25, in lane 1 \(environments 2 to 3 of the run\), at "
        r"step \d+ of the run; the checkpoint of step 80 is kept"
    )
    with pytest.raises(EnvironmentFailedError, match=message):
        voidrl.train(factory, steps=400, out=tmp_path / "run", config=lanes_of())
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints")[-1] == 80


def test_all_lanes_are_closed_if_one_cannot_be_started(tmp_path, monkeypatch):
    made, closed = [], []

    def factory():
        made.append(1)
        if len(made) == 1 + 3:  # after the one that is looked at
            raise RuntimeError("no wheels")
        return Walk()

    close = Envs.close
    monkeypatch.setattr(Envs, "close", lambda self: (closed.append(self.num_envs), close(self))[1])
    with pytest.raises(EnvironmentFailedError, match="no wheels"):
        voidrl.train(factory, steps=20, out=tmp_path / "run", config=lanes_of())
    assert closed == [1, 2]


def test_lanes_of_different_environments_are_refused(tmp_path):
    made = []

    def factory():
        made.append(1)
        return Walk(continuous=len(made) > 3)

    with pytest.raises(
        SpaceError, match=r"of lane 1 have .*continuous.* and those of lane 0 have .*3 actions"
    ):
        voidrl.train(factory, steps=20, out=tmp_path / "run", config=lanes_of())
