"""voidrl's `atari/` environments and replay against the same games played by hand, step by step."""

from collections import Counter

import numpy as np
import pytest
import torch
from hand_atari import HandAtari, assert_same_picture

from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.replay import Replay

CPU = torch.device("cpu")
STACK = 4


class Beside:
    """voidrl's environments, and the same games by hand: every step of the ones is checked with the others.

    `steps[i]` are the transitions of environment i as the replay must have them: the stack before, action,
    reward, 0 where nothing follows, the stack after, and whether a life or an episode was over with it.
    """

    def __init__(self, env_id, num_envs=1, evaluation=False, seed=0, **hand):
        rom = env_id.removeprefix("atari/").partition("?")[0]
        self.envs = make_envs(
            EnvConfig(id=env_id, num_envs=num_envs, frame_stack=STACK), evaluation=evaluation
        )
        self.replay = Replay(self.envs.spec, num_envs, 4000, 0, CPU, CPU)
        self.hands = [HandAtari(rom, **hand) for _ in range(num_envs)]
        self.evaluation, self.num_envs = evaluation, num_envs
        self.rng = np.random.default_rng(seed)
        self.stacks, self.noops = [[]] * num_envs, []
        self.ended, self.score = np.zeros(num_envs, bool), np.zeros(num_envs)
        self.steps, self.seen = [[] for _ in self.hands], Counter()
        frames, info = self.envs.reset(seed)
        assert frames.shape == (num_envs, 1, 84, 84)
        assert frames.dtype == np.uint8
        for i in range(num_envs):
            self.begin(i, frames, info)
        self.replay.reset(frames)
        self.check_stacks()

    def begin(self, i, frames, info):
        hand = self.hands[i]
        assert_same_picture(frames[i, 0], hand.reset(info["episode_frame_number"][i]))
        assert info["lives"][i] == hand.lives
        self.stacks[i] = [frames[i, 0]] * STACK  # a game begins with copies of its first frame
        self.noops.append(hand.noops)

    def step(self, action=None):
        if action is None:
            action = self.rng.integers(0, self.envs.spec.num_actions, self.num_envs)
        result = self.envs.step(action)
        for i in range(self.num_envs):
            terminated, truncated, reward, score = self.follow(i, action[i], result)
            assert result.terminated[i] == terminated
            assert result.truncated[i] == truncated
            assert result.reward[i] == reward
            assert result.score[i] == score
            assert result.ended[i] == self.ended[i]
        assert result.reward.dtype == result.score.dtype == np.float32
        nothing = torch.zeros(self.num_envs, 0)
        self.replay.add(action, *result[1:4], result.frames, nothing, ended=result.ended)
        self.check_stacks()
        return result

    def follow(self, i, action, result):
        """Plays the step by hand; returns what voidrl must say of it."""
        if self.ended[i]:  # this step only reset the game
            self.ended[i] = False
            self.begin(i, result.frames, result.info)
            self.seen["reset"] += 1
            return False, False, 0, 0
        hand, before = self.hands[i], self.hands[i].lives
        played = hand.step(action)
        assert_same_picture(result.frames[i, 0], played.frame)
        assert result.info["episode_frame_number"][i] == hand.frame_number
        assert result.info["lives"][i] == played.lives
        self.ended[i] = played.over or played.capped
        lost = played.lives < before and not played.over
        terminated = played.over or (lost and not self.evaluation)
        reward = played.score if self.evaluation else min(max(played.score, -1), 1)
        stack = [*self.stacks[i][1:], result.frames[i, 0]]  # it goes on across a lost life
        discount = 0 if terminated else 1
        self.steps[i].append((self.stacks[i], action, reward, discount, stack, played.capped or terminated))
        self.stacks[i] = stack
        self.score[i] += played.score
        self.seen += Counter(lost=lost, over=played.over, capped=played.capped, big=abs(played.score) > 1)
        return terminated, played.capped, reward, played.score

    def check_stacks(self):
        assert np.array_equal(self.replay.latest().numpy(), np.array(self.stacks))

    def check_replay(self, n=1, discount=0.9):
        """All that the replay holds, as n-step transitions."""
        slots = self.replay.starts[: len(self.replay)]
        assert len(slots) == sum(map(len, self.steps))
        for i, steps in enumerate(self.steps):
            mine = slots[slots % self.num_envs == i]
            for first in range(0, len(steps), 256):  # in parts, as the stacks of all would fill the memory
                batch = self.replay.batch(mine[first : first + 256], n, discount)
                runs = [run_of(steps, j, n) for j in range(first, first + len(batch.reward))]
                assert np.array_equal(batch.obs.numpy(), np.array([run[0][0] for run in runs]))
                assert np.array_equal(batch.next_obs.numpy(), np.array([run[-1][4] for run in runs]))
                assert batch.action.tolist() == [run[0][1] for run in runs]
                returns = [sum(discount**k * step[2] for k, step in enumerate(run)) for run in runs]
                assert batch.reward.tolist() == pytest.approx(returns)
                after = [discount ** len(run) * run[-1][3] for run in runs]
                assert batch.discount.tolist() == pytest.approx(after)


def run_of(steps, first, n):
    """Up to n steps, no further than the end of a life, a game or the data."""
    run = []
    for step in steps[first : first + n]:
        run.append(step)
        if step[5]:
            break
    return run


@pytest.fixture
def beside():
    made = []

    def make(*args, **kwargs):
        made.append(Beside(*args, **kwargs))
        return made[-1]

    yield make
    for pair in made:
        pair.envs.close()


# --- whole games ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("game", "num_envs", "lives"), [("breakout", 2, 5), ("ms_pacman", 1, 3)])
def test_a_whole_game_in_training_and_the_start_of_the_next(beside, game, num_envs, lives):
    pair = beside(f"atari/{game}", num_envs)
    while pair.seen["reset"] == 0:
        pair.step()
    for _ in range(30):
        pair.step()
    assert pair.seen["over"] >= 1
    assert pair.seen["lost"] >= lives - 1
    assert pair.seen["capped"] == 0
    assert (pair.seen["big"] > 0) == (game != "breakout")
    assert all(0 <= noops <= 30 for noops in pair.noops)
    pair.check_replay()
    pair.check_replay(n=3)


def test_evaluation_plays_the_real_game(beside):
    pair = beside("atari/ms_pacman", evaluation=True, seed=1)
    rewards = []
    while pair.seen["over"] == 0:
        result = pair.step()
        rewards.append(result.reward[0])
        assert result.terminated[0] == result.ended[0]
    assert pair.seen["lost"] == 2
    assert max(rewards) >= 10  # not clipped
    assert sum(rewards) == pair.score[0]
    pair.check_replay()


def test_a_game_that_needs_buttons_to_begin(beside):
    pair = beside("atari/name_this_game?max_frames=24", max_frames=24)
    assert pair.hands[0].start_frames > 100
    for _ in range(8):
        pair.step()
    assert pair.seen["capped"] == 1  # neither these frames nor no-ops count


# --- ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_frames", [40, 43])
def test_the_cap_truncates(beside, max_frames):
    pair = beside(f"atari/ms_pacman?max_frames={max_frames}", max_frames=max_frames)
    for _ in range(3 * 12):
        result = pair.step()
        numbers = [hand.frames for hand in pair.hands]
        assert all((n == max_frames) == end for n, end in zip(numbers, result.truncated, strict=True))
        assert not result.terminated.any()
    assert pair.seen["capped"] >= 3
    assert pair.seen["reset"] >= 2
    pair.check_replay()
    pair.check_replay(n=3)


def frames_until(event):
    """Frames that breakout by hand takes to lose a life, or all, with the random actions of `Beside`."""
    hand, rng, over, lives = HandAtari("breakout"), np.random.default_rng(0), False, 5
    hand.reset(0)
    while not over and not (event == "lost" and lives < 5):
        _, _, lives, over, _ = hand.step(rng.integers(0, len(hand.actions), 1)[0])
    return hand.frames


def test_a_life_lost_in_the_step_that_reaches_the_cap(beside):
    """It is terminal, as any lost life: nothing is to be expected after it, though the cap is what resets."""
    cap = frames_until("lost")
    pair = beside(f"atari/breakout?noop_max=0&max_frames={cap}", max_frames=cap)
    while not pair.ended[0]:
        result = pair.step()
    assert result.info["lives"][0] == 4
    assert result.truncated[0]
    assert result.terminated[0]
    for _ in range(3):
        pair.step()
    assert pair.seen["reset"] == 1
    pair.check_replay(n=3)


def test_a_game_that_ends_at_the_cap_has_ended(beside):
    cap = frames_until("over")
    pair = beside(f"atari/breakout?noop_max=0&max_frames={cap}", max_frames=cap)
    while not pair.ended[0]:
        result = pair.step()
    assert result.terminated[0]
    assert not result.truncated[0]


def test_a_life_is_lost_also_when_the_game_goes_on_with_none(beside):
    """In atlantis the last one is number 0."""
    pair = beside("atari/atlantis?noop_max=0")
    while pair.hands[0].lives > 0:
        result = pair.step(np.zeros(1, np.int64))
    assert result.info["lives"][0] == 0
    assert result.terminated[0]
    assert not result.ended[0]


# --- options ----------------------------------------------------------------------------------------------


def test_all_eighteen_actions_and_no_noops(beside):
    options = "full_actions=true&noop_max=0&max_frames=60"
    pair = beside(f"atari/breakout?{options}", full_actions=True, max_frames=60)
    assert pair.envs.spec.num_actions == 18
    for action in range(18):
        for _ in range(2):
            pair.step(np.array([action]))
    assert pair.noops == [0, 0, 0]
