"""Parts of the agent that change how it learns: several views, annealed returns, resets, weight decay."""

import math

import pytest
import torch
from helpers import (
    CONTINUOUS,
    CPU,
    DISCRETE,
    PIXELS,
    PIXELS_CONTINUOUS,
    Chain,
    Constant,
    fill_replay,
    line_replay,
    make_agent,
    moved,
    run_loop,
    shake,
    small_method,
    snapshot,
    spec_of,
    watch_losses,
    watched_update,
)

from voidrl.agent.renewal import reset
from voidrl.learners.dqn import DQN
from voidrl.representations.spr import SPR
from voidrl.training import trainer

BBF = {"learner__n_step": 10, "learner__n_step_end": 3, "learner__anneal_updates": 20}
BBF |= {"learner__discount": 0.97, "learner__discount_end": 0.997}

# Several views


def test_the_target_of_two_views_is_their_mean(monkeypatch):
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)  # no noise in policies
    spec, size = PIXELS_CONTINUOUS, 16
    agent = make_agent(spec, phase="train", learner="sac", learner__views=2, augment__shift_pixels=4)
    shake(agent.learner, 0.1)  # or online and target networks would be the same
    before = make_agent(spec, phase="train", learner="sac", learner__views=2)
    before.load_tensors(agent.tensors())
    batch, reward, metrics = watched_update(agent, fill_replay(spec))
    assert len(batch.obs) == len(batch.next_obs) == len(reward) == len(batch.weight) == 2 * size
    for given in (batch.action, batch.reward, batch.discount, reward):
        assert torch.equal(given[:size], given[size:])
    assert not torch.equal(batch.obs[:size], batch.obs[size:])
    assert not torch.equal(batch.next_obs[:size], batch.next_obs[size:])

    net, targets, values = before.learner, [], []
    for rows in (slice(0, size), slice(size, None)):  # one view at a time
        obs, after, action, none = (x[rows] for x in (batch.obs, batch.next_obs, batch.action, batch.skill))
        with torch.no_grad():
            mean, log_std = net.actor(net.encoder(after)).chunk(2, -1)
            log_std = -10 + 6 * (log_std.tanh() + 1)
            density = -log_std - 0.5 * math.log(2 * math.pi) - (1 - mean.tanh() ** 2).log()
            q = net.target_critic(net.target_encoder(after), none, mean.tanh()).amin(0)
            value = q - net.log_alpha.exp() * density.sum(1)
            values.append(net.critic(net.encoder(obs), none, action))
        targets.append(reward[rows] + batch.discount[rows] * value)
    assert not torch.allclose(*targets)
    target = (targets[0] + targets[1]) / 2
    loss = sum((value - target).square().mean(1).sum() for value in values) / 2
    torch.testing.assert_close(metrics["q_target"], target.mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["critic_loss"], loss, rtol=1e-4, atol=1e-5)


def stored_errors(agent):
    """What an update stores as priorities if the errors of the learner's rows are 0, 1, 2 …"""
    replay, seen, losses = fill_replay(), [], agent.learner.losses
    weight = torch.linspace(0.5, 1, 16)

    class Priorities:
        def update(self, slots, error):
            assert slots.shape == error.shape == (16,)
            seen.append(error)

        def draw(self, batch_size):
            assert batch_size == 16  # the learner's alone: everything else is sampled uniformly
            return torch.arange(batch_size), weight

    def numbered(batch, reward, index):
        assert torch.equal(batch.weight, weight.repeat(agent.config.learner.views))
        for loss in losses(batch, reward, index):
            yield loss._replace(priority=torch.arange(float(len(loss.priority))))

    agent.learner.losses, replay.priorities = numbered, Priorities()
    agent.update(replay)
    return seen[0]


@pytest.mark.parametrize("options", [{"phase": "train"}, {"method": small_method("apt", pool=40)}])
def test_priorities_are_averaged_over_views(options):
    agent = make_agent(learner__views=2, replay__priority_exponent=0.5, **options)
    assert torch.equal(stored_errors(agent), torch.arange(16.0) + 8)


@pytest.mark.parametrize(("raises", "own", "added"), [(False, 0, 0), (True, 0, 5), (True, 4, 0)])
def test_priorities_may_include_the_auxiliary_loss_of_the_same_transitions(raises, own, added, monkeypatch):
    monkeypatch.setattr(SPR, "raises_priority", raises)
    agent = make_agent(
        phase="train",
        representation="spr",
        representation__batch_size=own,
        replay__priority_exponent=0.5,
    )
    loss, returned = agent.representation.loss, []
    agent.representation.loss = lambda views: returned.append(loss(views)) or returned[0]
    errors = stored_errors(agent)
    auxiliary = returned[0][0].detach()
    assert auxiliary.mean() > 0.01
    expected = torch.arange(16.0)
    torch.testing.assert_close(errors, expected + added * auxiliary if added else expected)


# Annealed n and γ


def test_n_and_gamma_are_annealed_log_linearly_and_again_after_a_reset():
    agent, seen = make_agent(**BBF), {}
    agent.update(fill_replay())
    assert agent.horizon.updates == 1
    for start in ("first", "reset"):
        reset(agent)
        for update in range(23):
            n, discount = agent.horizon.now()
            seen[start, update] = (int(n), float(discount))
            agent.horizon.after_update()
    for start in ("first", "reset"):
        assert seen[start, 0] == (10, pytest.approx(0.97, abs=1e-6))
        assert seen[start, 5] == (7, pytest.approx(1 - 0.03 * 0.1**0.25, abs=1e-6))  # 10 · 0.3^¼ = 7.4
        assert seen[start, 10] == (5, pytest.approx(1 - math.sqrt(0.03 * 0.003), abs=1e-6))  # √30 = 5.5
        assert seen[start, 20] == seen[start, 22] == (3, pytest.approx(0.997, abs=1e-6))
    assert make_agent(learner__n_step=3).horizon.is_annealed is False


def test_the_learner_is_given_annealed_returns():
    spec = line_replay([0, 1]).spec
    agent = make_agent(
        spec,
        phase="train",
        learner__batch_size=64,
        learner__n_step=4,
        learner__n_step_end=1,
        learner__discount=0.5,
        learner__discount_end=0.75,
        learner__anneal_updates=2,
    )
    replay = line_replay(range(9), rewards=[1, 10, 100, 1000, 0, 0, 0, 0])
    seen = []
    watch_losses(agent, lambda batch, reward: seen.append((batch, reward)))
    for _ in range(3):
        agent.update(replay)
    half = 1 - math.sqrt(0.5 * 0.25)  # n: 4, 2, 1
    for (batch, reward), value, last in zip(
        seen, (1 + 5 + 25 + 125, 1 + 10 * half, 1), ((4, 0.5**4), (2, half**2), (1, 0.75)), strict=True
    ):
        first = int((batch.obs[:, 0] == 0).nonzero()[0])
        assert float(reward[first]) == pytest.approx(value, rel=1e-5)
        found = (float(batch.next_obs[first, 0]), float(batch.discount[first]))
        assert found == (last[0], pytest.approx(last[1], rel=1e-5))


# Resets


def trained_agent(spec=DISCRETE, updates=3, **options):
    agent = make_agent(spec, reset__keep=0.8, **options)
    replay = fill_replay(spec, skill_dim=agent.method.skill_dim)
    for i in range(updates):
        agent.update(replay, i % agent.learner.period)
    return agent


def part_of(agent, name):
    """`method`; `encoder`, or whatever else is not replaced as a whole, and its target; or `head`."""
    piece, child = name.split(".")[:2]
    if piece == "method":
        return "method"
    return "encoder" if child in getattr(agent, piece).resets_partly else "head"


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (DISCRETE, {"phase": "train", "learner__encoder__hidden_dim": 8}),
        (CONTINUOUS, {"phase": "train", "learner": "sac", "learner__encoder__hidden_dim": 8}),
        (CONTINUOUS, {"learner": "ddpg", "representation": "simclr", "method": small_method("rnd")}),
        (PIXELS, {"representation": "spr"}),
        (DISCRETE, {"representation": "spr", "representation__momentum": 0.5, "phase": "train"}),
        (
            DISCRETE,
            {"representation": "simclr", "share_encoder": "all", "method": small_method("disagreement")},
        ),
    ],
    ids=lambda value: value.get("representation", "none") if isinstance(value, dict) else "",
)
def test_a_reset_perturbs_the_encoder_and_replaces_the_heads_in_place(spec, options):
    agent = trained_agent(spec, **options)
    trained = {id(p) for p in agent.optimizers.all_parameters()}
    before, places = snapshot(agent.tensors()), {n: t.data_ptr() for n, t in agent.tensors().items()}
    moments = snapshot(agent.optimizers.tensors())
    torch.manual_seed(11)
    fresh = dict(type(agent)(agent.spec, agent.config, CPU).named_parameters())
    torch.manual_seed(11)
    reset(agent)

    seen = set()
    for name, tensor in agent.named_parameters():
        online = agent.get_parameter(name.replace(".target_", "."))
        part = part_of(agent, name) if id(online) in trained else "untrained"
        seen.add((part, "target_" in name))
        if part in ("method", "untrained"):
            assert torch.equal(tensor, before[name]), name
        elif part == "encoder":
            assert torch.equal(tensor, torch.lerp(before[name], fresh[name], 1 - 0.8)), name
            torch.testing.assert_close(tensor, 0.8 * before[name] + 0.2 * fresh[name])
        else:
            assert torch.equal(tensor, fresh[name]), name
    assert {("encoder", False), ("head", False), ("head", True)} <= seen
    assert places == {n: t.data_ptr() for n, t in agent.tensors().items()}

    names = {id(p): name for name, p in agent.named_parameters()}
    for key, value in agent.optimizers.tensors().items():
        optimizer, index, _ = key.split("/")
        name = names[id(agent.optimizers.parameters(optimizer)[int(index)])]
        if part_of(agent, name) == "head":
            assert not value.any(), key
        else:
            assert torch.equal(value, moments[key]), key
        assert moments[key].any() or not value.any()
    assert any(moment.any() for moment in moments.values())
    replay = fill_replay(spec, skill_dim=agent.method.skill_dim)
    assert all(torch.isfinite(value).all() for value in agent.update(replay).values())


def test_a_reset_spares_what_is_frozen_and_schedules():
    agent = trained_agent(phase="finetune", finetune__encoder_learning_rate=0, learner__encoder__hidden_dim=8)
    agent.learner.epsilon.fill_(0.25)
    before = snapshot(agent.tensors())
    reset(agent)
    changed = moved(before, agent.tensors())
    assert any(name.startswith("learner.critic.") for name in changed)
    assert not any("encoder" in name for name in changed)
    assert float(agent.learner.epsilon) == 0.25


def test_the_loop_resets_at_multiples_of_updates_but_not_in_the_last_steps(tmp_path, monkeypatch):
    at = []
    agent = make_agent(
        spec_of(Chain),
        phase="train",
        steps=30,
        warmup_steps=10,
        updates_per_step=3,
        reset__every_updates=10,
        reset__last_steps=8,
        learner__n_step_end=3,
    )
    now = []

    def watched(agent):
        reset(agent)
        at.append((now[-1].state.updates, now[-1].state.steps))
        assert agent.horizon.updates == 0

    update = trainer.OffPolicyTrainer.update
    monkeypatch.setattr(trainer, "reset", watched)
    monkeypatch.setattr(
        trainer.OffPolicyTrainer, "update", lambda self: (now.append(self.run), update(self))[1]
    )
    finished = run_loop(tmp_path / "run", Chain, agent)
    assert finished.state.updates == 60
    # The tenth update is made in step 14, then every tenth in steps 17, 20 and 24, one of the last 8.
    assert at == [(10, 14), (20, 17), (30, 20)]
    assert agent.horizon.updates == 30


# Weight decay


def test_the_agents_weights_decay_except_biases():
    options = {"learner": "sac", "learner__weight_decay": 0.1, "learner__encoder__hidden_dim": 8}
    agent = make_agent(CONTINUOUS, phase="train", **options)
    groups = [group for adam in agent.optimizers.values() for group in adam.param_groups]
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    found = {name: decays[id(p)] for name, p in agent.learner.named_parameters() if id(p) in decays}
    spared = {n for n, p in agent.learner.named_parameters() if n.endswith(".bias") or p.ndim < 2}
    assert found == {name: 0.0 if name in spared else 0.1 for name in found}
    assert {name.partition(".")[0] for name in found.keys() - spared} >= {"encoder", "critic", "actor"}
    plain = make_agent(phase="train")
    assert all(type(adam) is torch.optim.Adam for adam in plain.optimizers.values())
    assert all(type(adam) is torch.optim.AdamW for adam in agent.optimizers.values())


# Scale of the intrinsic reward


class Bounded(DQN):
    has_bounded_values = True


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1),
        ({"intrinsic_scale": 3.0}, 3),
        ({"intrinsic_scale": "horizon", "learner__discount": 0.9}, 0.1),
        ({"learner": Bounded, "learner__discount": 0.9}, 0.1),
        ({"learner": Bounded, "learner__discount": 0.9, "learner__discount_end": 0.99}, 0.01),
        ({"learner": Bounded, "intrinsic_scale": 2.0}, 2),
        ({"phase": "train", "intrinsic_scale": 3.0}, None),
    ],
)
def test_the_intrinsic_reward_is_scaled(options, expected):
    replay = fill_replay()
    agent = make_agent(method=Constant, **options)
    batch, reward, metrics = watched_update(agent, replay)
    if expected is None:
        assert torch.equal(reward, batch.reward)
    else:
        torch.testing.assert_close(reward, torch.full((16,), float(expected)))
        assert metrics["reward_mean"] == 1  # as the method gave it
