"""What every learner must do, for all that the registry finds."""

import pytest
import torch
from helpers import (
    CONTINUOUS,
    DISCRETE,
    Constant,
    Five,
    Point,
    config,
    fill_replay,
    make_agent,
    moved,
    snapshot,
)

import voidrl
from voidrl.config import registry
from voidrl.errors import ConfigError
from voidrl.learners.base import Learner, Loss, OnPolicyLearner

LEARNERS = [
    name
    for name in registry.names("learner")
    if not issubclass(registry.find("learner", name), OnPolicyLearner)  # whose updates are on rollouts
]


def spec_for(learner):
    return DISCRETE if registry.find("learner", learner).actions == "discrete" else CONTINUOUS


@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize("learner", LEARNERS)
def test_the_methods_reward_is_what_the_target_uses(learner, n_step):
    targets = {}
    for method in (Constant, Five):
        spec = spec_for(learner)
        options = {"learner__n_step": n_step, "learner__discount": 0.5, "intrinsic_scale": 1.0}
        agent = make_agent(spec, learner=learner, method=method, **options)
        replay = fill_replay(spec, end_every=10**9)
        torch.manual_seed(1)
        slots = replay.sample(16)
        steps = replay.segment(slots, n_step, 0.5).weights.sum(1).mean()  # Σ γ^i, shorter at the end
        torch.manual_seed(1)
        targets[method] = agent.update(replay)["q_target"]
    torch.testing.assert_close(targets[Five] - targets[Constant], 4 * steps)


@pytest.mark.parametrize("learner", LEARNERS)
def test_terminal_states_are_worth_their_reward_alone(learner):
    agent = make_agent(spec_for(learner), learner=learner)
    replay = fill_replay(spec_for(learner))
    batch = replay.batch(replay.sample(16), 1, 0.99)._replace(discount=torch.zeros(16))
    loss = next(agent.learner.losses(batch, torch.full((16,), 7.0), 0))
    assert loss.metrics["q_target"] == 7


@pytest.mark.parametrize("learner", LEARNERS)
def test_actions_have_the_right_shape_type_and_range(learner):
    spec = spec_for(learner)
    agent = make_agent(spec, learner=learner)
    for deterministic in (True, False):
        action = agent.learner.act(torch.randn(5, 4), torch.zeros(5, 0), deterministic=deterministic)
        if spec.discrete:
            assert action.shape == (5,)
            assert action.dtype == torch.int64
            assert ((action >= 0) & (action < spec.num_actions)).all()
        else:
            assert action.shape == (5, spec.action_dim)
            assert action.dtype == torch.float32
            assert (action.abs() <= 1).all()
    before = torch.get_rng_state()
    same = [agent.learner.act(torch.ones(3, 4), torch.zeros(3, 0), deterministic=True) for _ in range(2)]
    assert torch.equal(*same)
    assert torch.equal(before, torch.get_rng_state())  # not even drawn from


class Skilled(Constant):
    skill_dim = 3


@pytest.mark.parametrize("learner", LEARNERS)
def test_actor_and_critic_see_the_skill(learner):
    spec = spec_for(learner)
    agent = make_agent(spec, learner=learner, method=Skilled)
    obs, features = torch.randn(50, 4), torch.randn(50, 8)
    one, other = 3 * torch.randn(2, 50, 3)
    action = agent.learner.act(obs, one, deterministic=True)
    assert not torch.equal(action, agent.learner.act(obs, other, deterministic=True))
    given = () if spec.discrete else (action,)
    assert not torch.equal(
        agent.learner.critic(features, one, *given), agent.learner.critic(features, other, *given)
    )


@pytest.mark.parametrize("learner", LEARNERS)
def test_each_loss_moves_its_own_optimizers_parameters_and_targets_only_follow(learner):
    agent = make_agent(spec_for(learner), learner=learner, phase="train")
    replay = fill_replay(spec_for(learner))
    names = {parameter: name for name, parameter in agent.named_parameters()}
    for index in range(agent.learner.period):
        batch = replay.batch(replay.sample(64), 1, 0.99)
        for loss in agent.learner.losses(batch, batch.reward, index):
            before = snapshot(agent.tensors())
            agent.optimizers.minimize([loss.optimizer], loss.value)
            owned = {names[p] for p in agent.optimizers.parameters(loss.optimizer)}
            assert moved(before, agent.tensors()) == owned
        before = snapshot(agent.tensors())
        agent.learner.after_update(index)
        assert all(".target_" in name for name in moved(before, agent.tensors()))


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_target_follows_by_tau_every_few_updates(learner):
    options = {"learner__target_tau": 0.25, "learner__target_every_updates": 3}
    agent = make_agent(spec_for(learner), learner=learner, phase="train", **options)
    assert agent.learner.period % 3 == 0
    replay = fill_replay(spec_for(learner))
    targets = [name for name, _ in agent.learner.named_parameters() if name.startswith("target_")]
    assert any(name.startswith("target_critic.") for name in targets)
    for index in range(agent.learner.period):
        before = snapshot(dict(agent.learner.named_parameters()))
        agent.update(replay, index)
        after = dict(agent.learner.named_parameters())
        for name in targets:
            goal = after[name.removeprefix("target_")] if index % 3 == 0 else before[name]
            torch.testing.assert_close(after[name], before[name] + 0.25 * (goal - before[name]))


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_wrong_kind_of_actions_is_refused_in_one_sentence(learner):
    wrong = CONTINUOUS if spec_for(learner) is DISCRETE else DISCRETE
    with pytest.raises(ConfigError, match=rf"learner '{learner}' cannot .* takes \w+ actions; use (dqn|sac)"):
        make_agent(wrong, learner=learner)


class Plain(Learner):
    """As small as a learner can be: the base's constructor, targets and period."""

    actions = "discrete"

    def groups(self):
        return {"critic": [*self.encoder.parameters()]}

    def act(self, obs, skill, *, deterministic):
        return self.features(obs).argmax(-1) % self.spec.num_actions

    def losses(self, batch, reward, index):
        loss = (self.features(batch.obs).mean(1) - reward).square().mean()
        yield Loss("critic", loss, {"critic_loss": loss.detach()})


def test_a_learner_needs_no_constructor_of_its_own():
    agent, replay = make_agent(learner=Plain), fill_replay()
    assert agent.learner.period == 1
    before = snapshot(agent.tensors())
    agent.update(replay)
    assert moved(before, agent.tensors())
    assert not hasattr(agent.learner, "critic")


@pytest.mark.parametrize(
    ("learner", "options", "steps"),
    [
        ("ddpg", {"n_step": 1, "stddev_decay_steps": 800, "encoder": {"hidden_dim": 32}}, 1000),
        ("sac", {}, 450),
    ],
)
def test_a_point_is_steered_to_its_goal(learner, options, steps, tmp_path):
    options = {"name": learner, "discount": 0.9, "learning_rate": 1e-3, **options}
    changes = config(learner=options, updates_per_step=0.75, warmup_steps=100)
    agent = voidrl.train(Point, steps=steps, seed=1, out=tmp_path / "run", config=changes)
    idle = voidrl.pretrain(Point, "random", steps=10, out=tmp_path / "random", config=config())
    trained, by_chance = (voidrl.evaluate(a, Point, episodes=10).mean_return for a in (agent, idle))
    assert trained > 16 > 11 > by_chance  # of 20
