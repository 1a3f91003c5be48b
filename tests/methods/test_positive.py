"""The "do not die" reward."""

from helpers import line_replay, make_agent, points, watch_losses

from voidrl.types import EnvSpec

LINE = EnvSpec((1,), False, 1, num_actions=2, raw_shape=(1,))


def test_one_for_every_step_that_does_not_end_the_episode():
    replay = line_replay(range(6), terminated_at=(2,))  # steps 0, 1, 2†; 4 begins after the reset
    agent = make_agent(LINE, method="positive", learner__batch_size=64)
    seen = {}
    watch_losses(
        agent, lambda batch, reward: seen.update(zip(batch.obs[:, 0].tolist(), reward.tolist(), strict=True))
    )
    agent.update(replay)
    assert seen == {0.0: 1.0, 1.0: 1.0, 2.0: 0.0, 4.0: 1.0}


def test_a_policy_learns_to_stay_alive():
    """Action 1 ends the episode, action 0 never does, and all states look alike."""
    actions = points(200, 1).gt(0).long()
    ends = actions[:, 0].nonzero()[:, 0].tolist()
    replay = line_replay([0] * 201, terminated_at=ends, actions=actions.numpy())
    agent = make_agent(LINE, method="positive", learner__learning_rate=1e-2, learner__batch_size=64)
    for _ in range(100):
        agent.update(replay)
    assert agent.act([0.0]) == 0
