"""The replay against a list of episodes: stacks, n-step returns, borders, the ring, checkpoints, memory."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from voidrl import replay as module
from voidrl.config import ReplayConfig
from voidrl.errors import ConfigError, NonFiniteError, ReplayMemoryError
from voidrl.replay import (
    Replay,
    Upload,
    block_sums,
    check_finite,
    checksum,
    make_replay,
    write_directly,
)
from voidrl.types import EnvSpec

CPU, CUDA, META = torch.device("cpu"), torch.device("cuda", 0), torch.device("meta")


def pixel_spec(stack=1):
    return EnvSpec((1, 2, 2), True, stack, num_actions=10**9)


def vector_spec(stack=1):
    return EnvSpec((1,), False, stack, 0, (-1.0, -1.0), (1.0, 1.0))


def frame(number):
    """A 1×2×2 uint8 image that spells a number."""
    return np.frombuffer(int(number).to_bytes(4, "little"), np.uint8).reshape(1, 2, 2)


def numbers(obs):
    """(B, stack, 2, 2) images → (B, stack) numbers."""
    return obs.flatten(2).numpy().copy().view("<u4").squeeze(-1)


class Oracle:
    """Fills a replay as environments would, and keeps every episode as a plain list.

    Each frame is a number of its own, and so is each action, which tells where a sampled transition was made.
    """

    def __init__(self, num_envs, capacity, stack, seed=0, skill_dim=0, end=0.25, place=CPU):
        self.replay = Replay(pixel_spec(stack), num_envs, capacity, skill_dim, place, place)
        self.n, self.stack, self.skill_dim, self.end = num_envs, stack, skill_dim, end
        self.rng = np.random.default_rng(seed)
        self.next_frame, self.row = 0, -1
        self.episodes = [[] for _ in range(num_envs)]
        self.where = {}  # action → (environment, episode, time, row)

    def frames(self):
        ids = [self.next_frame + i for i in range(self.n)]
        self.next_frame += self.n
        return ids, np.stack([frame(i) for i in ids])

    def reset(self):
        ids, images = self.frames()
        for episodes, first in zip(self.episodes, ids, strict=True):
            if episodes and episodes[-1]["steps"] and episodes[-1]["steps"][-1]["end"] is None:
                episodes[-1]["steps"][-1]["end"] = "truncated"
            episodes.append({"frames": [first], "steps": []})
        self.replay.reset(images)
        self.row += 1

    def step(self):
        ids, images = self.frames()
        action = 1000 + self.row * self.n + np.arange(self.n)
        reward = self.rng.normal(size=self.n)
        ends = np.where(self.rng.random(self.n) < self.end, self.rng.integers(1, 3, self.n), 0)
        skill = self.rng.normal(size=(self.n, self.skill_dim)).astype(np.float32)
        real = 0
        for i, episodes in enumerate(self.episodes):
            steps = episodes[-1]["steps"]
            if steps and steps[-1]["end"]:  # the step in which it resets: reward and action mean nothing
                episodes.append({"frames": [ids[i]], "steps": []})
                ends[i], reward[i] = 0, 777.0
                continue
            self.where[int(action[i])] = (i, len(episodes) - 1, len(steps), self.row)
            end = (None, "terminated", "truncated")[ends[i]]
            steps.append({"reward": np.float32(reward[i]), "end": end, "skill": skill[i]})
            episodes[-1]["frames"].append(ids[i])
            real += 1
        self.last = (action, reward, ends == 1, ends == 2, images, torch.from_numpy(skill))
        assert self.replay.add(*self.last) == real
        self.row += 1

    def valid(self):
        """Actions whose full stack is still stored."""
        oldest = self.row - self.replay.rows + self.stack
        return {action for action, (*_, row) in self.where.items() if row >= oldest}

    def stacked(self, episode, time):
        return [episode["frames"][max(0, time - back)] for back in reversed(range(self.stack))]

    def check(self, slots, n, discount):
        batch = self.replay.batch(slots, n, discount)
        obs, next_obs = numbers(batch.obs), numbers(batch.next_obs)
        for i, action in enumerate(batch.action.tolist()):
            env, number, time, _ = self.where[action]
            episode = self.episodes[env][number]
            total, length, worth = 0.0, 0, 1.0
            for step in episode["steps"][time : time + n]:
                total, length, worth = total + worth * step["reward"], length + 1, worth * discount
                if step["end"]:
                    break
            assert obs[i].tolist() == self.stacked(episode, time)
            assert next_obs[i].tolist() == self.stacked(episode, time + length)
            assert batch.reward[i].item() == pytest.approx(total, abs=1e-5)
            bootstrapped = 0.0 if step["end"] == "terminated" else worth
            assert batch.discount[i].item() == pytest.approx(bootstrapped, abs=1e-6)
            assert np.array_equal(batch.skill[i].numpy(), episode["steps"][time]["skill"])


@pytest.mark.parametrize(
    ("num_envs", "capacity", "stack"), [(1, 9, 1), (1, 7, 4), (3, 12, 3), (5, 40, 2), (2, 1, 4)]
)
def test_every_sample_agrees_with_a_list_of_episodes(num_envs, capacity, stack):
    oracle = Oracle(num_envs, capacity, stack, seed=stack, skill_dim=2)
    torch.manual_seed(0)
    oracle.reset()
    for time in range(300):
        oracle.step() if time % 41 else oracle.reset()
        if time % 41 == 0:
            continue
        assert len(oracle.replay) == len(oracle.valid())
        for n in (1, 3, 10):
            oracle.check(oracle.replay.sample(12), n, 0.9)
        if time % 10 == 0:
            drawn = oracle.replay.action[oracle.replay.sample(60 * len(oracle.valid()))]
            assert set(drawn.tolist()) == oracle.valid()
    assert oracle.row > 3 * oracle.replay.rows


def test_latest_is_what_the_environments_wait_on():
    oracle = Oracle(3, 6, 3, seed=1)
    oracle.reset()
    for _ in range(60):
        want = [oracle.stacked(e[-1], len(e[-1]["frames"]) - 1) for e in oracle.episodes]
        assert numbers(oracle.replay.latest()).tolist() == want
        oracle.step()


def test_sampling_is_uniform_over_the_valid_transitions():
    oracle = Oracle(3, 30, 2, seed=3, end=0.3)
    torch.manual_seed(1)
    oracle.reset()
    for _ in range(100):
        oracle.step()
    valid, draws = sorted(oracle.valid()), 200_000
    slots = oracle.replay.sample(draws)
    counts = np.bincount(np.searchsorted(valid, oracle.replay.action[slots].numpy()), minlength=len(valid))
    expected = draws / len(valid)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < len(valid) + 5 * np.sqrt(2 * len(valid))
    last = [bool(oracle.episodes[e][k]["steps"][t]["end"]) for e, k, t, _ in map(oracle.where.get, valid)]
    assert any(last)
    assert counts[last].mean() == pytest.approx(expected, rel=0.03)


# --- n-step returns by hand -------------------------------------------------------------------------------


def line(rewards, ends, stack=1, capacity=20):
    """One environment, frames 0, 1, 2, …; `ends` maps a step to how it ends."""
    replay = Replay(vector_spec(stack), 1, capacity, 1, CPU, CPU)
    replay.reset(np.zeros((1, 1), np.float32))
    for i, reward in enumerate(rewards):
        end = ends.get(i)
        replay.add(
            np.full((1, 2), i / 100, np.float32),
            np.array([reward]),
            np.array([end == "terminated"]),
            np.array([end == "truncated"]),
            np.full((1, 1), i + 1, np.float32),
            torch.tensor([[float(i)]]),
        )
    return replay


@pytest.mark.parametrize(("ending", "discount"), [("terminated", 0.0), ("truncated", 0.25)])
def test_n_step_targets_stop_at_an_episodes_end(ending, discount):
    # frames 0 1 2 3 | 4 5: step 3 is the reset, whose reward 64 belongs to nobody
    replay = line([1, 2, 4, 64, 8], {2: ending})
    batch = replay.batch(torch.tensor([0, 1, 2, 4]), 3, 0.5)
    assert batch.reward.tolist() == [1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4, 8]
    bootstrap = {"terminated": [0, 0, 0, 0.5], "truncated": [0.125, 0.25, 0.5, 0.5]}[ending]
    assert batch.discount.tolist() == bootstrap
    assert bootstrap[1] == discount
    assert batch.next_obs.flatten().tolist() == [3, 3, 3, 5]
    assert batch.skill.flatten().tolist() == [0, 1, 2, 4]
    assert torch.allclose(batch.action[:, 1], torch.tensor([0.0, 0.01, 0.02, 0.04]))
    assert sorted(set(replay.sample(500).tolist())) == [0, 1, 2, 4]


def test_n_step_targets_at_the_head_of_the_data():
    batch = line([1, 2, 4], {}).batch(torch.tensor([0, 1, 2]), 10, 0.5)
    assert batch.reward.tolist() == [3, 4, 4]
    assert batch.discount.tolist() == [0.125, 0.25, 0.5]
    assert batch.next_obs.flatten().tolist() == [3, 3, 3]


def test_a_segment_is_its_steps():
    replay = line([1, 2, 4, 64, 8], {2: "terminated"}, stack=2)
    segment = replay.segment(torch.tensor([0, 1, 4]), 3, 0.5)
    assert segment.weights.tolist() == [[1, 0.5, 0.25], [1, 0.5, 0], [1, 0, 0]]
    assert segment.slots.tolist() == [[0, 1, 2], [1, 2, 2], [4, 4, 4]]
    assert segment.states[:, -1].tolist() == [3, 3, 5]
    batches, weights = zip(*replay.steps(segment), strict=True)
    assert torch.stack(weights, 1).tolist() == segment.weights.tolist()
    assert [b.reward.tolist() for b in batches] == [[1, 2, 8], [2, 4, 8], [4, 4, 8]]
    assert [b.discount.tolist() for b in batches] == [[1, 1, 1], [1, 0, 1], [0, 0, 1]]
    assert batches[1].obs.tolist() == [[0, 1], [1, 2], [4, 5]]  # the last stands at its final state
    assert batches[1].next_obs.tolist() == [[1, 2], [2, 3], [4, 5]]
    summed = sum(w * b.reward for w, b in zip(weights, batches, strict=True))
    assert torch.equal(summed, replay.batch(torch.tensor([0, 1, 4]), 3, 0.5).reward)


def test_a_reset_cuts_the_running_episode_as_a_truncation():
    replay = line([1, 2], {})
    replay.reset(np.full((1, 1), 50, np.float32))
    replay.reset(np.full((1, 1), 60, np.float32))
    batch = replay.batch(torch.tensor([0, 1]), 5, 0.5)
    assert batch.reward.tolist() == [2, 2]
    assert batch.discount.tolist() == [0.25, 0.5]
    assert batch.next_obs.flatten().tolist() == [2, 2]
    assert replay.latest().tolist() == [[60]]
    assert len(replay) == 2


def test_a_reset_leaves_a_termination_one():
    replay = line([1, 2], {1: "terminated"})
    replay.reset(np.full((1, 1), 50, np.float32))
    assert replay.batch(torch.tensor([0, 1]), 5, 0.5).discount.tolist() == [0, 0]


def test_a_reset_before_any_step_writes_only_its_own_frames():
    replay = line([], {})
    replay.reset(np.full((1, 1), 5, np.float32))
    assert not replay.ending.any()
    assert replay.latest().tolist() == [[5]]


def test_one_step_is_a_run_of_one():
    replay = line([1, 2, 4, 64, 8], {1: "truncated", 2: "terminated"}, capacity=4)
    slots, time = torch.arange(len(replay.starts)), torch.arange(2)
    slots = slots[slots != replay.head]  # those in which a step was taken
    short, general = replay.segment(slots, 1, 0.5), replay._run(slots, time, 0.5**time)
    for name, value in short._asdict().items():
        assert torch.equal(value, getattr(general, name)), name
        assert value.dtype == getattr(general, name).dtype


# --- storage ----------------------------------------------------------------------------------------------


def test_frames_are_stored_once_and_stay_bytes():
    oracle = Oracle(2, 10, 4)
    oracle.reset()
    oracle.step()
    replay = oracle.replay
    assert replay.frames.shape == (replay.rows * 2, 1, 2, 2)
    assert replay.frames.dtype == replay.latest().dtype == torch.uint8
    batch = replay.batch(replay.sample(5), 3, 0.99)
    assert batch.obs.shape == batch.next_obs.shape == (5, 4, 2, 2)
    assert batch.obs.dtype == batch.next_obs.dtype == torch.uint8
    assert batch.reward.dtype == batch.discount.dtype == batch.skill.dtype == torch.float32
    assert batch.action.dtype == torch.int64
    assert batch.skill.shape == (5, 0)
    ((_, weights), *_) = replay.steps(replay.segment(replay.sample(5), 2, 0.99))
    assert weights.dtype == torch.float32


@pytest.mark.parametrize(("num_envs", "capacity", "stack"), [(1, 10, 1), (4, 20, 3), (5, 100, 4)])
def test_capacity_is_what_is_kept_in_the_long_run(num_envs, capacity, stack):
    oracle = Oracle(num_envs, capacity, stack, end=0.0)
    oracle.reset()
    for _ in range(3 * oracle.replay.rows):
        oracle.step()
    assert len(oracle.replay) == capacity


def test_frames_are_named_where_they_lie():
    oracle = Oracle(2, 10, 3)
    oracle.reset()
    for _ in range(30):
        oracle.step()
    replay, slots = oracle.replay, oracle.replay.sample(8)
    source, index = frames = replay.frames_of(slots)
    assert source is replay.frames
    assert index.shape == (8, 3)
    assert torch.equal(index[:, -1], slots)
    assert torch.equal(frames.stacked(), replay.frames[index].flatten(1, 2))
    assert torch.equal(frames.stacked(), replay.observations(slots))


def test_without_a_stack_a_slot_is_its_frame():
    replay = line([1, 2, 4], {})
    slots = torch.tensor([2, 0])
    index = replay.frames_of(slots).index
    assert index.tolist() == [[2], [0]]
    assert index.data_ptr() == slots.data_ptr()


def test_frames_are_gathered_where_the_storage_is_and_read_beside_the_networks():
    oracle = Oracle(2, 10, 3)
    oracle.reset()
    for _ in range(30):
        oracle.step()
    replay = oracle.replay
    slots = replay.sample(8)
    want = replay.observations(slots)
    replay.device = torch.device("cpu", 0)  # another one than `cpu`, as far as the replay can tell
    source, index = frames = replay.frames_of(slots)
    assert source.shape == (24, 1, 2, 2)
    assert index.tolist() == torch.arange(24).view(8, 3).tolist()
    assert torch.equal(frames.stacked(), want)


def test_observations_that_are_given_are_not_gathered(monkeypatch):
    replay = line([1, 2, 4, 64, 8], {2: "terminated"})
    segment = replay.segment(torch.tensor([0, 1, 4]), 3, 0.5)
    want, steps = replay.joined(segment), list(replay.steps(segment))
    states = replay.observations(segment.states.T.flatten()).unflatten(0, (4, 3))
    monkeypatch.setattr(replay, "observations", None)
    given = replay.joined(segment, want.obs + 100, want.next_obs + 200)
    assert torch.equal(given.obs, want.obs + 100)
    assert torch.equal(given.next_obs, want.next_obs + 200)
    assert all(map(torch.equal, given[1:4], want[1:4]))
    for (batch, weights), (same, same_weights) in zip(replay.steps(segment, states), steps, strict=True):
        assert all(map(torch.equal, (*batch, weights), (*same, same_weights)))


def stored(replay):
    """All that a step writes."""
    names = ("frames", "action", "reward", "ending", "age", "skill", "starts")
    positions = (replay.head, replay.starts_head, replay.starts_count)
    return [*(getattr(replay, name).cpu() for name in names), *(p.cpu() for p in positions)]


@pytest.fixture
def uploads(monkeypatch):
    """What is written takes the way that it takes to a GPU."""
    made = {}

    def write(stored, writes):
        made.setdefault(id(stored), Upload(stored))(writes)

    monkeypatch.setattr(module, "write_directly", write)
    return made


@pytest.mark.parametrize(("num_envs", "capacity", "stack"), [(1, 9, 1), (3, 12, 3), (5, 40, 2)])
def test_an_upload_writes_what_a_direct_write_does(num_envs, capacity, stack, uploads):
    oracle = Oracle(num_envs, capacity, stack, skill_dim=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_directly", write_directly)
        direct = Oracle(num_envs, capacity, stack, skill_dim=2)
    for time in range(150):
        for each in (oracle, direct):
            each.step() if time % 41 else each.reset()
        assert all(map(torch.equal, stored(oracle.replay), stored(direct.replay)))
        if time % 41:
            oracle.check(oracle.replay.sample(8), 3, 0.9)
    assert len(uploads) == 1
    state, chunks = copied(oracle.replay)
    again = Replay(pixel_spec(stack), num_envs, capacity, 2, CPU, CPU)
    again.load(state, iter(chunks))
    assert all(map(torch.equal, stored(again), stored(oracle.replay)))


@pytest.mark.usefixtures("uploads")
def test_an_upload_converts_what_an_environment_gives():
    replay = line([1, 2, 4, 64, 8], {2: "terminated"})  # rewards are whole numbers
    assert replay.batch(torch.tensor([0, 1, 2, 4]), 1, 0.5).reward.tolist() == [1, 2, 4, 8]
    replay.reset(np.full((1, 1), 50))
    assert replay.latest().tolist() == [[50]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("small_chunks")
def test_a_replay_on_the_gpu_holds_what_one_in_main_memory_does():
    here, there = Oracle(5, 200, 3, skill_dim=2), Oracle(5, 200, 3, skill_dim=2, place=CUDA)
    work = torch.randn(4096, 4096, device=CUDA)
    for time in range(300):
        for oracle in (here, there):
            oracle.step() if time % 41 else oracle.reset()
        work = torch.tanh(work @ work)  # keeps the GPU behind: nothing may be overwritten before it has left
    assert all(map(torch.equal, stored(there.replay), stored(here.replay)))
    assert torch.equal(there.replay.latest().cpu(), here.replay.latest())
    slots = here.replay.sample(64)
    for n in (1, 3):
        mine, other = here.replay.batch(slots, n, 0.9), there.replay.batch(slots.cuda(), n, 0.9)
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(b.cpu(), a)
    again = Replay(pixel_spec(3), 5, 200, 2, CUDA, CUDA)
    state, chunks = copied(there.replay)
    again.load(
        {k: v.cpu() for k, v in state.items()}, ((n, {k: v.cpu() for k, v in t.items()}) for n, t in chunks)
    )
    assert all(map(torch.equal, stored(again), stored(there.replay)))
    assert [c[:2] for c in again.chunks()] == [c[:2] for c in there.replay.chunks()]


def test_a_float64_environment_stays_float32():
    replay = Replay(vector_spec(), 1, 5, 0, CPU, CPU)
    replay.reset(np.zeros((1, 1)))
    replay.add(
        np.zeros((1, 2)), np.ones(1), np.zeros(1, bool), np.zeros(1, bool), np.ones((1, 1)), torch.zeros(1, 0)
    )
    batch = replay.batch(replay.sample(3), 1, 0.9)
    assert {t.dtype for t in batch} == {torch.float32}


# --- what a CUDA graph needs ------------------------------------------------------------------------------


def read(replay):
    """Everything that an update calls."""
    slots = replay.sample(6)
    segment = replay.segment(slots, 3, 0.9)
    steps = [(*batch, weights) for batch, weights in replay.steps(segment)]
    return [*replay.batch(slots, 3, 0.9), replay.observations(slots), replay.latest(), *sum(steps, ())]


class NoHostReads(TorchDispatchMode):
    """Refuses what capture forbids: reads, shapes that depend on data, tensors made from Python numbers."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "is_nonzero", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        assert not name.startswith(self.FORBIDDEN), name
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "boolean-mask indexing"
        return func(*args, **(kwargs or {}))


def test_reading_never_waits_for_the_host():
    oracle = Oracle(2, 10, 2)
    oracle.reset()
    for _ in range(5):
        oracle.step()
    with NoHostReads():
        read(oracle.replay)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoHostReads():
        oracle.replay.head.item()


def test_what_is_sampled_is_decided_on_the_device():
    oracle = Oracle(1, 50, 1, end=0.0)
    oracle.reset()
    for _ in range(20):
        oracle.step()
    replay = oracle.replay
    replay.starts_count.fill_(3)
    assert set(replay.sample(200).tolist()) == {17, 18, 19}
    replay.starts_head.fill_(10)
    assert set(replay.sample(200).tolist()) == {7, 8, 9}
    replay.head.fill_(9)
    assert numbers(replay.latest()).tolist() == [[9]]
    assert replay.segment(torch.tensor([7]), 5, 1.0).weights.tolist() == [[1, 1, 0, 0, 0]]


def test_compiled_methods_follow_the_data():
    """What they read that changes lies in tensors; a Python number would be frozen at its first value."""
    oracle = Oracle(2, 12, 3)
    oracle.reset()
    replay, names = oracle.replay, ("_draw", "_step", "_run", "_stack")
    assert all(getattr(Replay, name).fusable for name in names)
    compiled = {
        name: torch.compile(getattr(replay, name), backend="aot_eager", fullgraph=True, dynamic=False)
        for name in names
    }
    for time in range(60):
        oracle.step()
        if time % 10:
            continue
        torch.manual_seed(time)
        want = read(replay)
        with pytest.MonkeyPatch.context() as patch:
            for name, method in compiled.items():
                patch.setattr(replay, name, method)
            torch.manual_seed(time)
            assert all(map(torch.equal, read(replay), want))


def test_a_graph_may_hold_on_to_the_tensors():
    oracle = Oracle(2, 6, 2)
    held = {
        k: v.data_ptr() for k, v in vars(oracle.replay).items() if isinstance(v, torch.Tensor) and v.numel()
    }
    oracle.reset()
    for _ in range(30):
        oracle.step()
    oracle.replay.load(oracle.replay.state(), ((n, make()) for n, _, make in oracle.replay.chunks()))
    assert held == {k: getattr(oracle.replay, k).data_ptr() for k in held}


def test_what_is_read_lies_beside_the_networks():
    """Indices stay where the storage is; only what was gathered moves."""
    replay = Replay(vector_spec(2), 1, 5, 3, CPU, META)
    replay.reset(np.zeros((1, 1), np.float32))
    off = np.zeros(1, bool)
    replay.add(np.zeros((1, 2)), np.ones(1), off, off, np.ones((1, 1)), torch.zeros(1, 3))
    assert replay.sample(4).device == CPU
    assert {t.device.type for t in read(replay)} == {"meta"}


# --- checkpoints ------------------------------------------------------------------------------------------


def copied(replay):
    """State and chunks, as they come back from a file."""
    chunks = [(name, {k: v.clone() for k, v in make().items()}) for name, _, make in replay.chunks()]
    return {k: v.clone() for k, v in replay.state().items()}, chunks


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * 2 * module.slot_bytes(pixel_spec(), 0))  # 4 rows of 2


@pytest.mark.parametrize("steps", [0, 1, 5, 21, 100])
@pytest.mark.usefixtures("small_chunks")
def test_a_loaded_replay_goes_on_as_the_saved_one(steps):
    oracle, again = Oracle(2, 30, 3), Replay(pixel_spec(3), 2, 30, 0, CPU, CPU)
    oracle.reset()
    for _ in range(steps):
        oracle.step()
    state, chunks = copied(oracle.replay)
    again.load(state, iter(chunks))
    assert torch.equal(again.latest(), oracle.replay.latest())
    if steps:
        assert all(map(torch.equal, sampled(again), sampled(oracle.replay)))
    for _ in range(40):
        assert len(again) == len(oracle.replay)
        assert [c[:2] for c in again.chunks()] == [c[:2] for c in oracle.replay.chunks()]
        oracle.step()
        again.add(*oracle.last)
        assert all(map(torch.equal, sampled(again), sampled(oracle.replay)))


def sampled(replay):
    torch.manual_seed(5)
    return replay.batch(replay.sample(32), 4, 0.9)


@pytest.mark.usefixtures("small_chunks")
def test_tags_tell_which_parts_changed():
    oracle = Oracle(2, 34, 1, end=0.0)  # 18 rows: chunks of 4, 4, 4, 4, 2
    oracle.reset()
    before = {name: (tag, copied_part(make)) for name, tag, make in oracle.replay.chunks()}
    changes = 0
    for time in range(60):
        oracle.reset() if time % 7 == 6 else oracle.step()
        after = {name: (tag, copied_part(make)) for name, tag, make in oracle.replay.chunks()}
        for name, (tag, content) in before.items():
            same = all(
                torch.equal(content[k], v) for k, v in after[name][1].items() if len(v) == len(content[k])
            )
            grown = len(after[name][1]["age"]) != len(content["age"])
            if not same or grown:
                assert after[name][0] != tag, (time, name)
                changes += 1
        unchanged = [name for name, (tag, _) in before.items() if after[name][0] == tag]
        assert len(unchanged) >= len(before) - 2  # one step writes one row, and the frames after it
        before = after
    assert changes > 50
    assert len(after) == 5


def copied_part(make):
    return {k: v.clone() for k, v in make().items()}


@pytest.mark.usefixtures("small_chunks")
def test_runs_that_went_on_differently_have_different_tags():
    def tag(value):
        replay = Replay(pixel_spec(), 2, 30, 0, CPU, CPU)
        replay.reset(np.stack([frame(0), frame(value)]))
        return next(tag for _, tag, _ in replay.chunks())

    assert tag(1) != tag(2)
    assert tag(1) == tag(1)


@pytest.mark.parametrize("name", ["frames", "action", "reward", "ending", "age", "skill"])
@pytest.mark.usefixtures("small_chunks")
def test_a_difference_in_anything_stored_is_seen(name):
    def tags(change):
        oracle = Oracle(2, 30, 1, skill_dim=1)
        oracle.reset()
        for _ in range(6):
            oracle.step()
        getattr(oracle.replay, name)[oracle.row * 2 - 1] += change  # of the last step
        return [tag for _, tag, _ in oracle.replay.chunks()]

    assert tags(0) == tags(0)
    assert tags(0) != tags(1)


def test_what_has_not_changed_is_not_read_again(monkeypatch):
    oracle = Oracle(2, 30, 1)
    oracle.reset()
    oracle.step()
    tags = [tag for _, tag, _ in oracle.replay.chunks()]
    monkeypatch.setattr(module, "checksum", None)
    assert [tag for _, tag, _ in oracle.replay.chunks()] == tags
    oracle.replay.state()


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 64, 65])
def test_sums_on_a_device_tell_contents_apart(size, monkeypatch):
    monkeypatch.setattr(module, "CHECKSUM_WORDS", 8)
    module._weights.cache_clear()
    random = torch.Generator().manual_seed(size)
    content = torch.randint(256, (size,), dtype=torch.uint8, generator=random)
    seen = [tuple(block_sums(content).tolist())]
    for place in range(size):
        for change in (1, 128, 255):
            other = content.clone()
            other[place] ^= change
            seen.append(tuple(block_sums(other).tolist()))
    if size > 8:  # a moved image: the same bytes in other places
        seen.append(tuple(block_sums(content.roll(8)).tolist()))
        seen.append(tuple(block_sums(content.roll(32)).tolist()))
    module._weights.cache_clear()
    assert len(set(seen)) == len(seen)


def test_a_checksum_is_of_contents_and_lengths():
    tensors = [torch.arange(5), torch.zeros(3, 0), torch.ones(2, 2)]
    assert checksum(tensors) == checksum([t.clone() for t in tensors])
    assert checksum(tensors) != checksum([*tensors[:2], torch.ones(2, 3)])
    assert checksum([torch.zeros(4)]) != checksum([torch.zeros(5)])
    assert 0 <= checksum(tensors) < 2**32


# --- memory -----------------------------------------------------------------------------------------------


def memory(monkeypatch, **free):
    monkeypatch.setattr(module, "free_bytes", lambda device: free[device.type])
    monkeypatch.setattr(module, "Replay", lambda *args: args)


def make(config, device, said):
    return make_replay(config, pixel_spec(4), 2, 0, device, said.append)


def test_auto_keeps_the_replay_beside_the_networks(monkeypatch):
    said = []
    memory(monkeypatch, cuda=2**40, cpu=2**40)
    assert make(ReplayConfig(), CUDA, said)[-2:] == (CUDA, CUDA)
    assert make(ReplayConfig(device="cuda"), CUDA, said)[-2:] == (CUDA, CUDA)
    assert make(ReplayConfig(), CPU, said)[-2:] == (CPU, CPU)
    assert said == []


def test_a_replay_on_cuda_follows_the_networks_index(monkeypatch):
    said, second = [], torch.device("cuda", 1)
    memory(monkeypatch, cuda=2**40, cpu=2**40)
    assert make(ReplayConfig(device="cuda"), second, said)[-2:] == (second, second)
    assert said == []


def test_auto_says_that_it_went_to_main_memory(monkeypatch):
    said = []
    memory(monkeypatch, cuda=2**20, cpu=2**40)
    assert make(ReplayConfig(2**26), CUDA, said)[-2:] == (CPU, CUDA)
    assert said == ["replay of 1.81 GiB kept in main memory: cuda:0 has 0.00 GiB free"]
    said.clear()
    make(ReplayConfig(2**26, device="cpu"), CUDA, said)
    assert said == ["replay of 1.81 GiB kept in main memory"]


def test_a_replay_that_fits_nowhere_names_what_would(monkeypatch):
    memory(monkeypatch, cuda=2**20, cpu=2**30)
    with pytest.raises(ReplayMemoryError) as caught:
        make(ReplayConfig(2**26), CUDA, [])
    text = str(caught.value)
    assert text.startswith("the replay of 67108864 steps needs 1.81 GiB and there is ")
    assert "0.00 GiB free on cuda:0 and 1.00 GiB free on cpu: lower replay.capacity_steps to " in text
    fitting = int(text.split("capacity_steps to ")[1].split()[0])
    make(ReplayConfig(fitting), CUDA, [])
    with pytest.raises(ReplayMemoryError):
        make(ReplayConfig(fitting + 2), CUDA, [])
    memory(monkeypatch, cpu=10)
    with pytest.raises(ReplayMemoryError, match=r"lower env\.num_envs, or the size of the frames"):
        make(ReplayConfig(1000), CPU, [])


def test_cuda_storage_needs_cuda_networks():
    with pytest.raises(
        ConfigError, match="'cuda' cannot be used with networks on cpu: expected 'auto' or 'cpu'"
    ):
        make(ReplayConfig(device="cuda"), CPU, [])


@pytest.mark.parametrize("spec", [pixel_spec(2), vector_spec(3)])
def test_the_memory_asked_for_is_the_memory_taken(spec):
    replay = Replay(spec, 3, 100, 5, CPU, CPU)
    taken = sum(t.nbytes for t in vars(replay).values() if isinstance(t, torch.Tensor) and t.ndim)
    assert taken == replay.rows * 3 * module.slot_bytes(spec, 5)


def test_free_bytes_is_positive():
    assert module.free_bytes(CPU) > 2**20


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_named(bad):
    rewards = np.zeros(3, np.float32)
    check_finite(rewards, "the reward", 7)
    check_finite(np.zeros((3, 2), np.uint8), "the observation", 7)
    rewards[1] = bad
    with pytest.raises(
        NonFiniteError, match=f"the reward of environment 1 is {bad} at step 7: expected finite"
    ):
        check_finite(rewards, "the reward", 7)
