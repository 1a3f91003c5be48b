"""The memory of Atari games: shadows that follow or notice that they do not, and exact counts of states."""

import functools

import numpy as np
import pytest

from voidrl.config import EnvConfig
from voidrl.envs.coverage import StateCounter
from voidrl.envs.make import make_envs
from voidrl.envs.ram import MEASURES, Shadows, addresses_of, digests
from voidrl.errors import EnvironmentFailedError

ale_py = pytest.importorskip("ale_py")
from ale_py import roms  # noqa: E402
from ale_py.vector_env import AtariVectorEnv  # noqa: E402

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


class Recording:
    """A random policy's steps in N games, as the arguments of `Shadows.step`."""

    def __init__(self, rom, steps, seed=0, max_frames=108_000, full=False, envs=2):
        vector = AtariVectorEnv(
            rom,
            envs,
            stack_num=1,
            use_fire_reset=False,
            reward_clipping=False,
            life_loss_info=seed % 2 == 1,
            full_action_space=full,
            max_num_frames_per_episode=max_frames,
        )
        rng = np.random.default_rng(seed)
        _, info = vector.reset(seed=seed)
        self.start = info["episode_frame_number"].copy()
        self.steps, ended, lives = [], np.zeros(envs, bool), info["lives"]
        for _ in range(steps):
            actions = rng.integers(vector.single_action_space.n, size=envs)
            _, score, terminated, truncated, info = vector.step(actions)
            now = info["lives"].copy()
            self.steps.append((actions, ended, info["episode_frame_number"].copy(), now, score.copy()))
            lost = (now < lives) & (now > 0) & ~ended  # with life_loss_info `terminated` means that too
            ended, lives = ((terminated & ~lost) | truncated) & ~ended, now
        vector.close()
        self.fresh = np.array([step[1] for step in self.steps])  # (T, N)


@functools.cache
def recording(*arguments):
    return Recording(*arguments)


@functools.cache
def by_hand(rom, played, full=False, max_frames=108_000):
    """RAM after every step of emulators that are driven frame by frame here, (T, N, 128)."""
    found = np.zeros((*played.fresh.shape, 128), np.uint8)
    for i in range(played.fresh.shape[1]):
        emulator = ale_py.ALEInterface()
        emulator.setFloat("repeat_action_probability", 0.0)
        emulator.setInt("random_seed", 77)  # must not matter
        emulator.loadROM(roms.get_rom_path(rom))
        actions = emulator.getLegalActionSet() if full else emulator.getMinimalActionSet()
        over, frames = True, played.start[i]
        for t in range(-1, len(played.steps)):
            if over:
                frames = played.start[i] if t < 0 else played.steps[t][2][i]
                emulator.reset_game()
                while emulator.getEpisodeFrameNumber() < frames:
                    emulator.act(ale_py.Action.NOOP)
                over, first = False, frames
            else:
                for frame in range(frames, frames + 4):
                    emulator.act(actions[played.steps[t][0][i]])
                    over = emulator.game_over() or frame + 1 - first >= max_frames
                    if over:
                        break
                frames = frame + 1
            found[t, i] = emulator.getRAM()
    return found


def distinct(rom, rams):
    """Counts of (n, 128) by measure."""
    return {m: len(np.unique(rams[:, found], axis=0)) for m, found in addresses_of(rom).items()}


@pytest.fixture
def shadows_of():
    made = []

    def make(rom="breakout", num_envs=2, **options):
        made.append(Shadows(rom, num_envs, 60.0, **options))
        return made[-1]

    yield make
    for shadows in made:
        shadows.close()


# Lost lives and games over in breakout and berzerk; a start after frames of a menu in berzerk; no lives in
# pong; an episode's greatest length that is not a multiple of the four frames.
@pytest.mark.parametrize(
    ("rom", "steps", "seed", "max_frames", "full", "envs"),
    [
        ("breakout", 150, 9, 108_000, False, 2),
        ("berzerk", 135, 3, 108_000, True, 2),
        ("pong", 45, 0, 123, True, 1),
    ],
)
def test_shadows_are_emulators_driven_by_hand(rom, steps, seed, max_frames, full, envs, shadows_of):
    played = recording(rom, steps, seed, max_frames, full, envs)
    shadows, rams = shadows_of(rom, envs, full_actions=full), by_hand(rom, played, full, max_frames)
    for _ in range(2):  # after another reset, too
        shadows.reset(0, played.start)
        for step, ram in zip(played.steps, rams, strict=True):
            shadows.step(*step)
            assert np.array_equal(shadows.ram(), ram)
    assert played.fresh.any()


def test_a_shadow_that_went_astray_is_noticed(shadows_of):
    played, shadows = recording("breakout", 150, 9), shadows_of()

    def follow_another_game():
        shadows.reset(0, played.start)
        for t, (actions, *seen) in enumerate(played.steps):
            astray = (np.arange(2) == 1) & (t >= 40)  # one wrong action alone need not show
            shadows.step(np.where(astray, (actions + 1) % 4, actions), *seen)
        shadows.ram()

    noticed = r"game 1 .* at its step \d+: frame \d+, lives \d and score \d in the shadow, frame \d+, lives"
    with pytest.raises(EnvironmentFailedError, match=noticed):
        follow_another_game()


def rams(rom="breakout", seed=9, steps=150):
    played = recording(rom, steps, seed)
    return by_hand(rom, played)[~played.fresh]


def counted(memories, counter=None):
    counter = counter or StateCounter(addresses_of("breakout"))
    for measure, found in addresses_of("breakout").items():
        counter.add(measure, digests(memories[:, found]))
    return counter


def test_counting_resumes_from_a_saved_state():
    first, second = rams(), rams(seed=2, steps=40)
    whole = counted(first)
    saved, counts = whole.state(), whole.counts()
    assert counts == distinct("breakout", first)
    counted(second, whole)
    resumed = counted(second[:9])  # forgotten: it is not in what is loaded
    resumed.load(saved)
    assert resumed.counts() == counts
    counted(second, resumed)
    assert resumed.counts() == whole.counts() == distinct("breakout", np.concatenate([first, second]))


def test_merged_counters_count_each_state_once():
    mine, other = counted(rams()), counted(rams(seed=2, steps=40))
    mine.merge(other.state())
    assert mine.counts() == distinct("breakout", np.concatenate([rams(), rams(seed=2, steps=40)]))


def test_measures_of_games():
    assert [*addresses_of("alien")] == ["ram"]  # without annotations
    assert addresses_of("ms_pacman")["positions"] == [10, 16]
    assert addresses_of("montezuma_revenge")["positions"] == [42, 43, 3]  # in another room: another position
    assert [*addresses_of("video_pinball")] == ["ram", "variables"]
    assert [*addresses_of("pong")] == [*MEASURES]


def test_games_count_the_steps_that_are_to_be_counted():
    config = EnvConfig("atari/breakout?sticky=0.25", 2, count_states=True)
    envs, rng = make_envs(config, evaluation=True, true_state=True), np.random.default_rng(0)
    envs.reset(3)
    variables = [[], []]
    for t in range(60):
        envs.send(rng.integers(4, size=2))
        envs.recv(np.array([t >= 20, False]))
        variables[t >= 20].append(envs.true_state()[0])
    assert envs.counter.counts()["variables"] == len(np.unique(variables[1], axis=0))
    envs.close()
