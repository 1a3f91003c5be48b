"""The same code on a CUDA device: runs, resumes, moves to the CPU and back."""

import pytest
import torch
from helpers import (
    BOX,
    CONTINUOUS,
    PIXELS,
    PIXELS_CONTINUOUS,
    fill_replay,
    make_agent,
    moved,
    parameters_of,
    small_method,
    snapshot,
)
from rank_updates import CASES, group_of_one, run_ranks
from test_engine import Reader
from tiny_runs import MAZE, make_continuous, newest, rows, tiny

import voidrl
from voidrl.agent import Agent
from voidrl.agent.renewal import reset
from voidrl.config import registry
from voidrl.engine import overlap
from voidrl.engine.engine import MAX_BURST, Engine
from voidrl.errors import CaptureError
from voidrl.nets.augment import Augment
from voidrl.nets.observations import action_mask
from voidrl.replay.pinned import pinned_zeros
from voidrl.system.device import pick_device
from voidrl.training import adapting
from voidrl.types import EnvSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DISCRETE_LEARNERS = ("dqn", "rainbow")
OFF_POLICY_METHODS = [name for name in registry.names("method") if not registry.find("method", name).learner]
ENVS = {"dqn": MAZE, "rainbow": MAZE, "sac": f"{MAZE}&continuous=true", "ddpg": f"{MAZE}&continuous=true"}


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


@pytest.mark.parametrize(("continuous", "representation"), [("false", "simclr"), ("true", "learner")])
def test_an_on_policy_learner_goes_the_whole_way_on_the_device(continuous, representation, tmp_path):
    """Actions and the representation's updates are captured, those of the policy are eager."""
    learner = {"name": "mepol", "rollout_steps": 8, "hidden_dim": 8, "max_updates": 4, "kl_limit": 0.5}
    config = tiny(method=small_method("mepol"), learner=learner, representation=representation)
    config |= {"env.num_envs": 2, "replay.capacity_steps": 64, "log.checkpoint_every_steps": 40}
    config |= {"augment.shift_pixels": 1}
    env = f"{MAZE}&continuous={continuous}"
    agent = voidrl.pretrain(env, steps=80, out=tmp_path / "run", config=config, device="cuda")
    assert agent.device.type == "cuda"
    logged = [row for row in rows(tmp_path / "run") if "train/mepol_kl" in row]
    assert logged
    assert all(-1e-6 <= row["train/mepol_kl"] <= 0.5 for row in logged)
    assert voidrl.resume(tmp_path / "run", steps=120).steps >= 120
    task = voidrl.finetune(tmp_path / "run", steps=40, out=tmp_path / "task")
    assert len(voidrl.evaluate(task, episodes=3).returns) == 3


def test_an_agent_moves_between_devices_and_acts_alike(tmp_path):
    agent = voidrl.pretrain(MAZE, steps=30, out=tmp_path / "run", config=tiny(), device="cuda")
    moved = voidrl.load(tmp_path / "run", device="cpu")
    obs = torch.randint(0, 256, (16, *agent.spec.raw_shape), dtype=torch.uint8).numpy()
    assert (agent.act(obs) == moved.act(obs)).mean() > 0.9  # ties may break by rounding
    there = voidrl.resume(tmp_path / "run", steps=50, device="cpu")
    assert there.device.type == "cpu"


def test_pinned_memory_is_the_hosts_and_the_devices():
    host, there = pinned_zeros((300, 7), torch.float32, pick_device("cuda"))
    assert (host.device.type, there.device) == ("cpu", pick_device("cuda"))
    assert not there.any()
    there[3] = torch.arange(7, device="cuda")
    torch.cuda.synchronize()
    assert host[3].tolist() == [0, 1, 2, 3, 4, 5, 6]
    host[299] = 5
    part = there[299:]
    assert part.sum() == 35
    del there
    assert host.is_pinned()  # as long as a tensor of the device is left
    del part
    assert not host.is_pinned()
    assert host.sum() == 56


# Capture

MIXED = EnvSpec((3, 36, 36), True, 2, num_actions=3, num_values=5, masked=True)
GRID = EnvSpec((3, 7, 7), True, 1, num_actions=3, num_values=4)
MIXED_CONTINUOUS = EnvSpec((3, 36, 36), True, 1, num_actions=0, num_values=4, **BOX)
MASKED = EnvSpec((7,), False, 2, num_actions=3, masked=True)
QUIET = {"augment__shift_pixels": 0, "augment__intensity_scale": 0.0, "precision": "fp32"}
# Every method with one of two learners, every representation under APT, and what is captured in its own way.
PIXEL_REPRESENTATIONS = [name for name in registry.names("representation") if name != "identity"]
PRIORITIZED = {"replay__priority_exponent": 0.5}
ANNEALED = {"learner__n_step_end": 5, "learner__discount_end": 0.9, "learner__anneal_updates": 10}
SPR = {"name": "spr", "projection": "head", "target": "learner"}
COMBINED = {"name": "combined", "losses": ("simclr", "atc", "spr", "inverse"), "encoder.activation": "relu"}
FADING = {"bonus__decay": "linear", "intrinsic_normalization": "scale"}
COMBINATIONS = [
    *(("dqn", {"method": method}) for method in OFF_POLICY_METHODS[::2]),
    *(("ddpg", {"method": method}) for method in OFF_POLICY_METHODS[1::2]),
    *(("dqn", {"representation": name}) for name in PIXEL_REPRESENTATIONS),
    ("sac", {"representation": {"name": "sgi", "losses": ["spr", "inverse"]}}),  # goals take discrete actions
    ("dqn", {"representation": COMBINED, "share_encoder": "stack"}),
    ("dqn", {"representation": "spr", "representation__momentum": 0.9, "phase": "finetune"}),
    ("sac", {"representation": "curl", "phase": "train"}),
    ("ddpg", {"method": "diayn", "encoder_trainers": ("method", "learner")}),
    (
        "dqn",
        {"phase": "finetune", "finetune": {"encoder_learning_rate": 1e-6, "first_layer_learning_rate": 0}},
    ),
    ("dqn", {"share_encoder": "all", "encoder_trainers": ("representation", "learner")}),
    # The parts of the agents that are trained from scratch.
    ("rainbow", {"method": "apt"}),
    ("rainbow", {"phase": "train", **PRIORITIZED, "representation": SPR}),
    ("rainbow", {"phase": "train", "representation": "curl", **PRIORITIZED, "augment__learner": False}),
    ("sac", {"phase": "train", **PRIORITIZED}),
    ("ddpg", {"phase": "train", "learner__views": 2}),
    ("rainbow", {"phase": "train", "learner__encoder__rescale": True, **ANNEALED}),
    ("sac", {"phase": "train", "learner__weight_decay": 0.1}),
    # An intrinsic reward alongside the task's.
    ("dqn", {"phase": "train", "method": "rnd", "bonus__coefficient": 0.1, **FADING}),
    ("ddpg", {"phase": "finetune", "method": "proto", "bonus__coefficient": 0.1}),
    # Scales of intrinsic rewards, and of values.
    ("ddpg", {"intrinsic_normalization": "standardize", "learner__intrinsic_n_step": "single"}),
    ("dqn", {"phase": "train", "learner__dueling": False, "learner__noisy_sigma": 0.5, **PRIORITIZED}),
    # Images with numbers, masked actions.
    ("dqn", {"spec": MIXED}),
    ("rainbow", {"spec": MIXED, "phase": "train", "representation": SPR}),
    ("dqn", {"spec": GRID}),
    ("ddpg", {"spec": MIXED_CONTINUOUS, "method": "icm"}),
    ("dqn", {"spec": MASKED, "learner__noisy_sigma": 0.5}),
]
URLB = {  # as the presets have it: trunks, dynamics over three steps, distances over their running mean
    "learner": {"name": "ddpg", "n_step": 3, "intrinsic_n_step": "single", "trunk_dim": 16},
    "representation": {"name": "icm", "batch_size": 0, "hidden_dim": 32},
    "method": {"name": "apt", "include_self": True, "particle": "current", "normalize": "distance_mean"},
}


def replay_for(agent, spec, storage=None):
    """Random transitions, with frames on the agent's device or on another storage."""
    place, skills, config = agent.device, agent.method.skill_dim, agent.config.replay
    sizes = {"skill_dim": skills, "note_dim": agent.note_dim}
    return fill_replay(spec, **sizes, storage=storage or place, device=place, config=config)


def delay(name, monkeypatch):
    """Let this part of the agent begin with a millisecond in which the GPU does nothing else."""
    part = getattr(Agent, name)

    def delayed(agent, *args, **kwargs):
        torch.cuda._sleep(2_000_000)
        return part(agent, *args, **kwargs)

    monkeypatch.setattr(Agent, name, delayed)


def trained(engine, updates, seed=7, spec=None, storage=None, acts=False, **options):
    """An agent after some updates, with actions between them if it `acts`, and the engine that made them."""
    place = pick_device("cuda")
    spec = spec or (PIXELS if options.get("learner", "dqn") in DISCRETE_LEARNERS else PIXELS_CONTINUOUS)
    agent = make_agent(spec, device=place, engine=engine, **options)
    replay = replay_for(agent, spec, storage)
    torch.cuda.manual_seed(seed)
    runner = Engine(agent, replay, print)
    skill = torch.zeros(replay.num_envs, agent.method.skill_dim, device=place)
    if agent.learns:
        for first in range(0, updates, 5):
            if acts:
                runner.choose(skill)
            runner.update(first, min(5, updates - first))
    return agent, runner


def assert_alike(agent, other, rtol=1e-3, atol=1e-4):
    """Equal within a tolerance, but for a few weights whose gradient is nearly 0.

    Adam moves those by whole steps in a direction that rounding decides: they differ within ten tolerances.
    """
    tensors = other.tensors()
    for name, value in agent.tensors().items():
        found = tensors[name]
        outside = ~torch.isclose(found, value, rtol=rtol, atol=atol, equal_nan=True)
        factor = 10 if value.numel() > 100 and outside.float().mean() < 0.03 else 1
        torch.testing.assert_close(
            found, value, rtol=factor * rtol, atol=factor * atol, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(("learner", "pieces"), COMBINATIONS, ids=str)
def test_captured_updates_equal_eager_ones(learner, pieces):
    options = {"learner": learner, **pieces, **QUIET}
    options |= {"learner__n_step": 2, "learner__target_every_updates": 3}
    eager, _ = trained("eager", 20, **options)
    captured, engine = trained("graph", 20, **options)
    assert engine._graphs or not captured.learns
    assert_alike(eager, captured)


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("graph", {"learner": "dqn", "learner__n_step": 3, **PRIORITIZED, "augment__shift_pixels": 2}),
        ("graph", {"learner": "ddpg", "spec": CONTINUOUS}),
        ("compile", {"learner": "sac", "representation": "curl"}),
    ],
    ids=["dqn", "vectors", "sac"],
)
def test_captured_updates_are_the_same_wherever_frames_are(options, engine, monkeypatch):
    """On the GPU and in main memory.

    Bit for bit, and so are actions and later updates after new steps have overwritten old frames.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    found = []
    for storage in (None, torch.device("cpu")):
        agent, runner = trained(engine, 20, storage=storage, **options, precision="fp32")
        assert runner.mode == engine
        assert runner._graphs
        replay, spec = runner.replay, agent.spec
        skill = torch.zeros(replay.num_envs, 0, device=agent.device)
        random = torch.Generator().manual_seed(0)
        actions = []
        for step in range(2 * replay.rows):
            actions.append(runner.choose(skill).clone())
            runner.update(20 + step, 1)  # still reads the ring when the next frames are written
            frames = torch.rand((replay.num_envs, *spec.stored_shape), generator=random)
            frames = (frames * 255).byte() if spec.pixels else frames
            flags = torch.rand((3, replay.num_envs), generator=random).numpy()
            ended = flags[:2] < 0.1
            replay.add(actions[-1].cpu().numpy(), flags[2], *ended, frames.numpy(), skill)
        frames = replay.read_frames(torch.arange(len(replay.starts), device=agent.device))
        stored = {"frames": frames, "reward": replay.reward, "age": replay.age}
        found.append(snapshot({**agent.tensors(), **stored, "actions": torch.stack(actions)}))
    first, second = found
    assert not moved(first, second)


def test_captured_updates_draw_the_random_numbers_of_eager_ones():
    for learner in ("dqn", "ddpg"):
        options = {"learner": learner, "learner__n_step": 2, "precision": "fp32", "augment__shift_pixels": 2}
        assert_alike(trained("eager", 12, **options)[0], trained("graph", 12, **options)[0])


def test_a_reset_keeps_graphs_valid():
    """Captured updates after a reset are those of eager ones, without a new capture."""
    options = {"learner": "rainbow", "phase": "train", **PRIORITIZED, **QUIET, "reset__keep": 0.5}
    options |= {"representation": {"name": "spr", "projection": "head"}, "learner__n_step_end": 2}
    agents = {}
    for engine in ("eager", "graph"):
        agent, runner = trained(engine, 20, **options)
        graphs = dict(runner._graphs)
        torch.manual_seed(3)  # of the fresh weights, and of the updates after them
        reset(agent)
        for first in range(20, 40, 5):
            runner.update(first, 5)
        assert {key: runner._graphs[key] for key in graphs} == graphs
        agents[engine] = agent
    assert_alike(agents["eager"], agents["graph"])


@pytest.mark.parametrize(("learner", "heads"), [("sac", "auto"), ("ddpg", "actor")])
def test_a_fine_tuning_is_the_same_captured_and_eager(learner, heads, tmp_path, monkeypatch):
    """Warm-up, adaptation, the updates in which the actor waits, and those after."""
    monkeypatch.setattr(adapting, "CRITIC_SHARE", 0.5)
    config = tiny(device="cuda", precision="fp32", learner__name=learner)
    voidrl.pretrain(make_continuous, steps=20, out=tmp_path / "source", config=config)
    weights = {}
    for engine in ("eager", "graph"):
        changes = {"engine": engine, "finetune.heads": heads}
        agent = voidrl.finetune(
            tmp_path / "source", make_continuous, steps=60, out=tmp_path / engine, config=changes
        )
        weights[engine] = agent.tensors()
    for name, value in weights["eager"].items():
        assert torch.allclose(value.float(), weights["graph"][name].float(), atol=1e-5), name


def test_captured_updates_read_the_coefficient_of_the_moment():
    """A graph is captured with the weight of a bonus at the start, and launched with later ones."""
    options = {"phase": "train", "method": "rnd", "bonus": {"coefficient": 1.0, "decay": "linear"}, **QUIET}
    agents = {}
    for engine in ("eager", "graph"):
        agent, runner = trained(engine, 10, steps=100, **options)
        agent.set_progress(75)
        runner.metrics.flush()
        runner.update(10, 5)
        assert runner.metrics.flush()["bonus_coefficient"] == pytest.approx(0.25)
        agents[engine] = agent
    assert_alike(agents["eager"], agents["graph"])


@pytest.mark.parametrize(
    ("spec", "options", "slow"),
    [
        *((CONTINUOUS, URLB, slow) for slow in ("score", "learn", "choose")),
        (PIXELS, {"representation": "simclr"}, "learn"),
        (PIXELS_CONTINUOUS, {"learner": "sac", "representation": "learner"}, "score"),
    ],
    ids=["urlb-score", "urlb-learn", "urlb-choose", "simclr-learn", "learner-score"],
)
def test_overlapping_updates_equal_those_of_one_stream(spec, options, slow, monkeypatch):
    """Bit for bit, also where one of the streams is far behind the other."""
    options = {**options, **QUIET}
    delay(slow, monkeypatch)
    overlapped, engine = trained("graph", 40, spec=spec, acts=True, **options)
    assert engine._overlap._side is not None
    assert any(len(key) == 5 for key in engine._graphs)
    monkeypatch.setattr(overlap, "scoring_needs", lambda *args: "everything")
    alone, engine = trained("graph", 40, spec=spec, acts=True, **options)
    assert engine._overlap._side is None
    assert not moved(snapshot(alone.tensors()), overlapped.tensors())


@pytest.mark.parametrize("slow", ["train_representation", "_learner_batch"])
def test_a_loss_beside_the_rest_of_its_update_changes_nothing(slow, monkeypatch):
    """Bit for bit, also where one of the streams is far behind the other."""
    options = {"representation": {"name": "icm", "encoder.activation": "relu"}, "share_encoder": "stack"}
    options |= {"encoder_trainers": ("representation", "learner"), **QUIET}
    delay(slow, monkeypatch)
    beside, engine = trained("graph", 40, **options)
    assert engine._overlap._aside is not None
    monkeypatch.setattr(overlap, "can_be_concurrent", lambda agent: False)
    alone, engine = trained("graph", 40, **options)
    assert engine._overlap._aside is None
    assert not moved(snapshot(alone.tensors()), beside.tensors())


def test_bursts_equal_single_launches():
    options = {"learner": "sac", **QUIET}
    eager, _ = trained("eager", 45, **options)
    place, spec = pick_device("cuda"), PIXELS_CONTINUOUS
    agent = make_agent(spec, device=place, engine="graph", **options)
    replay = fill_replay(spec, storage=place, device=place)
    torch.cuda.manual_seed(7)
    engine = Engine(agent, replay, print)
    engine.update(0, 45)
    assert any(len(key) == MAX_BURST for key in engine._graphs)
    assert_alike(eager, agent, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("spec", "precision"),
    [(MIXED, "fp32"), (MIXED, "bf16"), (MASKED, "fp32")],
    ids=["mixed", "mixed-bf16", "masked"],
)
def test_mixed_and_masked_observations_are_read_as_on_the_cpu(spec, precision):
    """Stored and augmented ones; the bytes of numbers are the same, and masks hold under capture."""
    agent, engine = trained("graph", 6, spec=spec, **{**QUIET, "precision": precision})
    replay, home = engine.replay, fill_replay(spec)
    slots = torch.arange(8)
    on_cpu = Augment(agent.config.augment, spec).plain(home.frames_of(slots))
    with agent.precision():
        on_cuda = agent.augment.plain(replay.frames_of(slots.cuda()))
    torch.testing.assert_close(on_cuda.cpu(), on_cpu, rtol=0, atol=2e-3)
    numbers = spec.num_values * spec.frame_stack
    assert not numbers or torch.equal(on_cuda[:, -numbers:].cpu(), on_cpu[:, -numbers:])
    if not spec.masked:
        return
    allowed = action_mask(replay.latest(), spec).cpu()
    skill = torch.zeros(2, 0, device=agent.device)
    agent.learner.epsilon.fill_(0.5)
    drawn = torch.stack([engine.choose(skill).cpu() for _ in range(200)], 1)
    assert ("act",) in engine._graphs
    assert allowed.gather(1, drawn).all()


def test_what_moves_in_an_update_moves_under_capture():
    options = {"learner": "ddpg", "method__mean_momentum": 0.9, "precision": "fp32"}
    agent, engine = trained("graph", 10, **options)
    engine.metrics.flush()
    seen = []
    for update in range(10, 16):
        agent.learner.set_progress(update * 1000)  # a schedule, moved from outside
        engine.update(update, 1)
        row = engine.metrics.flush()
        state = agent.optimizers.tensors()
        steps = {value.item() for name, value in state.items() if name.endswith("step")}
        assert steps == {update + 1}  # the optimizers' own counters
        counts = agent.method.mean.count.item(), agent.method.mean.mean.item()
        seen.append((row["critic_loss"], row["reward_mean"], *counts, agent.learner.stddev.item()))
    for column in zip(*seen, strict=True):
        assert len(set(column)) > 1, column
    assert len({row[0] for row in seen}) == 6  # other samples and other weights each time


def test_the_last_stage_of_edl_begins_within_a_captured_graph():
    agent, engine = trained("graph", 10, learner="dqn", method="edl", precision="fp32")
    vae = agent.method.vae
    before = vae.codes.detach().clone()
    engine.update(10, 1)
    assert not torch.equal(vae.codes, before)
    engine.metrics.flush()
    agent.method.set_progress(60_000, 100_000)
    before = snapshot(parameters_of(vae))
    engine.update(11, 3)
    assert not moved(before, parameters_of(vae))  # a learning rate of 0
    assert engine.metrics.flush()["edl_stage"] == 2


URLB_LEARNER = {"spec": CONTINUOUS, "learner": URLB["learner"]}
COMPILED = {
    "dqn": {"learner__n_step": 2},
    "rainbow": {"learner": "rainbow", "phase": "train", "representation": "spr"},
    "sac": {"learner": "sac", "learner__n_step": 2},
    "urlb": {"spec": CONTINUOUS, **URLB},  # trunks, dynamics and running means
    "urlb cic": {**URLB_LEARNER, "method": "cic"},
    "urlb proto": {**URLB_LEARNER, "method": "proto"},
    "diayn": {"method": "diayn", "encoder_trainers": ("method", "learner")},
    "stack": {
        "representation": "simclr",
        "share_encoder": "stack",
        "representation__encoder__activation": "relu",
        "encoder_trainers": ("representation", "learner"),
    },
    "mixed": {"spec": MIXED, "learner__n_step": 2},
}


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_and_captured_updates_equal_eager_ones(case):
    options = {**COMPILED[case], **QUIET}
    assert_alike(trained("eager", 6, **options)[0], trained("compile", 6, **options)[0], 2e-3, 1e-3)


def test_the_learning_rate_of_the_representation_rises_under_capture():
    options = {"representation": "simclr", "representation__warmup_updates": 20, **QUIET}
    agent, runner = trained("graph", 10, **options)
    assert agent.representation_rate.item() == pytest.approx(10 / 20 * 1e-3)
    runner.update(10, 20)
    assert agent.representation_rate.item() == pytest.approx(1e-3)
    assert_alike(trained("eager", 10, **options)[0], trained("graph", 10, **options)[0])


def test_loading_and_moving_capture_again():
    options = {"learner": "sac", **QUIET}
    agent, engine = trained("graph", 10, **options)
    saved, state = snapshot(agent.tensors()), snapshot(agent.optimizers.tensors())
    torch.cuda.manual_seed(3)
    engine.update(10, 6)
    after = snapshot(agent.tensors())
    agent.load_tensors(saved)
    agent.load_optimizer_tensors(state)
    torch.cuda.manual_seed(3)
    engine.update(10, 6)
    for name, value in agent.tensors().items():
        torch.testing.assert_close(value, after[name], rtol=1e-3, atol=1e-4)
    agent.to("cpu")
    agent.to("cuda")
    before = snapshot(parameters_of(agent))  # detached: whoever holds on to gradients holds on to streams
    engine.update(16, 6)
    assert any(not torch.equal(before[name], value) for name, value in agent.named_parameters())


def test_a_method_that_reads_the_host_is_named_and_still_runs_eagerly(tmp_path, capsys):
    config = tiny(device="cuda", method=Reader)
    with pytest.raises(CaptureError, match=r"method 'test_engine:Reader' cannot be captured.*line.*'eager'"):
        voidrl.pretrain(MAZE, steps=30, out=tmp_path / "a", config={**config, "engine": "graph"})
    asked = voidrl.pretrain(MAZE, steps=30, out=tmp_path / "b", config={**config, "engine": "eager"})
    assert asked.steps == 30
    capsys.readouterr()
    assert voidrl.pretrain(MAZE, steps=30, out=tmp_path / "c", config=config).steps == 30
    assert capsys.readouterr().err.count("method 'test_engine:Reader' cannot be captured") == 1


LONG = {"steps": 10_000_000}


def test_a_long_run_is_compiled_and_a_short_one_is_not(capsys):
    assert trained("auto", 0, steps=1000)[1].mode == "graph"
    assert "engine: graph, since compiling pays from 200k updates on" in capsys.readouterr().out
    assert trained("auto", 0, **LONG)[1].mode == "compile"
    assert "engine: compile, since the run has" in capsys.readouterr().out


def test_a_long_run_that_cannot_be_captured_makes_every_update_eagerly():
    """The check of the first update was to be undone, for a compiled one to take its place."""
    options = {"method": Reader, **QUIET}
    eager, (fallen, engine) = trained("eager", 6, **options)[0], trained("auto", 6, **options, **LONG)
    assert (engine.mode, bool(engine._compiler)) == ("eager", False)
    assert_alike(eager, fallen)


def test_a_resumed_run_keeps_the_engine_of_its_checkpoint(tmp_path, capsys):
    config = tiny(device="cuda")
    voidrl.pretrain(MAZE, steps=30, out=tmp_path / "run", config=config)
    assert "engine: graph" in capsys.readouterr().err
    voidrl.resume(tmp_path / "run", steps=60)
    assert "engine: graph, as before" in capsys.readouterr().err


def test_actions_are_chosen_by_a_captured_pass():
    agent, engine = trained("graph", 6, learner="dqn", **QUIET)
    skill = torch.zeros(2, 0, device=agent.device)
    agent.learner.epsilon.fill_(0.0)
    for _ in range(5):
        chosen = engine.choose(skill).cpu().numpy()
        expected = agent.choose(engine.replay.latest(), skill, deterministic=True).cpu().numpy()
        assert (chosen == expected).all()
        frames = torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8).numpy()
        nothing = torch.zeros(2).numpy()
        engine.replay.add(chosen, nothing, nothing > 0, nothing > 0, frames, skill)
    agent.learner.epsilon.fill_(1.0)  # a schedule is seen
    assert len({tuple(engine.choose(skill).tolist()) for _ in range(20)}) > 1


RESUMED = {
    "dqn": (MAZE, {"learner": "dqn", "learner__n_step": 3, "augment__shift_pixels": 1}),
    "scales": (MAZE, {"intrinsic_normalization": "standardize"}),
    "sac": (make_continuous, {"learner": "sac"}),
}


def differences(run, other):
    """The largest difference of each tensor that two runs do not have in common bit for bit."""
    tensors, others = newest(run)[0], newest(other)[0]
    assert tensors.keys() == others.keys()
    pairs = {name: (tensor, others[name]) for name, tensor in tensors.items()}
    return {
        name: (a.double() - b.double()).abs().max().item() if a.shape == b.shape else float("inf")
        for name, (a, b) in pairs.items()
        if not torch.equal(a, b)
    }


@pytest.mark.parametrize(
    ("case", "engine"),
    [("scales", "graph"), ("dqn", "compile"), ("sac", "compile")],
)
def test_a_resumed_run_is_the_straight_one(case, engine, tmp_path, monkeypatch):
    """Bit for bit, also while other processes keep the GPU busy: nothing is chosen by how long it takes.

    cuDNN's own weight gradients may add up atomically, and then no two runs with the same seed agree.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    env, changes = RESUMED[case]
    config = tiny(env__num_envs=2, device="cuda", engine=engine, updates_per_step=2, **changes)
    config["replay"] = {"capacity_steps": 200, "device": "cuda"}
    config["log"] |= {"checkpoint_every_steps": 40, "eval_every_steps": 20, "eval_episodes": 2}

    def start(name, steps):
        return voidrl.pretrain(env, steps=steps, seed=3, out=tmp_path / name, config=config)

    start("straight", 80)
    start("resumed", 40)
    voidrl.resume(tmp_path / "resumed", steps=80)
    updates = [rows(tmp_path / name)[-1]["updates"] for name in ("straight", "resumed")]
    assert updates == [2 * (80 - 8)] * 2
    assert differences(tmp_path / "straight", tmp_path / "resumed") == {}
    assert rows(tmp_path / "straight") == rows(tmp_path / "resumed")


# Ranks

EXCHANGED = [
    ("dqn", {"phase": "train", **PRIORITIZED}),
    ("dqn", {"method": "proto", "intrinsic_normalization": "standardize"}),
    ("dqn", {"representation": {"name": "spr", "batch_norm": True}}),
    ("sac", {"representation": "curl", "phase": "train"}),
]


@pytest.mark.parametrize(
    ("learner", "pieces", "engine"),
    [*((*case, "graph") for case in EXCHANGED), (*EXCHANGED[-1], "compile")],
    ids=str,
)
def test_updates_that_exchange_by_nccl_are_captured_and_equal_eager_ones(learner, pieces, engine):
    """In a group of this process alone, in which everything is exchanged all the same."""
    options = {"learner": learner, **pieces, **QUIET}
    eager, _ = trained("eager", 8, **options)
    with group_of_one("nccl"):
        captured, runner = trained(engine, 8, **options)
        assert runner.mode == engine
        assert runner._graphs
        runner.close()  # graphs must not outlive what they exchange by
    assert_alike(eager, captured, *((2e-3, 1e-3) if engine == "compile" else ()))


def test_two_ranks_on_one_gpu_exchange_by_gloo_and_update_like_one(tmp_path):
    """Eagerly, and the engine says why."""
    (tmp_path / "one").mkdir()
    one = run_ranks(tmp_path / "one", CASES, 1, device="cuda")[0]
    first, second = run_ranks(tmp_path, (*CASES, "engine"), 2, device="cuda")
    errors = {}
    for case in CASES:
        for name, value in one[case].items():
            if name.startswith("grad "):
                largest = max(1.0, float(value.abs().max()))
                errors[case, name] = float((first[case][name] - value).abs().max()) / largest
            assert torch.equal(first[case][name], second[case][name]), f"{case}: {name}"
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] < 1e-3, f"{worst}: {errors[worst]}"
    said = first["engine"].pop("said")
    assert any("2 ranks exchange gradients by gloo" in line for line in said)
    assert second["engine"].pop("said") == said
    assert all(torch.equal(value, second["engine"][name]) for name, value in first["engine"].items())
