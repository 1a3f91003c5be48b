"""Updates of tiny agents by one process or by several ranks, on the same transitions.

As a script it becomes all ranks, which run the named cases in turn and save what they found. Each has the
same replay and sees its slice of every batch; random numbers of transitions are sliced alike.
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from helpers import CONTINUOUS, CPU, DISCRETE, PIXELS, fill_replay, make_agent, points, small_method
from torch import distributed

from voidrl import dist
from voidrl.engine.engine import Engine
from voidrl.entropy import RunningMean, RunningMoments
from voidrl.replay import Draw
from voidrl.replay.priorities import Priorities
from voidrl.representations import sgi

sgi.GOAL_SWAP = sgi.GOAL_NOISE = 0.0  # which are drawn on each rank
DEVICE = torch.device(os.environ.get("RANKS_DEVICE", "cpu"))
UPDATES = 4
NORMALIZED = {"intrinsic_normalization": "standardize"}
QUIET = {"augment__shift_pixels": 0, "augment__intensity_scale": 0.0}

CASES = {
    "dqn": (DISCRETE, {"phase": "train", "learner": "dqn", "learner__max_grad_norm": 0.1}),
    "sac": (CONTINUOUS, {"phase": "train", "learner": "sac"}),
    "cic": (DISCRETE, {"method": small_method("cic"), "learner__n_step": 2, **NORMALIZED}),
    "simclr": (PIXELS, {"method": "rnd", "representation": "simclr", **NORMALIZED, **QUIET}),
}


def run(case):
    """Gradients of the first update, and all tensors after some updates, by name; or what a check found."""
    if case in CHECKS:
        return CHECKS[case]()
    spec, changes = CASES[case]
    # On a GPU, products in bf16 would round more than ranks differ.
    agent = make_agent(spec, device=DEVICE, precision="fp32", **changes)
    replay = fill_replay(spec, skill_dim=agent.method.skill_dim, storage=DEVICE, device=DEVICE)
    found = {}
    torch.manual_seed(1)
    with _sliced(replay):
        for index in range(UPDATES):
            agent.update(replay, index % agent.learner.period)
            if index == 0:
                found |= {
                    f"grad {name}": weight.grad.clone()
                    for name, weight in agent.named_parameters()
                    if weight.grad is not None
                }
    return found | {name: tensor.detach().clone() for name, tensor in agent.tensors().items()}


@contextmanager
def _sliced(replay):
    """Batches, and random numbers of their transitions, are this rank's rows of the same ones."""
    group, generator = dist.current(), torch.Generator().manual_seed(2)
    replaced = {"randn_like": torch.randn_like, "rand_like": torch.rand_like}

    def sample(n):
        slots = torch.randint(len(replay) // 2, (n * group.size,), generator=generator)
        return rows_of_rank(slots).to(DEVICE)

    def normal(x, **_):
        return rows_of_rank(torch.randn(len(x) * group.size, *x.shape[1:], generator=generator)).to(DEVICE)

    def uniform(x, **_):
        return rows_of_rank(torch.rand(len(x) * group.size, *x.shape[1:], generator=generator)).to(DEVICE)

    replay.sample = sample
    replay.draw = lambda n: Draw(sample(n), torch.ones(n, device=DEVICE))
    torch.randn_like, torch.rand_like = normal, uniform
    try:
        yield
    finally:
        vars(torch).update(replaced)


def rows_of_rank(whole):
    """This rank's part of a batch."""
    group = dist.current()
    n = len(whole) // group.size
    return whole[group.rank * n : (group.rank + 1) * n]


def _moments():
    """Batches of which ranks have different parts, sometimes none, and sometimes none of them has any."""
    running = {
        f"{kind.__name__} {momentum} ": kind(*shape, momentum=momentum)
        for kind, *shape in ((RunningMoments, (3,)), (RunningMean,))
        for momentum in (None, 0.9)
    }
    rank, size = dist.current().rank, dist.current().size
    found = {}
    for step, counts in enumerate(((0, 0), (7, 3), (0, 5), (0, 0), (5, 0), (0, 0))):
        whole = 100 + points(sum(counts), 3, seed=step)
        mine = whole if size == 1 else whole.split(counts)[rank]
        for name, each in running.items():
            each.update(mine)
            state = each.state_dict(prefix=f"{step} {name}")
            found |= {key: tensor.clone() for key, tensor in state.items()}
    return found


def _priorities():
    """Slots and weights of a draw, where ranks have different priorities, and the priority of what is new."""
    priorities = Priorities(4, 1.0, (1.0, 1.0), CPU)
    rank = dist.current().rank
    priorities.update(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]) * (1 + rank * torch.arange(4)))
    slots, weight = priorities.draw(4)
    chance = priorities.values[slots] / priorities.values.sum()
    return {"weight": weight, "chance": chance, "highest": priorities.highest}


def _first():
    """Tensors of two types, of which all ranks have the first one's."""
    rank = dist.current().rank
    tensors = [torch.full((2,), 1.0 + rank), torch.tensor(rank), torch.full((1, 3), 5.0 + rank)]
    dist.broadcast_(tensors)
    return {str(i): tensor for i, tensor in enumerate(tensors)}


def _engine():
    """Updates as a run makes them, each rank with transitions of its own, and what the engine said."""
    rank, said = dist.current().rank, []
    agent = make_agent(PIXELS, device=DEVICE, representation="simclr", augment__shift_pixels=2)
    replay = fill_replay(PIXELS, seed=rank, storage=DEVICE, device=DEVICE)
    torch.manual_seed(rank)
    engine = Engine(agent, replay, said.append)
    engine.update(0, 6)
    return {"said": said, **{name: value.detach().cpu() for name, value in agent.tensors().items()}}


CHECKS = {"moments": _moments, "priorities": _priorities, "first": _first, "engine": _engine}


@contextmanager
def group_of_one(backend="gloo"):
    """A group of this process alone, in which everything is exchanged all the same."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    before, dist._host = dist._current, distributed.group.WORLD
    dist._device = dist._host if backend == "gloo" else distributed.new_group(backend=backend)
    dist._current = dist.ProcessGroup(backend=backend)
    try:
        yield
    finally:
        dist._current = before
        dist._host = dist._device = None
        distributed.destroy_process_group()


def run_ranks(folder, cases, size, device="cpu"):
    """What each rank found, by case.

    On a CPU one process imports everything and becomes all of them, which CUDA does not allow.
    """
    path = os.pathsep.join(filter(None, sys.path))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "RANKS_DEVICE": device}
    env.pop("RANK", None)
    own = [{}] if device == "cpu" else [{"RANK": str(rank)} for rank in range(size)]
    command = [sys.executable, __file__, str(folder), *cases]
    started = [subprocess.Popen(command, env=env | more, stderr=subprocess.PIPE, text=True) for more in own]
    try:
        errors = [process.communicate(timeout=600)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _fork(size):
    """The number of this process among `size`; the first process waits for them and exits."""
    started = []
    for rank in range(size):
        started.append(os.fork())
        if not started[-1]:
            return rank
    waiting, failed = set(started), False
    while waiting:
        ended, status = os.wait()
        waiting.discard(ended)
        if status and not failed:
            failed = True
            for rank in waiting:
                os.kill(rank, signal.SIGKILL)
    sys.exit(failed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        os.environ["RANK"] = str(_fork(dist.expected_size()))
    with dist.process_group():
        dist.place(DEVICE)
        found = {case: run(case) for case in sys.argv[2:]}
        torch.save(found, Path(sys.argv[1]) / f"{os.environ['RANK']}.pt")
