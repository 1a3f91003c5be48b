"""Frames that are compressed: nothing is lost, what does not fit is dropped, and checkpoints are exact."""

import shutil

import numpy as np
import pytest
import torch
from tiny_replays import Oracle, numbers, pixel_spec, vector_spec
from tiny_runs import MAZE, assert_same_run, newest, tiny

import voidrl
from voidrl import ranks
from voidrl.config import ReplayConfig
from voidrl.errors import CheckpointError, ConfigError
from voidrl.replay import Replay, compression, make_replay
from voidrl.replay.compression import CompressedFrames, decode_plainly
from voidrl.report.latents import latent_map

CPU = torch.device("cpu")
GIB = 2**30
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def few_key_rows(monkeypatch):
    monkeypatch.setattr(compression, "KEY_ROWS", 3)


def ring_of(rows, num_envs, **options):
    """Memory for so many of the longest rows of the oracle's frames: a word each, behind a mask of one."""
    return ReplayConfig(compressed_gib=rows * num_envs * 2 * 8 / GIB, **options)


def images(rng, shape, before, share):
    """New values in a share of the pixels."""
    change = rng.random(shape) < share
    return np.where(change, rng.integers(0, 256, shape), before).astype(np.uint8)


def write_to(frames, writes):
    for name, first, values in writes:
        frames.tensors()[name][first : first + len(values)].copy_(torch.from_numpy(values))


def filled(frame_shape, num_envs, rows, memory_bytes, steps, seed=0, device=CPU):
    """Compressed frames next to a plain list of those that were stored, and the rows that were dropped."""
    rng = np.random.default_rng(seed)
    frames = CompressedFrames(frame_shape, num_envs, rows, memory_bytes, device, device)
    images_now = rng.integers(0, 256, (num_envs, *frame_shape), dtype=np.uint8)
    stored, dropped = [], 0
    for time in range(steps):
        images_now = images(rng, images_now.shape, images_now, rng.choice([0, 0.02, 0.3, 1]))
        lost, writes = frames.encode(time % rows, images_now)
        write_to(frames, writes)
        assert lost == [(dropped + i) % rows for i in range(len(lost))]  # the oldest first
        dropped += len(lost)
        stored.append(images_now)
        live = range(dropped, time + 1)
        assert frames.live_rows == len(live)
        if time % 5 == 4:
            yield frames, stored, live


SIZES = [
    ((1, 2, 2), 1, 7, 10**4),
    ((3, 7, 5), 2, 11, 10**4),
    ((1, 84, 84), 3, 9, 200_000),
    ((4, 12), 5, 30, 2000),
]


@pytest.mark.parametrize(("shape", "num_envs", "rows", "memory_bytes"), SIZES, ids=str)
def test_nothing_is_lost_of_what_is_kept(shape, num_envs, rows, memory_bytes):
    shortest = rows
    for frames, stored, live in filled(shape, num_envs, rows, memory_bytes, 70):
        slots = torch.tensor([time % rows * num_envs + i for time in live for i in range(num_envs)])
        want = np.concatenate([stored[time] for time in live])
        assert np.array_equal(frames.read(slots).numpy(), want)
        shortest = min(shortest, len(live))
    if memory_bytes != 10**4:  # there all rows fit
        assert shortest < rows


def test_a_record_is_a_mask_and_the_words_that_differ():
    frames = CompressedFrames((1, 84, 84), 2, 20, 10**6, CPU, CPU)  # 882 words, masks of 14
    image = np.zeros((2, 1, 84, 84), np.uint8)
    lengths = []
    for row, changes in enumerate([[], [], [(0, 0), (0, 7)], [(0, 8), (83, 83)], [(5, 5)]]):
        for y, x in changes:
            image[0, 0, y, x] += 1
        write_to(frames, frames.encode(row, image)[1])
        lengths.append(int(frames.state()["row_words"][row]) - 2 * 14)
    # Bytes 0 and 7 are in one word. Row 3 is a key frame, so row 4 has one change.
    assert lengths == [0, 0, 1, 0, 1]
    assert torch.equal(frames.read(torch.tensor([9]))[0], torch.zeros(1, 84, 84, dtype=torch.uint8))
    assert frames.read(torch.tensor([8]))[0].sum() == 5


def test_rows_are_dropped_only_when_memory_is_full():
    """A frame is one word, and its mask another: rows take 2 words, and one more if a frame differs."""
    frames = CompressedFrames((8,), 2, 100, 20 * 8, CPU, CPU)
    dropped = []
    for row in range(14):
        image = np.zeros((2, 8), np.uint8)
        image[0, 0] = row % 3  # differs from the key frame in one of two environments
        dropped.append(frames.encode(row, image)[0])
    # 2 + 3 + 3 words of each group of three rows: six rows take 16, and the seventh begins at 16 and takes 2;
    # at 18 there is no room for 3, so the eighth begins at 0 and overwrites rows 0 and 1, words 0 to 4.
    assert dropped[:7] == [[]] * 7
    assert dropped[7] == [0, 1]
    assert frames.row_begin[:8].tolist() == [0, 2, 5, 8, 10, 13, 16, 0]
    gone = [row for rows in dropped for row in rows]
    assert gone == list(range(14 - frames.live_rows))
    assert frames.state()["row_words"].nonzero()[0].tolist() == list(range(len(gone), 14))


@pytest.mark.parametrize(
    ("num_envs", "capacity", "stack", "ring_rows", "priority_exponent"),
    [(1, 9, 1, 5, 0.0), (3, 60, 3, 8, 0.5), (2, 40, 4, 90, 0.0)],
)
def test_samples_agree_with_a_list_of_episodes(num_envs, capacity, stack, ring_rows, priority_exponent):
    config = ring_of(ring_rows, num_envs, priority_exponent=priority_exponent)
    oracle = Oracle(num_envs, capacity, stack, config=config)
    oracle.reset()
    for time in range(100):
        oracle.step() if time % 41 else oracle.reset()
        replay, valid = oracle.replay, oracle.valid()
        assert stack + 1 <= int(replay.kept_rows) <= replay.rows
        assert len(replay) == len(valid)
        assert numbers(replay.latest()).tolist() == oracle.awaited()
        if not valid:
            continue
        for n in (1, 3):
            oracle.check(replay.sample(12), n, 0.9)
        assert set(replay.action[replay.newest(len(replay))].tolist()) == valid
        if replay.priorities is not None:
            oracle.check(replay.draw(12).slots, 2, 0.9)
            assert int((replay.priorities.values > 0).sum()) == len(valid)
    assert (int(replay.kept_rows) == replay.rows) == (ring_rows > replay.rows)


def test_options_need_their_first_frames():
    oracle = Oracle(2, 60, 2, end=0.2, config=ring_of(9, 2))
    oracle.reset()
    complete = 0
    for _ in range(80):
        oracle.step()
        replay = oracle.replay
        slots = replay.newest(len(replay))
        found = replay.options(slots, longest=6)
        first = numbers(replay.observations(found.first[found.complete]))
        kept = [
            action
            for action, is_complete in zip(replay.action[slots].tolist(), found.complete, strict=True)
            if is_complete
        ]
        for action, stacked in zip(kept, first.tolist(), strict=True):
            env, number, _, _ = oracle.where[action]
            assert stacked == oracle.stacked(oracle.episodes[env][number], 0)
            complete += 1
    assert complete > 20


def test_the_run_is_told_once_how_many_steps_fit():
    said = []
    replay = make_replay(ring_of(6, 1, capacity_steps=100), pixel_spec(), 1, 0, CPU, said.append)
    off = np.zeros(1, bool)
    replay.reset(np.zeros((1, 1, 2, 2), np.uint8))
    for i in range(40):
        replay.add(np.zeros(1), np.ones(1), off, off, np.full((1, 1, 2, 2), i % 256), torch.zeros(1, 0))
        if len(said) == 1 and "full" not in said[0]:
            raise AssertionError(said)
    (sentence,) = said
    assert sentence.startswith("the replay's memory for compressed frames, replay.compressed_gib = ")
    assert sentence.endswith(" steps: from here on the oldest are dropped")
    assert 4 <= int(sentence.split("full with ")[1].split()[0]) <= 12


# --- checkpoints ------------------------------------------------------------------------------------------


def sampled(replay):
    torch.manual_seed(5)
    return replay.batch(replay.sample(32), 4, 0.9)


@pytest.mark.parametrize("steps", [1, 5, 21, 100])
@pytest.mark.parametrize("ring_rows", [8, 100])
def test_a_loaded_replay_goes_on_as_the_saved_one(steps, ring_rows, monkeypatch):
    monkeypatch.setattr("voidrl.replay.sizes.CHUNK_BYTES", 1)  # three rows each
    config = ring_of(ring_rows, 2)
    oracle = Oracle(2, 60, 3, config=config)
    again = Replay(pixel_spec(3), 2, 60, 0, CPU, CPU, config)
    oracle.reset()
    files = {}
    for _ in range(steps):
        oracle.step()
        if oracle.row % 4:
            continue
        for name, tag, make in oracle.replay.chunks():  # only what has changed is written again
            if files.get(name, ("",))[0] != tag:
                files[name] = tag, {k: v.clone() for k, v in make().items()}
    for name, tag, make in oracle.replay.chunks():
        if files.get(name, ("",))[0] != tag:
            files[name] = tag, {k: v.clone() for k, v in make().items()}
    state = {k: v.clone() for k, v in oracle.replay.state().items()}
    again.load(state, ((name, tensors) for name, (_, tensors) in files.items()))
    for _ in range(40):
        assert torch.equal(again.latest(), oracle.replay.latest())
        assert all(map(torch.equal, sampled(again), sampled(oracle.replay)))
        assert len(again) == len(oracle.replay)
        assert again.kept_rows == oracle.replay.kept_rows
        oracle.step()
        again.add(*oracle.last)
    assert [c[:2] for c in again.chunks()] == [c[:2] for c in oracle.replay.chunks()]


def test_what_was_there_before_is_forgotten():
    one, other = (CompressedFrames((8,), 1, 20, 1000, CPU, CPU) for _ in range(2))
    for row in range(2):
        write_to(one, one.encode(row, np.full((1, 8), row, np.uint8))[1])
    write_to(other, other.encode(0, np.full((1, 8), 7, np.uint8))[1])  # a key frame
    other.begin_loading(torch.from_numpy(one.counters))
    for name, array in other.state().items():
        array[:] = one.state()[name]
    other.load_part(0, one.part(0, 2))
    write_to(other, other.encode(2, np.full((1, 8), 7, np.uint8))[1])
    assert other.read(torch.arange(3))[:, 0].tolist() == [0, 1, 7]


def test_a_ring_of_another_size_is_refused():
    one, other = (Replay(pixel_spec(), 1, 30, 0, CPU, CPU, ring_of(rows, 1)) for rows in (8, 9))
    with pytest.raises(
        CheckpointError, match=r"ring of 128 bytes .* 144: set replay\.compressed_gib back to"
    ):
        other.load(one.state(), iter(()))


def test_a_run_resumes_bit_for_bit_and_samples_as_without_compression(tmp_path):
    config = tiny(env__num_envs=2, env__frame_stack=2, log__keep_last=3)
    voidrl.pretrain(MAZE, steps=40, seed=3, out=tmp_path / "plain", config=config)
    config |= {"replay.compressed_gib": 0.01}
    voidrl.pretrain(MAZE, steps=40, seed=3, out=tmp_path / "straight", config=config)
    shutil.copytree(tmp_path / "straight", tmp_path / "resumed")
    shutil.rmtree(max((tmp_path / "resumed" / "checkpoints").iterdir()))
    assert newest(tmp_path / "resumed")[1]["steps"] < 40
    voidrl.resume(tmp_path / "resumed")
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=40)
    plain, compressed = (newest(tmp_path / name)[0] for name in ("plain", "straight"))
    agent = [name for name in plain if name.startswith("agent.safetensors")]
    assert agent
    assert all(torch.equal(plain[name], compressed[name]) for name in agent)
    with pytest.raises(CheckpointError, match=r"compressed.*expected a run with replay\.compressed_gib = 0"):
        latent_map(tmp_path / "straight")
    exported = [
        voidrl.export_data(tmp_path / name, tmp_path / f"{name}.npz") for name in ("plain", "straight")
    ]
    assert exported[0].steps == exported[1].steps


def test_a_run_says_that_its_memory_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(Replay, "_kept_rows", lambda replay: replay.rows - 1)  # as if a row had been dropped
    config = tiny(env__num_envs=2, replay__compressed_gib=0.01)
    voidrl.pretrain(MAZE, steps=20, out=tmp_path / "run", config=config)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("from here on the oldest are dropped") == 1


def test_records_may_be_in_main_memory_that_the_device_reads(monkeypatch):
    """Everything that the host does with them waits for the device, and nothing else does."""
    waits = []

    def zeros(shape, dtype, device):
        host = torch.zeros(shape, dtype=dtype)
        return host, host.view(shape)  # the same memory

    monkeypatch.setattr(compression, "pinned_zeros", zeros)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    device = torch.device("cpu", 0)  # another one than `cpu`, as far as the replay can tell
    config = ring_of(8, 2)
    oracle = Oracle(2, 60, 3, place=device, storage=CPU, config=config)
    oracle.reset()
    for _ in range(50):
        oracle.step()
        oracle.check(oracle.replay.sample(8), 3, 0.9)
    assert not waits
    chunks = [(name, make()) for name, _, make in oracle.replay.chunks()]
    assert waits
    again = Replay(pixel_spec(3), 2, 60, 0, CPU, device, config)
    again.load(oracle.replay.state(), iter(chunks))
    assert all(map(torch.equal, sampled(again), sampled(oracle.replay)))


# --- what is refused --------------------------------------------------------------------------------------


def test_what_cannot_be_compressed_is_refused(monkeypatch):
    config = ReplayConfig(compressed_gib=1)
    with pytest.raises(ConfigError, match=r"compressed_gib = 1 cannot be used on .*: images alone"):
        make_replay(config, vector_spec(), 1, 0, CPU, print)
    with pytest.raises(
        ConfigError, match=r"compressed_gib = 1e-09 cannot be used with env.num_envs = 3: exp"
    ):
        make_replay(ReplayConfig(compressed_gib=1e-9), pixel_spec(), 3, 0, CPU, print)
    with pytest.raises(ConfigError, match=r"compressed_gib = -1.*0 \(no compression\) or more"):
        ReplayConfig(compressed_gib=-1)
    monkeypatch.setattr(ranks.group, "_current", ranks.ProcessGroup(size=2))
    with pytest.raises(ConfigError, match=r"compressed_gib = 1 cannot be used on 2 ranks: expected 0"):
        make_replay(config, pixel_spec(), 1, 0, CPU, print)


# --- the kernel -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "num_envs", "rows", "memory_bytes"), SIZES[1:3], ids=str)
def test_the_kernel_reads_what_plain_pytorch_reads(shape, num_envs, rows, memory_bytes):
    pytest.importorskip("triton")
    from voidrl.kernels.frames import decode

    for frames, _, live in filled(shape, num_envs, rows, memory_bytes, 25, device=DEVICE):
        slots = [time % rows * num_envs + i for time in live for i in range(num_envs)]
        slots = torch.tensor(slots[-9:], device=DEVICE)
        stored = frames.ring, frames.begin, frames.key, frames.keys, slots
        assert torch.equal(decode(*stored), decode_plainly(*stored))
