"""The engine: whichever way updates run, the same ones run, and what cannot run that way is said."""

import pytest
import torch
from helpers import CONTINUOUS, CPU, DISCRETE, PIXELS, fill_replay, make_agent, moved, snapshot
from tiny_runs import MAZE, tiny

import voidrl
from voidrl.engine.engine import MAX_BURST, MAX_GRAPHS, WARMUP_RUNS, Engine
from voidrl.engine.host_reads import HostReads, diagnose_host_read
from voidrl.engine.mode import engine_for
from voidrl.errors import CaptureError, ConfigError
from voidrl.methods.base import Method
from voidrl.presets.presets import preset_values
from voidrl.training.build import build_config

LEARNERS = {"dqn": DISCRETE, "rainbow": DISCRETE, "sac": CONTINUOUS, "ddpg": CONTINUOUS}


class Reader(Method):
    """Reads a tensor on the host, as no captured method may."""

    def reward(self, batch, latents):
        return batch.reward * (2.0 if batch.reward.mean().item() > 0 else 1.0)


class Recorded(Engine):
    """An engine that captures, with lists of kinds in place of CUDA graphs."""

    def __init__(self, agent):
        super().__init__(agent, fill_replay(DISCRETE), print)
        self._captures, self.ran, self.launches = True, [], []

    def _forget(self):
        captures, self._captures = getattr(self, "_captures", False), False
        super()._forget()
        self._captures = captures

    def _run(self, *kinds):
        self.ran += kinds

    def _warm_up(self, kind, run):
        run()
        self._runs[kind] += 1

    def _launch(self, key, run):
        self._graphs.setdefault(key, None)
        self.launches.append(key)
        run()


def say_nothing(text):
    raise AssertionError(text)


@pytest.mark.parametrize("learner", LEARNERS)
def test_an_engine_runs_the_very_updates_of_the_agent(learner):
    spec = LEARNERS[learner]
    options = {"learner": learner, "learner__target_every_updates": 3, "engine": "eager"}
    alone, run, replay = make_agent(spec, **options), make_agent(spec, **options), fill_replay(spec)
    torch.manual_seed(1)
    losses = [alone.update(replay, i % alone.learner.period)["critic_loss"].item() for i in range(7)]
    torch.manual_seed(1)
    engine = Engine(run, replay, say_nothing)
    engine.update(0, 4)
    engine.update(4, 3)
    assert not moved(alone.tensors(), run.tensors())
    assert engine.metrics.flush()["critic_loss"] == pytest.approx(sum(losses) / 7)


@pytest.mark.parametrize("learner", ["rainbow", "sac"])
def test_an_update_can_be_undone_without_a_trace(learner):
    """As with `compile` the one that checks for host reads, or a resumed run would not be exact."""
    spec = LEARNERS[learner]
    options = {
        "learner": learner,
        "engine": "eager",
        "method": {"name": "rnd", "hidden_dim": 8, "rep_dim": 4},
    }
    plain, undone = make_agent(spec, **options), make_agent(spec, **options)
    replay, rows = fill_replay(spec), []
    for agent in (plain, undone):
        torch.manual_seed(1)
        engine = Engine(agent, replay, say_nothing)
        for update in range(3):
            if agent is undone:
                before = snapshot(agent.tensors())
                restore = engine._remember()
                engine._run(agent.learner.variant(update))
                assert moved(before, agent.tensors())
                restore()
                assert not moved(before, agent.tensors())
            engine.update(update, 1)
        rows.append(engine.metrics.flush())
    assert not moved(plain.tensors(), undone.tensors())
    assert not moved(plain.optimizers.tensors(), undone.optimizers.tensors())
    assert rows[0] == rows[1]


@pytest.mark.parametrize("calls", [[1] * 40, [50], [3, 40, 1, 33], [7] * 30])
def test_every_update_runs_once_and_in_order_however_they_are_bundled(calls):
    agent = make_agent(CONTINUOUS, learner="sac", learner__target_every_updates=3)
    engine, done = Recorded(agent), 0
    for count in calls:
        engine.update(done, count)
        done += count
    assert engine.ran == [agent.learner.variant(i) for i in range(done)]
    assert all(len(key) <= MAX_BURST for key in engine.launches)
    assert len(engine._graphs) <= MAX_GRAPHS + len(set(engine.ran))


def test_loading_and_moving_forget_what_was_captured():
    agent = make_agent()
    engine = Recorded(agent)
    for change in (
        lambda: agent.load_tensors(snapshot(agent.tensors())),
        lambda: agent.load_optimizer_tensors(snapshot(agent.optimizers.tensors())),
        lambda: agent.to(CPU),
    ):
        engine.update(0, WARMUP_RUNS + 1)
        assert engine._graphs
        change()
        engine.update(0, 1)
        assert not engine._graphs


# What is said


def test_graph_without_cuda_is_an_error_that_leaves_nothing_behind(tmp_path):
    with pytest.raises(
        ConfigError, match=r"engine = 'graph' cannot be used: the networks are on cpu.*'eager'"
    ):
        voidrl.pretrain(MAZE, steps=20, out=tmp_path / "run", config=tiny(engine="graph"))
    assert not (tmp_path / "run").exists()


def test_a_run_can_resume_with_another_engine(tmp_path, capsys):
    voidrl.pretrain(MAZE, steps=20, out=tmp_path / "run", config=tiny())
    with pytest.raises(ConfigError, match="engine = 'graph' cannot be used"):
        voidrl.resume(tmp_path / "run", steps=40, engine="graph")
    with pytest.raises(ConfigError, match="engine = 'fast' cannot be used: expected 'auto' or 'eager'"):
        voidrl.resume(tmp_path / "run", steps=40, engine="fast")
    capsys.readouterr()
    assert voidrl.resume(tmp_path / "run", steps=40, engine="eager").steps == 40
    assert "engine:" not in capsys.readouterr().err


def test_what_cannot_be_captured_is_seen():
    x = torch.ones(3)
    for read in (
        lambda: x.sum().item(),
        lambda: bool(x[0]),
        lambda: x[x > 0],
        lambda: x.nonzero(),
        lambda: x.unique(),
        lambda: x.to("meta"),  # stands for any other device
    ):
        with HostReads() as reads:
            read()
        assert reads.first is not None
    with HostReads() as reads:
        torch.where(x > 0, x, -x).cumsum(0).clone()[x > 0] = 0.0
    assert reads.first is None


def test_a_method_that_reads_the_host_is_named_with_its_line_and_the_remedy():
    agent, replay = make_agent(method=Reader), fill_replay()
    with HostReads() as reads:
        agent.update(replay)
    sentence = diagnose_host_read(agent, reads.first, reads.what)
    assert "method 'test_engine:Reader' cannot be captured" in sentence
    assert "test_engine.py, line" in sentence
    assert "batch.reward.mean().item()" in sentence
    assert "engine = 'eager'" in sentence


def test_whether_that_is_an_error_depends_on_whose_choice_it_was():
    said = []
    asked = Engine(make_agent(engine="eager"), fill_replay(), said.append)
    with pytest.raises(CaptureError, match="the sentence"):
        asked._give_up("the sentence")
    left_to_us = Engine(make_agent(), fill_replay(), said.append)
    said.clear()
    left_to_us._give_up("the sentence")
    assert said == ["engine: eager, since the sentence"]
    assert left_to_us.mode == "eager"
    left_to_us.update(0, 1)


# Chosen by `engine = "auto"`


@pytest.mark.parametrize(
    ("preset", "steps", "engine"),
    [
        ("urlb-states", None, "compile"),
        ("atari-fast", None, "compile"),
        ("urlb-states", 100_000, "graph"),
        ("maze-demo", None, "graph"),
    ],
)
def test_long_runs_are_compiled(preset, steps, engine):
    changes = {} if steps is None else {"steps": steps}
    spec = CONTINUOUS if "urlb" in preset else DISCRETE
    assert engine_for(build_config(spec, [preset_values(preset), changes]))[0] == engine


@pytest.mark.parametrize("before", ["graph", "compile"])
def test_a_resumed_run_keeps_its_engine_however_long_it_becomes(before):
    for steps in (1000, 10_000_000):
        assert engine_for(build_config(DISCRETE, [{"steps": steps}]), before) == (before, "as before")


def test_rollouts_are_not_compiled():
    config = build_config(CONTINUOUS, [{"method": "mepol", "steps": 10_000_000}])
    assert engine_for(config)[0] == "graph"


# Compiled


@pytest.fixture
def traced(monkeypatch):
    """torch.compile as far as it goes without a C++ compiler: graphs are traced and differentiated."""
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_(function, backend="aot_eager", dynamic=False)
    )
    yield
    torch._dynamo.reset()


def test_compiled_updates_are_the_same_updates(traced):
    spec, options = CONTINUOUS, {"learner": "ddpg", "learner__n_step": 2, "representation": "icm"}
    options |= {"learner__trunk_dim": 8, "learner__intrinsic_n_step": "single"}
    options |= {"representation__batch_size": 0, "method__normalize": "distance_mean"}
    plain, compiled = make_agent(spec, **options), make_agent(spec, engine="compile", **options)
    replay = fill_replay(spec)
    for agent in (plain, compiled):
        torch.manual_seed(1)
        Engine(agent, replay, print).update(0, 4)
    for name, value in plain.tensors().items():
        torch.testing.assert_close(compiled.tensors()[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for owner in (*compiled.modules(), replay):  # nothing stays compiled after an update
        assert not [name for name, value in vars(owner).items() if callable(value) and "_fn" in name]
        assert not {"critic_loss", "encode", "spread", "sample"} & vars(owner).keys()


def test_compiled_auxiliary_losses_train_the_encoder(traced):
    """The gradients of the first update, and so the whole update, are those without compiling."""
    spec = PIXELS
    options = {"learner": "dqn", "representation": "spr", "phase": "train", "precision": "fp32"}
    moments = []
    for engine in ("eager", "compile"):
        agent = make_agent(spec, engine=engine, **options)
        torch.manual_seed(1)
        Engine(agent, fill_replay(spec), print).update(0, 1)
        # Adam's first moments are a tenth of the gradients; without a gradient there are none.
        moments.append({k: v for k, v in agent.optimizers.tensors().items() if k.endswith("/exp_avg")})
    plain, compiled = moments
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(compiled[name], value, rtol=1e-3, atol=1e-5 * scale + 1e-9, msg=name)


# IdleTimer


def test_a_run_tells_how_long_its_learner_waited(tmp_path):
    voidrl.pretrain(MAZE, steps=40, out=tmp_path / "run", config=tiny())
    shares = [row["time/learner_waits"] for row in voidrl.runs.metrics.read_metrics(tmp_path / "run")]
    assert all(0 <= share < 1 for share in shares)
    assert shares[0] == 0 < shares[-1]  # without updates there is nothing that could wait


def test_bf16_is_a_choice_and_losses_stay_exact():
    agent, replay = make_agent(PIXELS, precision="bf16", representation="simclr"), fill_replay(PIXELS)
    seen = {}

    def look(module, args, output):
        seen[type(module).__name__] = output.dtype

    for module in agent.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.LayerNorm):
            module.register_forward_hook(look)
    metrics = agent.update(replay)
    assert torch.bfloat16 in seen.values()
    assert all(value.dtype == torch.float32 for value in metrics.values())
    assert all(p.dtype == torch.float32 for p in agent.parameters())
