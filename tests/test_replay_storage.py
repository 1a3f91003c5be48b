"""The storage of the replay: the ring, uploads, checkpoints, memory."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from helpers import needs_cuda
from tiny_replays import Oracle, pixel_spec, vector_spec

from voidrl.config import ReplayConfig
from voidrl.errors import ReplayMemoryError
from voidrl.replay import Replay, make_replay
from voidrl.replay.pinned import pinned_zeros
from voidrl.replay.ring import Upload, slot_bytes, write_directly
from voidrl.types import EnvSpec

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
ROOTS = ReplayConfig(priority_exponent=0.5)


def test_capacity_is_what_is_kept_in_the_long_run():
    oracle = Oracle(4, 20, 3, end=0.0)
    oracle.reset()
    for _ in range(3 * oracle.replay.rows):
        oracle.step()
    assert len(oracle.replay) == 20


def stored(replay):
    """All that a step writes."""
    names = ("frames", "action", "reward", "ending", "age", "skill", "starts")
    positions = (replay.head, replay.starts_head, replay.starts_count)
    found = [*(getattr(replay, name).cpu() for name in names), *(p.cpu() for p in positions)]
    return found if replay.priorities is None else [*found, replay.priorities.values]


@pytest.fixture
def uploads(monkeypatch):
    """Writes take the path to a GPU."""
    made = {}

    def write(stored, writes):
        made.setdefault(id(stored), Upload(stored))(writes)

    monkeypatch.setattr("voidrl.replay.ring.write_directly", write)
    return made


def test_an_upload_writes_what_a_direct_write_does(uploads):
    oracle = Oracle(3, 12, 3, skill_dim=2, config=ROOTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("voidrl.replay.ring.write_directly", write_directly)
        direct = Oracle(3, 12, 3, skill_dim=2, config=ROOTS)
    for time in range(150):
        for each in (oracle, direct):
            each.step() if time % 41 else each.reset()
        assert all(map(torch.equal, stored(oracle.replay), stored(direct.replay)))
        if time % 41:
            oracle.check(oracle.replay.sample(8), 3, 0.9)
    assert len(uploads) == 1
    state, chunks = copied(oracle.replay)
    again = Replay(pixel_spec(3), 3, 12, 2, CPU, CPU, ROOTS)
    again.load(state, iter(chunks))
    assert all(map(torch.equal, stored(again), stored(oracle.replay)))


@pytest.fixture
def other_cpu(monkeypatch):
    """A device whose kernels read the main memory of `cpu`; everything on it is counted that waits for it."""
    waits = []

    def zeros(shape, dtype, device):
        host = torch.zeros(shape, dtype=dtype)
        return host, host.view(shape)  # the same memory

    monkeypatch.setattr("voidrl.replay.ring.pinned_zeros", zeros)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    return torch.device("cpu", 0), waits


def test_frames_in_pinned_memory_are_what_others_are(other_cpu):
    device, waits = other_cpu
    oracle = Oracle(3, 12, 3, skill_dim=2, place=device, storage=CPU)
    for time in range(100):
        oracle.step() if time % 41 else oracle.reset()
        if time % 41:
            oracle.check(oracle.replay.sample(8), 3, 0.9)
    replay = oracle.replay
    source, index = replay.frames_of(replay.sample(8))  # gathered, frame by frame
    assert source.shape == (8 * 3, 1, 2, 2)
    assert index.tolist() == torch.arange(8 * 3).view(8, 3).tolist()
    assert not waits  # neither recording nor sampling
    state, chunks = copied(replay)
    assert waits
    assert all(part["frames"].data_ptr() != replay.frames.data_ptr() for *_, part in chunks)
    again = Replay(pixel_spec(3), 3, 12, 2, CPU, device)
    again.load(state, iter(chunks))
    assert all(map(torch.equal, stored(again), stored(replay)))


def test_memory_that_cannot_be_pinned_is_an_error(monkeypatch):
    refusing = SimpleNamespace(cudaHostRegister=lambda *_: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refusing)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    with pytest.raises(ReplayMemoryError, match=r"0\.01 GiB .* \(CUDA error 2\): lower replay\.capacity"):
        pinned_zeros((1000, 84, 84), torch.uint8, CUDA)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("storage", [CUDA, CPU], ids=["device", "pinned"])
@pytest.mark.usefixtures("small_chunks")
def test_a_replay_for_the_gpu_holds_what_one_in_main_memory_does(storage):
    here = Oracle(5, 200, 3, skill_dim=2)
    there = Oracle(5, 200, 3, skill_dim=2, place=CUDA, storage=storage)
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
    again = Replay(pixel_spec(3), 5, 200, 2, storage, CUDA)
    state, chunks = copied(there.replay)
    again.load(
        {k: v.cpu() for k, v in state.items()},
        ((name, tag, {k: v.cpu() for k, v in part.items()}) for name, tag, part in chunks),
    )
    assert all(map(torch.equal, stored(again), stored(there.replay)))
    assert [c[:2] for c in again.chunks()] == [c[:2] for c in there.replay.chunks()]


# --- checkpoints ------------------------------------------------------------------------------------------


def copied(replay):
    """State and chunks, as they come back from a file."""
    chunks = [(name, tag, copied_part(make)) for name, tag, make in replay.chunks()]
    return {k: v.clone() for k, v in replay.state().items()}, chunks


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("voidrl.replay.ring.CHUNK_BYTES", 4 * 2 * slot_bytes(pixel_spec(), 0))  # 4 rows of 2


@pytest.mark.parametrize(("steps", "config"), [(0, None), (5, None), (100, None), (50, ROOTS)])
@pytest.mark.usefixtures("small_chunks")
def test_a_loaded_replay_goes_on_as_the_saved_one(steps, config):
    oracle, again = Oracle(2, 30, 3, config=config), Replay(pixel_spec(3), 2, 30, 0, CPU, CPU, config)
    oracle.reset()
    for _ in range(steps):
        oracle.step()
        sampled(oracle.replay)
    state, chunks = copied(oracle.replay)
    again.load(state, iter(chunks))
    assert [c[:2] for c in again.chunks()] == [c[:2] for c in oracle.replay.chunks()]
    assert torch.equal(again.latest(), oracle.replay.latest())
    if steps:
        assert all(map(torch.equal, sampled(again), sampled(oracle.replay)))
    for _ in range(40):
        assert len(again) == len(oracle.replay)
        oracle.step()
        again.add(*oracle.last)
        assert all(map(torch.equal, sampled(again), sampled(oracle.replay)))


def sampled(replay):
    torch.manual_seed(5)
    slots, weight = replay.draw(32)
    if replay.priorities is not None:
        replay.priorities.update(slots, torch.rand(32))
    return [*replay.batch(slots, 4, 0.9), weight]


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


# --- memory -----------------------------------------------------------------------------------------------


def memory(monkeypatch, **free):
    monkeypatch.setattr("voidrl.replay.make.free_bytes", lambda device: free.get(device.type))
    monkeypatch.setattr("voidrl.replay.make.Replay", lambda *args, **options: args)


def make(config, device, said):
    spec = EnvSpec((1, 84, 84), True, 4, num_actions=4)
    return make_replay(config, spec, 2, 0, device, said.append)


def test_auto_keeps_the_replay_beside_the_networks_or_says_that_it_went_to_main_memory(monkeypatch):
    said, second = [], torch.device("cuda", 1)
    memory(monkeypatch, cuda=2**40, cpu=2**40)
    assert make(ReplayConfig(), CUDA, said)[-2:] == (CUDA, CUDA)
    assert make(ReplayConfig(device="cuda"), second, said)[-2:] == (second, second)
    assert make(ReplayConfig(), CPU, said)[-2:] == (CPU, CPU)
    assert said == []
    memory(monkeypatch, cuda=2**30, cpu=2**40)
    frames = "the replay's frames, 6.57 GiB, are kept in main memory"
    pinning = "; to pin it may take a second per GiB"
    assert make(ReplayConfig(1_000_000), CUDA, said)[-2:] == (CPU, CUDA)
    assert said == [f"{frames}, since cuda:0 has 1.00 GiB free{pinning}"]
    said.clear()
    make(ReplayConfig(1_000_000, device="cpu"), CUDA, said)
    assert said == [f"{frames}{pinning}"]


def test_a_replay_that_fits_nowhere_names_what_would(monkeypatch):
    memory(monkeypatch, cuda=2**28, cpu=2**30)
    with pytest.raises(ReplayMemoryError) as caught:
        make(ReplayConfig(1_000_000), CUDA, [])
    text = str(caught.value)
    assert text.startswith("the replay of 1000000 steps needs 6.59 GiB and there is ")
    assert "0.25 GiB free on cuda:0 and 1.00 GiB free on cpu: lower replay.capacity_steps to " in text
    fitting = int(text.split("capacity_steps to ")[1].split()[0])
    make(ReplayConfig(fitting), CUDA, [])
    with pytest.raises(ReplayMemoryError):
        make(ReplayConfig(fitting + 2), CUDA, [])
    memory(monkeypatch, cpu=10)
    with pytest.raises(ReplayMemoryError, match=r"lower env\.num_envs, or the size of the frames"):
        make(ReplayConfig(1000), CPU, [])


@pytest.mark.parametrize("spec", [pixel_spec(2), vector_spec(3)])
@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_the_memory_asked_for_is_the_memory_taken(spec, exponent):
    replay = Replay(spec, 3, 3060, 5, CPU, CPU, ReplayConfig(priority_exponent=exponent))
    stored = [*vars(replay).values(), *vars(replay.priorities or object).values()]
    taken = sum(t.nbytes for t in stored if isinstance(t, torch.Tensor) and t.ndim and len(t) >= replay.rows)
    padding = 8 * 1023 if exponent else 0  # to whole blocks
    assert 0 <= taken - replay.rows * 3 * slot_bytes(spec, 5, prioritized=exponent > 0) <= padding
