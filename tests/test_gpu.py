"""The same code on a CUDA device: runs, resumes, moves to the CPU and back."""

import pytest
import torch
from helpers import PIXELS, PIXELS_CONTINUOUS, fill_replay, make_agent
from tiny_runs import MAZE, rows, tiny

import voidrl
from voidrl.device import pick_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ENVS = {"dqn": MAZE, "sac": f"{MAZE}&continuous=true", "ddpg": f"{MAZE}&continuous=true"}


@pytest.mark.parametrize("learner", ENVS)
def test_a_run_goes_the_whole_way_on_the_device(learner, tmp_path):
    config = tiny(learner=learner, env__num_envs=2, learner__n_step=2, log__checkpoint_every_steps=20)
    agent = voidrl.pretrain(ENVS[learner], steps=40, out=tmp_path / "run", config=config, device="cuda")
    assert agent.device.type == "cuda"
    before = len(rows(tmp_path / "run"))
    resumed = voidrl.resume(tmp_path / "run", steps=80)
    assert resumed.steps >= 80
    assert len(rows(tmp_path / "run")) > before
    task = voidrl.finetune(tmp_path / "run", steps=40, out=tmp_path / "task")
    assert task.device.type == "cuda"
    assert len(voidrl.evaluate(task, episodes=3).returns) == 3


def test_an_agent_moves_between_devices_and_acts_alike(tmp_path):
    agent = voidrl.pretrain(MAZE, steps=30, out=tmp_path / "run", config=tiny(), device="cuda")
    moved = voidrl.load(tmp_path / "run", device="cpu")
    obs = torch.randint(0, 256, (16, *agent.spec.raw_shape), dtype=torch.uint8).numpy()
    assert (agent.act(obs) == moved.act(obs)).mean() > 0.9  # ties may break by rounding
    there = voidrl.resume(tmp_path / "run", steps=50, device="cpu")
    assert there.device.type == "cpu"


@pytest.mark.parametrize("storage", ["cuda", "cpu"])
@pytest.mark.parametrize("spec", [PIXELS, PIXELS_CONTINUOUS], ids=["discrete", "continuous"])
def test_the_replay_may_lie_beside_the_networks_or_in_main_memory(spec, storage):
    place = pick_device("cuda")
    agent = make_agent(spec, learner__n_step=3, method__pool=20).to(place)
    agent.optimisers = agent._make_optimisers(place)
    replay = fill_replay(spec, storage=torch.device(storage), device=place)
    for index in range(4):
        metrics = agent.step(replay, index % agent.period)
    assert all(value.device.type == "cuda" and torch.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("learner", ENVS)
def test_an_update_can_be_captured_and_its_random_numbers_go_on(learner):
    place = pick_device("cuda")
    spec = PIXELS if learner == "dqn" else PIXELS_CONTINUOUS
    agent = make_agent(spec, learner=learner, learner__n_step=2).to(place)
    agent.optimisers = agent._make_optimisers(place)
    replay = fill_replay(spec, storage=place, device=place)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # lazy initialisation must lie before the capture
        for _ in range(3):
            agent.step(replay)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        metrics = agent.step(replay)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(metrics["critic_loss"].item())
    assert len(set(seen)) == 3  # other samples, other weights
    assert all(map(torch.isfinite, metrics.values()))
