"""The "do not die" reward."""

from helpers import line_replay, make_agent, watch_losses

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
