"""How an agent acts, and what it takes over from another."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import CONTINUOUS, DISCRETE, NORMED, PIXELS, fill_replay, make_agent, moved, obs_of, snapshot

from voidrl.agent.rewards import batch_latents, encoded_pool
from voidrl.envs.spaces import read_spaces
from voidrl.errors import CheckpointError, SpaceError
from voidrl.types import EnvSpec

STACKED = EnvSpec((4,), False, 3, num_actions=3, raw_shape=(4,))
UNEVEN = {"action_low": (-3.0, 0.0), "action_high": (1.0, 10.0), "action_shape": (1, 2)}
SCALED = EnvSpec((4,), False, 1, num_actions=0, raw_shape=(4,), **UNEVEN)


@pytest.mark.parametrize(
    "spec", [DISCRETE, CONTINUOUS, PIXELS, STACKED, SCALED], ids=["d", "c", "hwc", "stack", "scaled"]
)
def test_acting_on_one_and_on_many(spec):
    agent = make_agent(spec)
    obs = obs_of(spec, 5)
    many = agent.act(obs)
    assert len(many) == 5
    for one, expected in zip(obs, many, strict=True):
        np.testing.assert_allclose(agent.act(one), expected, rtol=1e-4, atol=1e-5)
    assert np.array_equal(agent.act(obs), many)  # deterministic is deterministic
    assert agent.act(obs[:0]).shape[0] == 0
    if spec.discrete:
        assert many.dtype == np.int64
        assert np.ndim(agent.act(obs[0])) == 0
        assert set(agent.act(obs_of(spec, 300), deterministic=False).tolist()) == {0, 1, 2}  # ε = 1
    else:
        assert many.dtype == np.float32
        assert many.shape == (5, *spec.action_shape)
        assert not np.array_equal(agent.act(obs, deterministic=False), many)


def test_continuous_actions_fill_the_bounds_of_the_environment():
    agent = make_agent(SCALED)
    with torch.no_grad():
        agent.learner.actor[-1].weight.zero_()
        for bias, expected in ((100.0, [[1.0, 10.0]]), (-100.0, [[-3.0, 0.0]]), (0.0, [[-1.0, 5.0]])):
            agent.learner.actor[-1].bias.fill_(bias)
            np.testing.assert_allclose(agent.act(obs_of(SCALED, 1)[0]), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(DISCRETE, (5,)), (DISCRETE, (2, 2, 4)), (DISCRETE, ()), (PIXELS, (36, 36, 3)), (STACKED, (4,))],
)
def test_wrong_shapes_are_refused_in_one_sentence(spec, shape):
    with pytest.raises(
        SpaceError, match=r"^observation of shape \(.*\) cannot be acted on: expected \([\d, ]+\) or "
    ):
        make_agent(spec).act(np.zeros(shape, np.uint8 if spec.pixels else np.float32))


def test_acting_on_dictionaries_with_masks():
    space = spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "held": spaces.Discrete(3, start=1)})
    spec = read_spaces(space, spaces.MultiDiscrete([2, 3], start=[5, 0]), 1, masks="info").spec
    agent = make_agent(spec)
    one = {"at": np.array([0.5, -0.5]), "held": 3}
    allowed = np.array([0, 1, 0, 0, 1])  # of the first component 6, of the second 2
    action = agent.act(one, action_mask=allowed)
    assert action.tolist() == [6, 2]
    batch = {"at": np.zeros((4, 2)), "held": np.array([1, 2, 3, 1])}
    masks = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 1, 1, 0, 0]])
    assert agent.act(batch, action_mask=masks).tolist() == [[5, 0], [6, 1], [5, 2], [6, 0]]
    with pytest.raises(SpaceError, match=r"no action_mask was given: expected 5 values .* pass action_mask"):
        agent.act(one)


def test_acting_changes_no_buffer():
    agent, replay = make_agent(CONTINUOUS, **NORMED), fill_replay(CONTINUOUS)
    agent.update(replay)
    before = snapshot(agent.tensors())
    agent.act(obs_of(CONTINUOUS, 3))
    agent.act(obs_of(CONTINUOUS, 3), deterministic=False)
    agent.choose(replay.latest(), torch.zeros(2, 0), deterministic=False)
    batch_latents(agent, replay.batch(replay.sample(4), 1, 1.0), encoded_pool(agent, replay)).z_next  # noqa: B018
    assert not moved(before, agent.tensors())


# State


def test_an_agent_of_another_shape_is_refused():
    saved = make_agent(learner__hidden_dim=8).tensors()
    with pytest.raises(CheckpointError, match=r"does not fit this one: learner\.critic\.\S+ has shape"):
        make_agent(learner__hidden_dim=16).load_tensors(saved)
    other = make_agent(learner__hidden_dim=16, phase="finetune")
    with pytest.raises(CheckpointError, match=r"changes to the network, or pass finetune\.heads = 'random'"):
        other.load_pretrained(saved)
    make_agent(learner__hidden_dim=16, phase="finetune", finetune__heads="random").load_pretrained(saved)
