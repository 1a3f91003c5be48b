"""Random actions, and the "do not die" reward."""

import numpy as np
import pytest
import torch
from helpers import (
    CONTINUOUS,
    Chain,
    line_replay,
    make_agent,
    moved,
    parameters_of,
    run_loop,
    seen_as,
    snapshot,
    spec_of,
    watch_losses,
)


def test_nothing_is_trained(tmp_path):
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


LINE = seen_as((1,))


def test_one_for_every_step_that_does_not_end_the_episode():
    replay = line_replay(range(6), terminated_at=(2,))  # steps 0, 1, 2†; 4 begins after the reset
    agent = make_agent(LINE, method="positive", learner__batch_size=64)
    seen = {}
    watch_losses(
        agent, lambda batch, reward: seen.update(zip(batch.obs[:, 0].tolist(), reward.tolist(), strict=True))
    )
    agent.update(replay)
    assert seen == {0.0: 1.0, 1.0: 1.0, 2.0: 0.0, 4.0: 1.0}
