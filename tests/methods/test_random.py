"""The method that acts uniformly and learns nothing."""

import numpy as np
import pytest
import torch
from helpers import (
    CONTINUOUS,
    Chain,
    fill_replay,
    make_agent,
    moved,
    parameters_of,
    run_loop,
    snapshot,
    spec_of,
)


def test_nothing_is_trained(tmp_path):
    agent = make_agent(method="random")
    assert not agent.learns
    assert not list(agent.optimizers)
    assert agent.update(fill_replay()) == {}
    agent = make_agent(spec_of(Chain), method="random", steps=50, warmup_steps=0)
    before = snapshot(parameters_of(agent))
    loop = run_loop(tmp_path / "run", Chain, agent)
    assert loop.state.updates == 0
    assert not moved(before, parameters_of(agent))


def test_actions_are_uniform():
    agent = make_agent(method="random")
    for actions in (
        agent.act(np.ones((9000, 4))),
        agent.choose(torch.ones(9000, 4), torch.zeros(9000, 0), deterministic=True).numpy(),
    ):
        assert np.bincount(actions, minlength=3) == pytest.approx([3000] * 3, rel=0.1)
    agent = make_agent(CONTINUOUS, method="random")
    actions = agent.act(np.ones((9000, 4)))
    assert np.histogram(actions, 4, (-1, 1))[0] == pytest.approx([4500] * 4, rel=0.1)
