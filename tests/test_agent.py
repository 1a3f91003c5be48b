"""The agent: who trains what, with which reward, and what fine-tuning keeps."""

import pytest
import torch
from helpers import (
    CONTINUOUS,
    DISCRETE,
    LINE,
    NORMED,
    PIXELS,
    Place,
    fill_replay,
    line_replay,
    make_agent,
    moved,
    parameters_of,
    snapshot,
    watched_update,
)

from voidrl.engine.host_reads import HostReads
from voidrl.methods.base import Method
from voidrl.types import Loss

# Intrinsic rewards over n steps


def rewards_by_state(method, replay, **options):
    agent = make_agent(LINE, method=method, learner__batch_size=256, learner__discount=0.5, **options)
    batch, reward, _ = watched_update(agent, replay)
    rows = zip(batch.obs[:, 0].tolist(), reward.tolist(), batch.discount.tolist(), strict=True)
    return {state: (r, discount) for state, r, discount in rows}


# States 0 1 2 3† | 10 11 12 …: the step from 2 to 3 terminates. The intrinsic reward is the value of s'.
REWARDS = {  # by state: the reward of the learner, and the factor of the next state's value
    "summed": {
        0: (1 + 0.5 * 2 + 0.25 * 3, 0),  # bootstraps from a terminal state: nothing
        1: (2 + 0.5 * 3, 0),
        2: (3, 0),
        10: (11 + 0.5 * 12, 0.25),  # cut by the end of the data after two steps
        11: (12, 0.5),
    },
    "single": {0: (3, 0), 1: (3, 0), 2: (3, 0), 10: (12, 0.25), 11: (12, 0.5)},
    "the task's": {0: (1 + 5 + 25, 0), 1: (10 + 50, 0), 2: (100, 0), 10: (7 + 4, 0.25), 11: (8, 0.5)},
}


@pytest.mark.parametrize("variant", REWARDS)
def test_rewards_are_summed_up_to_a_termination(variant):
    replay = line_replay([0, 1, 2, 3, 10, 11, 12], rewards=[1, 10, 100, 0, 7, 8], terminated_at=(2,))
    options = {"single": {"learner__intrinsic_n_step": "single"}, "the task's": {"phase": "finetune"}}
    seen = rewards_by_state(Place, replay, learner__n_step=3, **options.get(variant, {}))
    assert seen == REWARDS[variant]


class Watching(Method):
    """Keeps the batches from which it was asked to learn."""

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        self.weight, self.batches, self.modes = torch.nn.Parameter(torch.zeros(())), [], []

    def losses(self, batch, latents):
        self.batches.append(batch)
        self.modes.append(self.training)
        yield Loss("method", self.weight.square(), {})

    def reward(self, batch, latents):
        self.modes.append(self.training)
        assert not torch.is_grad_enabled()
        return torch.ones_like(batch.reward)


def test_a_method_learns_from_single_steps_also_under_n_step_returns():
    agent = make_agent(LINE, method=Watching, learner__n_step=4)
    agent.update(line_replay(range(20)))
    (batch,) = agent.method.batches
    assert torch.equal(batch.next_obs, batch.obs + 1)
    assert agent.method.modes == [True, False, False, False, False]


# Fine-tuning

KEPT = ("encoder", "target_encoder", "stddev", "epsilon")  # of the learner, also with new heads
OF_RUN = ("task_scale", "learner.bounds.")  # of its rewards, whose scale is another one
TRUNKED = {"name": "ddpg", "trunk_dim": 8, "encoder": {"stack": "mlp", "hidden_dim": 0, "feature_dim": 0}}
SHARED = {"name": "dqn", "shared_hidden": True}
STREAMS = ("critic.advantage.0.", "critic.value.0.")
LAYERS = ("critic.trunk.", "actor.0.", "actor.1.")
HEADS = {  # the learner, `finetune.heads`, and what these keep or replace of its heads
    "dqn, all": ("dqn", "pretrained", "keep", ("",)),
    "dqn, none": ("dqn", "random", "keep", ()),
    "dqn, first layer": ("dqn", "first_layer", "keep", STREAMS),
    "shared, first layer": (SHARED, "first_layer", "keep", ("critic.hidden.0.",)),
    "sac, none": ("sac", "random", "keep", ()),
    "sac, actor": ("sac", "actor", "replace", ("critic.",)),
    "sac, first layer": ("sac", "first_layer", "keep", ("critic.layers.0.", "actor.0.")),
    "ddpg, actor": ("ddpg", "actor", "replace", ("critic.",)),
    "trunks, actor": (TRUNKED, "actor", "replace", ("critic.heads.",)),
    "trunks, first layer": (TRUNKED, "first_layer", "keep", LAYERS),
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_are_kept_or_new_and_all_else_is_kept(case):
    learner, heads, verb, parts = HEADS[case]
    discrete = learner in ("dqn", SHARED)
    spec, share = (DISCRETE, "nothing") if discrete else (CONTINUOUS, "all")
    options = {"learner": learner} | ({} if learner is TRUNKED else {"representation": "simclr"})
    options["share_encoder"] = "nothing" if learner is TRUNKED else share
    source, replay = make_agent(spec, seed=1, **options), fill_replay(spec)
    for i in range(4):
        source.update(replay, i % source.learner.period)
    agent = make_agent(spec, seed=2, phase="finetune", finetune__heads=heads, **options)
    fresh, kept = snapshot(agent.tensors()), snapshot(source.tensors())
    agent.load_pretrained(source.tensors())
    for name, value in agent.tensors().items():
        piece, _, part = name.partition(".")
        if part.startswith("target_critic.") and heads != "pretrained":
            continue
        is_named = part.startswith(parts)
        new = piece == "learner" and not part.startswith(KEPT) and is_named == (verb == "replace")
        new |= name.startswith(OF_RUN)
        assert torch.equal(value, (fresh if new else kept)[name]), name
    assert bool(moved(kept, agent.tensors()).difference(OF_RUN)) or heads == "pretrained", "nothing is new"
    if heads != "pretrained":  # the target is the online one's equal, not the lagging one
        critics = agent.learner.critic, agent.learner.target_critic
        assert not moved(*(dict(critic.named_parameters()) for critic in critics))
    agent.update(replay)
    assert not moved(kept, source.tensors())  # the source was left as it was


SHARING = {
    "stack": {"share_encoder": "stack"},
    "all": {"share_encoder": "all"},
    "learner's": {"representation": "spr"},
}


def test_the_learner_trains_an_encoder_that_no_other_loss_does():
    assert make_agent(PIXELS, representation="learner").encoder_trainers == {"learner"}
    assert make_agent(PIXELS, representation="fixed").encoder_trainers == set()


@pytest.mark.parametrize("sharing", SHARING)
def test_a_shared_encoder_is_tuned_at_the_encoders_rate_by_the_auxiliary_loss_too(sharing):
    agent = make_agent(
        PIXELS,
        phase="finetune",
        **{"representation": "simclr"} | SHARING[sharing],
        representation__auxiliary=True,
        representation__learning_rate=0.5,
        representation__encoder__activation="relu",
        finetune={"learning_rate": 0.3, "encoder_learning_rate": 0.1, "first_layer_learning_rate": 0.2},
    )
    assert agent.encoder_trainers == {"learner", "representation"}
    rates = {
        id(p): group["lr"]
        for optimizer in agent.optimizers.values()
        for group in optimizer.param_groups
        for p in group["params"]
    }
    encoder = {id(p) for p in agent.learner.encoder.parameters()}
    first = {id(p) for layer in agent.learner.first_layers for p in layer.parameters()}
    own = {id(p) for p in agent.representation.parameters()} - encoder - first
    assert encoder & {id(p) for p in agent.representation.encoder.parameters()}  # it is shared
    for name, parameter in agent.named_parameters():
        key = id(parameter)
        if key in rates:
            expected = 0.1 if key in encoder else 0.2 if key in first else 0.5 if key in own else 0.3
            assert rates[key] == expected, name
    assert {*rates} >= encoder | first
    stack = snapshot(dict(agent.learner.encoder.named_parameters()))
    agent.update(fill_replay(PIXELS))
    assert moved(stack, dict(agent.learner.encoder.named_parameters()))


# Capture


@pytest.mark.parametrize(
    ("learner", "phase"),
    [("dqn", "pretrain"), ("rainbow", "train"), ("sac", "finetune"), ("ddpg", "finetune")],
)
def test_no_update_reads_a_tensor_on_the_host(learner, phase):
    spec = DISCRETE if learner in ("dqn", "rainbow") else CONTINUOUS
    options = {"learner__n_step": 3, "learner__max_grad_norm": 1.0, "method__pool": 20, "phase": phase}
    agent, replay = make_agent(spec, learner=learner, representation="simclr", **options), fill_replay(spec)
    with HostReads() as reads:
        for index in range(agent.learner.period):
            agent.update(replay, index)
    assert reads.first is None


# Normalization


def test_a_frozen_encoder_keeps_its_normalization_too():
    agent = make_agent(phase="finetune", finetune__encoder_learning_rate=0, share_encoder="all", **NORMED)
    with torch.no_grad():
        for weight in agent.learner.encoder.parameters():
            weight += 0.3 * torch.randn_like(weight)
    before = snapshot(agent.learner.encoder.state_dict())
    for _ in range(3):
        agent.update(fill_replay())
    assert not moved(before, agent.learner.encoder.state_dict())


# The representation's learning rate


def test_the_learning_rate_of_the_representation_rises_from_zero():
    """By the same amount at each of the first four updates, and no more after them."""
    agent = make_agent(PIXELS, representation__warmup_updates=4, representation__learning_rate=1e-2)
    replay = fill_replay(PIXELS)
    for expected in (0.0025, 0.005, 0.0075, 0.01, 0.01):
        before = snapshot(parameters_of(agent.representation))
        agent.update(replay)
        after = parameters_of(agent.representation)
        largest = max((v - before[k]).abs().max().item() for k, v in after.items())
        assert agent.representation_rate.item() == pytest.approx(expected)
        assert largest <= 2 * expected  # Adam's steps are about as large as its learning rate
        assert largest > 0.5 * expected
